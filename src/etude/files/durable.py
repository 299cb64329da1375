"""Files that are written whole or not at all and survive a power cut.

Private ones are for their owner alone, whatever the umask; experience is stored in no others.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

PRIVATE, FOLDER = 0o600, 0o700
SHARED = 0o666
"""As the umask allows."""


def make_folder(folder: Path) -> None:
    """A private one, with those above it that are missing; their names survive a power cut."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=FOLDER, exist_ok=True)
        sync_folder(folder.parent)


def make_file(path: Path) -> None:
    """Empty where there is none; a file of our own that others could read is closed to them.

    One that exists is not opened: closing it would release the locks that this process has on it (POSIX), and SQLite
    in another process would take the database for closed and remove its write-ahead log.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE))
    except FileExistsError:
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077 and found.st_uid == os.geteuid():
            path.chmod(PRIVATE)


@contextmanager
def new_file(path: Path, *, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """To be written to, durable when it is left; FileExistsError where there is one."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(path: Path, *, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """To be written to, in place of any of this name once it is left: a reader sees the old file or the new one.

    What is raised inside leaves the old one.
    """
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    try:
        with new_file(draft, mode=mode) as file:
            yield file
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_file(path: Path, data: bytes, *, mode: int = PRIVATE) -> None:
    """A new one; FileExistsError where there is one."""
    with new_file(path, mode=mode) as file:
        file.write(data)


def replace_file(path: Path, data: bytes, *, mode: int = PRIVATE) -> None:
    """As `replacing`, at once."""
    with replacing(path, mode=mode) as file:
        file.write(data)


def write_json(path: Path, value: Any) -> None:
    """In place of any of this name, for all who may read the folder."""
    replace_file(path, json.dumps(value, indent=1).encode(), mode=SHARED)


def sync_folder(folder: Path) -> None:
    """What was renamed, made or removed in it survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
