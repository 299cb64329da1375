from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from etude.adapters import outbox as module
from etude.adapters.outbox import MIGRATIONS, PRAGMAS, Outbox
from etude.contracts.bus import Message
from etude.contracts.errors import BusError
from etude.contracts.subjects import TRAJECTORIES

SUBJECT = "agent.rl.trajectory.v1"
DAY_S = 86_400


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(path: Path, clock: Clock) -> Iterator[Callable[..., Outbox]]:
    boxes: list[Outbox] = []

    def make(**options: object) -> Outbox:
        boxes.append(Outbox(path, **{"clock": clock, **options}))  # type: ignore[arg-type]
        return boxes[-1]

    yield make
    for box in boxes:
        box.close()


def messages(*ids: object, body: bytes = b"1", subject: str = SUBJECT) -> list[Message]:
    return [Message(id=str(id), subject=subject, body=body) for id in ids]


def pull(box: Outbox, *, group: str = "g", stream: str = TRAJECTORIES) -> list[str]:
    return [delivery.message.id for delivery in box.pull(stream, group, limit=1000, timeout_s=0)]


def rows(path: Path, query: str) -> int:
    db = sqlite3.connect(path)
    try:
        return int(db.execute(query).fetchone()[0])
    finally:
        db.close()


def python(code: str, path: Path) -> subprocess.Popen[bytes]:
    """With `box`, an outbox on the file, and `messages`."""
    before = f"""
import os, sys, time
from pathlib import Path
from etude.adapters.outbox import Outbox
from etude.contracts.bus import Message
box = Outbox(Path({str(path)!r}), ack_wait_s=0.2, backoff_s=(0.0,))
def messages(*ids, size=1):
    return [Message(id=str(id), subject={SUBJECT!r}, body=b"x" * size) for id in ids]
"""
    return subprocess.Popen([sys.executable, "-c", before + code])


def test_what_a_killed_process_published_is_there(path: Path, opened: Callable[..., Outbox]) -> None:
    killed = python("box.publish(messages(1, 2)); os.kill(os.getpid(), 9)", path)
    assert killed.wait(timeout=240) == -9
    assert pull(opened()) == ["1", "2"]


def test_a_consumer_that_dies_gives_its_messages_back(path: Path) -> None:
    box = Outbox(path, ack_wait_s=0.2, backoff_s=(0.0,))
    box.publish(messages(1))
    killed = python(f"assert box.pull({TRAJECTORIES!r}, 'g', limit=1, timeout_s=1); os.kill(os.getpid(), 9)", path)
    assert killed.wait(timeout=240) == -9
    (delivery,) = box.pull(TRAJECTORIES, "g", limit=1, timeout_s=5)
    assert delivery.attempt == 2
    box.close()


def test_several_processes_publish_and_pull_at_the_same_time(path: Path, opened: Callable[..., Outbox]) -> None:
    opened()
    taking = f"""
until = time.monotonic() + 60
while time.monotonic() < until and not os.path.exists({str(path)!r} + ".done"):
    found = box.pull({TRAJECTORIES!r}, "g", limit=9, timeout_s=0.1)
    with open({str(path)!r} + ".taken", "a") as file:
        file.write("".join(d.message.id + "\\n" for d in found))
    box.ack(found)
"""
    sending = "for i in range(100): box.publish(messages(f'{os.getpid()}-{i}', size=5000))"
    takers, senders = [python(taking, path) for _ in range(2)], [python(sending, path) for _ in range(2)]
    assert [sender.wait(timeout=240) for sender in senders] == [0, 0]
    box = opened()
    deadline = time.monotonic() + 60
    while box.pending(TRAJECTORIES, "g") and time.monotonic() < deadline:
        time.sleep(0.02)
    Path(f"{path}.done").touch()
    assert [taker.wait(timeout=240) for taker in takers] == [0, 0]
    expected = {f"{sender.pid}-{i}" for sender in senders for i in range(100)}
    assert set(Path(f"{path}.taken").read_text().split()) == expected


