"""The queue of jobs and the leader's lease in one SQLite file, for any number of processes of one machine.

Leases and back-offs end at a time of the machine's monotonic clock, which all its processes share and which setting
the time of day does not touch. That clock starts again with the machine: an end that is further away than the lease
was long is of an earlier start, so the lease has expired.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
from msgspec.structs import replace

from etude.adapters.connections import Connections, Step, advice, migrate, run_script
from etude.contracts.errors import JobError
from etude.contracts.jobs import Change, Job, JobState, Lease, Stage, check_stage, check_transition
from etude.contracts.training import JobError as Failure
from etude.contracts.training import Progress

P = ParamSpec("P")
T = TypeVar("T")

# `due` and `until` are monotonic; `wait_s` and `lease_s` are how far away they were when they were set.
SCHEMA = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, slot TEXT NOT NULL, state TEXT NOT NULL,
    stage TEXT, priority INTEGER NOT NULL, due REAL NOT NULL DEFAULT 0, wait_s REAL NOT NULL DEFAULT 0,
    owner TEXT, until REAL NOT NULL DEFAULT 0, lease_s REAL NOT NULL DEFAULT 0, revision INTEGER NOT NULL DEFAULT 0,
    body BLOB NOT NULL
);
CREATE INDEX jobs_by_state ON jobs (state, priority DESC, number);
CREATE INDEX jobs_by_stage ON jobs (stage) WHERE stage IS NOT NULL;
CREATE INDEX jobs_by_slot ON jobs (slot, number);
CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, revision INTEGER NOT NULL, time REAL NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE leader (
    one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL, owner TEXT, until REAL NOT NULL,
    lease_s REAL NOT NULL
);
INSERT INTO leader VALUES (1, 0, NULL, 0, 0)
"""
MIGRATIONS: tuple[Step, ...] = (partial(run_script, script=SCHEMA),)
APPLICATION_ID = 0x45744A62
PRAGMAS = ("journal_mode = WAL", "synchronous = FULL")
TIMEOUT_S = 30.0
"""Seconds that a transaction waits for those of other processes."""
COLUMNS = "number, due, wait_s, owner, until, lease_s, revision, body"
EXPIRED = "(until <= :now OR until - :now > lease_s)"
DUE = "(due <= :now OR due - :now > wait_s)"


