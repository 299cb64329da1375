"""The stream of what happens: jobs, steps of releases, notices and operations, as server-sent events.

What happens is found by looking at what is stored, since other processes do it too; only while somebody listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from threading import Lock
from time import monotonic
from typing import Any

import msgspec

from etude.contracts.errors import RequestError
from etude.contracts.jobs import Job, JobQueue
from etude.contracts.live import Happened, LiveState
from etude.contracts.release import Entry
from etude.loop.events import step_id
from etude.loop.notify import Notices

KEPT = timedelta(days=7)
"""Age at which events are removed."""
LOOK_S = 0.5
"""Seconds between two looks."""
EXPIRE_S = 3600.0
"""Seconds between two removals of old events."""
HEARTBEAT_S = 15.0
"""Seconds of silence after which a comment shows that the server is there."""
MAX_STREAM_S = 3600.0
"""Seconds after which a stream ends: its client continues it, with a key that is looked at again."""
RETRY_MS = 2000
MAX_STREAMS = 50
JOBS = 200
"""Jobs that are looked at, the newest ones."""
GAP = b'{"detail": "events that are older than a week, or of another installation, are not sent: read the lists again"}'

Source = Callable[[datetime], Iterable[Happened]]
"""Function that finds what happened since a time."""


class Live:
    """The streams of this process."""

    def __init__(self, state: LiveState, sources: Sequence[Source], *, clock: Callable[[], datetime]) -> None:
        self.state, self._sources, self._clock = state, sources, clock
        self._seen: set[str] = set()
        self._looked = self._expired = float("-inf")
        self._turn = Lock()
        self._ending: set[asyncio.Event] = set()

    def end(self) -> None:
        """End all streams; called in the thread of the server."""
        for event in self._ending:
            event.set()

    async def stream(self, after: int | None, *, may_go_on: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Server-sent events after this one, or from now on. RequestError if too many listen."""
        if len(self._ending) >= MAX_STREAMS:
            raise RequestError(f"{MAX_STREAMS} streams are open: end one of them", status=503, wait_s=10)
        oldest, newest = await asyncio.to_thread(self._look)
        # Not in the generator: a refusal has to come before the first byte.
        return self._frames(newest if after is None else after, oldest, newest, may_go_on)

    async def _frames(
        self, after: int, oldest: int, newest: int, may_go_on: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        ending = asyncio.Event()
        self._ending.add(ending)
        began = spoke = monotonic()
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            if not oldest - 1 <= after <= newest:
                after = oldest - 1
                yield _frame(after, "gap", GAP)
            while not ending.is_set() and monotonic() - began < MAX_STREAM_S and may_go_on():
                for event in await asyncio.to_thread(self._read, after):
                    after, spoke = event.number, monotonic()
                    yield _frame(event.number, event.kind, event.body)
                if monotonic() - spoke >= HEARTBEAT_S:
                    spoke = monotonic()
                    yield b": alive\n\n"
                try:
                    await asyncio.wait_for(ending.wait(), LOOK_S)
                except TimeoutError:
                    continue
        finally:
            self._ending.discard(ending)

    def _read(self, after: int) -> list[Any]:
        self._look()
        return list(self.state.events(after=after))

    def _look(self) -> tuple[int, int]:
        """Publish what happened since the last look; the numbers of the oldest and newest event."""
        with self._turn:
            if monotonic() - self._looked > LOOK_S / 2:
                since = self._clock() - KEPT
                found = [one for source in self._sources for one in source(since) if one.key not in self._seen]
                self.state.publish(sorted(found, key=lambda one: one.time))
                if monotonic() - self._expired > EXPIRE_S:
                    self.state.expire(since)
                    self._expired = monotonic()
                self._seen.update(one.key for one in found)
                self._looked = monotonic()
        return self.state.span()


def _frame(number: int, kind: str, body: bytes) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, kind.encode(), body)


class JobEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="job"):
    """A job as it is now: an earlier event of it that was missed is contained."""

    job: Job


class StepEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="release"):
    """A step of a slot's record: registered, started, advanced, promoted, rolled back …"""

    slot: str
    step: Entry


def job_source(queue: Callable[[], JobQueue], clock: Callable[[], datetime]) -> Source:
    """A job is an event whenever its state, its stage or its progress by a percent changed."""

    def found(since: datetime) -> Iterator[Happened]:
        for job in queue().jobs(limit=JOBS):
            if (job.ended or clock()) >= since and job.created >= since:
                stage = (job.state, job.stage, job.attempts, job.cancel_requested, int(100 * job.progress.share))
                mark = blake2b(repr(stage).encode(), digest_size=6).hexdigest()
                body = msgspec.json.encode(JobEvent(job=job))
                yield Happened(f"{job.id}.{mark}", "job", _latest(job), body)

    return found


def _latest(job: Job) -> datetime:
    return max(time for time in (job.created, job.started, job.ended, job.stage_time) if time is not None)


def step_source(slots: Callable[[], Iterable[tuple[str, Sequence[Entry]]]]) -> Source:
    """The steps of all slots, each with its history."""

    def found(since: datetime) -> Iterator[Happened]:
        for slot, history in slots():
            for entry in reversed(history):
                if entry.time < since:
                    break
                body = msgspec.json.encode(StepEvent(slot=slot, step=entry))
                yield Happened(f"step-{step_id(slot, entry)}", "release", entry.time, body)

    return found


def notice_source(notices: Notices) -> Source:
    def found(since: datetime) -> Iterator[Happened]:
        for notice in notices.all():
            if notice.time >= since:
                yield Happened(f"notice-{notice.id}", "notice", notice.time, msgspec.json.encode(notice))
            if notice.acknowledged is not None and notice.acknowledged >= since:
                key = f"notice-{notice.id}.acknowledged"
                yield Happened(key, "notice", notice.acknowledged, msgspec.json.encode(notice))

    return found


def operation_source(state: LiveState) -> Source:
    def found(since: datetime) -> Iterator[Happened]:
        for one, _ in state.operations(limit=JOBS):
            time = one.ended or one.started or one.created
            if time >= since:
                yield Happened(f"{one.id}.{one.state}", "operation", time, msgspec.json.encode(one))

    return found
