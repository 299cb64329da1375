"""The experience store in ClickHouse: it inserts events in batches and reads summaries and bodies in blocks.

Trajectories, feedback and rewards have a table each, sorted in reading order; merges remove duplicates.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from hashlib import blake2b, sha256
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from etude.adapters.summaries import (
    DAY_US,
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
from etude.contracts.errors import MissingExtraError, StoreError
from etude.contracts.query import Where
from etude.contracts.reward import Reward
from etude.contracts.store import REWARD_BOUNDS, Collected, Group, Page, Row, Stats, Stored, Summary, TrajectoryDetail
from etude.contracts.trajectory import Event, Feedback, Trajectory

IDS = 1000
"""Maximum number of ids in one query."""
BLOCK_ROWS = 1000
"""Maximum number of rows that a scan holds."""

_NAME = "LowCardinality(Nullable(String))"
_RATINGS = "said UInt32, score Float64, scores UInt32"
_BYTES = "digest String, body String"
TABLES = {
    "trajectories": (
        f"id String, time Int64, problem LowCardinality(String), policy {_NAME}, agent {_NAME}, user Nullable(String), "
        f"group {_NAME}, tenant {_NAME}, success Nullable(Bool), cost_usd Nullable(Float64), "
        "latency_ms Nullable(Float64), context String, decisions UInt32, turns UInt32, size UInt64, "
        f"{_RATINGS}, success_by {_NAME}, {_BYTES}"
    ),
    "feedback": f"id String, trajectory String, user Nullable(String), time Int64, {_RATINGS}, {_BYTES}",
    "rewards": (
        "id String, trajectory String, version Int64, revision Int64, time Int64, total Float64, confidence Float64, "
        f"{_BYTES}"
    ),
    "forgotten": "kind LowCardinality(String), id String, pending String",
    "opt_outs": "user String",
    "documents": "kind String, key String, written UInt64, body String",
    "members": "trajectory String, dataset String",
    "migrations": "version UInt32",
}
"""Columns and their types, for table creation and for inserts, which then need no query for the types."""


def _table(name: str, order: str, *, indexed: Sequence[str] = (), newest: str = "") -> str:
    """A table whose inserts are synced to disk, and whose erased rows leave the disk within a minute."""
    indexes = "".join(f", INDEX by_{column} {column} TYPE bloom_filter GRANULARITY 1" for column in indexed)
    return (
        f"CREATE TABLE IF NOT EXISTS {name} ({TABLES[name]}{indexes}) "
        f"ENGINE = ReplacingMergeTree({newest}) ORDER BY ({order}) "
        "SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, old_parts_lifetime = 60"
    )


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        _table("trajectories", "time, id", indexed=("id", "user", "context")),
        _table("feedback", "trajectory, id", indexed=("id",)),
        _table("rewards", "trajectory, version, revision, id", indexed=("id",)),
        _table("forgotten", "kind, id"),
        _table("opt_outs", "user"),
        _table("documents", "kind, key", newest="written"),
        _table("members", "trajectory, dataset"),
    ),
    (  # older trajectories may lack their problem, which is in its column
        """ALTER TABLE trajectories UPDATE body = concat('{"problem":', toJSONString(toString(problem)), ',',
        substring(body, 2)) WHERE NOT JSONHas(body, 'problem')""",
    ),
    (f"ALTER TABLE trajectories ADD COLUMN IF NOT EXISTS success_by {_NAME}",),
)
"""Statements by version, idempotent; existing ones never change, new ones are appended."""

FORGOTTEN = "SELECT DISTINCT kind, id FROM forgotten WHERE id IN %(ids)s"
KINDS: dict[type[Event], str] = {Trajectory: "trajectories", Feedback: "feedback", Reward: "rewards"}

JOINED = """
    FROM trajectories AS t FINAL
    LEFT JOIN (
        SELECT trajectory, argMax(total, (revision, id)) AS total, argMax(confidence, (revision, id)) AS confidence
        FROM rewards WHERE version = %(version)s GROUP BY trajectory
    ) AS s ON s.trajectory = t.id
    LEFT JOIN (
        SELECT trajectory, sum(said) AS said, sum(score) AS score, sum(scores) AS scores
        FROM feedback FINAL GROUP BY trajectory
    ) AS f ON f.trajectory = t.id
