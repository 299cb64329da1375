"""SQLite connections to one file, safe under fork: none is in use during a fork, and a child opens its own."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition
from typing import TypeVar
from weakref import WeakSet

from etude.contracts.errors import EtudeError
from etude.files.durable import make_file, make_folder

T = TypeVar("T")
PATIENCE_S = 2.0
"""Seconds that a fork waits for connections in use. A thread that forks during its own scan waits in vain, and must not
continue that scan in the child."""


class Connections:
    """Each is used by one block at a time; before a fork, blocks are waited for and idle connections closed.

    `error` is raised if the file cannot be made, and after `close`. `renew` replaces its owner's locks in a child,
    since their holders may be threads that do not exist there.
    """

    def __init__(
        self,
        path: Path,
        pragmas: Sequence[str],
        *,
        error: type[EtudeError],
        renew: Callable[[], None],
        timeout_s: float = 0.0,  # for another process that writes
    ) -> None:
        self._path, self._pragmas, self._error, self._renew = path, pragmas, error, renew
        self._timeout_s = timeout_s
        self._idle: list[sqlite3.Connection] = []
        self._changed, self._inside, self._shut, self._closed = Condition(), 0, False, False
        try:
            make_folder(path.parent)
            make_file(path)  # SQLite gives its write-ahead log the same mode
        except OSError as cause:
            raise error(f"{path}: cannot be made ({cause.strerror}): check that its folder may be written") from cause
        _all.add(self)

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """An idle or new connection; a transaction that the block leaves open is rolled back."""
        with self._changed:
            self._changed.wait_for(lambda: not self._shut)
            if self._closed:
                raise self._error(f"{self._path}: is closed: open it again")
            self._inside += 1
            db, before = self._idle.pop() if self._idle else None, self._changed
        try:
            db = db or self._connect()
            yield db
        except BaseException as error:
            if db is not None and error_code(error) == sqlite3.SQLITE_BUSY:
                db.rollback()
            elif db is not None:
                db.close()  # rolls back too
                db = None
            raise
        finally:
            if before is self._changed:  # else this is a forked child, and the connection its parent's
                with self._changed:
                    self._inside -= 1
                    self._idle += [db] if db is not None else []
                    self._changed.notify_all()
                if self._closed:
                    self.close()

    def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What a function returns that is called with a connection; `error` says what to do about SQLite's errors."""
        try:
            with self.use() as db:
                return work(db)
        except sqlite3.Error as cause:
            raise self._error(f"{self._path}: {advice(cause)}") from cause

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The same in one transaction."""

        def transaction(db: sqlite3.Connection) -> T:
            db.execute("BEGIN IMMEDIATE")
            found = work(db)
            db.execute("COMMIT")
            return found

        return self.do(transaction)

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _connect(self) -> sqlite3.Connection:
        """Waits by itself too: SQLite does not wait for another process that switches to WAL mode."""
        deadline = time.monotonic() + self._timeout_s
        db = sqlite3.connect(self._path, timeout=self._timeout_s, isolation_level=None, check_same_thread=False)
        while True:
            try:
                for pragma in self._pragmas:
                    db.execute(f"PRAGMA {pragma}").fetchall()
                return db
            except BaseException as error:
                if error_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    db.close()
                    raise
            time.sleep(0.005)

    def shut(self) -> None:
        with self._changed:
            self._shut = True
            self._changed.wait_for(lambda: not self._inside, timeout=PATIENCE_S)
            while self._idle:
                self._idle.pop().close()

    def open(self) -> None:
        with self._changed:
            self._shut = False
            self._changed.notify_all()

    def reset(self) -> None:
        self._changed, self._inside, self._shut = Condition(), 0, False
        self._renew()


Step = Callable[[sqlite3.Connection], None]


def migrate(
    db: sqlite3.Connection, path: Path, steps: Sequence[Step], *, error: type[EtudeError], application: int = 0
) -> None:
    """Bring a file to the newest version, from each to the next by a step; `error` if it is not one of ours."""

    def version() -> int:
        tables, found, its = (
            int(db.execute(query).fetchone()[0])
            for query in ("SELECT count(*) FROM sqlite_schema", "PRAGMA user_version", "PRAGMA application_id")
        )
        if tables and (its != application or not found):
            raise error(f"{path}: is a database of something else than Etude: choose another path")
        if found > len(steps):
            raise error(
                f"{path}: has version {found}, and this Etude knows {len(steps)}: upgrade it, or choose another"
            )
        return found

    if version() == len(steps):
        return
    db.execute("BEGIN IMMEDIATE")
    start = version()  # another process may have been faster
    for number, step in enumerate(steps[start:], start=start + 1):
        step(db)
        db.execute(f"PRAGMA user_version = {number}")
    db.execute(f"PRAGMA application_id = {application}")
    db.execute("COMMIT")


def run_script(db: sqlite3.Connection, script: str) -> None:
    """Run statements one by one, since `executescript` would commit first."""
    for statement in script.split(";"):
        db.execute(statement)


ADVICE = {
    sqlite3.SQLITE_FULL: "free some space, then do it again: nothing of it was written",
    sqlite3.SQLITE_NOTADB: "this file is no SQLite database: choose another path",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a backup, or try `sqlite3 FILE .recover`",
    sqlite3.SQLITE_CANTOPEN: "check that its folder exists and may be written",
    sqlite3.SQLITE_READONLY: "check that the file and its folder may be written",
    sqlite3.SQLITE_BUSY: "another process has held it for too long: end that, or do it again",
    sqlite3.SQLITE_IOERR: "check the disk and the space on it, then do it again: nothing of it was written",
}


def error_code(error: BaseException) -> int:
    """Of an error of SQLite, without the bits of the extended code; 0 of another."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


LASTING = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})


def may_pass(error: BaseException) -> bool:
    """Whether the same may work later: not where a file is damaged or may not be written."""
    return error_code(error.__cause__ or error) not in LASTING


def advice(error: Exception) -> str:
    """The error, and what to do about it."""
    return f"{error}: {ADVICE.get(error_code(error), 'nothing of it was written')}"


def _each(step: Callable[[Connections], None]) -> Callable[[], None]:
    def run() -> None:
        for one in list(_all):
            step(one)

    return run


_all: WeakSet[Connections] = WeakSet()
os.register_at_fork(
    before=_each(Connections.shut),
    after_in_parent=_each(Connections.open),
    after_in_child=_each(Connections.reset),
)
