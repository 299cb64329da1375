"""Executions to a folder and back, one line each, beside the catalogue whose ids they speak in.

executions.jsonl   a whole line is appended or nothing     catalogue.json   task types and workers, in the order of ids
executions.torn    lines whose writer died over them, cut off when the log was opened again
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from itertools import zip_longest
from pathlib import Path
from threading import Lock
from typing import Any, Self

import msgspec

from etude.contracts.errors import CatalogueError, LogError
from etude.contracts.plain import plain
from etude.orchestrator.record import Execution
from etude.problems.workflow.catalogue import Catalogue, read_catalogue

LOG_FILE, TORN_FILE, CATALOGUE_FILE = "executions.jsonl", "executions.torn", "catalogue.json"
LONGEST = 1 << 28
"""Bytes of a line: what is longer is neither written nor held in memory to be read."""
BLOCK = 1 << 16

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)

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
    """A line of a log and where it stands."""

    file: Path
    number: int  # from 1
    size: int  # bytes
    content: Execution | Damaged


class ExecutionLog:
    """Appends to the log of a folder, as the only process that does.

    What `append` returned from is read back by `read_log` whatever kills this process; what it raised from is not in
    the log. `close` also brings everything to the disk, so that it outlives the machine's failure.
    """

    def __init__(self, folder: Path, catalogue: Catalogue) -> None:
        """LogError where another process has the folder, or it holds executions with another catalogue."""
        self.path = folder / LOG_FILE
        self._turn = Lock()
        self._handle: int | None = None
        self._folder: int | None = None
        try:
            self._folder = _lock(folder)
            _keep_catalogue(folder, catalogue)
            with _named(self.path):
                self._handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
                _mend(self._handle, folder / TORN_FILE)
        except BaseException:
            self._release()
            raise

    def append(self, execution: Execution) -> None:
        """Its line as a whole, or LogError and none of it."""
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
    if len(line) >= LONGEST:
        raise LogError(f"execution {execution.id!r} has {len(line):,} bytes: a line of a log has less than {LONGEST:,}")
    return line + b"\n"


def read_log(path: Path) -> Iterator[Execution | Damaged]:
    """Every line of a folder's *.jsonl in the order of their names, or of one file. Memory holds one line."""
    return (line.content for line in read_lines(path))


def read_lines(path: Path) -> Iterator[Line]:
    """As `read_log`, with where each stands; blank lines are none. LogError at once where there is no log."""
    files = log_files(path)
    return (line for file in files for line in _lines_of(file))


def log_files(path: Path) -> list[Path]:
    """The logs of a folder, or the one file; LogError where there is none."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise LogError(f"{path}: does not exist: expected a folder of execution logs (*.jsonl), or one of them")
    found = sorted(file for file in path.glob("*.jsonl") if file.is_file() and not file.name.startswith("."))
    if not found:
        raise LogError(f"{path}: holds no *.jsonl: expected execution logs, as `etude collect --out {path}` makes them")
    return found


def log_catalogue(path: Path) -> Catalogue:
    """The catalogue beside a folder's logs, or beside one of them; LogError where there is none."""
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


def write_atomically(path: Path, data: bytes) -> None:
    """A reader sees the old file or the new one; OSError leaves the old one."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _lock(folder: Path) -> int:
    """A handle that keeps other processes out until it is closed, at the latest by this one's end."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise LogError(f"{folder} is a file or lies in one: choose another folder") from error
    except OSError as error:
        raise LogError(f"{folder}: cannot be made ({error.strerror}): choose another folder") from error
    with _named(folder):
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise LogError(
                f"another process is logging in {folder}: wait for its end, or choose another folder"
            ) from error
        except BaseException:
            os.close(handle)
            raise
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
            write_atomically(file, msgspec.json.format(_encoder.encode(catalogue), indent=1))


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
    size = os.fstat(handle).st_size
    start = _last_line(handle, size)
    if start == size:
        return
    if size - start < LONGEST and _is_whole(_read(handle, start, size)):
        _write(handle, b"\n")
        return
    with torn.open("ab") as kept:
        for place in range(start, size, LONGEST):
            kept.write(_read(handle, place, min(size, place + LONGEST)))
        kept.write(b"\n")
        kept.flush()
        os.fsync(kept.fileno())
    os.ftruncate(handle, start)


