"""Execution logs: trajectories of workflows to a folder and back, one line each in the source document's format.

executions.jsonl   a whole line is appended or nothing     catalogue.json   task types and workers, in the order of ids
executions.torn    lines whose writer died over them, cut off when the log was opened again
labels.jsonl       what people say about the success of executions: see labels.py

What was asked and answered is private: files have mode 0600, folders that are made here 0700.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import zip_longest
from mmap import ACCESS_READ, mmap
from pathlib import Path
from threading import Lock
from typing import Any, Self

import msgspec

from etude.contracts.errors import CatalogueError, LogError
from etude.contracts.plain import plain
from etude.contracts.reward import ExecutionReward
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Outcome, Trajectory
from etude.files.durable import replace_file, replacing
from etude.orchestrator.record import Execution
from etude.orchestrator.trajectories import to_execution, to_trajectory
from etude.problems.catalogue import Catalogue, read_catalogue
from etude.problems.workflow.decisions import PROBLEM

LOG_FILE, TORN_FILE, CATALOGUE_FILE = "executions.jsonl", "executions.torn", "catalogue.json"
LABELS_FILE = "labels.jsonl"
MAX_LINE_BYTES = 1 << 28
"""What is longer is neither written nor held in memory to be read."""
BLOCK = 1 << 16

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)

Redact = Callable[[Trajectory], Trajectory]
"""Replaces personal data and secrets by placeholders."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Execution)


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """A line that is not an execution."""

    file: Path
    line: int  # from 1
    reason: str
    torn: bool  # the last one, cut off: whoever wrote it died over it

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a log and its place."""

    file: Path
    number: int  # from 1
    size: int  # bytes
    content: Execution | Damaged


class ExecutionLog:
    """Appends to the log of a folder, as the only process that does.

    What `append` returned from is read back by `read_log` whatever kills this process; what it raised from is not in
    the log. `close` also brings everything to the disk, so that it outlives the machine's failure.
    """

    def __init__(self, folder: Path, catalogue: Catalogue, *, redact: Redact | None) -> None:
        """With `redact` None, trajectories are logged as they are: for those who own the machine.

        LogError where another process has the folder, or it holds executions with another catalogue.
        """
        self.path = folder / LOG_FILE
        self._redact = redact
        self._turn = Lock()
        self._handle: int | None = None
        self._folder: int | None = None
        try:
            self._folder = _lock(folder)
            _keep_catalogue(folder, catalogue)
            with _named(self.path):
                self._handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
                os.fchmod(self._handle, 0o600)
                _mend(self._handle, folder / TORN_FILE)
        except BaseException:
            self._release()
            raise

    def append(self, trajectory: Trajectory) -> None:
        """Its line as a whole, redacted, or LogError and none of it."""
        self.write(to_execution(self._redact(trajectory) if self._redact else trajectory))

    def write(self, execution: Execution) -> None:
        """This line, as it is."""
        line = to_line(execution)
        with self._turn, _named(self.path):
            if self._handle is None:
                raise LogError(f"{self.path}: the log is closed: open it again to append {execution.id!r}")
            before = os.fstat(self._handle)
            if before.st_nlink == 0:
                raise OSError(errno.ENOENT, "it was deleted while it was written")
            try:
                _write(self._handle, line)
            except BaseException:
                self._roll_back(before.st_size)
                raise

    def close(self) -> None:
        """It may be called twice."""
        with self._turn:
            try:
                if self._handle is not None:
                    with _named(self.path):
                        os.fsync(self._handle)
            finally:
                self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _roll_back(self, size: int) -> None:
        """Where even this fails, nothing may follow the torn line: it is cut off when the log is opened again."""
        assert self._handle is not None
        try:
            os.ftruncate(self._handle, size)
        except OSError:
            self._release()

    def _release(self) -> None:
        handles, self._handle, self._folder = (self._handle, self._folder), None, None
        for handle in handles:
            if handle is not None:
                with suppress(OSError):  # of a file that was closed behind our back
                    os.close(handle)


def to_line(execution: Execution) -> bytes:
    """What `append` writes: JSON and a newline. Of an output that JSON cannot say, its `repr` is logged."""
    try:
        line = _encoder.encode(execution)
    except UNWRITABLE:
        line = _encoder.encode(plain(execution))
    try:
        _decoder.decode(line)  # JSON has no NaN: null is written for it, where a number must stand
    except UNREADABLE as error:
        raise LogError(f"execution {execution.id!r} cannot be logged ({error}): numbers must be finite") from error
    if len(line) >= MAX_LINE_BYTES:
        raise LogError(
            f"execution {execution.id!r} has {len(line):,} bytes: a line of a log has less than {MAX_LINE_BYTES:,}"
        )
    return line + b"\n"


def read_log(path: Path) -> Iterator[Execution | Damaged]:
    """Every line of a folder's *.jsonl in the order of their names, or of one file. Memory holds one line."""
    return (line.content for line in read_lines(path))


