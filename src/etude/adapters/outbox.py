"""An event bus in one durable SQLite file, for any number of processes at the same time."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import Any, Concatenate, ParamSpec, TypeVar

from etude.adapters.connections import Connections, Step, advice, error_code, migrate, run_script
from etude.adapters.delivery import (
    ACK_WAIT_S,
    BACKOFF_S,
    DAY_S,
    MAX_DELIVERIES,
    REMEMBERED_S,
    WaitingLog,
    backoff,
    check_stream,
    exhausted,
    may_expire,
)
from etude.contracts.bus import DeadLetter, Delivery, Message
from etude.contracts.errors import BusError
from etude.contracts.subjects import DEAD_LETTERS, STREAMS, stream_of

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")
Handle = tuple[str, str, int]
"""Handle of a delivery: stream, group, number."""

# Acknowledged messages of a group are not listed: they are all up to its cursor, except those in `given`.
# AUTOINCREMENT, since a reused number would be below the cursors. Bodies are last, so that the columns before them
# are read without overflow pages.
SCHEMA = """
CREATE TABLE message (
    number INTEGER PRIMARY KEY AUTOINCREMENT, stream TEXT NOT NULL, subject TEXT NOT NULL, id TEXT NOT NULL,
    time REAL NOT NULL, body BLOB NOT NULL
);
CREATE INDEX message_by_stream ON message (stream, number);
CREATE TABLE seen (
    number INTEGER PRIMARY KEY, time REAL NOT NULL, subject TEXT NOT NULL, id TEXT NOT NULL, UNIQUE (subject, id)
);
CREATE TABLE consumers (
    stream TEXT NOT NULL, name TEXT NOT NULL, cursor INTEGER NOT NULL, PRIMARY KEY (stream, name)
) WITHOUT ROWID;
CREATE TABLE given (
    stream TEXT NOT NULL, name TEXT NOT NULL, number INTEGER NOT NULL, attempt INTEGER NOT NULL, due REAL NOT NULL,
    PRIMARY KEY (stream, name, number)
) WITHOUT ROWID;
CREATE INDEX given_by_due ON given (stream, name, due);
CREATE INDEX given_by_number ON given (number);
CREATE TABLE dead_letter (
    number INTEGER PRIMARY KEY AUTOINCREMENT, subject TEXT NOT NULL, id TEXT NOT NULL, attempts INTEGER NOT NULL,
    time REAL NOT NULL, reason TEXT NOT NULL, body BLOB NOT NULL
);
"""
MIGRATIONS: tuple[Step, ...] = (partial(run_script, script=SCHEMA),)

PATIENCE_S = 5.0
"""Seconds that a transaction waits for those of other processes."""
POLL_S, MAX_POLL_S = 0.0002, 0.05
CHUNK = 8
"""Maximum number of bodies that one transaction of a consumer removes, so that publishers wait only briefly."""
TURN_S = 0.0005
"""Seconds between two such transactions, to let publishers write."""
CHECKPOINT_BYTES, CHECKPOINT_S, MAX_LOG_PAGES = 4 << 20, 0.2, 1 << 13
"""A long write-ahead log is copied into the file in the background; at its maximum, publishers copy it."""
TIDY_S = 60.0
PAGE_BYTES = 4096
PRAGMAS = (
    f"page_size = {PAGE_BYTES}",
    "journal_mode = WAL",
    "synchronous = FULL",
    "secure_delete = ON",
    f"wal_autocheckpoint = {MAX_LOG_PAGES}",
    f"journal_size_limit = {MAX_LOG_PAGES * PAGE_BYTES}",
)


class Outbox:
    """An EventBus in a file.

    Published messages survive a power cut: each publish syncs the disk once. Messages of a consumer that dies are
    redelivered after `ack_wait_s`.
    """

    def __init__(
        self,
        path: Path,
        *,
        ack_wait_s: float = ACK_WAIT_S,
        max_deliveries: int = MAX_DELIVERIES,
        backoff_s: Sequence[float] = BACKOFF_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """BusError if the file cannot be created or is not an outbox."""
        self._path = path
        self._ack_wait_s, self._max_deliveries, self._backoff_s = ack_wait_s, max_deliveries, tuple(backoff_s)
        self._clock = clock
        # What is due later than this was given before the clock was set back: it does not wait so long.
        self._longest_s = ack_wait_s + max(self._backoff_s, default=0.0)
        self._published, self._checkpointing = Condition(), Lock()
        self._tidied, self._next_checkpoint = time.monotonic(), 0.0
        self._waiting = WaitingLog(str(path))
        self._connections = Connections(path, PRAGMAS, error=BusError, renew=self._renew)
        try:
            self._do(migrate, path, MIGRATIONS, error=BusError)
            self._tidy()
        except BaseException:
            self.close()
            raise

    def publish(self, messages: Sequence[Message]) -> None:
        rows = [(stream_of(m.subject), m.subject, m.id, m.body) for m in messages]
        if rows:
            self._write(self._publish, rows)
            with self._published:
                self._published.notify_all()
            self._checkpoint(in_background=True)

    def pull(self, stream: str, group: str, *, limit: int, timeout_s: float) -> list[Delivery]:
        check_stream(stream)
        if time.monotonic() - self._tidied >= TIDY_S:
            self._tidied = time.monotonic()
            self._tidy()
        deadline, pause_s = time.monotonic() + timeout_s, 0.001
        while True:
            found: list[Delivery] = []
            # A read does not block publishers.
            if self._do(self._has_some, stream, group):
                given = self._write(self._give, stream, group, limit)
                found = self._do(_deliveries, stream, group, given)
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            with self._published:
                self._published.wait(min(left, pause_s))
            pause_s = min(2 * pause_s, MAX_POLL_S)

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        self._in_chunks([delivery.handle for delivery in deliveries], _acknowledge)
        self._checkpoint()

    def renew(self, deliveries: Sequence[Delivery]) -> None:
        due = self._clock() + self._ack_wait_s
        rows = [(0, due + backoff(self._backoff_s, d.attempt), *d.handle, d.attempt) for d in deliveries]
        self._in_chunks(rows, _change_given)

    def release(self, deliveries: Sequence[Delivery]) -> None:
        self._in_chunks([(1, self._clock(), *d.handle, d.attempt) for d in deliveries], _change_given)

    def bury(self, delivery: Delivery, *, reason: str) -> None:
        self._write(self._bury, delivery, reason)

    def dead_letters(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        query = """SELECT number, subject, id, body, reason, attempts, time FROM dead_letter
            WHERE number > ? ORDER BY number LIMIT ?"""
        return [
            DeadLetter(
                number=number,
                message=Message(id=id, subject=subject, body=body),
                reason=reason,
                attempts=attempts,
                time=datetime.fromtimestamp(seconds, UTC),
            )
            for number, subject, id, body, reason, attempts, seconds in self._read(query, after, limit)
        ]

    def replay(self, numbers: Sequence[int]) -> int:
        count = self._in_chunks(list(dict.fromkeys(numbers)), self._replay)
        with self._published:
            self._published.notify_all()
        return count

    def pending(self, stream: str, group: str) -> int:
        check_stream(stream)
        query = """SELECT
            (SELECT count(*) FROM message WHERE stream = :stream AND number >
                coalesce((SELECT cursor FROM consumers WHERE stream = :stream AND name = :name), 0))
            + (SELECT count(*) FROM given WHERE stream = :stream AND name = :name)"""
        values = {"stream": stream, "name": group}
        return int(self._do(lambda db: db.execute(query, values).fetchone()[0]))

    def erase(self, match: Callable[[Message], bool]) -> int:
        """BusError also if a reader keeps old pages from being overwritten: erasing again completes it."""
        count, last = self._erase("message", match, after=0)
        # Twice, since a dead letter may be replayed meanwhile.
        count += self._erase("dead_letter", match, after=0)[0] + self._erase("message", match, after=last)[0]
        self._do(_truncate_log)
        return count

    def close(self) -> None:
        self._connections.close()
        with self._checkpointing:  # the thread has ended, or finds the outbox closed
            pass

    def _publish(self, db: sqlite3.Connection, rows: Sequence[tuple[str, str, str, bytes]]) -> None:
        now = self._clock()
        for stream, subject, id, body in rows:
            seen = "INSERT OR IGNORE INTO seen (time, subject, id) VALUES (?, ?, ?)"
            if db.execute(seen, (now, subject, id)).rowcount:
                _insert(db, stream, subject, id, now, body)

    def _has_some(self, db: sqlite3.Connection, stream: str, group: str) -> bool:
        query = """SELECT NOT EXISTS (SELECT 1 FROM consumers WHERE stream = :stream AND name = :name)
            OR EXISTS (SELECT 1 FROM given WHERE stream = :stream AND name = :name
                AND (due <= :now OR due > :now + :longest))
            OR EXISTS (SELECT 1 FROM message WHERE stream = :stream AND number >
                (SELECT cursor FROM consumers WHERE stream = :stream AND name = :name))"""
        known = {"stream": stream, "name": group, "now": self._clock(), "longest": self._longest_s}
        return bool(db.execute(query, known).fetchone()[0])

    def _give(self, db: sqlite3.Connection, stream: str, group: str, limit: int) -> dict[int, int]:
        """Attempts by message number, in the order of delivery."""
        now, key = self._clock(), (stream, group)
        db.execute("INSERT OR IGNORE INTO consumers VALUES (?, ?, 0)", key)
        given: dict[int, int] = {}
        due = """SELECT number, attempt FROM given WHERE stream = ? AND name = ? AND (due <= ? OR due > ?)
            ORDER BY due, number LIMIT ?"""
        for number, attempt in db.execute(due, (*key, now, now + self._longest_s, limit)).fetchall():
            if attempt >= self._max_deliveries:
                for worn_out in _deliveries(db, stream, group, {number: attempt}):
                    self._bury(db, worn_out, exhausted(attempt))
            else:
                given[number] = attempt + 1
        (cursor,) = db.execute("SELECT cursor FROM consumers WHERE stream = ? AND name = ?", key).fetchone()
        new = "SELECT number FROM message WHERE stream = ? AND number > ? ORDER BY number LIMIT ?"
        for (number,) in db.execute(new, (stream, cursor, limit - len(given))).fetchall():
            given[number], cursor = 1, number
        db.execute("UPDATE consumers SET cursor = ? WHERE stream = ? AND name = ?", (cursor, *key))
        db.executemany(
            "INSERT OR REPLACE INTO given VALUES (?, ?, ?, ?, ?)",
            [
                (*key, n, attempt, now + self._ack_wait_s + backoff(self._backoff_s, attempt))
                for n, attempt in given.items()
            ],
        )
        return given

    def _bury(self, db: sqlite3.Connection, delivery: Delivery, reason: str) -> None:
        """Bury a message unless it was acknowledged, buried or erased meanwhile."""
        message = delivery.message
        given = """SELECT 1 FROM given JOIN message USING (number) WHERE given.stream = ? AND name = ?
            AND number = ?"""
        if db.execute(given, delivery.handle).fetchone():
            insert = "INSERT INTO dead_letter (subject, id, attempts, time, reason, body) VALUES (?, ?, ?, ?, ?, ?)"
            values = (message.subject, message.id, delivery.attempt, self._clock(), reason, message.body)
            db.execute(insert, values)
            _acknowledge(db, [delivery.handle])

    def _replay(self, db: sqlite3.Connection, numbers: Sequence[int]) -> int:
        count = 0
        for number in numbers:
            row = db.execute("SELECT subject, id, body FROM dead_letter WHERE number = ?", (number,)).fetchone()
            if row is not None:
                _insert(db, stream_of(row[0]), row[0], row[1], self._clock(), row[2])
                count += _remove_dead(db, [number])
        return count

    def _erase(self, table: str, match: Callable[[Message], bool], *, after: int) -> tuple[int, int]:
        """Erase matching rows of a table above a number; return how many, and the last number checked."""
        count, ((last,),) = 0, self._read(f"SELECT coalesce(max(number), 0) FROM {table}")
        query = (
            f"SELECT number, id, subject, body FROM {table} WHERE number > ? AND number <= ? ORDER BY number LIMIT ?"
        )
        remove = _remove if table == "message" else _remove_dead
        while rows := self._read(query, after, last, CHUNK):
            found = [n for n, id, subject, body in rows if match(Message(id=id, subject=subject, body=body))]
            count += self._in_chunks(found, remove)
            after = rows[-1][0]
        return count, last

    def _tidy(self) -> None:
        """Remove expired messages and old ids."""
        now, oldest = self._clock(), "SELECT time FROM message WHERE stream = ? ORDER BY number LIMIT 1"
        self._remove_older("dead_letter", now - STREAMS[DEAD_LETTERS] * DAY_S, _remove_dead)
        for stream in STREAMS:
            groups = [name for (name,) in self._read("SELECT name FROM consumers WHERE stream = ?", stream)]
            before = now - STREAMS[stream] * DAY_S
            if may_expire(stream, groups):
                self._remove_older(f"message WHERE stream = '{stream}'", before, _remove)
            elif (found := self._read(oldest, stream)) and found[0][0] < before:
                # Messages that every group has acknowledged are already removed.
                ((count,),) = self._read("SELECT count(*) FROM message WHERE stream = ? AND time < ?", stream, before)
                self._waiting.warn(stream, count, now - found[0][0], groups)
        self._remove_older("seen", now - REMEMBERED_S, partial(_remove_from, table="seen"))
        self._checkpoint()

    def _remove_older(
        self, rows: str, before: float, remove: Callable[[sqlite3.Connection, Sequence[int]], int]
    ) -> None:
        """Remove rows older than a time, from the lowest number on."""
        first = f"SELECT number, time FROM {rows} ORDER BY number LIMIT 64"
        while old := [number for number, seconds in self._read(first) if seconds < before]:
            self._in_chunks(old, remove)

    def _in_chunks(self, items: Sequence[Item], do: Callable[[sqlite3.Connection, Sequence[Item]], int]) -> int:
        """Process items in short transactions, so that publishers hardly wait; return the sum of the results."""
        total = 0
        for start in range(0, len(items), CHUNK):
            if start:
                time.sleep(TURN_S)
            total += self._write(do, items[start : start + CHUNK])
        return total

    def _checkpoint(self, *, in_background: bool = False) -> None:
        """Copy a long log into the file; a publisher does not wait for it."""
        if self._log_is_long() and self._checkpointing.acquire(blocking=False):
            if in_background:
                Thread(target=self._checkpoint_and_release, name="outbox-checkpoint", daemon=True).start()
            else:
                self._checkpoint_and_release()

    def _log_is_long(self) -> bool:
        """Whether the log is long enough to copy, which syncs the disk twice; checked only from time to time."""
        if time.monotonic() < self._next_checkpoint:
            return False
        try:
            return os.stat(f"{self._path}-wal").st_size > CHECKPOINT_BYTES
        except FileNotFoundError:
            return False

    def _checkpoint_and_release(self) -> None:
        """Copy the log until all of it is in the file, so that it restarts."""
        self._next_checkpoint = time.monotonic() + CHECKPOINT_S
        try:
            with suppress(BusError):  # the next write raises the error
                for _ in range(3):
                    ((_, pages, copied),) = self._read("PRAGMA wal_checkpoint(PASSIVE)")
                    if pages == copied:
                        break
        finally:
            self._checkpointing.release()

    def _read(self, query: str, *values: object) -> list[Any]:
        return self._do(lambda db: db.execute(query, values).fetchall())

    def _write(self, do: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in one transaction."""

        def transact(db: sqlite3.Connection) -> T:
            db.execute("BEGIN IMMEDIATE")
            result = do(db, *args, **kwargs)
            db.execute("COMMIT")
            return result

        return self._do(transact)

    def _do(self, do: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Retry while another connection writes: SQLite's own busy wait starts with whole milliseconds."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with self._connections.use() as db:
                    return do(db, *args, **kwargs)
            except sqlite3.Error as error:
                if error_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise BusError(f"{self._path}: {advice(error)}") from error
            time.sleep(POLL_S)

    def _renew(self) -> None:
        self._published, self._checkpointing = Condition(), Lock()


class _BusyError(sqlite3.OperationalError):
    sqlite_errorcode = sqlite3.SQLITE_BUSY


def _insert(db: sqlite3.Connection, stream: str, subject: str, id: str, now: float, body: bytes) -> None:
    insert = "INSERT INTO message (stream, subject, id, time, body) VALUES (?, ?, ?, ?, ?)"
    db.execute(insert, (stream, subject, id, now, body))


def _deliveries(db: sqlite3.Connection, stream: str, group: str, given: dict[int, int]) -> list[Delivery]:
    """The deliveries of these numbers, without messages erased meanwhile."""
    found = []
    for number, attempt in given.items():
        row = db.execute("SELECT id, subject, body FROM message WHERE number = ?", (number,)).fetchone()
        if row is not None:
            message = Message(id=row[0], subject=row[1], body=row[2])
            found.append(Delivery(message=message, attempt=attempt, handle=(stream, group, number)))
    return found


def _acknowledge(db: sqlite3.Connection, handles: Sequence[Handle]) -> int:
    """Acknowledge messages; a message is removed with its last acknowledgement."""
    db.executemany("DELETE FROM given WHERE stream = ? AND name = ? AND number = ?", handles)
    done = """DELETE FROM message WHERE number = ? AND NOT EXISTS (SELECT 1 FROM given WHERE number = message.number)
        AND NOT EXISTS (SELECT 1 FROM consumers WHERE stream = message.stream AND cursor < message.number)"""
    return db.executemany(done, [(number,) for _, _, number in handles]).rowcount


def _change_given(db: sqlite3.Connection, rows: Sequence[tuple[int, float, str, str, int, int]]) -> int:
    """Change the attempt and due time of deliveries, unless another consumer received them meanwhile."""
    update = """UPDATE given SET attempt = attempt - ?, due = ? WHERE stream = ? AND name = ? AND number = ?
        AND attempt = ?"""
    return db.executemany(update, rows).rowcount


def _remove(db: sqlite3.Connection, numbers: Sequence[int]) -> int:
    _remove_from(db, numbers, "given")
    return _remove_from(db, numbers, "message")


def _remove_from(db: sqlite3.Connection, numbers: Sequence[int], table: str) -> int:
    return db.executemany(f"DELETE FROM {table} WHERE number = ?", [(number,) for number in numbers]).rowcount


_remove_dead = partial(_remove_from, table="dead_letter")


def _truncate_log(db: sqlite3.Connection) -> None:
    """Truncate the log, which still has the old content of overwritten pages."""
    if db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        raise _BusyError("a reader holds the log")
