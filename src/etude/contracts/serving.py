"""The port to what a server keeps between a decision and its outcome."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol


class OpenRow(NamedTuple):
    """A part of a task that has not ended: first its trajectory so far, then each later decision, as JSON."""

    trajectory: str
    time: datetime
    body: bytes


class ServingState(Protocol):
    """Tasks that wait for their outcome, answers that may be asked for again, ratings counted by source, and the models
    on which conversations stay.

    Any number of processes share it. Once a call has returned, its effect survives a power cut. StoreError if it
    cannot be read or written.
    """

    def open(self, rows: Sequence[OpenRow]) -> None:
        """Add rows, all of them or none."""

    def add(self, row: OpenRow) -> bool:
        """Add a row to a task; False if the task is not open."""

    def parts(self, trajectory: str, *, limit: int = -1) -> list[bytes]:
        """The bodies of a task in their order, or the first ones; empty if it is not open."""

    def waiting(self, before: datetime, *, limit: int = 100) -> list[str]:
        """Open tasks that have an older row, the oldest first."""

    def count(self) -> int:
        """Number of open tasks."""

    def close_tasks(self, trajectories: Sequence[str]) -> None:
        """Remove tasks; one that is not open is no error."""

    def claim(
        self, caller: str, key: str, request: bytes, now: datetime, *, stale: datetime
    ) -> tuple[bytes, bytes | None] | None:
        """Take an idempotency key for a request with this hash. None if it is free, or was taken before `stale` without
        an answer; else the hash of the request that has it, and its answer, null while there is none."""

    def keep_answer(self, caller: str, key: str, body: bytes) -> None:
        """Keep the answer to the request that has the key."""

    def unclaim(self, caller: str, key: str) -> None:
        """Give a key back that has no answer."""

    def expire(self, before: datetime) -> None:
        """Remove answers, counts and models of conversations from before."""

    def rate(self, rating: str, sources: Mapping[str, int], day: str) -> str | None:
        """Count a rating for each of its sources, unless one of them has had as many on this day as its number says:
        then it is counted for none, and that source returned. What was counted already is not counted again."""

    def unrate(self, rating: str, sources: Collection[str], day: str) -> None:
        """Take back the count of a rating that could not be stored."""

    def keep_models(self, models: Mapping[str, str], time: datetime, *, limit: int) -> None:
        """Keep the model of each conversation; of more than `limit` conversations, the oldest are removed."""

    def kept_model(self, conversation: str, since: datetime) -> str | None:
        """The model that was kept for a conversation since then."""

    def ping(self) -> None:
        """StoreError if it cannot be read."""

    def tidy(self) -> None:
        """What makes later calls quicker; it does not keep them waiting."""

    def close(self) -> None: ...
