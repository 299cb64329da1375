"""The port between producers and consumers of events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct

from etude.contracts.subjects import encode, subject_of
from etude.contracts.trajectory import Event


class Message(Struct, frozen=True, kw_only=True):
    """An encoded event. Within a subject the id is unique."""

    id: str
    subject: str
    body: bytes


class Delivery(Struct, frozen=True, kw_only=True):
    """A message delivered to a consumer, which acknowledges it, releases it, or buries it as a dead letter."""

    message: Message
    attempt: int
    """Number of this delivery, from 1."""
    handle: Any = None
    """Used by the bus only."""


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A message that could not be processed, stored with the reason."""

    number: int
    """Number with which it can be replayed."""
    message: Message
    reason: str
    attempts: int
    time: datetime
    """Time at which it was buried."""


class EventBus(Protocol):
    """Delivers events from producers to consumers, each at least once.

    Durable: once `publish` has returned, its messages survive the death of any process and of the broker. If it raised,
    they may or may not be there; publishing again is harmless, since a repeated subject and id is dropped.
    Order: a group receives the messages of a stream in the order in which they were published; a redelivered message
    comes when its delay is over. Consumers of the same `group` share the messages; each group receives all of them.
    A group exists from its first `pull`, and receives what the stream still holds.
    Retention: a message is kept until every group of its stream has acknowledged it, however long that takes, and at
    least one has; after its stream's days a warning is logged while it waits. Only in streams of `STORED_FIRST` does a
    message expire after those days although no group exists. Dead letters are kept for the days of their own stream.
    Methods raise BusError where the bus cannot be reached; none of them waits longer than its timeout for it.
    Instances may be used by several threads.
    """

    def publish(self, messages: Sequence[Message]) -> None:
        """Store messages durably; an empty sequence only tests whether the bus can be reached.

        EventError for an unknown subject; RefusedError for a message that this bus will never accept.
        """

    def pull(self, stream: str, group: str, *, limit: int, timeout_s: float) -> list[Delivery]:
        """Up to `limit` messages, as soon as one is there; an empty list after the timeout.

        A message that is neither acknowledged nor renewed within the bus's `ack_wait_s` is redelivered, with a
        back-off that grows with each attempt; after `max_deliveries` it is buried.
        """

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge messages; it returns when the bus has confirmed it (double ack)."""

    def renew(self, deliveries: Sequence[Delivery]) -> None:
        """Extend the time to process messages by another `ack_wait_s`, as the same attempt.

        A message that another consumer received meanwhile stays with that consumer.
        """

    def release(self, deliveries: Sequence[Delivery]) -> None:
        """Return messages unprocessed, to be redelivered at once.

        It does not count as an attempt, except on a broker that counts deliveries itself (NATS): there `renew` is the
        way to wait without an attempt.
        """

    def bury(self, delivery: Delivery, *, reason: str) -> None:
        """Store the message of `delivery` durably as a dead letter; it is not redelivered to the group."""

    def dead_letters(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        """Dead letters in the order of their numbers, from the first above `after`."""

    def replay(self, numbers: Sequence[int]) -> int:
        """Publish dead letters again, as if for the first time; return how many there were."""

    def pending(self, stream: str, group: str) -> int:
        """Number of messages that the group has not acknowledged; all of them before its first pull."""

    def erase(self, match: Callable[[Message], bool]) -> int:
        """Remove every message and dead letter that matches, so that it can no longer be read; return how many."""

    def close(self) -> None:
        """Close the bus; a second call does nothing."""


def message_of(event: Event) -> Message:
    return Message(id=event.id, subject=subject_of(event), body=encode(event))