class SqliteJobs:
    """A JobQueue and its Leader in a file, created if missing."""

    def __init__(
        self,
        path: Path,
        *,
        retries: int = 3,
        backoff_s: float = 60.0,
        max_backoff_s: float = 3600.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """JobError if the file cannot be created or is not a queue."""
        self._path, self._clock, self._monotonic = path, clock, monotonic
        self._retries, self._backoff_s, self._max_backoff_s = retries, backoff_s, max_backoff_s
        self._connections = Connections(path, PRAGMAS, error=JobError, renew=lambda: None, timeout_s=TIMEOUT_S)
        try:
            self._do(migrate, path, MIGRATIONS, error=JobError, application=APPLICATION_ID)
        except BaseException:
            self.close()
            raise

    def submit(self, job: Job) -> bool:
        return self._write(self._submit, job)

    def claim(self, owner: str, *, lease_s: float, fence: int = 0) -> Job | None:
        return self._write(self._claim, owner, lease_s, fence)

    def heartbeat(self, job: Job, *, lease_s: float) -> Job | None:
        return self._write(self._heartbeat, job, lease_s)

    def finish(self, job: Job, *, version: str) -> Job | None:
        done = Progress(step=job.progress.step, steps=job.progress.steps, share=1.0, eta_s=0.0)
        return self._write(
            self._end,
            job,
            JobState.COMPLETED,
            {"version": version, "progress": done, "error": None, "stage": Stage.TRAINED, "stage_time": self._clock()},
        )

    def fail(self, job: Job, error: Failure) -> Job | None:
        return self._write(self._fail, job, error)

    def stop(self, job: Job) -> Job | None:
        return self._write(self._stop, job)

    def cancel(self, id: str) -> Job:
        return self._write(self._cancel, id)

    def retry(self, id: str) -> Job:
        return self._write(self._retry, id)

    def advance(self, id: str, stage: Stage, note: str = "") -> Job:
        return self._write(self._advance, id, stage, note)

    def find(self, id: str) -> Job:
        return self._job(self._do(self._row, id))

    def jobs(
        self,
        *,
        slot: str | None = None,
        states: Sequence[JobState] = (),
        stages: Sequence[Stage] = (),
        after: str | None = None,
        limit: int | None = None,
    ) -> list[Job]:
        conditions, values = ["1"], list[Any]()
        for column, wanted in (("slot", [slot] if slot else []), ("state", states), ("stage", stages)):
            if wanted:
                conditions.append(f"{column} IN ({', '.join('?' * len(wanted))})")
                values += [str(value) for value in wanted]
        if after is not None:
            conditions.append("number < (SELECT number FROM jobs WHERE id = ?)")
            values.append(after)
        query = f"SELECT {COLUMNS} FROM jobs WHERE {' AND '.join(conditions)} ORDER BY number DESC LIMIT ?"
        rows = self._do(lambda db: db.execute(query, (*values, -1 if limit is None else limit)).fetchall())
        return [self._job(row) for row in rows]

    def changes(self, *, limit: int = 100) -> list[Change]:
        query = "SELECT number, revision, time, body FROM changes ORDER BY number LIMIT ?"
        return [
            Change(number=number, revision=revision, time=_moment(seconds), job=_decoder.decode(body))
            for number, revision, seconds, body in self._do(lambda db: db.execute(query, (limit,)).fetchall())
        ]

    def settle(self, numbers: Sequence[int]) -> None:
        rows = [(number,) for number in numbers]
        self._write(lambda db: db.executemany("DELETE FROM changes WHERE number = ?", rows))

    def lead(self, owner: str, *, lease_s: float) -> int | None:
        return self._write(self._lead, owner, lease_s)

    def leader(self) -> Lease | None:
        now, query = self._monotonic(), f"SELECT owner, until FROM leader WHERE owner IS NOT NULL AND NOT {EXPIRED}"
        row = self._do(lambda db: db.execute(query, {"now": now}).fetchone())
        return None if row is None else Lease(owner=row[0], left_s=row[1] - now)

    def resign(self, owner: str) -> None:
        self._write(lambda db: db.execute("UPDATE leader SET owner = NULL WHERE owner = ?", (owner,)))

    def close(self) -> None:
        self._connections.close()

    def _submit(self, db: sqlite3.Connection, job: Job) -> bool:
        if job.state != JobState.QUEUED:
            raise JobError(f"job {job.id} is {job.state}: expected a job that is {JobState.QUEUED}")
        insert = "INSERT OR IGNORE INTO jobs (id, slot, state, priority, body) VALUES (?, ?, ?, ?, ?)"
        added = db.execute(insert, (job.id, job.slot, job.state, job.priority, _encoder.encode(job))).rowcount
        if added:
            self._record(db, job)
        return bool(added)

    def _claim(self, db: sqlite3.Connection, owner: str, lease_s: float, fence: int) -> Job | None:
        (term,) = db.execute("SELECT number FROM leader").fetchone()
        if fence and term > fence:
            raise JobError(f"{owner} led with number {fence}, and {term} leads by now: end it")
        query = f"""SELECT {COLUMNS} FROM jobs WHERE (state = 'queued' AND {DUE}) OR (state = 'running' AND {EXPIRED})
            ORDER BY priority DESC, number LIMIT 1"""
        while (row := db.execute(query, {"now": self._monotonic()}).fetchone()) is not None:
            job = self._job(row)
            if job.cancel_requested:
                self._change(db, job, JobState.CANCELLED, {"ended": self._clock(), "lease": None})
                continue
            claimed = self._change(
                db,
                job,
                JobState.RUNNING,
                {
                    "attempts": job.attempts + 1,
                    "started": job.started or self._clock(),
                    "not_before": None,
                    "lease": Lease(owner=owner, left_s=lease_s),
                },
            )
            self._lease(db, claimed.id, owner, lease_s)
            return claimed
        return None

    def _heartbeat(self, db: sqlite3.Connection, job: Job, lease_s: float) -> Job | None:
        found = self._claimed(db, job)
        if found is None:
            return None
        kept = ("progress", "cost", "dataset", "dataset_id", "data_until", "run")
        renewed = replace(
            found,
            **{name: getattr(job, name) for name in kept},
            lease=Lease(owner=_owner(job), left_s=lease_s),
        )
        self._put(db, renewed)
        self._lease(db, job.id, _owner(job), lease_s)
        if int(100 * renewed.progress.share) > int(100 * found.progress.share):
            self._record(db, renewed)
        return renewed

    def _end(self, db: sqlite3.Connection, job: Job, state: JobState, changes: dict[str, Any]) -> Job | None:
        """End a claim; cost, dataset and run folder of `job` are stored with it."""
        found = self._claimed(db, job)
        if found is None:
            return None
        about = {name: getattr(job, name) for name in ("cost", "dataset", "dataset_id", "data_until", "run")}
        return self._change(db, found, state, {**about, "lease": None, "ended": self._clock(), **changes})

    def _fail(self, db: sqlite3.Connection, job: Job, error: Failure) -> Job | None:
        failed = self._end(db, job, JobState.FAILED, {"error": error, "failures": job.failures + 1})
        if failed is None or not error.retryable or failed.failures > self._retries or failed.cancel_requested:
            return failed
        wait_s = min(self._max_backoff_s, self._backoff_s * 2 ** (failed.failures - 1))
        due = "UPDATE jobs SET due = ?, wait_s = ? WHERE id = ?"
        db.execute(due, (self._monotonic() + wait_s, wait_s, job.id))
        then = self._clock() + timedelta(seconds=wait_s)
        return self._change(db, failed, JobState.QUEUED, {"ended": None, "not_before": then})

    def _stop(self, db: sqlite3.Connection, job: Job) -> Job | None:
        found = self._claimed(db, job)
        if found is None or found.cancel_requested:
            return self._end(db, job, JobState.CANCELLED, {})
        return self._end(db, job, JobState.QUEUED, {"ended": None})

    def _cancel(self, db: sqlite3.Connection, id: str) -> Job:
        job = self._job(self._row(db, id))
        if job.state != JobState.RUNNING:
            return self._change(db, job, JobState.CANCELLED, {"ended": self._clock()})
        asked = replace(job, cancel_requested=True)
        self._put(db, asked)
        return asked

    def _retry(self, db: sqlite3.Connection, id: str) -> Job:
        job = self._job(self._row(db, id))
        if job.state != JobState.FAILED:
            raise JobError(f"job {job.id} is {job.state}: only a job that {JobState.FAILED} can be retried")
        db.execute("UPDATE jobs SET due = 0, wait_s = 0 WHERE id = ?", (job.id,))
        again = {"failures": 0, "ended": None, "not_before": None, "cancel_requested": False}
        return self._change(db, job, JobState.QUEUED, again)

    def _advance(self, db: sqlite3.Connection, id: str, stage: Stage, note: str) -> Job:
        job = self._job(self._row(db, id))
        check_stage(job, stage)
        moved = replace(job, stage=stage, stage_note=note, stage_time=self._clock())
        self._put(db, moved)
        return moved

    def _lead(self, db: sqlite3.Connection, owner: str, lease_s: float) -> int | None:
        now = self._monotonic()
        taken = db.execute(
            f"""UPDATE leader SET number = number + (owner IS NOT :owner OR {EXPIRED}), owner = :owner,
                until = :now + :lease_s, lease_s = :lease_s
                WHERE owner IS NULL OR owner = :owner OR {EXPIRED} RETURNING number""",
            {"owner": owner, "now": now, "lease_s": lease_s},
        ).fetchone()
        return None if taken is None else int(taken[0])

    def _claimed(self, db: sqlite3.Connection, job: Job) -> Job | None:
        """The job as stored; None if the claim of `job` was lost."""
        found = self._job(self._row(db, job.id))
        held = found.state == JobState.RUNNING and found.attempts == job.attempts and _owner(found) == _owner(job)
        return found if held else None

    def _change(self, db: sqlite3.Connection, job: Job, state: JobState, changes: dict[str, Any]) -> Job:
        if not (job.state == state == JobState.RUNNING):  # claimed again after its lease expired
            check_transition(job, state)
        changed = replace(job, state=state, **changes)
        self._put(db, changed)
        self._record(db, changed)
        return changed

    def _put(self, db: sqlite3.Connection, job: Job) -> None:
        update = "UPDATE jobs SET state = ?, stage = ?, body = ? WHERE id = ?"
        db.execute(update, (job.state, job.stage, _encoder.encode(job), job.id))

    def _lease(self, db: sqlite3.Connection, id: str, owner: str, lease_s: float) -> None:
        update = "UPDATE jobs SET owner = ?, until = ?, lease_s = ? WHERE id = ?"
        db.execute(update, (owner, self._monotonic() + lease_s, lease_s, id))

    def _record(self, db: sqlite3.Connection, job: Job) -> None:
        """Record a change in the transaction that makes it."""
        count = "UPDATE jobs SET revision = revision + 1 WHERE id = ? RETURNING revision"
        (revision,) = db.execute(count, (job.id,)).fetchone()
        insert = "INSERT INTO changes (job, revision, time, body) VALUES (?, ?, ?, ?)"
        db.execute(insert, (job.id, revision, self._clock().timestamp(), _encoder.encode(job)))

    def _row(self, db: sqlite3.Connection, id: str) -> Any:
        query = f"SELECT {COLUMNS} FROM jobs WHERE id = :id OR substr(id, 1, length(:id)) = :id ORDER BY id LIMIT 2"
        rows = db.execute(query, {"id": id}).fetchall() if id else []
        if rows and (len(rows) == 1 or msgspec.json.decode(rows[0][-1])["id"] == id):
            return rows[0]
        what = "several jobs begin with it" if rows else "there is no such job"
        raise JobError(f"job {id!r}: {what}: `etude jobs list` shows them")

    def _job(self, row: Any) -> Job:
        """A job with what is left of its lease and of its back-off now."""
        _, due, wait_s, owner, until, lease_s, _, body = row
        job, now = _decoder.decode(body), self._monotonic()
        if job.state == JobState.RUNNING:
            left_s = until - now
            return replace(job, lease=Lease(owner=owner, left_s=left_s if left_s <= lease_s else 0.0))
        if job.state == JobState.QUEUED and 0 < due - now <= wait_s:
            return replace(job, not_before=self._clock() + timedelta(seconds=due - now))
        return replace(job, not_before=None)

    def _write(self, do: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in one transaction."""

        def transact(db: sqlite3.Connection) -> T:
            db.execute("BEGIN IMMEDIATE")
            result = do(db, *args, **kwargs)
            db.execute("COMMIT")
            return result

        return self._do(transact)

    def _do(self, do: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with self._connections.use() as db:
                return do(db, *args, **kwargs)
        except sqlite3.Error as error:
            raise JobError(f"{self._path}: {advice(error)}") from error


def _owner(job: Job) -> str:
    return job.lease.owner if job.lease is not None else ""


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Job)
