"""Ingests messages: their events are stored and rewarded, or they are buried as dead letters with the reason.

Every step can be repeated: stores are idempotent by id, and the id of a reward derives from its trajectory. So a
message is acknowledged only after everything that follows from it is stored, and a redelivered one changes nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event as Flag

from msgspec.structs import replace

from etude.contracts.bus import Delivery, EventBus, Message, message_of
from etude.contracts.errors import BusError, EventError, StoreError
from etude.contracts.reward import Reward
from etude.contracts.store import ExperienceStore, Stored, TrajectoryDetail
from etude.contracts.subjects import MAX_BYTES, TRAJECTORIES, decode, encode
from etude.contracts.trajectory import Event, Feedback, Trajectory
from etude.experience.cleaning import Cleaner
from etude.experience.files import TOO_LONG
from etude.experience.rewards import Rewarder

GROUP = "ingest"
WAITING = "waiting"
"""The kind of document for feedback that came before its trajectory, by the trajectory's id."""
BASELINES = "baseline"
BATCH = 200
MANY = 100
"""Maximum number of reasons that are counted separately."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.5, 10.0
"""Pauses while the store or the bus does not answer; each is twice the previous one, and below `ack_wait_s`."""

log = logging.getLogger("etude")


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """Why a message cannot be processed."""

    reason: str


@dataclass(kw_only=True)
class Ingest:
    """Stores events and their rewards."""

    store: ExperienceStore
    cleaner: Cleaner | None
    """None if the sender redacts, as for the outbox."""
    rewarder: Rewarder
    clock: Callable[[], datetime]
    max_ahead_s: float = 3600.0
    rewarded: Callable[[Sequence[Reward]], None] | None = None
    """Called with rewards after they are stored, and again if it did not return."""

    def take(self, messages: Sequence[Message]) -> list[Stored | Refused]:
        """Store messages and return the result for each. After a StoreError all of them must be redelivered."""
        results: list[Stored | Refused] = [Refused(reason="")] * len(messages)
        events: list[tuple[int, Event, bytes]] = []
        for i, message in enumerate(messages):
            try:
                events.append((i, *self._read(message)))
            except EventError as error:
                results[i] = Refused(reason=str(error))
        for (i, event, _), stored in zip(
            events, self.store.append([(event, body) for _, event, body in events]), strict=True
        ):
            results[i] = (
                stored
                if stored != Stored.CONFLICT
                else Refused(reason=f"another {_kind(event)} with the id {event.id!r} is stored: ids must be unique")
            )
        self._reward([(event, results[i]) for i, event, _ in events])
        return results

    def redacted(self, delivery: Delivery) -> Delivery:
        """The delivery, redacted so that it may be stored as a dead letter."""
        if self.cleaner is None:
            return delivery
        message = delivery.message
        known = replace(message, id=self.cleaner.text(message.id), body=self.cleaner.unknown(message.body))
        return replace(delivery, message=known)

    def redacted_text(self, text: str) -> str:
        return text if self.cleaner is None else self.cleaner.text(text)

    def _read(self, message: Message) -> tuple[Event, bytes]:
        if message.id.startswith(TOO_LONG):
            raise EventError(f"it is too large, an event has at most {MAX_BYTES:,} bytes; its beginning is kept")
        if self.cleaner is None:
            event, body = decode(message.body, subject=message.subject), message.body
            if event.id != message.id:
                raise EventError(
                    f"{event.id!r} was not sent under its own id, so it was not redacted: an event must not be nested "
                    "deeply, and its id must hold no '@'"
                )
        else:
            event, body = self.cleaner.clean(message.body, subject=message.subject)
        if not isinstance(event, Trajectory | Feedback):
            raise EventError(f"{message.subject} is not for this consumer: expected trajectories and feedback")
        ahead = event.time - self.clock()
        if ahead.total_seconds() > self.max_ahead_s:
            raise EventError(
                f"its time, {event.time.isoformat()}, is {ahead} ahead of the clock here: set the sender's clock, or "
                "raise experience.max_ahead_s"
            )
        return event, body

    def _reward(self, events: Sequence[tuple[Event, Stored | Refused]]) -> None:
        new = [event for event, stored in events if stored == Stored.NEW]
        again = [event for event, stored in events if stored == Stored.DUPLICATE]
        waiting = self.store.documents(WAITING) if new else {}
        rewards: dict[str, Reward] = {}
        for event in new:
            if isinstance(event, Trajectory) and event.id not in waiting:
                rewards[event.id] = self.rewarder.reward(event, (), time=self.clock())
        self._keep(list(rewards.values()))
        late = [self._late(event) for event in new if isinstance(event, Feedback) or event.id in waiting]
        self._keep([reward for reward in late if reward is not None])
        # A redelivered message may have been interrupted at any step.
        found = [self._late(event) for event in again]
        self._keep([reward for reward in found if reward is not None])

    def _late(self, event: Event) -> Reward | None:
        """The reward that late feedback revises, or that an interrupted attempt did not store."""
        about = event.trajectory_id if isinstance(event, Feedback) else event.id
        detail = self.store.detail(about)
        if detail is None and isinstance(event, Feedback):
            self.store.put(WAITING, about, b"")
            detail = self.store.detail(about)  # it may have arrived in the meantime, before the feedback was stored
        if detail is None:
            return None
        last = _last(detail, self.rewarder.definition.version)
        if last is None:
            return self.rewarder.reward(detail.trajectory, detail.feedback, time=self.clock())
        return self.rewarder.revise(last, detail.trajectory, detail.feedback, time=self.clock()) or last

    def _keep(self, rewards: Sequence[Reward]) -> None:
        if not rewards:
            return
        self.store.append([(reward, encode(reward)) for reward in rewards])
        self.store.put(BASELINES, str(self.rewarder.definition.version), self.rewarder.state())
        if self.rewarded is not None:
            self.rewarded(rewards)


@dataclass(kw_only=True)
class Counts:
    """Number of messages by result."""

    stored: Counter[str] = field(default_factory=Counter)
    buried: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Reasons of buried messages, up to MANY different ones."""
    sent: int = 0
    """Number of messages sent to a broker, whose consumers ingest them."""

    def add(self, results: Iterable[Stored | Refused]) -> None:
        for result in results:
            if not isinstance(result, Refused):
                self.stored[result] += 1
                continue
            self.buried += 1
            if len(self.reasons) < MANY or result.reason in self.reasons:
                self.reasons[result.reason] += 1


