"""The inputs of a workflow, by name: values and files in; texts for prompts and private files for commands out.

A workflow without inputs gets the text that its instruction quotes, as the input `text`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from threading import Lock
from typing import Any

from etude.contracts.errors import DataError

MAX_INPUT_BYTES = 1 << 26
"""Maximum size of an input; it is held in memory while its workflow runs."""
MIN_HASHED_BYTES = 64
"""Shorter inputs are recorded without their hash: it would be easy to guess them by it."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
TEXT = "text"
"""Name of the input that is found in an instruction."""

Inputs = Mapping[str, Any]
"""Texts, bytes, JSON values, or files by their `Path`, by name."""


class WorkflowInputs(Mapping[str, "NamedInput"]):
    """Inputs that were read and checked. Their files are made when a worker asks for one, and removed by `close`."""

    def __init__(self, given: Inputs | None = None, *, instruction: str = "") -> None:
        """DataError if a name or a value is not valid, or a file cannot be read."""
        if not given:
            text = text_in(instruction)
            given = {} if text is None else {TEXT: text}
        _check_names(list(given))
        self._folder: Path | None = None
        self._lock = Lock()
        self._inputs = {name: _read(name, value, self._file) for name, value in given.items()}

    def __getitem__(self, name: str) -> NamedInput:
        return self._inputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inputs)

    def __len__(self) -> int:
        return len(self._inputs)

    def described(self) -> dict[str, dict[str, Any]]:
        """What is recorded of each: its size and its hash, never its content."""
        return {name: given.described() for name, given in self._inputs.items()}

    def _file(self, name: str, content: bytes) -> str:
        with self._lock:
            if self._folder is None:
                self._folder = Path(mkdtemp(prefix="etude-inputs-"))
            file = self._folder / name
            if not file.exists():
                with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as handle:
                    handle.write(content)
            return str(file)

    def close(self) -> None:
        """Remove the files."""
        with self._lock:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None


@dataclass(frozen=True, kw_only=True)
class NamedInput:
    """A `contracts.work.WorkflowInput`."""

    name: str
    value: Any
    content: bytes = field(repr=False)
    suffix: str  # of its file's name
    make_file: Callable[[str, bytes], str] = field(repr=False)

    @property
    def path(self) -> str:
        return self.make_file(f"{self.name}{self.suffix}", self.content)

    def described(self) -> dict[str, Any]:
        size = len(self.content)
        digest = {"sha256": sha256(self.content).hexdigest()} if size >= MIN_HASHED_BYTES else {}
        return {"bytes": size, **digest}


def _check_names(names: Sequence[Any]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise DataError(f"{name!r:.80} is no name of an input: expected a letter, then letters, digits or _")
        if other := seen.get(name.upper()):
            raise DataError(f"the inputs {other!r} and {name!r} differ in capitals alone: rename one of them")
        seen[name.upper()] = name


def _read(name: str, value: Any, make_file: Callable[[str, bytes], str]) -> NamedInput:
    suffix = ".txt" if isinstance(value, str) else ".bin" if isinstance(value, bytes) else ".json"
    if isinstance(value, Path):
        value, suffix = _read_file(name, value), value.suffix if value.suffix.isascii() else ""
    try:
        content = value if isinstance(value, bytes) else _encoded(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"the input {name!r} cannot be used ({error}): expected text, bytes, a Path, or a JSON value"
        ) from error
    if len(content) > MAX_INPUT_BYTES:
        raise DataError(
            f"the input {name!r} has {len(content):,} bytes, expected at most {MAX_INPUT_BYTES:,}: split it"
        )
    return NamedInput(name=name, value=value, content=content, suffix=suffix, make_file=make_file)


def _read_file(name: str, path: Path) -> str | bytes:
    """Its content: text, or bytes where it is not UTF-8."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_INPUT_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"the input {name!r}: {path} cannot be read ({why}): give a file that exists") from error
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _encoded(value: Any) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.encode()


QUOTED = re.compile(r"\"([^\"]+)\"|“([^”]+)”|«([^»]+)»")
FENCED = re.compile(r"```[^\n`]*\n(.*?)\n?```", re.DOTALL)


def text_in(instruction: str) -> str | None:
    """The text that an instruction holds: in a fence, else after its last colon, else in quotes; None if there is none.

    A colon counts where a blank or a line end follows, outside of quotes. Of several fences or quotes, the last counts.
    """
    if fenced := FENCED.findall(instruction):
        return str(fenced[-1])
    quoted = list(QUOTED.finditer(instruction))
    inside = {i for match in quoted for i in range(*match.span())}
    colons = [match for match in re.finditer(r":\s+(?=\S)", instruction) if match.start() not in inside]
    if colons:
        text = instruction[colons[-1].end() :].strip()
        whole = QUOTED.fullmatch(text)
        return str(whole[whole.lastindex or 0]) if whole else text
    return str(quoted[-1][quoted[-1].lastindex or 0]) if quoted else None


PATH = re.compile(r"(?!.*://)(\S*/\S*|\S*\.[A-Za-z][A-Za-z0-9]{0,4})")
"""A text that looks like the path of a file: without blanks, with a slash or an extension."""


def parse_inputs(given: Sequence[str]) -> dict[str, Any]:
    """NAME=FILE, NAME=@FILE, NAME=TEXT and NAME:=JSON as inputs; DataError for what is none of them.

    A value is a file if there is one; a value that only looks like one is refused.
    """
    found: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        is_json, name = name.endswith(":"), name.removesuffix(":")
        if not equals:
            raise DataError(f"{one!r:.80} is no input: expected NAME=FILE or NAME=TEXT, such as report=report.txt")
        if name in found:
            raise DataError(f"the input {name!r} is given twice: keep one of them")
        found[name] = _parsed_json(name, value) if is_json else file_or_text(name, value, guess=True)
    _check_names(list(found))
    return found


def _parsed_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the input {name!r} is {text!r:.80}, which is no JSON: {error}; correct it") from error


def file_or_text(name: str, value: str, *, folder: Path = Path(), guess: bool = False) -> Path | str:
    """@FILE is a file and @@ a text that begins with @; with `guess`, so is a text that is the path of a file."""
    if value.startswith("@@"):
        return value[1:]
    path = folder / value.removeprefix("@")
    is_file, is_there = value.startswith("@"), bool(value) and _is_there(path)
    if is_there and (is_file or guess):
        if path.is_dir():
            raise DataError(f"the input {name!r}: {path} is a folder: give a file")
        return path
    if is_file or (guess and PATH.fullmatch(value)):
        as_text = f"; if it is a text, write {name}:={json.dumps(value)}" if guess and not is_file else ""
        raise DataError(f"the input {name!r}: there is no file {path}: correct the path{as_text}")
    return value


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long for a path, or a null character
        return False