"""
RATINGS = "t.said + ifNull(f.said, 0)"
SUMMARY = """
    t.id, t.time, t.problem, t.policy, t.agent, t.user, t."group", t.tenant, t.success, t.cost_usd, t.latency_ms,
    t.context, t.decisions, t.turns, t.size, s.total, s.confidence, t.score + ifNull(f.score, 0),
    t.scores + ifNull(f.scores, 0)
"""
"""Columns in the order of Summary, with the mean rating as a sum and a count."""
CELL = f"""
    SELECT intDiv(t.time - positiveModulo(t.time, {DAY_US}), {DAY_US}) AS day, t.problem, ifNull(t.policy, ''),
        if(isNull(t.success), -1, toInt32(assumeNotNull(t.success))), count(), sum(t.decisions), sum(t.turns),
        sum({RATINGS}), sum(ifNull(n.rewards, 0)), sum(t.size), sum(ifNull(t.cost_usd, 0)), count(t.cost_usd),
        sum(ifNull(t.latency_ms, 0)), count(t.latency_ms), sum(ifNull(s.total, 0)), sum(ifNull(s.confidence, 0)),
        count(s.total)
    {JOINED}
    LEFT JOIN (SELECT trajectory, uniqExact(id) AS rewards FROM rewards GROUP BY trajectory) AS n
        ON n.trajectory = t.id
"""
JUDGED = "t.success_by IS NOT NULL AND t.success = true"
"""Successes of which it is known who said so."""
WAITING = "SELECT uniqExact(id) FROM feedback WHERE trajectory NOT IN (SELECT id FROM trajectories)"
"""Ratings without a trajectory."""
COUNTED = f"""
    SELECT t.problem, count(), sum({RATINGS}) FROM trajectories AS t FINAL
    LEFT JOIN (SELECT trajectory, sum(said) AS said FROM feedback FINAL GROUP BY trajectory) AS f
        ON f.trajectory = t.id
    WHERE {{}} GROUP BY 1
"""
REWARDED = f"""
    SELECT r.version, t.problem, {" + ".join(f"(r.total > {bound!r})" for bound in REWARD_BOUNDS)}, count(),
        sum(r.total)
    FROM (
        SELECT trajectory, version, argMin(total, (revision, id)) AS total FROM rewards GROUP BY trajectory, version
    ) AS r INNER JOIN trajectories AS t FINAL ON t.id = r.trajectory
    WHERE {{}} GROUP BY 1, 2, 3