def read_ended(folder: Path) -> Iterator[Execution]:
    """The executions of a folder's logs that were carried out to their end; none where there is no log."""
    for line in read_log(folder) if logs_in(folder) else ():
        if isinstance(line, Execution) and line.ended != "cancelled":
            yield line


def read_lines(path: Path) -> Iterator[Line]:
    """As `read_log`, with the place of each; blank lines are none. LogError at once where there is no log."""
    files = log_files(path)
    return (line for file in files for line in _lines_of(file))


def log_files(path: Path) -> list[Path]:
    """The logs of a folder, or the one file; LogError where there is none."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise LogError(f"{path}: does not exist: expected a folder of execution logs (*.jsonl), or one of them")
    found = logs_in(path)
    if not found:
        raise LogError(f"{path}: holds no *.jsonl: expected execution logs, as `etude collect --out {path}` makes them")
    return found


def logs_in(folder: Path) -> list[Path]:
    """The logs of a folder by name; labels are none."""
    named = (file for file in folder.glob("*.jsonl") if file.name != LABELS_FILE and not file.name.startswith("."))
    return sorted(file for file in named if file.is_file())


def log_catalogue(path: Path) -> Catalogue:
    """The catalogue next to a folder's logs, or next to one of them; LogError where there is none."""
    file = (path if path.is_dir() else path.parent) / CATALOGUE_FILE
    if not file.exists():
        raise LogError(f"{file}: does not exist: put the catalogue there whose ids the log speaks in")
    try:
        return read_catalogue(file)
    except CatalogueError as error:
        raise LogError(f"{error}; put the catalogue there whose ids the log speaks in") from error


def same_ids(one: Catalogue, other: Catalogue) -> bool:
    """Whether an id means the same in both; what is known of each entry may differ."""
    return _names(one) == _names(other)


def forget_in_log(folder: Path, users: Collection[str]) -> int:
    """Erase the executions of these users from a folder's logs, and say how many there were.

    Each log is replaced as a whole, under the lock of those who append to it. Lines that cannot be read are erased
    where a user's name is in them, labels with their executions. LogError where the folder cannot be opened or another
    process logs in it.
    """
    if not folder.is_dir():
        raise LogError(f"{folder}: does not exist: expected a folder of execution logs")
    lock = _lock(folder)
    try:
        files, gone = [*logs_in(folder), folder / TORN_FILE], set[str]()
        erased = sum(_forget_in_file(file, users, gone) for file in files if file.is_file())
        if (labels := folder / LABELS_FILE).is_file():
            _erase(labels, lambda line: _about(line).id in gone)
        return erased
    finally:
        os.close(lock)


def forget_in_logs(folders: Iterable[Path], users: Collection[str]) -> tuple[int, dict[Path, str]]:
    """As `forget_in_log`, in each of these; and the folders in which that was not possible, and why."""
    erased, failed = 0, dict[Path, str]()
    for folder in folders:
        try:
            erased += forget_in_log(folder, users)
        except LogError as error:
            failed[folder] = str(error)
    return erased, failed


class _About(msgspec.Struct):
    user: str | None = None
    id: str = ""
    is_read: bool = True


def _about(line: bytes) -> _About:
    try:
        return msgspec.json.decode(line, type=_About)
    except UNREADABLE:
        return _About(is_read=False)


def _forget_in_file(file: Path, users: Collection[str], gone: set[str]) -> int:
    """Erase the users' lines, add their ids to `gone`, and say how many there were."""
    names = [msgspec.json.encode(user) for user in users]

    def is_theirs(line: bytes) -> bool:
        about = _about(line)
        if about.user in users:
            gone.add(about.id)
            return True
        return not about.is_read and any(name in line for name in names)

    return _erase(file, is_theirs)


def _erase(file: Path, is_theirs: Callable[[bytes], bool]) -> int:
    with _named(file):
        with file.open("rb") as lines:
            erased = sum(map(is_theirs, lines))
        if erased:
            with file.open("rb") as lines, replacing(file) as kept:
                kept.writelines(line for line in lines if not is_theirs(line))
    return erased


