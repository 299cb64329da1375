"""Open tasks, kept answers and counts in a file that several processes share."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from etude.adapters import serving_state
from etude.adapters.serving_state import MAX_LOG_PAGES, PAGE_BYTES, SqliteServingState
from etude.contracts.errors import StoreError
from etude.contracts.serving import OpenRow

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SqliteServingState]:
    made = SqliteServingState(tmp_path / "state.sqlite")
    yield made
    made.close()


def test_parts_of_a_task_come_back_in_order_until_it_is_closed(state: SqliteServingState) -> None:
    state.open([OpenRow("a", NOW, b"1"), OpenRow("b", NOW, b"x")])
    state.open([OpenRow("a", NOW, b"2")])
    assert (state.parts("a"), state.parts("b"), state.parts("c")) == ([b"1", b"2"], [b"x"], [])
    assert state.count() == 2
    state.open([OpenRow("a", NOW, b"3"), OpenRow("b", NOW, b"y"), OpenRow("a", NOW, b"4" * 5000)])
    assert (state.parts("a"), state.parts("b")) == ([b"1", b"2", b"3", b"4" * 5000], [b"x", b"y"])
    state.close_tasks(["a", "c"])
    state.close_tasks(["a"])
    assert (state.parts("a"), state.count()) == ([], 1)


def test_the_oldest_wait_longest(state: SqliteServingState) -> None:
    for minutes, id in ((1, "young"), (90, "old"), (120, "older")):
        state.open([OpenRow(id, NOW - timedelta(minutes=minutes), b"")])
    state.open([OpenRow("old", NOW, b"later")])
    assert state.waiting(NOW - timedelta(hours=1)) == ["older", "old"]
    assert state.waiting(NOW - timedelta(hours=1), limit=1) == ["older"]


def test_the_first_answer_of_a_key_is_kept_for_its_caller(state: SqliteServingState) -> None:
    def claim(caller: str, request: bytes = b"request", *, now: datetime = NOW) -> tuple[bytes, bytes | None] | None:
        return state.claim(caller, "k", request, now, stale=now - timedelta(minutes=1))

    assert claim("me") is None
    assert claim("me", b"other") == (b"request", None)  # in work
    state.keep_answer("me", "k", b"answer")
    state.unclaim("me", "k")  # too late
    assert claim("me") == claim("me", now=NOW + timedelta(hours=1)) == (b"request", b"answer")
    assert claim("you") is None
    state.unclaim("you", "k")
    assert claim("you") is None
    assert claim("you", now=NOW + timedelta(minutes=2)) is None  # its process has died
    assert claim("you", now=NOW + timedelta(minutes=2)) == (b"request", None)
    state.expire(NOW + timedelta(days=1))
    assert claim("me") is None


def test_what_is_found_later_is_added_to_an_open_task_alone(state: SqliteServingState) -> None:
    state.open([OpenRow("a", NOW, b"1")])
    assert state.add(OpenRow("a", NOW, b"2"))
    assert not state.add(OpenRow("b", NOW, b"2"))
    assert (state.parts("a"), state.parts("b")) == ([b"1", b"2"], [])
    state.close_tasks(["a"])
    assert not state.add(OpenRow("a", NOW, b"3"))
    assert state.count() == 0


def test_the_models_of_the_newest_conversations_are_kept(state: SqliteServingState) -> None:
    for minutes in (3, 2, 1):
        state.keep_models({f"c{minutes}": "small"}, NOW - timedelta(minutes=minutes), limit=2)
    state.keep_models({"c2": "large"}, NOW, limit=2)
    since = NOW - timedelta(hours=1)
    assert [state.kept_model(f"c{n}", since) for n in (3, 2, 1)] == [None, "large", "small"]
    assert state.kept_model("c1", NOW) is None  # too old
    state.expire(NOW)
    assert [state.kept_model(f"c{n}", since) for n in (2, 1)] == ["large", None]


def test_ratings_are_counted_per_source_and_day(state: SqliteServingState) -> None:
    day, next_day, both = "2026-11-18", "2026-11-19", {"user": 2, "key": 3}
    assert [state.rate(f"r{i}", both, day) for i in range(4)] == [None, None, "user", "user"]
    assert state.rate("r1", both, day) is None  # counted already
    assert state.rate("r5", {"other": 2, "key": 3}, day) is None
    assert state.rate("r6", {"other": 2, "key": 3}, day) == "key"
    assert state.rate("r6", both, next_day) is None
    state.unrate("r1", both, day)
    state.unrate("r1", both, day)  # once
    state.unrate("none", both, day)
    assert [state.rate(f"s{i}", both, day) for i in range(2)] == [None, "user"]
    state.expire(datetime(2026, 11, 19, tzinfo=UTC))
    assert state.rate("r1", {"user": 1}, day) is None
    assert state.rate("r7", {"user": 1}, next_day) == "user"


def test_what_is_written_survives_and_is_private(state: SqliteServingState, tmp_path: Path) -> None:
    state.open([OpenRow("a", NOW, b"1")])
    again = SqliteServingState(tmp_path / "state.sqlite")
    assert again.parts("a") == [b"1"]
    again.close()
    assert (tmp_path / "state.sqlite").stat().st_mode & 0o777 == 0o600


def _count(path: Path, number: int) -> None:
    state = SqliteServingState(path)
    for i in range(number):
        state.rate(f"{os.getpid()}-{i}", {"u": 1000}, "2026-11-18")
        state.open([OpenRow(f"{i}", NOW, b"")])
    state.close()


def test_processes_share_it(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_count, args=(path, 20)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    state = SqliteServingState(path)
    assert [state.rate("last", {"u": most}, "2026-11-18") for most in (60, 61)] == ["u", None]
    assert state.count() == 20
    state.close()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE x (y)")
    db.close()
    with pytest.raises(StoreError, match="something else than Etude"):
        SqliteServingState(other)


def test_the_log_has_its_full_length_before_it_is_needed(state: SqliteServingState, tmp_path: Path) -> None:
    state.open([OpenRow("a", NOW, b"1")])
    state.tidy()
    length = (tmp_path / "state.sqlite-wal").stat().st_size
    assert length > MAX_LOG_PAGES * PAGE_BYTES * 0.9
    for i in range(50):
        state.open([OpenRow(f"t-{i}", NOW, os.urandom(5000))])
    assert (tmp_path / "state.sqlite-wal").stat().st_size == length
    assert state.parts("a") == [b"1"]
    assert state.count() == 51


def test_a_long_log_begins_again_though_others_write(
    state: SqliteServingState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_while_one_writes(db: sqlite3.Connection) -> tuple[int, int, int]:
        found = copy_log(db)
        if not writes:
            writes.append(OpenRow("meanwhile", NOW, b"x"))
            with sqlite3.connect(tmp_path / "state.sqlite") as other:
                other.execute("INSERT INTO open_row VALUES ('meanwhile', 1, 0, x'')")
        return found

    copy_log, writes = serving_state._copy_log, list[OpenRow]()
    state.tidy()
    monkeypatch.setattr(serving_state, "MAX_LOG_PAGES", 20)
    monkeypatch.setattr(serving_state, "_copy_log", copy_while_one_writes)
    for i in range(30):
        state.open([OpenRow(f"t-{i}", NOW, os.urandom(5000))])
    state.tidy()
    state.open([OpenRow("last", NOW, b"x")])
    with sqlite3.connect(tmp_path / "state.sqlite") as db:
        assert copy_log(db)[1] < 10
