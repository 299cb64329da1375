"""The time that work on a thread takes by itself: on a busy machine the clock also counts what others do meanwhile."""

from __future__ import annotations

import resource
from time import monotonic, thread_time
from typing import NamedTuple


class Moment(NamedTuple):
    """When something began on this thread."""

    clock_s: float
    cpu_s: float
    waits: int
    """How often the thread has waited for something."""


def now() -> Moment:
    return Moment(monotonic(), thread_time(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw)


def own_s(began: Moment) -> float:
    """Seconds since then, if the thread has waited for anything, else those that it has computed: for the rest others
    had the processor."""
    ended = now()
    waited = ended.waits > began.waits
    return ended.clock_s - began.clock_s if waited else ended.cpu_s - began.cpu_s