def _lock(folder: Path) -> int:
    """A handle that keeps other processes out until it is closed, at the latest by this one's end."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise LogError(f"{folder} is a file or lies in one: choose another folder") from error
    except OSError as error:
        raise LogError(f"{folder}: cannot be made ({error.strerror}): choose another folder") from error
    with _named(folder):
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if not isinstance(error, BlockingIOError):
                raise
            remedy = "wait for its end, or choose another folder"
            raise LogError(f"another process is logging in {folder}: {remedy}") from error
    return handle


def _keep_catalogue(folder: Path, catalogue: Catalogue) -> None:
    file, log = folder / CATALOGUE_FILE, folder / LOG_FILE
    if file.exists():
        kept = log_catalogue(folder)
        if not same_ids(kept, catalogue):
            raise LogError(f"{file}: {_difference(kept, catalogue)}: ids would change; choose another folder")
    elif log.exists() and log.stat().st_size:
        raise LogError(f"{folder}: holds executions but no {CATALOGUE_FILE}: restore it, or choose another folder")
    else:
        with _named(file):
            replace_file(file, msgspec.json.format(_encoder.encode(catalogue), indent=1))


def _names(catalogue: Catalogue) -> dict[str, list[str]]:
    return {"task types": [t.name for t in catalogue.task_types], "workers": [w.name for w in catalogue.workers]}


def _difference(kept: Catalogue, given: Catalogue) -> str:
    """In words, with the first id that means something else."""
    now = _names(given)
    for kind, names in _names(kept).items():
        for i, (theirs, ours) in enumerate(zip_longest(names, now[kind])):
            if theirs != ours:
                return f"the log was begun with other {kind} (id {i} is {theirs or 'none'!r}, not {ours or 'none'!r})"
    raise AssertionError("the catalogues do not differ")


def _mend(handle: int, torn: Path) -> None:
    """End the last line: where it lacks only that, with a newline; where it is torn, by moving it to `torn`."""
    if not os.fstat(handle).st_size:
        return
    with mmap(handle, 0, access=ACCESS_READ) as log:
        start = log.rfind(b"\n") + 1
        last = log[start:]
    if not last:
        return
    with suppress(*UNREADABLE):
        decode_execution(last)  # braces close only at the end of an execution
        _write(handle, b"\n")
        return
    with open(os.open(torn, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as kept:
        kept.write(last + b"\n")
        kept.flush()
        os.fsync(kept.fileno())
    os.ftruncate(handle, start)


def _write(handle: int, data: bytes) -> None:
    """In one go where the system takes it; a disk that is full says so only to the second."""
    written = os.write(handle, data)
    while written < len(data):
        written += os.write(handle, memoryview(data)[written:])


def _lines_of(file: Path) -> Iterator[Line]:
    with _named(file), file.open("rb") as stream:
        number = 0
        while data := stream.readline(MAX_LINE_BYTES):
            number += 1
            size, torn, content, reason = len(data), False, None, ""
            if size == MAX_LINE_BYTES and not data.endswith(b"\n"):
                while not data.endswith(b"\n") and (data := stream.readline(BLOCK)):
                    size += len(data)
                reason = f"has {size:,} bytes, expected an execution"
            elif data.isspace():
                continue
            else:
                try:
                    content = decode_execution(data)
                except UNREADABLE as error:  # a line without an end is torn, unless all of an execution is there
                    torn = not data.endswith(b"\n")
                    reason = f"torn after {len(data):,} bytes" if torn else str(error)
            damaged = Damaged(file=file, line=number, reason=reason, torn=torn)
            yield Line(file=file, number=number, size=size, content=content or damaged)


def decode_execution(data: bytes) -> Execution:
    """A line as we write or wrote it, or as the source document has it; one of UNREADABLE otherwise."""
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError:
        return _foreign(data)


DOCUMENT_REWARD = ExecutionReward(cost_unit_usd=1.0, latency_unit_ms=1.0)
"""The document's formula on a line of its own: it counts cost in the line's unit and latency in milliseconds."""


def _foreign(data: bytes) -> Execution:
    """A line of the source document, which lacks what we add to it, or of an Etude that logged decisions otherwise."""
    raw: Any = msgspec.json.decode(data)
    if not isinstance(raw, dict):
        raise msgspec.ValidationError(f"Expected `object`, got `{type(raw).__name__}`")
    line = {"id": f"e-{sha256(data.strip()).hexdigest()[:24]}", "policy": "", **raw}
    if isinstance(plan := raw.get("planner_outputs"), dict):
        line["planner_outputs"] = {"task_types": [], "model_selections": [], **plan}
    if isinstance(decisions := raw.get("decisions"), list):
        line["decisions"] = [_logged(decision) for decision in decisions]
    execution = msgspec.convert(line, Execution)
    if "reward" in raw:
        return execution
    outcome = Outcome(
        success=execution.success,
        cost_usd=execution.cost,
        latency_ms=execution.latency_ms,
        subtasks_done=sum(1 for output in execution.execution_result.outputs.values() if output),
    )
    return msgspec.structs.replace(execution, reward=DOCUMENT_REWARD(outcome))


def _logged(decision: Any) -> Any:
    """A decision with its choice, live numbers and state side by side, as they are logged now."""
    if not isinstance(decision, dict) or "choice" not in decision:
        return decision
    known = {name: decision[name] for name in ("failed", "live", "state") if name in decision}
    same = {name: decision[name] for name in ("at_ms", "eligible", "propensity", "policy") if name in decision}
    return {"problem": PROBLEM, "context": known or None, "action": decision["choice"], **same}


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """An OSError as a LogError that names the file."""
    try:
        yield
    except OSError as error:
        raise LogError(
            f"{path}: {error.strerror or error} (errno {error.errno}): make sure that it can be read and written and "
            "the disk has room, or choose another folder"
        ) from error


def execution_event(
    line: bytes, catalogue: Catalogue, *, change: Callable[[Execution], Execution] | None = None
) -> bytes:
    """A line of an execution log as a trajectory, changed if asked, as by a label; UNREADABLE where it is none."""
    execution = decode_execution(line)
    return encode(to_trajectory(change(execution) if change else execution, catalogue))
