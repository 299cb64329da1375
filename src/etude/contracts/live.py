"""What happens in an installation, as a stream; and work that takes longer than a request."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from etude.contracts.trajectory import Time

OPERATION = r"^op-[0-9a-f]{12}$"
"""The form of an operation's id."""


class OperationState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


UNFINISHED = (OperationState.QUEUED, OperationState.RUNNING)


class Operation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Work that takes longer than a request, and runs as a process of its own."""

    id: str
    kind: Literal["gates", "dataset", "rescore"]
    about: str
    """The version, the dataset or the reward definition."""
    state: OperationState
    by: str
    """Who asked for it."""
    created: Time
    started: Time | None = None
    ended: Time | None = None
    error: str = ""
    """Why it failed."""
    result: str = ""
    """Route that shows its result once it is completed."""


class Happened(NamedTuple):
    """Something that happened; the same key is the same thing, whoever found it."""

    key: str
    kind: str
    time: datetime
    body: bytes
    """JSON."""


class LiveEvent(NamedTuple):
    """Something that happened, with its place in the stream."""

    number: int
    kind: str
    body: bytes


class LiveState(Protocol):
    """The stream and the operations of an installation. Any number of processes share it.

    StoreError if it cannot be read or written.
    """

    def publish(self, events: Sequence[Happened]) -> None:
        """Add events to the stream in their order; those whose key is there already change nothing."""

    def events(self, *, after: int, limit: int = 100) -> list[LiveEvent]:
        """Events with a higher number, in order."""

    def span(self) -> tuple[int, int]:
        """Numbers of the oldest and of the newest event that is kept; (number + 1, number) if none is."""

    def put(self, operation: Operation, *, owner: str) -> None:
        """Store an operation in place of any of this id, with the process that runs it."""

    def operations(
        self, *, id: str | None = None, unfinished: bool = False, after: str | None = None, limit: int = 100
    ) -> list[tuple[Operation, str]]:
        """Operations with their owners, the last one first; `after` is the id of one: those that are older."""

    def expire(self, before: datetime) -> None:
        """Remove events from before, and operations that ended before."""

    def close(self) -> None: ...
