"""What may befall a file: other versions and files, no room, no rights, damage, and death in the midst of writing."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from etude.adapters.sqlite import APPLICATION_ID, MIGRATIONS, PAGE_BYTES, PRAGMAS, SqliteStore
from etude.contracts.errors import StoreError
from etude.contracts.query import Where
from etude.contracts.reward import Reward
from etude.contracts.store import Stored
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Event, Feedback, Trajectory

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
EVERYTHING = Where()


def trajectory(name: str, *, minutes: int = 0, task: str = "do it", user: str | None = None) -> Trajectory:
    return Trajectory(id=name, time=NOON + timedelta(minutes=minutes), task=task, problem="workflow", user=user)


def store_all(store: SqliteStore, *events: Event) -> list[Stored]:
    return store.append([(event, encode(event)) for event in events])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "experience.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path)) as store:
        yield store


def pragma(path: Path, name: str) -> object:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(f"PRAGMA {name}").fetchone()[0]


BEFORE_6 = "DROP TABLE collected; DROP TABLE rewarded"
"""As version 5 left a file."""
BEFORE_5 = f"{BEFORE_6}; DROP INDEX by_judgement; ALTER TABLE trajectories DROP COLUMN success_by"
"""As version 4 left a file."""
BEFORE_4 = f"{BEFORE_5}; DROP TRIGGER feedback_is_early; DROP TRIGGER feedback_is_removed; DROP TABLE early"
"""As versions before 4 left a file."""


class TestVersions:
    def test_a_file_of_version_one_is_brought_up_to_date(self, path: Path) -> None:
        with closing(SqliteStore(path)) as store:
            mark = Reward(id="r", time=NOON, trajectory_id="a", version=3, definition="d", total=0.5, confidence=1.0)
            store_all(store, trajectory("a", user="u"), trajectory("b", minutes=60 * 24), mark)
            expected = store.stats(EVERYTHING, version=3)
        with closing(sqlite3.connect(path)) as db:  # as version 1 left it: without the totals
            db.executescript(f"DROP TABLE cells; DROP TABLE reward_cells; {BEFORE_4}; PRAGMA user_version = 1")
        with closing(SqliteStore(path)) as store:
            assert store.stats(EVERYTHING, version=3) == expected
            assert expected.mean_reward == 0.5
            assert store_all(store, trajectory("a", user="u"), trajectory("c")) == ["duplicate", "new"]
        assert pragma(path, "user_version") == len(MIGRATIONS)

    def test_a_migration_that_fails_changes_nothing(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(db: sqlite3.Connection) -> None:
            db.execute("CREATE TABLE half (x)")
            db.execute("no SQL")

        SqliteStore(path).close()
        monkeypatch.setattr("etude.adapters.sqlite.MIGRATIONS", (*MIGRATIONS, broken))
        with pytest.raises(StoreError, match="syntax error"):
            SqliteStore(path)
        monkeypatch.undo()
        assert pragma(path, "user_version") == len(MIGRATIONS)
        with closing(sqlite3.connect(path)) as db:
            assert not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'half'").fetchone()

    def test_a_newer_file_is_refused_and_left_alone(self, path: Path) -> None:
        SqliteStore(path).close()
        with closing(sqlite3.connect(path)) as db:
            db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
        before = path.read_bytes()
        with pytest.raises(StoreError, match=r"has version 7, and this Etude knows 6: upgrade it"):
            SqliteStore(path)
        assert path.read_bytes() == before

    def test_a_new_file_says_whose_it_is_and_keeps_a_log(self, store: SqliteStore, path: Path) -> None:
        assert pragma(path, "application_id") == APPLICATION_ID
        assert pragma(path, "journal_mode") == "wal"
        assert pragma(path, "page_size") == PAGE_BYTES
        with store._reading() as db:  # every connection brings each commit to the disk
            assert db.execute("PRAGMA synchronous").fetchone() == (2,)


class TestOlderFiles:
    def test_trajectories_that_left_their_problem_out_say_it(self, path: Path) -> None:
        event = trajectory("a", task='say "hello", {x}')
        whole = encode(event)
        with closing(SqliteStore(path)) as store:
            store.append([(event, whole.replace(b'"problem":"workflow",', b""))])
            store_all(store, trajectory("b"))
        with closing(sqlite3.connect(path)) as db:
            db.executescript(f"{BEFORE_4}; PRAGMA user_version = 2")
        with closing(SqliteStore(path)) as store:
            for name, expected in (("a", event), ("b", trajectory("b"))):
                detail = store.detail(name)
                assert detail is not None
                assert detail.trajectory == expected

    def test_ratings_that_wait_are_found_in_an_older_file(self, path: Path) -> None:
        ratings = [Feedback(id=f"f{of}", time=NOON, trajectory_id=of, stars=5) for of in ("a", "typo")]
        with closing(SqliteStore(path)) as store:
            store_all(store, trajectory("a"), *ratings)
        with closing(sqlite3.connect(path)) as db:
            db.executescript(f"{BEFORE_4}; PRAGMA user_version = 3")
        with closing(SqliteStore(path)) as store:
            assert store.stats(EVERYTHING, version=1).waiting == 1


class TestOtherFiles:
    def test_a_database_of_something_else_is_refused(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE songs (name)")
        with pytest.raises(StoreError, match="a database of something else than Etude: choose another path"):
            SqliteStore(path)
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT name FROM sqlite_schema").fetchall() == [("songs",)]

    def test_a_file_that_is_no_database_is_refused(self, path: Path) -> None:
        path.write_text("Dear diary, " * 1000)
        with pytest.raises(StoreError, match=r"not a database.*choose another path"):
            SqliteStore(path)
        assert path.read_text().startswith("Dear diary")

    def test_a_folder_that_cannot_be_written_is_refused(self, tmp_path: Path) -> None:
        # Not even root makes files among the kernel's own.
        locked = Path("/proc/sys") if os.geteuid() == 0 else tmp_path / "locked"
        locked.mkdir(mode=0o555, exist_ok=True)
        with pytest.raises(StoreError, match=r"cannot be made.*check that its folder may be written"):
            SqliteStore(locked / "experience.db")
        with pytest.raises(StoreError, match="cannot be made"):
            SqliteStore(locked / "below" / "experience.db")

    def test_a_folder_in_a_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(StoreError, match="cannot be made"):
            SqliteStore(tmp_path / "file" / "experience.db")

    def test_damage_is_reported_with_what_to_do(self, path: Path) -> None:
        with closing(SqliteStore(path)) as store:
            store_all(store, *(trajectory(f"t{i}", minutes=i, task="x" * 2000) for i in range(300)))
        whole = path.read_bytes()
        path.write_bytes(whole[: 4 * PAGE_BYTES] + b"\x5a" * (len(whole) - 4 * PAGE_BYTES))
        with closing(SqliteStore(path)) as store, pytest.raises(StoreError, match=r"damaged: restore it from a backup"):
            list(store.scan(EVERYTHING, version=1))


def fill(store: SqliteStore) -> None:
    for start in range(0, 10_000, 5):
        store_all(store, *(trajectory(f"t{start + i}", task="x" * 9000) for i in range(5)))


class TestErasure:
    def test_no_copy_stays_in_pages_that_were_moved(self, store: SqliteStore, path: Path) -> None:
        random, events = Random(1), list[Event]()
        for i in range(1500):
            user, task = f"erased-user-{random.randrange(15):02}", "x" * random.choice((50, 500, 3000))
            event = trajectory(f"t{random.randrange(10**9)}", minutes=random.randrange(10**5), task=task, user=user)
            comment = "c" * random.randrange(800)
            events += [event, Feedback(id=f"f{i}", time=NOON, trajectory_id=event.id, user=user, comment=comment)]
        random.shuffle(events)
        for start in range(0, len(events), 50):
            store_all(store, *events[start : start + 50])
        for number in range(7):
            store.forget(f"erased-user-{number:02}")
            assert not any(b"erased-user-%02d" % number in file.read_bytes() for file in path.parent.iterdir())


class TestRoom:
    def test_a_full_disk_stops_all_of_a_batch(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("etude.adapters.sqlite.PRAGMAS", (*PRAGMAS, "max_page_count = 100"))
        with closing(SqliteStore(path)) as store:
            with pytest.raises(StoreError, match=r"full: free some space.*nothing .* was written"):
                fill(store)
            stored = store.stats(EVERYTHING, version=1).trajectories
            assert 10 < stored < 100
            assert stored % 5 == 0
            assert stored == len(list(store.scan(EVERYTHING, version=1)))
            assert store_all(store, trajectory("t0", task="x" * 9000)) == [Stored.DUPLICATE]
        monkeypatch.undo()
        with closing(SqliteStore(path)) as roomier:
            again = [trajectory(f"t{stored + i}", task="x" * 9000) for i in range(5)]
            assert store_all(roomier, *again) == [Stored.NEW] * 5

    def test_a_long_scan_holds_up_erasure_until_it_ends(self, path: Path) -> None:
        with closing(SqliteStore(path, timeout_s=0.1)) as store:
            store_all(store, *(trajectory(f"t{i}", user="vera", task="very secret") for i in range(300)))
            scan = store.scan(EVERYTHING, version=1)
            next(scan)
            with pytest.raises(StoreError, match="end long scans, then do it again"):
                store.forget("vera")
            assert store.stats(EVERYTHING, version=1).trajectories == 0
            del scan
            assert len(store.forget("vera")) == 300
            assert store.forget("vera") == []
            assert not any(b"secret" in file.read_bytes() for file in path.parent.iterdir())

    def test_a_writer_that_never_ends_is_reported(self, path: Path) -> None:
        with closing(SqliteStore(path, timeout_s=0.05)) as store, closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match=r"locked.*end that, or do it again"):
                store_all(store, trajectory("a"))
            other.rollback()
            assert store_all(store, trajectory("a")) == [Stored.NEW]


WRITER = """
import sys
from pathlib import Path
from etude.adapters.sqlite import SqliteStore
from tests.unit.adapters.test_sqlite import store_all, trajectory
store = SqliteStore(Path(sys.argv[1]))
for i in range(10**9):
    store_all(store, *(trajectory(f"t{i}-{k}", task="x" * 5000) for k in range(3)))
    print(i, flush=True)
