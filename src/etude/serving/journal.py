"""Work that is done in groups: what arrives while a group is in work is the next one.

All of a group share what is costly about it, such as a sync of the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")
Done = Sequence[Exception | None]
"""For each item of a group, what went wrong."""
LARGEST_GROUP = 256
QUICK_S = 0.01
"""Mean seconds up to which the event loop does the work of a group itself: a thread has to be given Python's lock
several times, and a loop with requests to answer gives it late."""
LATEST, BLIP_S = 0.2, 0.04
"""Weight of the latest group in this mean, and what it counts at most: one slow sync is not a slow disk."""
NOT_QUICK_S = 1.0
"""Seconds for which a thread does it, after the mean was longer."""


class Writer:
    """Does the work of groups one after the other: those who write to a file would wait for each other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="etude-journal")
        self._in_thread = 0
        self._mean_s = self._slow_until = 0.0

    def is_quick(self) -> bool:
        """Whether the event loop may do it: the thread has nothing to do, and the disk was quick lately."""
        return not self._in_thread and monotonic() >= self._slow_until

    def now(self, work: Callable[[], Done], items: int) -> Done:
        began = monotonic()
        try:
            return work()
        except Exception as error:  # each of the group gets it
            return [error] * items
        finally:
            self._took(monotonic() - began)

    def _took(self, seconds: float) -> None:
        self._mean_s += LATEST * (min(seconds, BLIP_S) - self._mean_s)
        if self._mean_s > QUICK_S:
            self._mean_s, self._slow_until = 0.0, monotonic() + NOT_QUICK_S

    def begin(self, work: Callable[[], Done], items: int, end: Callable[[Done], None]) -> None:
        """In the thread; `end` is called on the event loop."""
        loop = asyncio.get_running_loop()
        self._in_thread += 1

        def ended(found: asyncio.Future[Done]) -> None:
            self._in_thread -= 1
            end(_found(found, items))

        loop.run_in_executor(self._thread, work).add_done_callback(ended)


class Groups(Generic[T]):
    """Of one event loop. `begin` prepares a group on it, and returns what is then to be done about it: by a thread, or
    if `quick` by the event loop while that takes next to nothing."""

    def __init__(self, begin: Callable[[Sequence[T]], Callable[[], Done]], writer: Writer, *, quick: bool) -> None:
        self._begin, self._writer, self._quick = begin, writer, quick
        self._waiting: list[tuple[T, asyncio.Future[None]]] = []
        self._is_busy = False

    async def add(self, item: T) -> None:
        """Return when the item's group is done; raises what went wrong with it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((item, done))
        if not self._is_busy:
            self._is_busy = True
            loop.call_soon(self._next)  # with those that come meanwhile
        await done

    def _next(self) -> None:
        group, self._waiting = self._waiting[:LARGEST_GROUP], self._waiting[LARGEST_GROUP:]
        futures = [done for _, done in group]

        def end(found: Done) -> None:
            self._end(futures, found)

        try:
            work = self._begin([item for item, _ in group])
            if not (self._quick and self._writer.is_quick()):
                self._writer.begin(work, len(group), end)
                return
        except Exception as error:  # each of the group gets it
            end([error] * len(group))
            return
        end(self._writer.now(work, len(group)))

    def _end(self, group: Sequence[asyncio.Future[None]], found: Done) -> None:
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
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
