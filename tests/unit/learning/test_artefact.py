"""Policy artefacts: their content is their version, damage is noticed, and nothing in them is executed."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.bootstrap.datasets import find_behaviour
from etude.contracts.errors import CheckpointError, DatasetError
from etude.contracts.policy import SAMPLED, Manifest, version_of
from etude.learning.artefact import Artefact, write_artefact
from etude.learning.checkpoint import MANIFEST, TENSORS
from etude.learning.run_folder import RunFolder

ABOUT: dict[str, Any] = {
    "problem": "allocation",
    "method": "practise",
    "step": 7,
    "score": 0.5,
    "settings": {"network": {"hidden": [8]}},
    "details": {"names": ["a"]},
    "encoder": "ngrams",
    "catalogue": "c1",
    "data": ("d1",),
    "parent": "p1",
    "code": "1.0",
}
WEIGHTS = {"policy.w": torch.arange(6.0).view(2, 3)}
FILES = {"catalogue.json": b'{"task_types": []}'}


def write(folder: Path, *, weights: Any = None, files: Any = None, **changed: Any) -> Artefact:
    return write_artefact(folder, tensors=weights or WEIGHTS, files=files or FILES, about=ABOUT | changed)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = write(tmp_path / "a")
    read = Artefact(tmp_path / "a")
    assert read.manifest == written.manifest
    assert {name: getattr(read.manifest, name) for name in ABOUT} == ABOUT
    assert torch.equal(read.tensors()["policy.w"], WEIGHTS["policy.w"])
    assert read.file("catalogue.json") == FILES["catalogue.json"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["catalogue.json", MANIFEST, TENSORS]
    assert set(read.manifest.files) == {"catalogue.json", TENSORS}


def test_settings_in_force_replace_those_it_learned_with_and_change_no_version(tmp_path: Path) -> None:
    artefact = write(tmp_path / "a")
    learned = artefact.manifest.settings
    section, name = next((section, name) for section, own in learned.items() for name in own)
    changed = artefact.under({f"{section}.{name}": "of now", "new.key": 1})
    assert changed.settings == {**learned, section: {**learned[section], name: "of now"}, "new": {"key": 1}}
    assert changed.version == artefact.version
    assert artefact.settings == learned == changed.manifest.settings


def test_a_version_is_sixteen_digits_of_the_manifest_s_hash(tmp_path: Path) -> None:
    version = write(tmp_path / "a").version
    assert version == version_of((tmp_path / "a" / MANIFEST).read_bytes())
    assert len(version) == 16
    assert int(version, 16) >= 0


def test_renamed_copied_or_written_again_it_is_the_same_version(tmp_path: Path) -> None:
    version = write(tmp_path / "a").version
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    (tmp_path / "a").rename(tmp_path / "renamed")
    again = write(tmp_path / "elsewhere" / "step-000000000007")
    assert {Artefact(tmp_path / "copy").version, Artefact(tmp_path / "renamed").version, again.version} == {version}


CHANGES: dict[str, Any] = {
    "problem": "prompt",
    "method": "imitate",
    "step": 8,
    "score": None,
    "settings": {"network": {"hidden": [9]}},
    "details": {},
    "encoder": "minilm",
    "catalogue": "c2",
    "data": ("d1", "d2"),
    "parent": None,
    "code": "1.1",
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_fact_is_another_version(name: str, tmp_path: Path) -> None:
    assert write(tmp_path / "a", **{name: CHANGES[name]}).version != write(tmp_path / "b").version


def test_every_fact_of_a_manifest_changes_its_version() -> None:
    assert set(CHANGES) | {"format", "files"} == set(Manifest.__struct_fields__)


def test_other_weights_or_files_are_another_version(tmp_path: Path) -> None:
    other = {"policy.w": WEIGHTS["policy.w"].clone()}
    other["policy.w"][1, 2] += 1e-6
    versions = [write(tmp_path / "a"), write(tmp_path / "b", weights=other), write(tmp_path / "c", files={"x": b""})]
    assert len({artefact.version for artefact in versions}) == 3


@dataclass(frozen=True)
class Logs:
    """What is asked of a dataset: how many trajectories each policy version logged."""

    policies: Mapping[str, int]


@pytest.mark.parametrize("ending", ["", SAMPLED])
def test_the_run_whose_policy_logged_is_found_whether_that_was_greedy_or_sampled(ending: str, tmp_path: Path) -> None:
    versions = []
    for step, name in enumerate(("a", "b", "c")):
        folder = RunFolder(tmp_path / name)
        folder.open({"problem": "allocation", "method": "practise"})
        versions.append(write(folder.best / f"step-{step:012d}", step=step).version)
    a, b, _ = versions
    dataset: Any = Logs({"rules": 9, f"{a}{ending}": 2, f"{b}{ending}": 5})
    assert find_behaviour(dataset, tmp_path) == tmp_path / "b"
    with pytest.raises(DatasetError, match=r"has the policy that logged this dataset \(rules, people\)"):
        find_behaviour(Logs({"rules": 2, "people": 1}), tmp_path)  # type: ignore[arg-type]


def bytes_of(folder: Path) -> list[tuple[str, int]]:
    return [(path.name, i) for path in sorted(folder.iterdir()) for i in range(len(path.read_bytes()))]


def test_any_byte_that_changes_is_noticed(tmp_path: Path) -> None:
    """In a file it is refused; in the manifest it is refused, or another version."""
    version = write(tmp_path / "a").version
    for name, place in bytes_of(tmp_path / "a"):
        file = tmp_path / "a" / name
        data = file.read_bytes()
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            artefact = Artefact(tmp_path / "a")
            artefact.tensors()
            artefact.file("catalogue.json")
        except CheckpointError:
            pass
        else:
            assert name == MANIFEST
            assert artefact.version != version
        file.write_bytes(data)


def test_even_white_space_in_a_manifest_makes_another_version(tmp_path: Path) -> None:
    version, file = write(tmp_path / "a").version, tmp_path / "a" / MANIFEST
    file.write_bytes(file.read_bytes() + b"\n")
    assert Artefact(tmp_path / "a").version != version


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def rewrite(**changed: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        manifest = json.loads((folder / MANIFEST).read_text()) | changed
        (folder / MANIFEST).write_text(json.dumps(manifest))

    return change


def put(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(data) and None  # type: ignore[func-returns-value]


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (remove(MANIFEST), r"no policy here: manifest\.json is missing"),
    (remove(TENSORS), r"tensors\.safetensors is missing: restore it"),
    (put(TENSORS, b"x"), r"tensors\.safetensors: 1 bytes do not match the manifest's SHA-256"),
    (put(MANIFEST, b"{"), r"manifest\.json: not a policy's manifest"),
    (put(MANIFEST, b"[1]"), r"manifest\.json: not a policy's manifest"),
    (put(MANIFEST, b"\xff\x00"), r"manifest\.json: not a policy's manifest"),
    (put(MANIFEST, b'{"format": "\xff"}'), r"manifest\.json: not a policy's manifest"),
    (rewrite(format=1), "policy format 1, expected 2: it was trained by another version of Etude"),
    (rewrite(format=3), "policy format 3, expected 2"),
    (rewrite(step="7"), r"not a policy's manifest .*step"),
    (rewrite(unknown=1), r"not a policy's manifest .*unknown"),
    (rewrite(files={}), "holds no tensors.safetensors: it is a policy of another kind"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_a_damaged_artefact_is_refused_with_where_and_what_to_do(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    write(tmp_path / "a")
    damage(tmp_path / "a")
    with pytest.raises(CheckpointError, match=message) as refused:
        Artefact(tmp_path / "a").tensors()
    assert str(tmp_path / "a") in str(refused.value)


def test_what_no_manifest_lists_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "a")
    (tmp_path / "a" / "more.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"holds no more\.json"):
        Artefact(tmp_path / "a").file("more.json")


def test_killed_while_it_is_written_there_is_none_or_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = 0
    for last in range(100):
        left = iter(range(last))

        def fatal(handle: int, left: Any = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        folder = tmp_path / str(last)
        monkeypatch.setattr(os, "fsync", fatal)
        try:
            write(folder)
            break
        except KeyboardInterrupt:
            reached += 1
            if folder.exists():
                Artefact(folder).tensors()
        finally:
            monkeypatch.undo()
        assert write(folder).tensors().keys() == WEIGHTS.keys()
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(f".{last}.")] == []
    assert reached >= 4


def test_writing_again_replaces_the_whole(tmp_path: Path) -> None:
    write(tmp_path / "a", files={"old": b"x"})
    write(tmp_path / "a", files={"new": b"x"})
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [MANIFEST, "new", TENSORS]


def test_nothing_is_pickled_and_a_pickle_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("pickled")

    bomb = pickle.dumps(Bomb())
    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "save", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    write(tmp_path / "a").tensors()
    folder = tmp_path / "b"
    write(folder)
    hashed = json.loads((folder / MANIFEST).read_text())["files"]
    (folder / TENSORS).write_bytes(bomb)
    rewrite(files=hashed | {TENSORS: hashlib.sha256(bomb).hexdigest()})(folder)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        Artefact(folder).tensors()
    assert not (tmp_path / "exploded").exists()
