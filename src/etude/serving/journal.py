"""Decisions on disk before they are answered: those that arrive while a group is written are the next one.

A group is searched for personal data as one text, and shares one sync of the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from etude.contracts.errors import EtudeError
from etude.contracts.serving import OpenRow, ServingState
from etude.contracts.trajectory import Trajectory

LARGEST_GROUP = 256
"""Maximum number of rows that are written together."""


class _Waiting(NamedTuple):
    trajectory: Trajectory
    written: asyncio.Future[None]


class Journal:
    """Of one event loop. Rows are encoded and redacted on it, and written by a thread of its own."""

    def __init__(
        self, state: ServingState, clean: Callable[[Sequence[Trajectory]], Sequence[bytes | EtudeError]]
    ) -> None:
        self._state, self._clean = state, clean
        self._waiting: list[_Waiting] = []
        self._busy = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="etude-journal")

    async def append(self, trajectory: Trajectory) -> None:
        """Return when it is on disk; StoreError if it cannot be written, EventError if it cannot be sent."""
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        self._waiting.append(_Waiting(trajectory, written))
        if not self._busy:
            self._busy = True
            loop.call_soon(self._begin, loop)  # with those that are decided meanwhile
        await written

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write what waits."""
        group, self._waiting = self._waiting[:LARGEST_GROUP], self._waiting[LARGEST_GROUP:]
        rows, kept = [], list[_Waiting]()
        for one, body in zip(group, self._clean([each.trajectory for each in group]), strict=True):
            if isinstance(body, EtudeError):
                _settle([one], body)
            else:
                rows.append(OpenRow(one.trajectory.id, one.trajectory.time, body))
                kept.append(one)
        if rows:
            writing = loop.run_in_executor(self._thread, self._state.open, rows)
            writing.add_done_callback(lambda done: self._end(loop, kept, done.exception()))
        else:
            self._end(loop, [], None)

    def _end(self, loop: asyncio.AbstractEventLoop, group: Sequence[_Waiting], error: BaseException | None) -> None:
        if self._waiting:
            loop.call_soon(self._begin, loop)
        else:
            self._busy = False
        _settle(group, error)


def _settle(group: Sequence[_Waiting], error: BaseException | None) -> None:
    for _, written in group:
        if written.done():  # its request was cancelled
            continue
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)
