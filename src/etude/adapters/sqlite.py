"""The experience store in one SQLite file.

trajectories   one narrow row each, indexed       bodies    their bytes, which counting never reads
feedback, rewards   whole, by trajectory          scores    the reward of each trajectory under each version
early   feedback that came before its trajectory, kept by triggers
cells, reward_cells   totals by day, problem, policy and outcome, updated with every write: `stats` reads only these
collected, rewarded   counts by problem, and by range of the first reward, that never fall
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

from msgspec.structs import replace

from etude.adapters.connections import Connections, Step, advice, migrate, run_script
from etude.adapters.summaries import (
    DAY_US,
    FIRST_US,
    LAST_US,
    OUTCOMES,
    SUCCESS,
    Cell,
    bounds,
    checked,
    checked_limit,
    collected_of,
    conditions,
    detail_of,
    groups_of,
    micros,
    moment,
    page_of,
    read_cursor,
    row_of,
    stats_of,
    trajectory_of,
)
from etude.contracts.errors import StoreError
from etude.contracts.query import Where
from etude.contracts.reward import Reward
from etude.contracts.store import REWARD_BOUNDS, Collected, Group, Page, Row, Stats, Stored, Summary, TrajectoryDetail
from etude.contracts.trajectory import Event, Feedback, Trajectory

APPLICATION_ID = 0x45747564
PAGE_BYTES = 8192
WAL_PAGES = 4096
"""Pages of the write-ahead log after which it is copied into the file."""
CACHE_KIB = 4 << 10
"""Of each connection. The system keeps the file's pages in memory, too: with eight times as much, storing and reading
take as long, and the memory of a process jumps by that whenever no other one writes for a while."""
PRAGMAS = (
    f"page_size = {PAGE_BYTES}",
    "journal_mode = WAL",
    "synchronous = FULL",
    f"cache_size = -{CACHE_KIB}",
    f"wal_autocheckpoint = {WAL_PAGES}",
)
REMOVED = 10_000
"""Number of trajectories removed per batch."""

EVENTS = """
CREATE TABLE trajectories (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, time INTEGER NOT NULL, problem TEXT NOT NULL, policy TEXT,
    agent TEXT, user TEXT, "group" TEXT, tenant TEXT, success INTEGER, cost_usd REAL, latency_ms REAL,
    context TEXT NOT NULL, decisions INTEGER NOT NULL, turns INTEGER NOT NULL, size INTEGER NOT NULL,
    said INTEGER NOT NULL, score REAL NOT NULL, scores INTEGER NOT NULL, rewards INTEGER NOT NULL
);
CREATE INDEX by_time ON trajectories (time, id);
CREATE INDEX by_problem ON trajectories (problem, time, id);
CREATE INDEX by_policy ON trajectories (policy, time, id) WHERE policy IS NOT NULL;
CREATE INDEX by_user ON trajectories (user, time, id) WHERE user IS NOT NULL;
CREATE INDEX by_context ON trajectories (context);
CREATE TABLE bodies (seq INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE feedback (
    id TEXT NOT NULL PRIMARY KEY, trajectory TEXT NOT NULL, user TEXT, time INTEGER NOT NULL,
    said INTEGER NOT NULL, score REAL NOT NULL, scores INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE INDEX feedback_by_trajectory ON feedback (trajectory);
CREATE INDEX feedback_by_user ON feedback (user) WHERE user IS NOT NULL;
CREATE TABLE rewards (
    id TEXT NOT NULL PRIMARY KEY, trajectory TEXT NOT NULL, version INTEGER NOT NULL, revision INTEGER NOT NULL,
    time INTEGER NOT NULL, total REAL NOT NULL, confidence REAL NOT NULL, body BLOB NOT NULL
);
CREATE INDEX rewards_by_trajectory ON rewards (trajectory, version, revision, id);
CREATE TABLE scores (
    seq INTEGER NOT NULL, version INTEGER NOT NULL, total REAL NOT NULL, confidence REAL NOT NULL,
    PRIMARY KEY (seq, version)
) WITHOUT ROWID;
CREATE TABLE forgotten (
    kind TEXT NOT NULL, id TEXT NOT NULL, pending BLOB, PRIMARY KEY (kind, id)
) WITHOUT ROWID;
CREATE TABLE opt_outs (user TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE documents (kind TEXT NOT NULL, key TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (kind, key));
CREATE TABLE members (
    trajectory TEXT NOT NULL, dataset TEXT NOT NULL, PRIMARY KEY (trajectory, dataset)
) WITHOUT ROWID;
"""
TOTALS = """
CREATE TABLE cells (
    day INTEGER NOT NULL, problem TEXT NOT NULL, policy TEXT NOT NULL, success INTEGER NOT NULL,
    count INTEGER NOT NULL, decisions INTEGER NOT NULL, turns INTEGER NOT NULL, said INTEGER NOT NULL,
    rewards INTEGER NOT NULL, bytes INTEGER NOT NULL, cost_usd REAL NOT NULL, costed INTEGER NOT NULL,
    latency_ms REAL NOT NULL, timed INTEGER NOT NULL, PRIMARY KEY (day, problem, policy, success)
) WITHOUT ROWID;
CREATE TABLE reward_cells (
    version INTEGER NOT NULL, day INTEGER NOT NULL, problem TEXT NOT NULL, policy TEXT NOT NULL,
    success INTEGER NOT NULL, reward REAL NOT NULL, confidence REAL NOT NULL, scored INTEGER NOT NULL,
    PRIMARY KEY (version, day, problem, policy, success)
) WITHOUT ROWID;
"""

EARLY = (
    "CREATE TABLE early (id TEXT NOT NULL PRIMARY KEY, trajectory TEXT NOT NULL) WITHOUT ROWID",
    "INSERT INTO early SELECT id, trajectory FROM feedback WHERE trajectory NOT IN (SELECT id FROM trajectories)",
    "CREATE TRIGGER feedback_is_early AFTER INSERT ON feedback WHEN NOT EXISTS (SELECT 1 FROM trajectories WHERE id = "
    "NEW.trajectory) BEGIN INSERT INTO early VALUES (NEW.id, NEW.trajectory); END",
    "CREATE TRIGGER feedback_is_removed AFTER DELETE ON feedback BEGIN DELETE FROM early WHERE id = OLD.id; END",
)
WAITING = "SELECT count(*) FROM early e WHERE NOT EXISTS (SELECT 1 FROM trajectories t WHERE t.id = e.trajectory)"
"""Feedback whose trajectory has not arrived: only what came before its trajectory is looked up."""

JUDGED = (
    "ALTER TABLE trajectories ADD COLUMN success_by TEXT",
    "CREATE INDEX by_judgement ON trajectories (success_by, time) WHERE success_by IS NOT NULL AND success = 1",
)
SUCCESSES_BY = "SELECT t.success_by, count(*) {} AND t.success_by IS NOT NULL AND t.success = 1 GROUP BY t.success_by"
"""Successes by who said so, as far as it is known: the index has no others."""

RANGE = " + ".join(f"(s.total > {bound!r})" for bound in REWARD_BOUNDS)
"""Number of the range of REWARD_BOUNDS that a reward is in."""
EVER = (
    "CREATE TABLE collected (problem TEXT PRIMARY KEY, trajectories INTEGER NOT NULL, ratings INTEGER NOT NULL) "
    "WITHOUT ROWID",
    "CREATE TABLE rewarded (version INTEGER NOT NULL, problem TEXT NOT NULL, range INTEGER NOT NULL, "
    "count INTEGER NOT NULL, reward REAL NOT NULL, PRIMARY KEY (version, problem, range)) WITHOUT ROWID",
    "INSERT INTO collected SELECT problem, sum(count), sum(said) FROM cells GROUP BY 1",
    f"INSERT INTO rewarded SELECT s.version, t.problem, {RANGE}, count(*), total(s.total) "
    "FROM scores s JOIN trajectories t ON t.seq = s.seq GROUP BY 1, 2, 3",
)

KEY = f"""
    (t.time - ((t.time % {DAY_US}) + {DAY_US}) % {DAY_US}) / {DAY_US}, t.problem, coalesce(t.policy, ''),
    coalesce(t.success, -1)
"""
SUMS = """
    count(*), sum(t.decisions), sum(t.turns), sum(t.said), sum(t.rewards), sum(t.size),
    total(t.cost_usd), count(t.cost_usd), total(t.latency_ms), count(t.latency_ms)
"""
COLUMNS = """
    t.id, t.time, t.problem, t.policy, t.agent, t.user, t."group", t.tenant, t.success, t.cost_usd, t.latency_ms,
    t.context, t.decisions, t.turns, t.size, s.total, s.confidence, t.score / t.scores
"""
"""Columns in the order of Summary."""
SCORED = "FROM trajectories t LEFT JOIN scores s ON s.seq = t.seq AND s.version = ?"

TABLES: dict[type[Event], str] = {
    Trajectory: "trajectories JOIN bodies USING (seq)",
    Feedback: "feedback",
    Reward: "rewards",
}
REFUSED = """
    SELECT EXISTS (SELECT 1 FROM forgotten WHERE (kind, id) = ('trajectory', ?) OR (kind, id) = (?, ?)),
        EXISTS (SELECT 1 FROM opt_outs WHERE user = ?)
"""
Key = tuple[int, str, str, int]


class SqliteStore:
    """An ExperienceStore in a file, created if missing; several processes and threads may use it at once.

    `forget` leaves no byte of the erased data: it rewrites the file, which takes the time and space of a copy.
    A writer waits up to `timeout_s` for another.
    """

    def __init__(self, path: Path, *, timeout_s: float = 30.0) -> None:
        """StoreError if the file is not a store, is of a newer Etude, is damaged, or cannot be written."""
        self.path = path
        self._timeout_s, self._turn = timeout_s, Lock()
        self._connections = Connections(path, PRAGMAS, error=StoreError, renew=self._renew, timeout_s=timeout_s)
        try:
            with self._connection() as db:
                migrate(db, path, MIGRATIONS, error=StoreError, application=APPLICATION_ID)
        except BaseException:
            self.close()
            raise

    def ping(self) -> None:
        with self._reading() as db:
            db.execute("SELECT 1 FROM trajectories LIMIT 1").fetchone()

    def append(self, events: Sequence[tuple[Event, bytes]]) -> list[Stored]:
        checked(events)
        with self._writing() as db:
            batch = _Batch(db)
            stored = [batch.add(event, body) for event, body in events]
            batch.write_totals()
        return stored

    def detail(self, trajectory_id: str) -> TrajectoryDetail | None:
        query = "SELECT body FROM {} WHERE trajectory = ? ORDER BY {}, id"
        with self._reading() as db:
            found = db.execute("SELECT body FROM bodies JOIN trajectories USING (seq) WHERE id = ?", (trajectory_id,))
            body = found.fetchone()
            feedback = db.execute(query.format("feedback", "time"), (trajectory_id,)).fetchall()
            rewards = db.execute(query.format("rewards", "version, revision"), (trajectory_id,)).fetchall()
        return body and detail_of(body[0], (body for (body,) in feedback), (reward for (reward,) in rewards))

    def page(self, where: Where, *, version: int, after: str | None = None, limit: int = 100) -> Page:
        condition, values = _condition(where)
        if after is not None:
            condition, values = f"{condition} AND (t.time, t.id) < (?, ?)", [*values, *read_cursor(after)]
        query = f"SELECT {COLUMNS} {SCORED} WHERE {condition} ORDER BY t.time DESC, t.id DESC LIMIT ?"
        with self._reading() as db:
            rows = db.execute(query, (version, *values, checked_limit(limit) + 1)).fetchall()
        return page_of([_summary(row) for row in rows], limit)

    def scan(self, where: Where, *, version: int) -> Iterator[Row]:
        condition, values = _condition(where)
        query = f"SELECT {COLUMNS}, b.body {SCORED} CROSS JOIN bodies b ON b.seq = t.seq"
        with ExitStack() as opened:
            db = opened.enter_context(self._reading())
            # The read starts here: Python fetches the first row now, and the others one by one.
            found = db.execute(f"{query} WHERE {condition} ORDER BY t.time, t.id", (version, *values))
            return _rows(found, opened.pop_all())

    def stats(self, where: Where, *, version: int) -> Stats:
        condition, values = _condition(where)
        with self._reading() as db:
            cells = list(_cells(db, where, version))
            (waiting,) = db.execute(WAITING).fetchone()
            if not cells:
                return stats_of([], users=0, first=None, last=None, waiting=waiting, successes_by={})
            # The index by user has the times too; for anything else, reading in its order is slower than counting.
            indexed = where == Where(user=where.user, since=where.since, until=where.until)
            matching = f"{SCORED} WHERE {condition}"
            successes_by = dict(db.execute(SUCCESSES_BY.format(matching), (version, *values)).fetchall())
            distinct = "count(*) FROM (SELECT DISTINCT t.user {} AND t.user IS NOT NULL)"
            users, first, last = (
                db.execute(f"SELECT {query}".format(matching), (version, *values)).fetchone()[0]
                for query in (
                    distinct if indexed else "count(DISTINCT t.user) {}",
                    "t.time {} ORDER BY t.time LIMIT 1",
                    "t.time {} ORDER BY t.time DESC LIMIT 1",
                )
            )
        return stats_of(cells, users=users, first=first, last=last, waiting=waiting, successes_by=successes_by)

    def groups(self, where: Where, *, version: int) -> tuple[Group, ...]:
        with self._reading() as db:
            return groups_of(_cells(db, where, version))

    def collected(self, *, version: int) -> tuple[Collected, ...]:
        with self._reading() as db:
            counts = db.execute("SELECT problem, trajectories, ratings FROM collected").fetchall()
            rewards = db.execute(
                "SELECT problem, range, count, reward FROM rewarded WHERE version = ?", (version,)
            ).fetchall()
        return collected_of(counts, rewards)

    def forget(self, user: str) -> list[str]:
        pending = sha256(user.encode("utf-8", "surrogatepass")).digest()
        with self._writing() as db:
            keep = "INSERT OR IGNORE INTO forgotten SELECT ?, id, ? FROM {} WHERE user = ?"
            db.execute(keep.format("trajectories"), ("trajectory", pending, user))
            db.execute(keep.format("feedback"), ("feedback", pending, user))
            batch = _Batch(db)
            batch.take_back_ratings(user)
            batch.write_totals()
            _remove(db, "user = ?", user)
            # The digest stays until no byte is left, so that a repeated call after an error returns the ids too.
            ids = db.execute("SELECT id, kind FROM forgotten WHERE pending = ? ORDER BY id", (pending,)).fetchall()
        if ids:
            self._scrub()
            with self._writing() as db:
                db.execute("UPDATE forgotten SET pending = NULL WHERE pending = ?", (pending,))
        return [identity for identity, kind in ids if kind == "trajectory"]

    def forgotten(self, trajectory_ids: Sequence[str]) -> set[str]:
        query = "SELECT 1 FROM forgotten WHERE kind = 'trajectory' AND id = ?"
        with self._reading() as db:
            return {identity for identity in trajectory_ids if db.execute(query, (identity,)).fetchone()}

    def set_opt_out(self, user: str, out: bool) -> None:
        with self._writing() as db:
            db.execute(
                "INSERT OR IGNORE INTO opt_outs VALUES (?)" if out else "DELETE FROM opt_outs WHERE user = ?", (user,)
            )

    def opted_out(self) -> frozenset[str]:
        with self._reading() as db:
            return frozenset(user for (user,) in db.execute("SELECT user FROM opt_outs"))

    def expire(self, before: datetime) -> int:
        limit = micros(before)
        with self._writing() as db:
            removed = _remove(db, "time < ?", limit)
            for table in ("feedback", "rewards"):  # whose trajectory has expired or never arrived
                db.execute(
                    f"DELETE FROM {table} WHERE time < ? AND NOT EXISTS "
                    f"(SELECT 1 FROM trajectories WHERE id = {table}.trajectory)",
                    (limit,),
                )
        return removed

    def put(self, kind: str, key: str, body: bytes) -> None:
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", (kind, key, body))

    def documents(self, kind: str) -> Mapping[str, bytes]:
        with self._reading() as db:
            return dict(db.execute("SELECT key, body FROM documents WHERE kind = ? ORDER BY key", (kind,)).fetchall())

    def add_members(self, dataset: str, trajectory_ids: Sequence[str]) -> None:
        with self._writing() as db:
            rows = ((identity, dataset) for identity in trajectory_ids)
            db.executemany("INSERT OR IGNORE INTO members VALUES (?, ?)", rows)

    def datasets_of(self, trajectory_ids: Sequence[str]) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        with self._reading() as db:
            for identity in dict.fromkeys(trajectory_ids):
                for (dataset,) in db.execute("SELECT dataset FROM members WHERE trajectory = ?", (identity,)):
                    counts[dataset] = counts.get(dataset, 0) + 1
        return dict(sorted(counts.items()))

    def close(self) -> None:
        self._connections.close()

    def _renew(self) -> None:
        self._turn = Lock()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A write transaction."""
        with self._turn, self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A read transaction: the block sees one state of the store."""
        with self._connection() as db:
            db.execute("BEGIN")
            yield db
            db.execute("COMMIT")

    def _scrub(self) -> None:
        """Rewrite the file and empty its log: SQLite leaves copies of moved rows, which DELETE does not erase."""
        with self._turn, self._connection() as db:
            db.execute("VACUUM")
            (busy, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise StoreError(
                f"{self.path}: erased, but a reader of the earlier state held it for {self._timeout_s:g} s, so its log "
                "still has the bytes: end long scans, then do it again"
            )

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._connections.use() as db:
                yield db
        except UnicodeEncodeError as error:
            raise StoreError(f"{self.path}: {error.object!r:.80} is not text: expected what UTF-8 can say") from error
        except (sqlite3.Error, OverflowError) as error:
            raise StoreError(f"{self.path}: {advice(error)}") from error


def _make_totals(db: sqlite3.Connection) -> None:
    run_script(db, TOTALS)
    _count_again(db, [(FIRST_US // DAY_US, LAST_US // DAY_US + 1)])


def _write_problems(db: sqlite3.Connection) -> None:
    """Write the problem into older trajectories that lack it; its column has it."""
    db.execute(
        """UPDATE bodies SET body = CAST(
            '{"problem":' || json_quote((SELECT problem FROM trajectories t WHERE t.seq = bodies.seq)) || ','
            || substr(CAST(body AS TEXT), 2) AS BLOB
        ) WHERE json_extract(CAST(body AS TEXT), '$.problem') IS NULL"""
    )


def _find_early(db: sqlite3.Connection) -> None:
    for statement in EARLY:
        db.execute(statement)


def _add_judgements(db: sqlite3.Connection) -> None:
    for statement in JUDGED:
        db.execute(statement)


def _count_ever(db: sqlite3.Connection) -> None:
    for statement in EVER:
        db.execute(statement)


MIGRATIONS: tuple[Step, ...] = (
    partial(run_script, script=EVENTS),
    _make_totals,
    _write_problems,
    _find_early,
    _add_judgements,
    _count_ever,
)
"""Migrations from each version to the next; existing ones never change, new ones are appended."""


class _Batch:
    """Events that are stored together, in one transaction, and the totals they change."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.cells: dict[Key, list[float]] = {}
        self.reward_cells: dict[tuple[int, Key], list[float]] = {}
        self.collected: dict[str, list[float]] = {}
        self.rewarded: dict[tuple[int, str, int], list[float]] = {}

    def add(self, event: Event, body: bytes) -> Stored:
        table, user = TABLES[type(event)], getattr(event, "user", None)
        forgotten, opted_out = self.db.execute(REFUSED, (trajectory_of(event), table, event.id, user)).fetchone()
        if forgotten or opted_out:
            return Stored.FORGOTTEN if forgotten else Stored.OPTED_OUT
        if found := self.db.execute(f"SELECT body = ? FROM {table} WHERE id = ?", (body, event.id)).fetchone():
            return Stored.DUPLICATE if found[0] else Stored.CONFLICT
        row = row_of(event, len(body))
        if isinstance(event, Trajectory):
            self._trajectory(row, body)
            return Stored.NEW
        self.db.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, body))
        if known := self._found(trajectory_of(event)):
            if isinstance(event, Reward):
                self._score(*known, event.trajectory_id, event.version)
            else:
                self._rate(*known, row[4:])
        return Stored.NEW

    def _trajectory(self, row: Sequence[Any], body: bytes) -> None:
        insert = "INSERT INTO trajectories VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)"
        seq = self.db.execute(insert, row).lastrowid
        assert seq is not None
        self.db.execute("INSERT INTO bodies VALUES (?, ?)", (seq, body))
        id, us, problem, policy, _, _, _, _, success, cost, latency, _, decisions, turns, size, said, *_ = row
        key = _key(us, problem, policy, success)
        known = (cost or 0.0, cost is not None, latency or 0.0, latency is not None)
        self._count(key, (1, decisions, turns, said, 0, size, *known))
        for totals in self.db.execute(
            "SELECT said, score, scores FROM feedback WHERE trajectory = ?", (id,)
        ).fetchall():
            self._rate(seq, key, totals)
        for (version,) in self.db.execute("SELECT version FROM rewards WHERE trajectory = ?", (id,)).fetchall():
            self._score(seq, key, id, version)

    def take_back_ratings(self, user: str) -> None:
        """Remove a user's ratings of any trajectory."""
        query = "SELECT trajectory, sum(said), sum(score), sum(scores) FROM feedback WHERE user = ? GROUP BY trajectory"
        for trajectory, *totals in self.db.execute(query, (user,)).fetchall():
            if found := self._found(trajectory):
                self._rate(*found, [-part for part in totals])
        self.db.execute("DELETE FROM feedback WHERE user = ?", (user,))

    def _rate(self, seq: int, key: Key, totals: Sequence[float]) -> None:
        change = "UPDATE trajectories SET said = said + ?, score = score + ?, scores = scores + ? WHERE seq = ?"
        self.db.execute(change, (*totals, seq))
        self._count(key, (0, 0, 0, totals[0], 0, 0, 0, 0, 0, 0))

    def _found(self, trajectory: str) -> tuple[int, Key] | None:
        row = self.db.execute(
            "SELECT seq, time, problem, policy, success FROM trajectories WHERE id = ?", (trajectory,)
        ).fetchone()
        return None if row is None else (row[0], _key(*row[1:]))

    def _score(self, seq: int, key: Key, trajectory: str, version: int) -> None:
        """Count a reward, and set the score of its trajectory to that of the last revision."""
        self.db.execute("UPDATE trajectories SET rewards = rewards + 1 WHERE seq = ?", (seq,))
        self._count(key, (0, 0, 0, 0, 1, 0, 0, 0, 0, 0))
        old = self.db.execute("SELECT total, confidence FROM scores WHERE (seq, version) = (?, ?)", (seq, version))
        before = old.fetchone()
        total, confidence = self.db.execute(
            "SELECT total, confidence FROM rewards WHERE (trajectory, version) = (?, ?) "
            "ORDER BY revision DESC, id DESC LIMIT 1",
            (trajectory, version),
        ).fetchone()
        self.db.execute("INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?)", (seq, version, total, confidence))
        cell = self.reward_cells.setdefault((version, key), [0.0, 0.0, 0])
        cell[0] += total - (before[0] if before else 0.0)
        cell[1] += confidence - (before[1] if before else 0.0)
        cell[2] += before is None
        if before is None:
            place = (version, key[1], bisect_left(REWARD_BOUNDS, total))
            ever = self.rewarded.setdefault(place, [0, 0.0])
            ever[0] += 1
            ever[1] += total

    def _count(self, key: Key, more: Sequence[float]) -> None:
        if more[0] or more[3] > 0:
            ever = self.collected.setdefault(key[1], [0, 0])
            ever[0] += more[0]
            ever[1] += more[3]
        sums = self.cells.get(key)
        self.cells[key] = list(more) if sums is None else [a + b for a, b in zip(sums, more, strict=True)]

    def write_totals(self) -> None:
        _add(self.db, "cells", 4, ((*key, *more) for key, more in self.cells.items()))
        _add(self.db, "reward_cells", 5, ((v, *key, *more) for (v, key), more in self.reward_cells.items()))
        _add(self.db, "collected", 1, ((problem, *more) for problem, more in self.collected.items()))
        _add(self.db, "rewarded", 3, ((*place, *more) for place, more in self.rewarded.items()))


def _add(db: sqlite3.Connection, table: str, keys: int, rows: Iterator[tuple[Any, ...]]) -> None:
    names = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]
    more = ", ".join(f"{name} = {name} + excluded.{name}" for name in names[keys:])
    values = f"({', '.join('?' * len(names))})"
    db.executemany(
        f"INSERT INTO {table} VALUES {values} ON CONFLICT ({', '.join(names[:keys])}) DO UPDATE SET {more}", rows
    )


