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
        self.now_s = 0.0
        super().__init__(_Impatient(self))

    def time(self) -> float:
        return self.now_s


class _Impatient(selectors.DefaultSelector):
    """Waits for no timer: it says that the time has passed."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        # Without a timer nothing will happen by itself: a thread or a signal must wake the loop.
        found = super().select(None if timeout is None else 0)
        if not found and timeout is not None:
            self._loop.now_s += max(0.0, timeout)
        return found


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
