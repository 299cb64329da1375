"""Only their owner may read what files of experience hold, whatever the umask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from etude.adapters.objects import FolderBlobs
from etude.adapters.outbox import Outbox
from etude.adapters.sqlite import SqliteStore
from etude.contracts.bus import message_of
from etude.contracts.examples import EXAMPLES
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Trajectory
from etude.files.durable import SHARED, make_file, replace_file, replacing, write_file


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in folder.rglob("*")}


def test_the_outbox_the_store_and_their_logs_are_private(tmp_path: Path) -> None:
    event = EXAMPLES[Trajectory]
    outbox, store = Outbox(tmp_path / "a" / "b" / "outbox.sqlite"), SqliteStore(tmp_path / "c" / "experience.sqlite")
    outbox.publish([message_of(event)])
    store.append([(event, encode(event))])
    found = modes(tmp_path)
    outbox.close()
    store.close()
    assert {name: mode for name, mode in found.items() if "sqlite" not in name} == {
        "a": 0o700,
        "a/b": 0o700,
        "c": 0o700,
    }
    assert {mode for name, mode in found.items() if "sqlite" in name} == {0o600}
    assert {"a/b/outbox.sqlite-wal", "c/experience.sqlite-wal"} <= set(found)


def test_datasets_in_folders_are_private(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "datasets" / "november")
    blobs.put("manifest.json", b"{}")
    blobs.put("train/shard-0.jsonl", b"{}", replace=False)
    assert modes(tmp_path) == {
        "datasets": 0o700,
        "datasets/november": 0o700,
        "datasets/november/manifest.json": 0o600,
        "datasets/november/train": 0o700,
        "datasets/november/train/shard-0.jsonl": 0o600,
    }


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "experience.sqlite").touch(0o644)
    SqliteStore(tmp_path / "experience.sqlite").close()
    assert modes(tmp_path)["experience.sqlite"] == 0o600
    before = Path("/dev/null").stat().st_mode
    make_file(Path("/dev/null"))
    assert Path("/dev/null").stat().st_mode == before


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    replace_file(path, b"old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"half", "not bytes"])  # type: ignore[list-item]
    assert path.read_bytes() == b"old"
    (tmp_path / ".log.jsonl.draft").write_bytes(b"left by a process that was killed")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert modes(tmp_path) == {"log.jsonl": 0o600}


def test_a_new_file_takes_no_name_that_is_taken_and_is_as_open_as_asked(tmp_path: Path) -> None:
    write_file(tmp_path / "private", b"1")
    write_file(tmp_path / "shared", b"2", mode=SHARED)
    assert modes(tmp_path) == {"private": 0o600, "shared": 0o644}
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "private", b"3")
    assert (tmp_path / "private").read_bytes() == b"1"