def _key(us: int, problem: str, policy: str | None, success: int | None) -> Key:
    return us // DAY_US, problem, policy or "", -1 if success is None else int(success)


def _condition(where: Where) -> tuple[str, list[Any]]:
    """The condition as SQL over a trajectory t and its score s, with its parameters."""
    # The first column is the most selective: the plus keeps SQLite from using the index of another.
    equal = [f'{"+" if place else ""}t."{name}" = ?' for place, name in enumerate(conditions(where))]
    limits = bounds(where)
    parts, values = (
        ["1", *equal, *(f"{column} ?" for column in limits)],
        [*conditions(where).values(), *limits.values()],
    )
    if where.outcome is not None:
        parts.append("t.success IS ?")
        values.append(OUTCOMES[where.outcome])
    if where.feedback is not None:
        parts.append("t.said > 0" if where.feedback else "t.said = 0")
    return " AND ".join(parts), values


def _summary(row: Sequence[Any]) -> Summary:
    return Summary._make((row[0], moment(row[1]), *row[2:8], SUCCESS[row[8]], *row[9:18]))


def _rows(found: Iterator[tuple[Any, ...]], opened: ExitStack) -> Iterator[Row]:
    with opened:
        for row in found:
            yield Row(_summary(row), row[18])


def _cells(db: sqlite3.Connection, where: Where, version: int) -> Iterator[Cell]:
    """Totals: of whole days from the cells, if the condition allows; else, and at both ends, from the trajectories."""
    known = Where(problem=where.problem, policy=where.policy, outcome=where.outcome)
    since = FIRST_US if where.since is None else micros(where.since)
    until = LAST_US + 1 if where.until is None else micros(where.until)
    first, end = -(-since // DAY_US), until // DAY_US
    if replace(known, since=where.since, until=where.until) != where or first >= end:
        yield from _summed(db, where, version)
        return
    parts, values = ["c.count > 0 AND c.day >= ? AND c.day < ?"], list[Any]((version, first, end))
    for column, value in (("problem", where.problem), ("policy", where.policy)):
        if value is not None:
            parts.append(f"c.{column} = ?")
            values.append(value)
    if where.outcome is not None:
        success = OUTCOMES[where.outcome]
        parts.append("c.success = ?")
        values.append(-1 if success is None else int(success))
    found = db.execute(
        "SELECT c.*, coalesce(r.reward, 0), coalesce(r.confidence, 0), coalesce(r.scored, 0) FROM cells c "
        "LEFT JOIN reward_cells r ON r.version = ? AND r.day = c.day AND r.problem = c.problem "
        f"AND r.policy = c.policy AND r.success = c.success WHERE {' AND '.join(parts)}",
        values,
    )
    yield from (Cell(*row) for row in found)
    for low, high in ((since, first * DAY_US), (end * DAY_US, until)):
        if low < high:
            yield from _summed(db, replace(known, since=moment(low), until=moment(high)), version)


def _summed(db: sqlite3.Connection, where: Where, version: int) -> Iterator[Cell]:
    condition, values = _condition(where)
    found = db.execute(
        f"SELECT {KEY}, {SUMS}, total(s.total), total(s.confidence), count(s.total) {SCORED} "
        f"WHERE {condition} GROUP BY 1, 2, 3, 4",
        (version, *values),
    )
    return (Cell(*row) for row in found)


def _remove(db: sqlite3.Connection, condition: str, value: Any) -> int:
    """Remove trajectories with their bodies, feedback and rewards; return how many."""
    removed, days = 0, set[int]()
    query = f"SELECT seq, id, time FROM trajectories WHERE {condition} LIMIT {REMOVED}"
    while rows := db.execute(query, (value,)).fetchall():
        removed += len(rows)
        days.update(us // DAY_US for *_, us in rows)
        for table in ("bodies", "scores", "trajectories"):
            db.executemany(f"DELETE FROM {table} WHERE seq = ?", ((seq,) for seq, *_ in rows))
        for table in ("feedback", "rewards"):
            db.executemany(f"DELETE FROM {table} WHERE trajectory = ?", ((identity,) for _, identity, _ in rows))
    _count_again(db, [(day, day + 1) for day in sorted(days)])
    return removed


def _count_again(db: sqlite3.Connection, spans: Sequence[tuple[int, int]]) -> None:
    """Recompute the totals of these days; a span excludes its last day."""
    for first, end in spans:
        days, times = (first, end), (first * DAY_US, end * DAY_US)
        for table in ("cells", "reward_cells"):
            db.execute(f"DELETE FROM {table} WHERE day >= ? AND day < ?", days)
        db.execute(
            f"INSERT INTO cells SELECT {KEY}, {SUMS} FROM trajectories t "
            "WHERE t.time >= ? AND t.time < ? GROUP BY 1, 2, 3, 4",
            times,
        )
        db.execute(
            f"INSERT INTO reward_cells SELECT s.version, {KEY}, total(s.total), total(s.confidence), count(*) "
            "FROM trajectories t JOIN scores s ON s.seq = t.seq "
            "WHERE t.time >= ? AND t.time < ? GROUP BY 1, 2, 3, 4, 5",
            times,
        )