def test_publishing_is_quick_while_another_process_drains(path: Path) -> None:
    """The bound leaves room for a busy disk; benchmarks/durability.py compares it with a bare commit."""
    draining = f"""
until = time.monotonic() + 60
while time.monotonic() < until and not os.path.exists({str(path)!r} + ".done"):
    box.ack(box.pull({TRAJECTORIES!r}, "g", limit=100, timeout_s=0.05))
"""
    box, drainer, took = Outbox(path), python(draining, path), []
    for number in range(200):
        began = time.perf_counter()
        box.publish(messages(number, body=b"x" * 20_000))
        took.append(time.perf_counter() - began)
        time.sleep(0.001)
    Path(f"{path}.done").touch()
    assert drainer.wait(timeout=240) == 0
    assert sorted(took)[len(took) // 2] < 0.2
    box.close()


def test_bodies_go_when_every_group_has_acknowledged(path: Path, opened: Callable[..., Outbox]) -> None:
    box = opened()
    pull(box, group="other")
    box.publish(messages(1, 2))
    box.ack(box.pull(TRAJECTORIES, "g", limit=10, timeout_s=0))
    assert rows(path, "SELECT count(*) FROM message") == 2
    box.ack(box.pull(TRAJECTORIES, "other", limit=1, timeout_s=0))
    assert rows(path, "SELECT count(*) FROM message") == 1
    assert rows(path, "SELECT count(*) FROM given") == 0


def test_ids_are_known_for_seven_days_after_the_body_is_gone(
    path: Path, opened: Callable[..., Outbox], clock: Clock
) -> None:
    box = opened()
    box.publish(messages(1))
    box.ack(box.pull(TRAJECTORIES, "g", limit=10, timeout_s=0))
    clock.now += 6.9 * DAY_S
    opened().publish(messages(1))
    assert pull(box) == []
    clock.now += 0.2 * DAY_S
    opened().publish(messages(1))
    assert pull(box) == ["1"]


def test_what_waits_is_kept_and_dead_letters_go_after_their_days(
    path: Path, opened: Callable[..., Outbox], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    box = opened()
    box.publish(messages(*range(20)))
    box.bury(box.pull(TRAJECTORIES, "g", limit=1, timeout_s=0)[0], reason="broken")
    clock.now += 29 * DAY_S
    box = opened()
    assert len(box.dead_letters()) == 1
    assert not caplog.records
    clock.now += 300 * DAY_S
    box = opened()
    assert box.dead_letters() == []
    assert box.pending(TRAJECTORIES, "g") == 19
    assert "19 events of AGENT_RL_TRAJECTORIES" in caplog.text
    assert "329 days" in caplog.text
    assert len(pull(box)) == 19


def test_clock_that_is_set_back_does_not_hold_up_what_a_dead_consumer_had(
    opened: Callable[..., Outbox], clock: Clock
) -> None:
    box = opened()
    box.publish(messages(1))
    assert pull(box) == ["1"]
    clock.now -= 10  # less than a consumer may take
    assert pull(box) == []
    clock.now -= 3600
    assert pull(box) == ["1"]


def test_tidies_while_it_is_open(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIDY_S", 0.0)
    box = Outbox(path, clock=clock)
    box.publish(messages(1, subject="agent.rl.reward.v1"))
    clock.now += 31 * DAY_S
    assert pull(box) == []
    assert rows(path, "SELECT count(*) FROM message") + rows(path, "SELECT count(*) FROM seen") == 0
    box.close()


def test_a_full_disk_takes_nothing_and_loses_nothing(
    path: Path, opened: Callable[..., Outbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etude.adapters.outbox.PRAGMAS", (*PRAGMAS, "max_page_count = 100"))
    box = opened()
    box.publish(messages(1, 2, body=b"x" * 50_000))
    with pytest.raises(BusError, match=r"full: free some space"):
        box.publish(messages(3, 4, 5, 6, 7, 8, body=b"x" * 50_000))
    assert pull(box) == ["1", "2"]
    assert rows(path, "SELECT count(*) FROM seen") == 2
    box.publish(messages(3, body=b"x" * 50_000))
    assert pull(box) == ["3"]


def test_erased_bytes_are_not_in_the_file_nor_in_its_log(path: Path, opened: Callable[..., Outbox]) -> None:
    box, secret = opened(), b"alice@example.org " * 1000
    box.publish([*messages(1, 2, body=secret), *messages(3)])
    box.ack([box.pull(TRAJECTORIES, "g", limit=1, timeout_s=0)[0]])

    def held() -> bytes:
        return b"".join(Path(f"{path}{end}").read_bytes() for end in ("", "-wal", "-shm"))

    assert b"alice" in held()
    assert box.erase(lambda message: b"alice" in message.body) == 1
    assert b"alice" not in held()
    assert pull(box) == ["3"]


def test_erase_says_when_a_reader_keeps_old_pages(
    path: Path, opened: Callable[..., Outbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    box = opened()
    box.publish(messages(1))
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM message").fetchone()
    with pytest.raises(BusError, match="a reader holds the log"):
        box.erase(lambda message: True)
    reader.close()
    assert box.erase(lambda message: True) == 0
    assert pull(box) == []


def test_says_who_holds_it_too_long(path: Path, opened: Callable[..., Outbox], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.1)
    box = opened()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(BusError, match="another process has held it for too long"):
        box.publish(messages(1))
    writer.execute("ROLLBACK")
    writer.close()
    box.publish(messages(1))
    assert pull(box) == ["1"]


def test_is_durable_and_private(path: Path, opened: Callable[..., Outbox]) -> None:
    box = opened()
    box.publish(messages(1))
    assert path.stat().st_mode & 0o077 == 0
    with box._connections.use() as db:
        asked = ("journal_mode", "synchronous", "secure_delete", "user_version")
        assert [db.execute(f"PRAGMA {name}").fetchone()[0] for name in asked] == ["wal", 2, 1, len(MIGRATIONS)]


def test_numbers_never_come_again(path: Path, opened: Callable[..., Outbox]) -> None:
    box = opened()
    for number in range(3):
        box.publish(messages(number))
        box.ack(box.pull(TRAJECTORIES, "g", limit=10, timeout_s=0))
        box = opened()
    assert rows(path, "SELECT seq FROM sqlite_sequence WHERE name = 'message'") == 3


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda path: path.write_bytes(b"not a database, but long enough to look at" * 100), "no SQLite database"),
        (lambda path: path.mkdir(), "cannot be made"),
        (lambda path: execute(path, "PRAGMA user_version = 99"), "this Etude knows"),
        (lambda path: execute(path, "CREATE TABLE notes (text)"), "something else than Etude"),
        (lambda path: path.parent.joinpath("x").touch(), None),
    ],
)
def test_says_what_is_wrong_with_a_file(path: Path, make: Callable[[Path], object], complaint: str | None) -> None:
    make(path)
    target = path if complaint else path.parent / "x" / "outbox.db"
    with pytest.raises(BusError, match=complaint or "cannot be made"):
        Outbox(target)


def execute(path: Path, statement: str) -> None:
    db = sqlite3.connect(path)
    db.execute(statement)
    db.close()


def test_makes_its_folder(tmp_path: Path) -> None:
    box = Outbox(tmp_path / "a" / "b" / "outbox.db")
    box.publish(messages(1))
    box.close()
    assert os.listdir(tmp_path / "a" / "b") == ["outbox.db"]


def test_a_release_that_comes_late_does_not_disturb_the_next_consumer(
    opened: Callable[..., Outbox], clock: Clock
) -> None:
    box = opened(ack_wait_s=10, backoff_s=(0.0,))
    box.publish(messages(1))
    (first,) = box.pull(TRAJECTORIES, "g", limit=1, timeout_s=0)
    clock.now += 11
    (second,) = box.pull(TRAJECTORIES, "g", limit=1, timeout_s=0)
    box.release([first])
    assert pull(box) == []
    box.ack([second])
    box.bury(first, reason="late")
    assert box.dead_letters() == []
