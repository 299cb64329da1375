"""Messages in; what they tell is stored and rewarded, or they are buried with the reason.

Every step can be repeated: stores know what they have by id, and rewards have ids made from their trajectory's. So a
message is acknowledged only after everything that follows from it is stored, and one that comes again changes nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event as Flag

from etude.contracts.bus import Delivery, EventBus, Message, message_of
from etude.contracts.errors import BusError, EventError, StoreError
from etude.contracts.reward import Reward
from etude.contracts.store import ExperienceStore, Stored, Story
from etude.contracts.subjects import MAX_BYTES, TRAJECTORIES, decode, encode
from etude.contracts.trajectory import Event, Feedback, Trajectory
from etude.experience.cleaning import Cleaner
from etude.experience.files import TOO_LONG
from etude.experience.rewards import Rewarder

GROUP = "ingest"
WAITING = "waiting"
"""Documents by the id of a trajectory that feedback came for before it did."""
BASELINES = "baseline"
BATCH = 200
MANY = 100
"""Reasons that are counted apart."""
SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0

log = logging.getLogger("etude")


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """Why a message cannot be made anything of."""

    reason: str


@dataclass(kw_only=True)
class Ingest:
    """Stores events and what they are worth."""

    store: ExperienceStore
    cleaner: Cleaner | None
    """None where whoever sends redacts: the outbox takes nothing else."""
    rewarder: Rewarder
    clock: Callable[[], datetime]
    max_ahead_s: float = 3600.0
    rewarded: Callable[[Sequence[Reward]], None] | None = None
    """Told of rewards once they are stored; told again if it did not return."""

    def take(self, messages: Sequence[Message]) -> list[Stored | Refused]:
        """What became of each. StoreError: of none is known, give them all again."""
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
        # Of what comes again nobody knows how far it came the last time.
        found = [self._late(event) for event in again]
        self._keep([reward for reward in found if reward is not None])

    def _late(self, event: Event) -> Reward | None:
        """The reward that feedback changes, that its trajectory waited for, or that was not stored the last time."""
        about = event.trajectory_id if isinstance(event, Feedback) else event.id
        story = self.store.story(about)
        if story is None and isinstance(event, Feedback):
            self.store.put(WAITING, about, b"")
            story = self.store.story(about)  # it may have come in between, when nobody knew of the feedback
        if story is None:
            return None
        last = _last(story, self.rewarder.definition.version)
        if last is None:
            return self.rewarder.reward(story.trajectory, story.feedback, time=self.clock())
        return self.rewarder.revise(last, story.trajectory, story.feedback, time=self.clock()) or last

    def _keep(self, rewards: Sequence[Reward]) -> None:
        if not rewards:
            return
        self.store.append([(reward, encode(reward)) for reward in rewards])
        self.store.put(BASELINES, str(self.rewarder.definition.version), self.rewarder.state())
        if self.rewarded is not None:
            self.rewarded(rewards)


@dataclass(kw_only=True)
class Counts:
    """What became of messages so far."""

    stored: Counter[str] = field(default_factory=Counter)
    buried: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Of those that were buried, as far as there are few."""
    sent: int = 0
    """To a broker, whose consumers take them in."""

    def refuse(self, refused: Refused) -> None:
        self.buried += 1
        if len(self.reasons) < MANY or refused.reason in self.reasons:
            self.reasons[refused.reason] += 1


def consume(
    bus: EventBus,
    ingest: Ingest,
    *,
    stop: Flag,
    until_empty: bool = False,
    counts: Counts | None = None,
    told: Callable[[Counts], None] | None = None,
) -> Counts:
    """Take messages from the bus until told to stop, or until there are none. A store that is away is waited for."""
    counts, wait_s = counts or Counts(), SHORTEST_WAIT_S
    while not stop.is_set():
        try:
            deliveries = bus.pull(TRAJECTORIES, GROUP, limit=BATCH, timeout_s=0.0 if until_empty else 0.5)
            if not deliveries:
                if until_empty:
                    break
                continue
            _settle(bus, deliveries, ingest.take([delivery.message for delivery in deliveries]), counts)
            wait_s = SHORTEST_WAIT_S
        except (StoreError, BusError) as error:
            if until_empty:
                raise
            log.warning("%s; trying again in %g s", error, wait_s)
            stop.wait(wait_s)  # what was pulled comes again
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)
        if told is not None:
            told(counts)
    return counts


def _settle(bus: EventBus, deliveries: Iterable[Delivery], results: Iterable[Stored | Refused], counts: Counts) -> None:
    done = []
    for delivery, result in zip(deliveries, results, strict=True):
        if isinstance(result, Refused):
            bus.bury(delivery, reason=result.reason)
            counts.refuse(result)
        else:
            done.append(delivery)
            counts.stored[result] += 1
    if done:
        bus.ack(done)


def take_in(bus: EventBus, ingest: Ingest, messages: Sequence[Message], counts: Counts) -> None:
    """Messages that are safe elsewhere, in a file say: only those that are refused go over the bus, to be buried."""
    refused = []
    for message, result in zip(messages, ingest.take(messages), strict=True):
        if isinstance(result, Refused):
            refused.append(message)
            counts.refuse(result)
        else:
            counts.stored[result] += 1
    if refused:
        bus.publish(refused)
        consume(bus, ingest, stop=Flag(), until_empty=True)


def publisher(bus: EventBus) -> Callable[[Sequence[Reward]], None]:
    """Sends rewards on."""
    return lambda rewards: bus.publish([message_of(reward) for reward in rewards])


def _last(story: Story, version: int) -> Reward | None:
    own = [reward for reward in story.rewards if reward.version == version]
    return max(own, key=lambda reward: reward.revision, default=None)


def _kind(event: Event) -> str:
    return type(event).__name__.lower()