def _is_whole(data: bytes) -> bool:
    """Of a line without its newline: braces close only at the end of an execution."""
    try:
        decode_execution(data)
    except UNREADABLE:
        return False
    return True


def _last_line(handle: int, size: int) -> int:
    """Where it begins; the file's end where that is a newline."""
    end = size
    while end > 0:
        start = max(0, end - BLOCK)
        newline = _read(handle, start, end).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _read(handle: int, start: int, end: int) -> bytes:
    data = b""
    while start + len(data) < end:
        more = os.pread(handle, end - start - len(data), start + len(data))
        if not more:
            break
        data += more
    return data


def _write(handle: int, data: bytes) -> None:
    """In one go where the system takes it; a disk that is full says so only to the second."""
    written = os.write(handle, data)
    while written < len(data):
        written += os.write(handle, memoryview(data)[written:])


def _lines_of(file: Path) -> Iterator[Line]:
    with _named(file), file.open("rb") as stream:
        number = 0
        while data := stream.readline(LONGEST):
            number += 1
            size = len(data)
            if size == LONGEST and not data.endswith(b"\n"):
                size += _skip_line(stream)
                content: Execution | Damaged = _damaged(file, number, f"has {size:,} bytes, expected an execution")
            elif data.isspace():
                continue
            else:
                content = _content(data, file, number)
            yield Line(file=file, number=number, size=size, content=content)


def _skip_line(stream: BufferedReader) -> int:
    """The rest of a line, read past; its bytes."""
    size = 0
    while data := stream.readline(BLOCK):
        size += len(data)
        if data.endswith(b"\n"):
            break
    return size


def _content(data: bytes, file: Path, number: int) -> Execution | Damaged:
    """A line without an end is torn, unless all of an execution is there."""
    try:
        return decode_execution(data)
    except UNREADABLE as error:
        if data.endswith(b"\n"):
            return _damaged(file, number, str(error))
        return _damaged(file, number, f"torn after {len(data):,} bytes", torn=True)


def _damaged(file: Path, line: int, reason: str, *, torn: bool = False) -> Damaged:
    return Damaged(file=file, line=line, reason=reason, torn=torn)


def decode_execution(data: bytes) -> Execution:
    """A line as we write it or as the source document has it; one of UNREADABLE otherwise."""
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError:
        return _of_document(data)


def _of_document(data: bytes) -> Execution:
    """A line as the source document has it: what we add to it is empty, the reward the document's own."""
    raw: Any = msgspec.json.decode(data)
    if not isinstance(raw, dict):
        raise msgspec.ValidationError(f"Expected `object`, got `{type(raw).__name__}`")
    line = {"id": "", "policy": "", **raw}
    if isinstance(plan := raw.get("planner_outputs"), dict):
        line["planner_outputs"] = {"task_types": [], "model_selections": [], **plan}
    execution = msgspec.convert(line, Execution)
    return execution if "reward" in raw else msgspec.structs.replace(execution, reward=_reward(execution))


def _reward(execution: Execution) -> float:
    """The document's compute_reward."""
    done = sum(1 for output in execution.execution_result.outputs.values() if output)
    return 10.0 * execution.success - 0.1 * execution.cost - 0.01 * execution.latency_ms + 0.1 * done


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What the system says against it, as a LogError."""
    try:
        yield
    except OSError as error:
        raise LogError(
            f"{path}: {error.strerror or error} (errno {error.errno}): make sure that it can be read and written and "
            "the disk has room, or choose another folder"
        ) from error