"""


def write_some(path: Path, writer: int) -> None:
    with closing(SqliteStore(path)) as store:
        for i in range(20):
            name = f"{writer}-{i}"
            said = Feedback(id=name, trajectory_id="shared", time=NOON, thumbs="up")
            store_all(store, trajectory(name, minutes=i), trajectory("shared"), said)
            assert any(row.summary.id == name for row in store.scan(EVERYTHING, version=1))


class TestProcesses:
    def test_what_was_acknowledged_survives_a_killed_writer(self, path: Path) -> None:
        command = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as writer:
            assert writer.stdout is not None
            for _ in range(20):
                writer.stdout.readline()
            writer.kill()
            acknowledged = 20 + len([line for line in writer.stdout if line.endswith("\n")])
        with closing(SqliteStore(path)) as store:
            found = {row.summary.id for row in store.scan(EVERYTHING, version=1)}
            assert {f"t{i}-{k}" for i in range(acknowledged) for k in range(3)} <= found
            assert len(found) % 3 == 0  # a batch is whole or not there
            assert store.stats(EVERYTHING, version=1).trajectories == len(found)

    def test_a_new_file_may_be_made_by_all_at_once(self, tmp_path: Path) -> None:
        start = threading.Barrier(8)

        def make(path: Path) -> None:
            start.wait()
            SqliteStore(path).close()

        with ThreadPoolExecutor(8) as pool:
            for i in range(10):
                list(pool.map(make, [tmp_path / f"{i}.db"] * 8))

    def test_several_make_write_and_read_one_file_at_once(self, path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        writers = [context.Process(target=write_some, args=(path, number)) for number in range(3)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert [writer.exitcode for writer in writers] == [0, 0, 0]
        with closing(SqliteStore(path)) as store:
            stats = store.stats(EVERYTHING, version=1)
            assert (stats.trajectories, stats.feedback) == (61, 60)


def test_a_connection_keeps_few_pages(tmp_path: Path) -> None:
    opened = SqliteStore(tmp_path / "experience.sqlite")
    try:
        ((kib,),) = opened._connections.do(lambda db: db.execute("PRAGMA cache_size").fetchall())
        assert -(4 << 10) <= kib < 0
    finally:
        opened.close()
