"""What a server keeps between a decision and its outcome, in one SQLite file that all its processes share."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import TypeVar

from etude.adapters.connections import Connections, Step, migrate, run_script
from etude.contracts.errors import StoreError
from etude.contracts.serving import OpenRow

T = TypeVar("T")
PATIENCE_S = 5.0
"""Seconds that a transaction waits for those of other processes."""
SCHEMA = """
CREATE TABLE open_row (trajectory TEXT NOT NULL, number INTEGER NOT NULL, time REAL NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (trajectory, number)) WITHOUT ROWID;
CREATE INDEX open_row_by_time ON open_row (time);
CREATE TABLE answer (caller TEXT NOT NULL, key TEXT NOT NULL, request BLOB NOT NULL, body BLOB NOT NULL,
    time REAL NOT NULL, PRIMARY KEY (caller, key)) WITHOUT ROWID;
CREATE TABLE rating (source TEXT NOT NULL, day TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (source, day))
    WITHOUT ROWID;
"""
CONVERSATIONS = """
CREATE TABLE conversation (key TEXT PRIMARY KEY, model TEXT NOT NULL, time REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX conversation_by_time ON conversation (time);
"""
MIGRATIONS: tuple[Step, ...] = (partial(run_script, script=SCHEMA), partial(run_script, script=CONVERSATIONS))
MAX_LOG_PAGES = 1 << 13
"""Pages of the write-ahead log at which a call that writes copies it into the file; mostly `tidy` was there before."""
PAGE_BYTES = 4096
PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "secure_delete = ON",
    f"wal_autocheckpoint = {MAX_LOG_PAGES}",
    f"journal_size_limit = {MAX_LOG_PAGES * PAGE_BYTES}",
)
INSERT = "INSERT INTO open_row (trajectory, number, time, body) VALUES "
ROW = "({0}, (SELECT coalesce(max(number), 0) + {1} FROM open_row WHERE trajectory = {0}), {2}, {3})"
"""A row of a task, after those that it has."""
NO_ANSWER = b""
"""The answer of a request that is being answered; a real one is never empty."""
WINDOW_BITS = 12
"""Size of the window of compression: the options of a choice are alike, and each sync writes whole pages. A larger one
takes longer to set up than it gains."""
MEMORY_LEVEL = 5
"""Size of its table: bodies are small, and clearing a larger one takes longer than compressing them."""
TOGETHER = (1, 2, 4, 8, 16, 32, 64)
"""Rows per statement: few numbers, so that statements are compiled once."""


class SqliteServingState:
    """`contracts.serving.ServingState`. Each call that writes syncs the disk once, however many rows it has; models of
    conversations are synced with the next one, since what they lose in a power cut is a conversation's model alone."""

    def __init__(self, path: Path) -> None:
        self._turn = Lock()  # writers of this process: SQLite lets them wait for whole milliseconds
        self._log, self._has_room = f"{path}-wal", False
        self._connections = Connections(path, PRAGMAS, error=StoreError, renew=self._renew, timeout_s=PATIENCE_S)
        self._do = self._connections.do
        self._do(lambda db: migrate(db, path, MIGRATIONS, error=StoreError))
        self._unsynced = Connections(
            path, (*PRAGMAS, "synchronous = NORMAL"), error=StoreError, renew=lambda: None, timeout_s=PATIENCE_S
        )

    def open(self, rows: Sequence[OpenRow]) -> None:
        """Several rows per statement: each one is a turn of Python's lock, which a busy thread gives late. A single
        statement is a transaction by itself."""
        before, values = Counter[str](), []
        for row in rows:
            before[row.trajectory] += 1
            values.append((row.trajectory, before[row.trajectory], row.time.timestamp(), _packed(row.body)))
        if len(values) in TOGETHER:
            with self._turn:
                self._do(lambda db: _insert_rows(db, values))
        elif values:
            self._write(lambda db: _insert_rows(db, values))

    def add(self, row: OpenRow) -> bool:
        query = """INSERT INTO open_row SELECT ?1, max(number) + 1, ?2, ?3 FROM open_row WHERE trajectory = ?1
            HAVING count(*)"""
        values = (row.trajectory, row.time.timestamp(), _packed(row.body))
        return bool(self._write(lambda db: db.execute(query, values).rowcount))

    def parts(self, trajectory: str, *, limit: int = -1) -> list[bytes]:
        query = "SELECT body FROM open_row WHERE trajectory = ? ORDER BY number LIMIT ?"
        return [
            zlib.decompress(body, -WINDOW_BITS)
            for (body,) in self._do(lambda db: db.execute(query, (trajectory, limit)).fetchall())
        ]

    def waiting(self, before: datetime, *, limit: int = 100) -> list[str]:
        query = "SELECT trajectory FROM open_row WHERE time < ? ORDER BY time LIMIT ?"
        found = self._do(lambda db: db.execute(query, (before.timestamp(), limit)).fetchall())
        return list(dict.fromkeys(id for (id,) in found))

    def count(self) -> int:
        query = "SELECT count(DISTINCT trajectory) FROM open_row"
        return int(self._do(lambda db: db.execute(query).fetchone()[0]))

    def close_tasks(self, trajectories: Sequence[str]) -> None:
        ids = [(trajectory,) for trajectory in trajectories]
        if ids:
            self._write(lambda db: db.executemany("DELETE FROM open_row WHERE trajectory = ?", ids))

    def claim(
        self, caller: str, key: str, request: bytes, now: datetime, *, stale: datetime
    ) -> tuple[bytes, bytes | None] | None:
        known = "SELECT request, body FROM answer WHERE caller = ? AND key = ? AND (body != ? OR time >= ?)"
        take = "INSERT OR REPLACE INTO answer VALUES (?, ?, ?, ?, ?)"

        def claimed(db: sqlite3.Connection) -> tuple[bytes, bytes | None] | None:
            found = db.execute(known, (caller, key, NO_ANSWER, stale.timestamp())).fetchone()
            if found is None:
                db.execute(take, (caller, key, request, NO_ANSWER, now.timestamp()))
                return None
            return found[0], found[1] or None

        return self._write(claimed)

    def keep_answer(self, caller: str, key: str, body: bytes) -> None:
        keep = "UPDATE answer SET body = ? WHERE caller = ? AND key = ?"
        self._write(lambda db: db.execute(keep, (body, caller, key)))

    def unclaim(self, caller: str, key: str) -> None:
        drop = "DELETE FROM answer WHERE caller = ? AND key = ? AND body = ?"
        self._write(lambda db: db.execute(drop, (caller, key, NO_ANSWER)))

    def expire(self, before: datetime) -> None:
        def remove(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM answer WHERE time < ?", (before.timestamp(),))
            db.execute("DELETE FROM conversation WHERE time < ?", (before.timestamp(),))
            db.execute("DELETE FROM rating WHERE day < ?", (f"{before:%Y-%m-%d}",))

        self._write(remove)

    def rate(self, rating: str, sources: Mapping[str, int], day: str) -> str | None:
        known = "SELECT count FROM rating WHERE source = ? AND day = ?"
        add = "INSERT INTO rating VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET count = count + 1"

        def count(db: sqlite3.Connection) -> str | None:
            if db.execute(known, (rating, day)).fetchone():
                return None
            for source, most in sources.items():
                found = db.execute(known, (source, day)).fetchone()
                if found and found[0] >= most:
                    return source
            db.executemany(add, [(one, day) for one in (rating, *sources)])
            return None

        return self._write(count)

    def unrate(self, rating: str, sources: Collection[str], day: str) -> None:
        less = "UPDATE rating SET count = count - 1 WHERE source = ? AND day = ?"
        mine = "DELETE FROM rating WHERE source = ? AND day = ?"

        def uncount(db: sqlite3.Connection) -> None:
            if db.execute(mine, (rating, day)).rowcount:
                db.executemany(less, [(one, day) for one in sources])

        self._write(uncount)

    def keep_models(self, models: Mapping[str, str], time: datetime, *, limit: int) -> None:
        values = [(key, model, time.timestamp()) for key, model in models.items()]

        def keep(db: sqlite3.Connection) -> None:
            db.executemany("INSERT OR REPLACE INTO conversation VALUES (?, ?, ?)", values)
            over = int(db.execute("SELECT count(*) FROM conversation").fetchone()[0]) - limit
            if over > 0:
                oldest = "SELECT key FROM conversation ORDER BY time LIMIT ?"
                db.execute(f"DELETE FROM conversation WHERE key IN ({oldest})", (over,))

        self._write(keep, self._unsynced)

    def kept_model(self, conversation: str, since: datetime) -> str | None:
        query = "SELECT model FROM conversation WHERE key = ? AND time >= ?"
        found = self._do(lambda db: db.execute(query, (conversation, since.timestamp())).fetchone())
        return None if found is None else str(found[0])

    def ping(self) -> None:
        self._do(lambda db: db.execute("SELECT 1 FROM open_row LIMIT 1").fetchone())

    def tidy(self) -> None:
        """Copy the write-ahead log into the file, while others read and write. A long one is then copied to its end, so
        that it begins again: a call that writes would have to."""
        if not self._has_room:
            self._make_room()
        _, pages, _ = self._do(_copy_log)
        if pages > MAX_LOG_PAGES // 2:
            with self._turn:  # what was written meanwhile is little
                self._do(_copy_log)

    def _make_room(self) -> None:
        """Give the log its full length. A sync of a file that grows waits for the file system's journal, and with it
        for what others write; one that overwrites does not."""
        with self._turn:
            self._do(_lengthen_log)
            with open(self._log, "rb") as log:
                os.fsync(log.fileno())
        self._has_room = True

    def close(self) -> None:
        self._connections.close()
        self._unsynced.close()

    def _write(self, work: Callable[[sqlite3.Connection], T], connections: Connections | None = None) -> T:
        with self._turn:
            return (connections or self._connections).write(work)

    def _renew(self) -> None:
        self._turn = Lock()


def _insert_rows(db: sqlite3.Connection, rows: Sequence[tuple[str, int, float, bytes]]) -> None:
    done = 0
    while done < len(rows):
        some = rows[done : done + max(one for one in TOGETHER if one <= len(rows) - done)]
        db.execute(_insert(len(some)), [value for row in some for value in row])
        done += len(some)


@cache
def _insert(rows: int) -> str:
    """The statement for this many rows."""
    numbered = (f"?{4 * row + place}" for row in range(rows) for place in range(1, 5))
    return INSERT + ", ".join(ROW.format(*(next(numbered) for _ in range(4))) for _ in range(rows))


def _copy_log(db: sqlite3.Connection) -> tuple[int, int, int]:
    """Whether it was busy, the pages of the log, and those that are in the file."""
    found: tuple[int, int, int] = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return found


def _lengthen_log(db: sqlite3.Connection) -> None:
    """By a transaction that is larger than the cache, and never ends."""
    db.execute("BEGIN IMMEDIATE")
    db.execute("CREATE TABLE room (page BLOB)")
    db.execute("INSERT INTO room VALUES (zeroblob(?))", (MAX_LOG_PAGES * PAGE_BYTES,))
    db.execute("ROLLBACK")


def _packed(body: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -WINDOW_BITS, MEMORY_LEVEL)
    return packer.compress(body) + packer.flush()
