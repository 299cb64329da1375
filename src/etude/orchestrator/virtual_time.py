"""An event loop with virtual time, which jumps to the next timer when all tasks wait: simulated hours take seconds.

It is for simulated and recorded workers. What waits for a socket or a process does so under `real_time`.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock starts at 0 and jumps to the next timer."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.outside = 0  # tasks under `real_time`
        super().__init__(_Impatient(self))

    def time(self) -> float:
        return self.now_s


class _Impatient(selectors.DefaultSelector):
    """Waits for no timer: it says that the time has passed."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if self._loop.outside:
            began_s = monotonic()
            found = super().select(timeout)
            self._loop.now_s += monotonic() - began_s
            return found
        # Without a timer nothing will happen by itself: a thread or a signal must wake the loop.
        found = super().select(None if timeout is None else 0)
        if not found and timeout is not None:
            self._loop.now_s += max(0.0, timeout)
        return found


@contextmanager
def real_time() -> Iterator[None]:
    """Virtual time passes no faster than real time meanwhile; another event loop is not affected."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        yield
        return
    loop.outside += 1
    try:
        yield
    finally:
        loop.outside -= 1


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
