"""The socket between what sends events and what receives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct

from etude.contracts.subjects import encode, subject_of
from etude.contracts.trajectory import Event


class Message(Struct, frozen=True, kw_only=True):
    """An event on its way. Within one subject an id names one message."""

    id: str
    subject: str
    body: bytes


class Delivery(Struct, frozen=True, kw_only=True):
    """A message given to a consumer, who acknowledges it, asks for it again later, or buries it."""

    message: Message
    attempt: int
    """From 1."""
    handle: Any = None
    """Means something to the bus alone."""


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A message that nobody could make anything of, kept with the reason."""

    number: int
    """By which it can be replayed."""
    message: Message
    reason: str
    attempts: int
    time: datetime
    """When it was buried."""


class EventBus(Protocol):
    """Events from those who send to those who receive, at least once each.

    Durable: what `publish` returned from survives the death of any process and of the broker; what it raised from may
    or may not be there, and publishing it again is harmless: a message whose subject and id came before is dropped.
    Order: a group is given the messages of a stream in the order in which they were published; one that is given again
    comes when its delay is over. Consumers of the same `group` share the messages; each group is given all of them.
    A group exists from its first `pull`, and is given what the stream still holds.
    Retention: a message is kept for its stream's days, or until every group that exists has acknowledged it.
    Methods raise BusError where the bus cannot be reached; none of them waits longer than its timeout for it.
    Instances may be used by several threads.
    """

    def publish(self, messages: Sequence[Message]) -> None:
        """All of them durable when it returns; none of them tries whether the bus is there.

        EventError for a subject that is none of ours; RefusedError for a message that this bus will never take.
        """

    def pull(self, stream: str, group: str, *, limit: int, timeout_s: float) -> list[Delivery]:
        """Up to `limit` messages, as soon as there is one; none after the timeout.

        What is neither acknowledged nor retried within the bus's `ack_wait_s` is given again, with a back-off that
        grows with each attempt; after `max_deliveries` it is buried.
        """

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Done with them; when it returns the bus has said that it knows (double ack)."""

    def retry(self, delivery: Delivery, *, reason: str, delay_s: float | None = None) -> None:
        """Give it again, after the back-off of its attempt unless told; buried where that was the last."""

    def bury(self, delivery: Delivery, *, reason: str) -> None:
        """Keep it aside as a dead letter. When it returns that is durable, and nobody is given it again."""

    def dead_letters(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        """In the order of their numbers, from the first above `after`."""

    def replay(self, numbers: Sequence[int]) -> int:
        """Give dead letters anew, as if they had just been published; how many there were."""

    def pending(self, stream: str, group: str) -> int:
        """Messages that the group has not acknowledged, those under way included; all, where nobody pulled yet."""

    def erase(self, match: Callable[[Message], bool]) -> int:
        """Remove every message and dead letter that matches, so that it cannot be read any more; how many."""

    def close(self) -> None:
        """It may be called twice."""


def message_of(event: Event) -> Message:
    return Message(id=event.id, subject=subject_of(event), body=encode(event))
