"""deploy/nats/nats.conf on a real server: every user does its work, and is refused everything else."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime

import pytest

from etude.adapters.nats import NatsBus
from etude.contracts.bus import message_of
from etude.contracts.reward import Reward
from etude.contracts.subjects import DEAD_LETTERS, STREAMS, TRAINING, TRAJECTORIES
from etude.contracts.training import TrainingStatus
from etude.contracts.trajectory import Trajectory
from tests.servers.deployed_nats import CONFIG, PASSWORDS, USERS, deployed_nats, url
from tests.servers.nats import find_nats_server

NOW = datetime(2026, 11, 18, tzinfo=UTC)
TRAJECTORY = Trajectory(id="t-1", time=NOW, task="parcel", problem="workflow")
REWARD = Reward(id="r-1", time=NOW, trajectory_id="t-1", version=1, definition="d", total=0.5, confidence=1.0)
STATUS = TrainingStatus(id="s-1", time=NOW, job_id="job-1", request_id="q-1", problem="workflow", status="queued")
EVENTS = (
    *("agent.rl.trajectory.v1", "agent.rl.feedback.v1", "agent.rl.reward.v1", "agent.rl.training.request.v1"),
    *("agent.rl.training.status.v1", "agent.rl.model.deployed.v1", "agent.rl.dead.agent.rl.trajectory.v1"),
)
MAY_PUBLISH = {
    "etude": set(EVENTS),
    "worker": {"agent.rl.reward.v1", "agent.rl.dead.agent.rl.trajectory.v1"},
    "agent": {"agent.rl.trajectory.v1", "agent.rl.feedback.v1"},
    "reader": set[str](),
}
MAY_SUBSCRIBE = {
    "reader": {"agent.rl.reward.v1", "agent.rl.training.status.v1", "agent.rl.model.deployed.v1"},
}
API = tuple(
    subject.format(stream)
    for stream in STREAMS
    for subject in (
        *("$JS.API.STREAM.CREATE.{}", "$JS.API.STREAM.UPDATE.{}", "$JS.API.STREAM.DELETE.{}"),
        *("$JS.API.STREAM.PURGE.{}", "$JS.API.STREAM.MSG.GET.{}", "$JS.API.STREAM.MSG.DELETE.{}"),
        *("$JS.API.CONSUMER.CREATE.{}", "$JS.API.CONSUMER.CREATE.{}.spy", "$JS.API.CONSUMER.CREATE.{}.spy.>"),
        *("$JS.API.CONSUMER.DURABLE.CREATE.{}.spy", "$JS.API.CONSUMER.DELETE.{}.ingest"),
        *("$JS.API.CONSUMER.MSG.NEXT.{}.spy", "$JS.API.CONSUMER.LIST.{}", "$JS.API.DIRECT.GET.{}"),
        *("$JS.API.STREAM.SNAPSHOT.{}", "$JS.API.STREAM.RESTORE.{}", "$JS.ACK.{}.spy.1.1.1.1.0"),
    )
)
ALWAYS_REFUSED = (
    *("$JS.API.STREAM.CREATE.SPY", "$JS.API.STREAM.LIST", "$JS.API.STREAM.NAMES", "$JS.API.ACCOUNT.PURGE.ETUDE"),
    *("$JS.API.META.LEADER.STEPDOWN", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.ETUDE.INFO", "other.subject"),
    *("agent.rl", "_INBOX.x", "_INBOX_etude.x", "_INBOX_worker.x", "_INBOX_agent.x", "_INBOX_reader.x"),
)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with deployed_nats(tmp_path_factory.mktemp("nats")) as port:
        with closing(NatsBus(url(port, "etude"))) as bus:
            bus.publish([])  # makes the streams
        yield port


class Talk:
    """The protocol itself: the server answers in order, so a refusal comes before the answer to a PING."""

    def __init__(self, port: int, user: str, password: str | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self._lines = self._socket.makefile("rb")
        assert self._lines.readline().startswith(b"INFO ")
        given = {"user": user, "pass": password or PASSWORDS[f"NATS_{user.upper()}_PASSWORD"], "verbose": False}
        self.entered = self.say(f"CONNECT {json.dumps(given | {'headers': True, 'no_responders': True})}") == ""

    def say(self, *lines: str) -> str:
        """What the server refuses of it; empty if nothing."""
        self._socket.sendall("".join(f"{line}\r\n" for line in (*lines, "PING")).encode())
        found = ""
        while line := self._lines.readline():
            if line == b"PONG\r\n":
                break
            found += line.decode() if line.startswith(b"-ERR") else ""
        return found

    def may_publish(self, subject: str) -> bool:
        error = self.say(f"PUB {subject} 2", "{}")
        assert error == "" or "Permissions Violation for Publish" in error, error
        return error == ""

    def may_subscribe(self, subject: str) -> bool:
        error = self.say(f"SUB {subject} 1", "UNSUB 1")
        assert error == "" or "Permissions Violation for Subscription" in error, error
        return error == ""

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@contextmanager
def talking(port: int, user: str) -> Iterator[Talk]:
    with closing(Talk(port, user)) as talk:
        assert talk.entered
        yield talk


def test_the_file_is_valid() -> None:
    binary = find_nats_server()
    assert binary is not None
    done = subprocess.run(
        [binary, "-t", "-c", CONFIG], capture_output=True, text=True, env=dict(os.environ) | PASSWORDS
    )
    assert done.returncode == 0, done.stderr
    without = subprocess.run([binary, "-t", "-c", CONFIG], capture_output=True, text=True)
    assert without.returncode != 0  # no password has a default


def test_every_user_does_its_work(port: int) -> None:
    with (
        closing(NatsBus(url(port, "agent"))) as agent,
        closing(NatsBus(url(port, "worker"), timeout_s=1.0)) as worker,
        closing(NatsBus(url(port, "etude"))) as etude,
    ):
        agent.publish([message_of(TRAJECTORY)])
        (delivery,) = worker.pull(TRAJECTORIES, "ingest", limit=10, timeout_s=5)
        worker.publish([message_of(REWARD)])
        worker.bury(delivery, reason="a test")
        etude.publish([message_of(STATUS)])
        (status,) = etude.pull(TRAINING, "loop", limit=10, timeout_s=5)
        etude.ack([status])
        (letter,) = etude.dead_letters()
        assert letter.message.id == "t-1"
        assert etude.replay([letter.number]) == 1
        assert etude.erase(lambda message: message.id == "t-1") >= 1
        assert worker.pending(TRAJECTORIES, "ingest") == 0


@pytest.mark.parametrize("user", USERS)
def test_each_publishes_its_own_events_alone(port: int, user: str) -> None:
    with talking(port, user) as talk:
        assert {subject for subject in EVENTS if talk.may_publish(subject)} == MAY_PUBLISH[user]


@pytest.mark.parametrize("user", USERS)
def test_each_reads_what_it_may_alone(port: int, user: str) -> None:
    subjects = (*EVENTS, "agent.rl.>", ">", "$JS.>", "$SYS.>", *(f"_INBOX_{other}.>" for other in USERS), "_INBOX.>")
    own = {f"_INBOX_{user}.>"} if user != "reader" else set()
    with talking(port, user) as talk:
        assert {one for one in subjects if talk.may_subscribe(one)} == MAY_SUBSCRIBE.get(user, set()) | own


@pytest.mark.parametrize("user", ["worker", "agent", "reader"])
def test_the_api_of_jetstream_is_closed(port: int, user: str) -> None:
    with talking(port, user) as talk:
        assert not [subject for subject in API if talk.may_publish(subject)]


@pytest.mark.parametrize("user", USERS)
def test_no_one_leaves_its_place(port: int, user: str) -> None:
    with talking(port, user) as talk:
        assert not [subject for subject in ALWAYS_REFUSED if talk.may_publish(subject)]


def test_the_server_of_etude_deletes_no_stream(port: int) -> None:
    with talking(port, "etude") as talk:
        assert not [stream for stream in STREAMS if talk.may_publish(f"$JS.API.STREAM.DELETE.{stream}")]
        assert talk.may_publish(f"$JS.API.STREAM.MSG.DELETE.{DEAD_LETTERS}")  # not everything is refused


def test_no_one_enters_without_its_password(port: int) -> None:
    for user, password in (("etude", "p-agent"), ("", "p-etude"), ("admin", "admin")):
        with closing(Talk(port, user, password)) as talk:
            assert not talk.entered
