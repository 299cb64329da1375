"""Messages to stored and rewarded events, whatever comes and in whatever order."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from etude.contracts.bus import Delivery, Message, message_of
from etude.contracts.errors import BusError, StoreError
from etude.contracts.query import Where
from etude.contracts.reward import Reward
from etude.contracts.store import Stored
from etude.contracts.subjects import REWARDS, TRAJECTORIES, decode
from etude.contracts.trajectory import Event, Feedback, Outcome, Trajectory
from etude.experience.cleaning import Cleaner
from etude.experience.definitions import BUILT_IN
from etude.experience.ingest import GROUP, Counts, Ingest, Refused, consume, publisher
from etude.experience.redact import RedactionConfig
from etude.experience.rewards import Rewarder
from tests.memory_bus import MemoryBus
from tests.memory_store import MemoryStore

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def a_trajectory(id: str = "t-1", **changes: object) -> Trajectory:
    base = Trajectory(
        id=id,
        time=NOON,
        task="tidy up",
        problem="workflow",
        outcome=Outcome(success=True, cost_usd=0.1, latency_ms=900.0),
    )
    return msgspec.structs.replace(base, **changes)


def a_feedback(about: str = "t-1", id: str = "f-1", stars: int = 1) -> Feedback:
    return Feedback(id=id, time=NOON, trajectory_id=about, stars=stars)


def ingesting(store: MemoryStore, rewarded: Callable[[Sequence[Reward]], None] | None = None) -> Ingest:
    return Ingest(
        store=store,
        cleaner=Cleaner(RedactionConfig()),
        rewarder=Rewarder(BUILT_IN[1]),
        clock=lambda: NOON,
        rewarded=rewarded,
    )


def take(ingest: Ingest, *events: Event) -> list[Stored | Refused]:
    return ingest.take([message_of(event) for event in events])


def rewards_of(store: MemoryStore, id: str = "t-1") -> tuple[Reward, ...]:
    detail = store.detail(id)
    assert detail is not None
    return detail.rewards


def test_a_trajectory_is_stored_and_rewarded_once() -> None:
    store = MemoryStore()
    ingest = ingesting(store)
    assert take(ingest, a_trajectory()) == [Stored.NEW]
    assert take(ingest, a_trajectory()) == [Stored.DUPLICATE]
    (reward,) = rewards_of(store)
    assert (reward.trajectory_id, reward.version, reward.revision) == ("t-1", 1, 0)


def test_the_same_id_with_other_content_is_refused_and_the_first_stays() -> None:
    store = MemoryStore()
    ingest = ingesting(store)
    take(ingest, a_trajectory())
    (result,) = take(ingest, a_trajectory(task="something else"))
    assert isinstance(result, Refused)
    assert "ids must be unique" in result.reason
    detail = store.detail("t-1")
    assert detail is not None
    assert detail.trajectory.task == "tidy up"


def test_what_is_no_event_is_refused_and_the_rest_goes_on() -> None:
    store = MemoryStore()
    bad = [
        Message(id="x", subject="agent.rl.trajectory.v1", body=b"{"),
        Message(id="y", subject="agent.rl.trajectory.v1", body=b"\xff\xfe"),
        Message(id="z", subject="agent.rl.trajectory.v2", body=message_of(a_trajectory("t-9")).body),
        message_of(a_trajectory("t-8", time=NOON + timedelta(days=3))),
        message_of(Reward(id="r", time=NOON, trajectory_id="t-1", version=1, definition="d", total=1, confidence=1)),
    ]
    good = [message_of(a_trajectory(f"t-{i}")) for i in range(3)]
    results = ingesting(store).take([bad[0], good[0], bad[1], bad[2], good[1], bad[3], bad[4], good[2]])
    assert [result for result in results if not isinstance(result, Refused)] == [Stored.NEW] * 3
    reasons = [result.reason for result in results if isinstance(result, Refused)]
    for reason, message in zip(
        reasons, ["JSON", "JSON", "newer version", "ahead of the clock", "not for this"], strict=True
    ):
        assert message in reason
    assert store.stats(Where(), version=1).trajectories == 3


def test_a_clock_a_little_ahead_is_fine() -> None:
    assert take(ingesting(MemoryStore()), a_trajectory(time=NOON + timedelta(minutes=10))) == [Stored.NEW]


def test_personal_data_is_gone_before_anything_is_stored() -> None:
    store = MemoryStore()
    take(
        ingesting(store),
        a_trajectory(task="mail ana@example.com", user="ana@example.com", metadata={"password": "x7!"}),
    )
    story = store.detail("t-1")
    assert story is not None
    text = msgspec.json.encode(story).decode()
    assert "ana@example.com" not in text
    assert "x7!" not in text
    assert story.trajectory.user is not None
    assert story.trajectory.user.startswith("user-")


def test_late_feedback_revises_the_reward_and_the_old_one_stays() -> None:
    store = MemoryStore()
    ingest = ingesting(store)
    take(ingest, a_trajectory())
    assert take(ingest, a_feedback(stars=1)) == [Stored.NEW]
    first, second = rewards_of(store)
    assert (second.revision, second.reason) == (1, "feedback")
    assert second.total < first.total
    assert second.confidence > first.confidence
    assert take(ingest, a_feedback(stars=1)) == [Stored.DUPLICATE]
    assert len(rewards_of(store)) == 2


@pytest.mark.parametrize("together", [True, False])
def test_feedback_may_come_before_its_trajectory(together: bool) -> None:
    store = MemoryStore()
    ingest = ingesting(store)
    if together:
        take(ingest, a_feedback(), a_trajectory())
    else:
        take(ingest, a_feedback())
        take(ingest, a_trajectory())
    last = rewards_of(store)[-1]
    assert any(component.name == "feedback" and component.value == 0.0 for component in last.components)


def test_any_order_and_any_repetition_ends_the_same() -> None:
    """At least once, in any order: totals and revisions depend on what was said, not on how it came."""
    events: list[Event] = [a_trajectory(f"t-{i}") for i in range(5)]
    events += [a_feedback(f"t-{i}", f"f-{i}-{j}", stars=1 + 2 * j) for i in range(5) for j in range(2)]
    for seed in range(20):
        rng, store = random.Random(seed), MemoryStore()
        ingest = ingesting(store)
        mixed = rng.sample(events * 3, len(events) * 3)
        for start in range(0, len(mixed), 4):
            take(ingest, *mixed[start : start + 4])
        for i in range(5):
            last = rewards_of(store, f"t-{i}")[-1]
            said = next(component for component in last.components if component.name == "feedback")
            assert said.value == 0.25  # the mean of 1 and 3 stars


def test_a_crash_between_storing_and_rewarding_is_made_up_for() -> None:
    class Fragile(MemoryStore):
        broken = True

        def append(self, events: Sequence[tuple[Event, bytes]]) -> list[Stored]:
            if self.broken and any(isinstance(event, Reward) for event, _ in events):
                raise StoreError("the disk is full: make room")
            return super().append(events)

    store = Fragile()
    ingest = ingesting(store)
    with pytest.raises(StoreError):
        take(ingest, a_trajectory())
    store.broken = False
    assert take(ingest, a_trajectory()) == [Stored.DUPLICATE]
    assert len(rewards_of(store)) == 1


def test_rewards_are_sent_on_and_sent_again_after_a_crash() -> None:
    store, bus = MemoryStore(), MemoryBus()
    ingest = ingesting(store, publisher(bus))
    take(ingest, a_trajectory())
    take(ingest, a_trajectory())
    sent = [decode(d.message.body) for d in bus.pull(REWARDS, "watch", limit=10, timeout_s=0)]
    assert [event.id for event in sent] == [rewards_of(store)[0].id]  # the bus drops what came before


def test_baselines_are_kept_for_the_next_process() -> None:
    store = MemoryStore()
    ingest = ingesting(store)
    for i in range(30):
        take(
            ingest, a_trajectory(f"t-{i}", outcome=Outcome(success=True, cost_usd=0.1 + i / 100, latency_ms=100.0 * i))
        )
    kept = store.documents("baseline")["1"]
    again = Rewarder.from_state(BUILT_IN[1], kept)
    event = a_trajectory("t-x")
    assert again.reward(event, (), time=NOON) == ingest.rewarder.reward(event, (), time=NOON)


def test_the_consumer_buries_acknowledges_and_counts() -> None:
    store, bus = MemoryStore(), MemoryBus()
    bus.publish([message_of(a_trajectory(f"t-{i}")) for i in range(450)])
    bus.publish([Message(id="bad", subject="agent.rl.trajectory.v1", body=b"nonsense"), message_of(a_feedback())])
    reported: list[int] = []
    counts = consume(
        bus, ingesting(store), stop=threading.Event(), until_empty=True, report=lambda c: reported.append(c.buried)
    )
    assert (counts.stored[Stored.NEW], counts.buried) == (451, 1)
    assert bus.pending(TRAJECTORIES, GROUP) == 0
    (letter,) = bus.dead_letters()
    assert letter.message.id == "bad"
    assert letter.reason in counts.reasons
    assert reported


class Away(MemoryStore):
    """A store that is away for a while: it answers no ping, or only fails when it is written to."""

    def __init__(self, *, until: float, answers: bool) -> None:
        super().__init__()
        self.until, self.answers, self.asked = until, answers, 0

    def ping(self) -> None:
        if not self.answers and time.monotonic() < self.until:
            raise StoreError("no answer: start the server")

    def append(self, events: Sequence[tuple[Event, bytes]]) -> list[Stored]:
        if time.monotonic() < self.until:
            self.asked += 1
            raise StoreError("no answer: start the server")
        return super().append(events)


@pytest.mark.parametrize("answers", [True, False], ids=["fails", "silent"])
def test_a_store_that_is_away_is_waited_for_and_nothing_becomes_a_dead_letter(
    answers: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("etude.experience.ingest.MIN_PAUSE_S", 0.005)
    monkeypatch.setattr("etude.experience.ingest.MAX_PAUSE_S", 0.01)
    bus, stop = MemoryBus(ack_wait_s=0.03, backoff_s=(0.0,), max_deliveries=3), threading.Event()
    store = Away(until=time.monotonic() + 10 * 0.03 * 3, answers=answers)
    bus.publish([message_of(a_trajectory(f"t-{i}")) for i in range(450)])

    def enough(counts: Counts) -> None:
        if counts.stored.total() >= 450:
            stop.set()

    counts = consume(bus, ingesting(store), stop=stop, report=enough)
    assert counts.stored == {Stored.NEW: 450}
    assert bus.dead_letters() == []
    assert bus.pending(TRAJECTORIES, GROUP) == 0
    assert "no answer" in caplog.text
    assert (store.asked > 0) is answers  # what does not answer is not even pulled for


class Forgets(MemoryBus):
    """A broker that is killed amid the first acknowledgement, and then answers none of what it gave before."""

    forgotten: tuple[object, ...] = ()

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self.forgotten = self.forgotten or tuple(delivery.handle for delivery in deliveries)
        if any(delivery.handle in self.forgotten and delivery.attempt == 1 for delivery in deliveries):
            raise BusError("no answer within 5 s")
        super().ack(deliveries)


def test_a_broker_that_has_forgotten_what_it_gave_does_not_stop_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.experience.ingest.MIN_PAUSE_S", 0.005)
    monkeypatch.setattr("etude.experience.ingest.MAX_PAUSE_S", 0.01)
    bus, store, stop = Forgets(ack_wait_s=0.03, backoff_s=(0.0,)), MemoryStore(), threading.Event()
    bus.publish([message_of(a_trajectory("before"))])

    def later(counts: Counts) -> None:
        if bus.forgotten and not counts.stored:
            bus.publish([message_of(a_trajectory("after"))])
        if counts.stored.total() >= 2:
            stop.set()

    too_long = threading.Timer(20, stop.set)
    too_long.start()
    counts = consume(bus, ingesting(store), stop=stop, report=later)
    too_long.cancel()
    assert counts.stored[Stored.NEW] == 1  # the other one was stored before it could be acknowledged
    assert bus.pending(TRAJECTORIES, GROUP) == 0


@pytest.mark.parametrize("answers", [True, False], ids=["fails", "silent"])
def test_commands_against_a_store_that_is_away_use_up_no_attempts(answers: bool) -> None:
    bus, store = MemoryBus(max_deliveries=3), Away(until=float("inf"), answers=answers)
    bus.publish([message_of(a_trajectory())])
    for _ in range(10):
        with pytest.raises(StoreError):
            consume(bus, ingesting(store), stop=threading.Event(), until_empty=True)
    store.until = 0.0
    assert consume(bus, ingesting(store), stop=threading.Event(), until_empty=True).stored == {Stored.NEW: 1}


def test_what_others_sent_unredacted_is_redacted_before_it_is_buried() -> None:
    bus = MemoryBus()
    body = rb'{"type": "agent.rl.trajectory.v1", "who": "ana\u0040example.com"}'
    bus.publish([Message(id="ana@example.com", subject="agent.rl.trajectory.v1", body=body)])
    consume(bus, ingesting(MemoryStore()), stop=threading.Event(), until_empty=True)
    (letter,) = bus.dead_letters()
    assert "example.com" not in repr(letter)
