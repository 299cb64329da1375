"""An event loop with virtual time, which jumps to the next timer when all tasks wait: simulated hours take seconds.

It is for simulated and recorded workers only, not for tasks that wait for a socket or a process.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock starts at 0 and jumps to the next timer."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_Impatient(self))

    def time(self) -> float:
        return self._now_s

    def pass_time(self, seconds: float) -> None:
        self._now_s += seconds


class _Impatient(selectors.DefaultSelector):
    """Waits for no timer: it says that the time has passed."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:  # nothing will ever happen by itself: a thread or a signal must wake the loop
            return super().select(timeout)
        found = super().select(0)
        if not found and timeout > 0:
            self._loop.pass_time(timeout)
        return found


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
