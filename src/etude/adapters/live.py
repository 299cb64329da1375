"""The stream of what happens, and operations, in one SQLite file that all processes of a server share."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from etude.adapters.connections import Connections, Step, migrate, run_script
from etude.contracts.errors import StoreError
from etude.contracts.live import UNFINISHED, Happened, LiveEvent, Operation

PATIENCE_S = 5.0
"""Seconds that a transaction waits for those of other processes."""
SCHEMA = """
CREATE TABLE event (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
    time REAL NOT NULL, body BLOB NOT NULL);
CREATE INDEX event_by_time ON event (time);
CREATE TABLE operation (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL,
    owner TEXT NOT NULL, ended REAL, body BLOB NOT NULL);
CREATE INDEX operation_by_state ON operation (state);
"""
MIGRATIONS: tuple[Step, ...] = (partial(run_script, script=SCHEMA),)
PRAGMAS = ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON")


class SqliteLive:
    """`contracts.live.LiveState`."""

    def __init__(self, path: Path) -> None:
        self._connections = Connections(path, PRAGMAS, error=StoreError, renew=lambda: None, timeout_s=PATIENCE_S)
        self._do, self._write = self._connections.do, self._connections.write
        self._do(lambda db: migrate(db, path, MIGRATIONS, error=StoreError))

    def publish(self, events: Sequence[Happened]) -> None:
        rows = [(event.key, event.kind, event.time.timestamp(), event.body) for event in events]

        def add(db: sqlite3.Connection) -> None:
            # A conflict would use up a number of AUTOINCREMENT in some versions of SQLite: look first.
            for row in rows:
                if db.execute("SELECT 1 FROM event WHERE key = ?", row[:1]).fetchone() is None:
                    db.execute("INSERT INTO event (key, kind, time, body) VALUES (?, ?, ?, ?)", row)

        if rows:
            self._write(add)

    def events(self, *, after: int, limit: int = 100) -> list[LiveEvent]:
        query = "SELECT number, kind, body FROM event WHERE number > ? ORDER BY number LIMIT ?"
        return [LiveEvent(*row) for row in self._do(lambda db: db.execute(query, (after, limit)).fetchall())]

    def span(self) -> tuple[int, int]:
        newest = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'event'"
        query = f"SELECT coalesce(min(number), ({newest}) + 1), ({newest}) FROM event"
        found: tuple[int, int] = self._do(lambda db: db.execute(query).fetchone())
        return found

    def put(self, operation: Operation, *, owner: str) -> None:
        ended = None if operation.ended is None else operation.ended.timestamp()
        row = (operation.id, operation.state.value, owner, ended, msgspec.json.encode(operation))
        query = """INSERT INTO operation (id, state, owner, ended, body) VALUES (?, ?, ?, ?, ?)
            ON CONFLICT (id) DO UPDATE
            SET state = excluded.state, owner = excluded.owner, ended = excluded.ended, body = excluded.body"""
        self._write(lambda db: db.execute(query, row))

    def operations(
        self, *, id: str | None = None, unfinished: bool = False, after: str | None = None, limit: int = 100
    ) -> list[tuple[Operation, str]]:
        conditions, values = ["1"], list[Any]()
        if id is not None:
            conditions.append("id = ?")
            values.append(id)
        if unfinished:
            conditions.append(f"state IN ({', '.join('?' * len(UNFINISHED))})")
            values += [state.value for state in UNFINISHED]
        if after is not None:
            conditions.append("number < (SELECT number FROM operation WHERE id = ?)")
            values.append(after)
        query = f"SELECT body, owner FROM operation WHERE {' AND '.join(conditions)} ORDER BY number DESC LIMIT ?"
        rows = self._do(lambda db: db.execute(query, (*values, limit)).fetchall())
        return [(msgspec.json.decode(body, type=Operation), owner) for body, owner in rows]

    def expire(self, before: datetime) -> None:
        def remove(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM event WHERE time < ?", (before.timestamp(),))
            db.execute("DELETE FROM operation WHERE ended < ?", (before.timestamp(),))

        self._write(remove)

    def close(self) -> None:
        self._connections.close()
