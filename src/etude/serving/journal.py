"""Work that is done in groups: what arrives while a group is in work is the next one.

All of a group share what is costly about it, such as a sync of the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

T = TypeVar("T")
Done = Sequence[Exception | None]
"""For each item of a group, what went wrong."""
LARGEST_GROUP = 256


class Groups(Generic[T]):
    """Of one event loop. `begin` prepares a group on it, and returns what a thread then does about it."""

    def __init__(self, begin: Callable[[Sequence[T]], Callable[[], Done]], thread: Executor) -> None:
        self._begin, self._thread = begin, thread
        self._waiting: list[tuple[T, asyncio.Future[None]]] = []
        self._is_busy = False

    async def add(self, item: T) -> None:
        """Return when the item's group is done; raises what went wrong with it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((item, done))
        if not self._is_busy:
            self._is_busy = True
            loop.call_soon(self._next, loop)  # with those that come meanwhile
        await done

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        group, self._waiting = self._waiting[:LARGEST_GROUP], self._waiting[LARGEST_GROUP:]
        futures = [done for _, done in group]
        try:
            work = loop.run_in_executor(self._thread, self._begin([item for item, _ in group]))
        except Exception as error:  # each of the group gets it
            self._end(loop, futures, [error] * len(group))
            return
        work.add_done_callback(lambda ended: self._end(loop, futures, _found(ended, len(group))))

    def _end(self, loop: asyncio.AbstractEventLoop, group: Sequence[asyncio.Future[None]], found: Done) -> None:
        if self._waiting:
            loop.call_soon(self._next, loop)
        else:
            self._is_busy = False
        for done, error in zip(group, found, strict=True):
            if done.done():  # its request was cancelled
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)


def _found(ended: asyncio.Future[Done], items: int) -> Done:
    if ended.cancelled():
        return [RuntimeError("the server ends")] * items
    error = ended.exception()
    return ended.result() if error is None else [error if isinstance(error, Exception) else RuntimeError(error)] * items