"""
"""By version of the reward, problem and range of the first reward."""
REMOVED = "removed"
"""Kind of document with counts of what has expired or was erased."""


class _Removed(msgspec.Struct):
    counts: list[tuple[str, int, int]]
    rewards: list[tuple[int, str, int, int, float]]


class ClickHouseStore:
    """An ExperienceStore on a server, `clickhouse://user@host:8123/database`, or clickhouses:// for TLS.

    It creates the database and its tables. If two events with one id and different content are appended at the same
    time, both are reported as new, and one stays. Expired and erased events leave the server's disk within a minute,
    when it drops replaced parts.
    """

    def __init__(self, url: str, *, password: str | None = None, timeout_s: float = 30.0) -> None:
        """The password may also be in the URL; no error message shows it."""
        parts = urlsplit(url)
        secure = parts.scheme == "clickhouses"
        try:
            port = parts.port or (8443 if secure else 8123)
        except ValueError:
            port = 0
        if parts.scheme not in ("clickhouse", "clickhouses") or not parts.hostname or not port:
            raise StoreError(
                f"the store's URL ({parts.scheme}://…) cannot be used: expected clickhouse://user@host:8123/database, "
                "with / and @ of a password as %2F and %40"
            )
        self._password = password if password is not None else unquote(parts.password or "")
        self._database = parts.path.strip("/") or "etude"
        if not self._database.isidentifier():
            raise StoreError(f"{self._database!r} is no name of a database: expected letters, digits and _")
        self.place = f"ClickHouse at {parts.hostname}:{port}"
        self._closed, self._written = False, 0
        try:
            import clickhouse_connect
            from clickhouse_connect.driver.exceptions import ClickHouseError
            from urllib3.exceptions import HTTPError
        except ImportError as error:
            raise MissingExtraError(needs="clickhouse_connect", extra="scale") from error
        self._errors: tuple[type[Exception], ...] = (ClickHouseError, HTTPError, OSError)
        with self._translated():
            self._client: Any = clickhouse_connect.get_client(
                host=parts.hostname,
                port=port,
                username=unquote(parts.username or "default"),
                password=self._password,
                secure=secure,
                connect_timeout=timeout_s,
                autogenerate_session_id=False,  # a session allows one query at a time, and threads share this client
                settings={"async_insert": 0, "join_use_nulls": 1, "mutations_sync": 2},
            )
        try:
            self._migrate()
        except BaseException:
            self.close()
            raise

    def ping(self) -> None:
        self._select("SELECT max(version) FROM migrations")

    def append(self, events: Sequence[tuple[Event, bytes]]) -> list[Stored]:
        checked(events)
        forgotten = set(self._about(FORGOTTEN, (id for e, _ in events for id in (e.id, trajectory_of(e)))))
        users = (event.user for event, _ in events if isinstance(event, Trajectory | Feedback))
        opted_out = {user for (user,) in self._about("SELECT DISTINCT user FROM opt_outs WHERE user IN %(ids)s", users)}
        digests = "SELECT id, any(digest) FROM {} WHERE id IN %(ids)s GROUP BY id"
        known: dict[type[Event], dict[str, str]] = {
            kind: dict(self._about(digests.format(table), (e.id for e, _ in events if isinstance(e, kind))))
            for kind, table in KINDS.items()
        }
        rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in KINDS.values()}
        stored = []
        for event, body in events:
            if {("trajectories", trajectory_of(event)), (KINDS[type(event)], event.id)} & forgotten:
                stored.append(Stored.FORGOTTEN)
                continue
            if isinstance(event, Trajectory | Feedback) and event.user in opted_out:
                stored.append(Stored.OPTED_OUT)
                continue
            digest, there = blake2b(body, digest_size=16).hexdigest(), known[type(event)]
            if event.id in there:
                stored.append(Stored.DUPLICATE if there[event.id] == digest else Stored.CONFLICT)
                continue
            there[event.id] = digest
            rows[KINDS[type(event)]].append((*row_of(event, len(body)), digest, body))
            stored.append(Stored.NEW)
        for table, some in rows.items():
            self._insert(table, some)
        return stored

    def detail(self, trajectory_id: str) -> TrajectoryDetail | None:
        given = {"id": trajectory_id}
        found = self._select("SELECT body FROM trajectories WHERE id = %(id)s LIMIT 1", given)
        if not found:
            return None
        query = "SELECT body FROM {} FINAL WHERE trajectory = %(id)s ORDER BY {}, id"
        feedback = self._select(query.format("feedback", "time"), given)
        rewards = self._select(query.format("rewards", "version, revision"), given)
        return detail_of(found[0][0], (body for (body,) in feedback), (body for (body,) in rewards))

    def page(self, where: Where, *, version: int, after: str | None = None, limit: int = 100) -> Page:
        condition, given = _condition(where, version)
        if after is not None:
            given["after_time"], given["after_id"] = read_cursor(after)
            condition += " AND (t.time, t.id) < (%(after_time)s, %(after_id)s)"
        query = f"SELECT {SUMMARY} {JOINED} WHERE {condition} ORDER BY t.time DESC, t.id DESC"
        rows = self._select(f"{query} LIMIT {checked_limit(limit) + 1}", given)
        return page_of([_summary(row) for row in rows], limit)

    def scan(self, where: Where, *, version: int) -> Iterator[Row]:
        condition, given = _condition(where, version)
        query = f"SELECT {SUMMARY}, t.body AS body {JOINED} WHERE {condition} ORDER BY t.time, t.id"
        with ExitStack() as opened:
            opened.enter_context(self._translated())
            stream = self._client.query_row_block_stream(
                query,
                parameters=given,
                settings={"max_block_size": BLOCK_ROWS, "database": self._database},
                column_formats={"body": "bytes"},
            )
            blocks = opened.enter_context(stream)
            return _rows(blocks, opened.pop_all())

    def stats(self, where: Where, *, version: int) -> Stats:
        condition, given = _condition(where, version)
        cells = self._cells(condition, given)
        ((waiting,),) = self._select(WAITING)
        if not cells:
            return stats_of([], users=0, first=None, last=None, waiting=waiting, successes_by={})
        query = f"SELECT uniqExact(t.user), min(t.time), max(t.time) {JOINED} WHERE {condition}"
        ((users, first, last),) = self._select(query, given)
        query = f"SELECT assumeNotNull(t.success_by), count() {JOINED} WHERE {condition} AND {JUDGED} GROUP BY 1"
        successes_by = dict(self._select(query, given))
        return stats_of(cells, users=users, first=first, last=last, waiting=waiting, successes_by=successes_by)

    def groups(self, where: Where, *, version: int) -> tuple[Group, ...]:
        return groups_of(self._cells(*_condition(where, version)))

    def _cells(self, condition: str, given: Mapping[str, Any]) -> list[Cell]:
        return [Cell(*row) for row in self._select(f"{CELL} WHERE {condition} GROUP BY 1, 2, 3, 4", given)]

    def collected(self, *, version: int) -> tuple[Collected, ...]:
        known = self._counted("1", {})
        gone = [msgspec.json.decode(body, type=_Removed) for body in self.documents(REMOVED).values()]
        counts: dict[str, tuple[int, int]] = {}
        for one in (known, *gone):
            for problem, trajectories, ratings in one.counts:
                before = counts.get(problem, (0, 0))
                counts[problem] = (before[0] + trajectories, before[1] + ratings)
        rewards = (row for one in (known, *gone) for row in one.rewards if row[0] == version)
        return collected_of(((problem, *both) for problem, both in counts.items()), (row[1:] for row in rewards))

    def _counted(self, condition: str, given: Mapping[str, Any]) -> _Removed:
        counts = self._select(COUNTED.format(condition), given)
        rewards = self._select(REWARDED.format(condition), given)
        return msgspec.convert({"counts": counts, "rewards": rewards}, type=_Removed)

    def _keep_counts(self, condition: str, given: Mapping[str, Any]) -> None:
        """Before trajectories are removed: what was ever collected does not fall."""
        counted = self._counted(condition, given)
        if counted.counts:
            self.put(REMOVED, str(time.time_ns()), msgspec.json.encode(counted))

    def forget(self, user: str) -> list[str]:
        # The digest stays until everything is erased, so that a repeated call after an error returns the ids too.
        given = {"user": user, "pending": sha256(user.encode("utf-8", "surrogatepass")).hexdigest()}
        for table in ("trajectories", "feedback"):
            found = self._select(f"SELECT DISTINCT id FROM {table} WHERE user = %(user)s", given)
            self._insert("forgotten", [(table, identity, given["pending"]) for (identity,) in found])
        ids = self._select("SELECT DISTINCT kind, id FROM forgotten WHERE pending = %(pending)s ORDER BY id", given)
        if not ids:
            return []
        erased = f"(SELECT id FROM {self._database}.forgotten WHERE kind = 'trajectories' AND pending = %(pending)s)"
        self._keep_counts("t.user = %(user)s", {"user": user})
        self._run(f"ALTER TABLE feedback DELETE WHERE user = %(user)s OR trajectory IN {erased}", given)
        self._run(f"ALTER TABLE rewards DELETE WHERE trajectory IN {erased}", given)
        self._run(f"ALTER TABLE trajectories DELETE WHERE id IN {erased}", given)
        self._run("ALTER TABLE forgotten UPDATE pending = '' WHERE pending = %(pending)s", given)
        return [identity for kind, identity in ids if kind == "trajectories"]

    def forgotten(self, trajectory_ids: Sequence[str]) -> set[str]:
        return {identity for kind, identity in self._about(FORGOTTEN, trajectory_ids) if kind == "trajectories"}

    def set_opt_out(self, user: str, out: bool) -> None:
        if out:
            self._insert("opt_outs", [(user,)])
        else:
            self._run("ALTER TABLE opt_outs DELETE WHERE user = %(user)s", {"user": user})

    def opted_out(self) -> frozenset[str]:
        return frozenset(user for (user,) in self._select("SELECT DISTINCT user FROM opt_outs"))

    def expire(self, before: datetime) -> int:
        given = {"before": micros(before)}
        ((count,),) = self._select("SELECT uniqExact(id) FROM trajectories WHERE time < %(before)s", given)
        self._keep_counts("t.time < %(before)s", given)
        trajectories = f"SELECT id FROM {self._database}.trajectories"
        for table in ("feedback", "rewards"):  # also those whose trajectory has expired or never arrived
            self._run(
                f"ALTER TABLE {table} DELETE WHERE trajectory IN ({trajectories} WHERE time < %(before)s) "
                f"OR (time < %(before)s AND trajectory NOT IN ({trajectories}))",
                given,
            )
        self._run("ALTER TABLE trajectories DELETE WHERE time < %(before)s", given)
        return int(count)

    def put(self, kind: str, key: str, body: bytes) -> None:
        self._written = max(self._written + 1, time.time_ns())
        self._insert("documents", [(kind, key, self._written, body)])

    def documents(self, kind: str) -> Mapping[str, bytes]:
        query = "SELECT key, body FROM documents FINAL WHERE kind = %(kind)s ORDER BY key"
        return dict(self._select(query, {"kind": kind}))

    def add_members(self, dataset: str, trajectory_ids: Sequence[str]) -> None:
        self._insert("members", [(identity, dataset) for identity in trajectory_ids])

    def datasets_of(self, trajectory_ids: Sequence[str]) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        query = "SELECT dataset, uniqExact(trajectory) FROM members WHERE trajectory IN %(ids)s GROUP BY dataset"
        for dataset, count in self._about(query, trajectory_ids):
            counts[dataset] = counts.get(dataset, 0) + count
        return dict(sorted(counts.items()))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._client.close()

    def _migrate(self) -> None:
        with self._translated():
            self._client.command(f"CREATE DATABASE IF NOT EXISTS {self._database}", use_database=False)
        self._run(_table("migrations", "version"))
        ((version,),) = self._select("SELECT max(version) FROM migrations")
        if version > len(MIGRATIONS):
            raise StoreError(
                f"{self.place}: database {self._database!r} has version {version}, and this Etude knows "
                f"{len(MIGRATIONS)}: upgrade it, or choose another database"
            )
        for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
            for statement in statements:
                self._run(statement)
            self._insert("migrations", [(number,)])

    def _about(self, query: str, items: Iterable[str | None]) -> Iterator[tuple[Any, ...]]:
        """The rows of a query about ids, as many ids at a time as one query takes."""
        ids = [item for item in dict.fromkeys(items) if item is not None]
        for start in range(0, len(ids), IDS):
            yield from self._select(query, {"ids": ids[start : start + IDS]})

    def _select(self, query: str, given: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        with self._translated():
            found = self._client.query(
                query,
                parameters=given,
                settings={"database": self._database},
                column_formats={"body": "bytes"} if "body" in query.partition("FROM")[0] else None,
            )
            rows: list[tuple[Any, ...]] = found.result_rows
            return rows

    def _run(self, statement: str, given: Mapping[str, Any] | None = None) -> None:
        with self._translated():
            self._client.command(statement, parameters=given, settings={"database": self._database})

    def _insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        if not rows:
            return
        columns = [column.split(" ", 1) for column in TABLES[table].split(", ")]
        with self._translated():
            self._client.insert(
                table,
                rows,
                database=self._database,
                column_names=[name for name, _ in columns],
                column_type_names=[kind for _, kind in columns],
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        if self._closed:
            raise StoreError(f"{self.place}: the store is closed: open it again")
        try:
            yield
        except self._errors as error:
            message = str(error).replace(self._password, "…") if self._password else str(error)
            raise StoreError(
                f"{self.place}: {message[:500]}: check that it runs, has space, and lets this user in; then do it again"
            ) from (None if self._password else error)


def _condition(where: Where, version: int) -> tuple[str, dict[str, Any]]:
    """The condition as SQL over a trajectory t, its score s and its feedback f, with its parameters."""
    given: dict[str, Any] = {"version": version, **conditions(where)}
    parts = ["1", *(f't."{name}" = %({name})s' for name in conditions(where))]
    for place, (column, value) in enumerate(bounds(where).items()):
        parts.append(f"{column} %(bound{place})s")
        given[f"bound{place}"] = value
    if where.outcome is not None:
        success = OUTCOMES[where.outcome]
        parts.append("isNull(t.success)" if success is None else f"t.success = {str(success).lower()}")
    if where.feedback is not None:
        parts.append(f"{RATINGS} > 0" if where.feedback else f"{RATINGS} = 0")
    return " AND ".join(parts), given


def _summary(row: Sequence[Any]) -> Summary:
    feedback = row[17] / row[18] if row[18] else None
    return Summary._make((row[0], moment(row[1]), *row[2:8], SUCCESS[row[8]], *row[9:17], feedback))


def _rows(blocks: Iterator[Sequence[Sequence[Any]]], opened: ExitStack) -> Iterator[Row]:
    with opened:
        for block in blocks:
            for row in block:
                yield Row(_summary(row), row[19])