def consume(
    bus: EventBus,
    ingest: Ingest,
    *,
    stop: Flag,
    until_empty: bool = False,
    counts: Counts | None = None,
    report: Callable[[Counts], None] | None = None,
) -> Counts:
    """Process messages from the bus until `stop` is set, or until there are none.

    It waits for a store or bus that does not answer. For a store, no failed attempt of any message is counted: nothing
    is pulled while it is unreachable, and pulled messages are held until it is back. With `until_empty` the error is
    raised instead, and pulled messages are released.
    """
    counts, pause_s, held = counts or Counts(), MIN_PAUSE_S, list[Delivery]()
    try:
        while not stop.is_set():
            try:
                if not held:
                    ingest.store.ping()
                    held = bus.pull(TRAJECTORIES, GROUP, limit=BATCH, timeout_s=0.0 if until_empty else 0.5)
                if not held and until_empty:
                    break
                if held:
                    _settle(bus, ingest, held, counts)
                held, pause_s = [], MIN_PAUSE_S
            except (StoreError, BusError) as error:
                if until_empty:
                    raise
                log.warning("%s; trying again in %g s", error, pause_s)
                if isinstance(error, BusError):
                    held = []  # it gives them again; a broker that was killed never answers for what it has forgotten
                with suppress(BusError):
                    bus.renew(held)
                stop.wait(pause_s)
                pause_s = min(MAX_PAUSE_S, 2 * pause_s)
            if report is not None:
                report(counts)
    finally:
        if held:
            with suppress(BusError):
                bus.release(held)
    return counts


def _settle(bus: EventBus, ingest: Ingest, deliveries: Sequence[Delivery], counts: Counts) -> None:
    """Store, acknowledge and count deliveries; an interrupted call may be repeated."""
    results = ingest.take([delivery.message for delivery in deliveries])
    done = []
    for delivery, result in zip(deliveries, results, strict=True):
        if isinstance(result, Refused):
            bus.bury(ingest.redacted(delivery), reason=ingest.redacted_text(result.reason))
        else:
            done.append(delivery)
    if done:
        bus.ack(done)
    counts.add(results)


def ingest_messages(bus: EventBus, ingest: Ingest, messages: Sequence[Message], counts: Counts) -> None:
    """Ingest messages from a durable source such as a file: only refused ones go over the bus, to be buried."""
    results = ingest.take(messages)
    refused = [m for m, result in zip(messages, results, strict=True) if isinstance(result, Refused)]
    counts.add(results)
    if refused:
        bus.publish(refused)
        consume(bus, ingest, stop=Flag(), until_empty=True)


def publisher(bus: EventBus) -> Callable[[Sequence[Reward]], None]:
    """A function that publishes rewards to the bus."""
    return lambda rewards: bus.publish([message_of(reward) for reward in rewards])


def _last(detail: TrajectoryDetail, version: int) -> Reward | None:
    own = [reward for reward in detail.rewards if reward.version == version]
    return max(own, key=lambda reward: reward.revision, default=None)


def _kind(event: Event) -> str:
    return type(event).__name__.lower()
