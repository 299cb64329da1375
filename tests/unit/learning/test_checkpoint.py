"""Checkpoints: what is written is what is read, and what is damaged is refused with where and what to do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from etude.contracts.errors import CheckpointError
from etude.files.durable import write_json
from etude.learning.checkpoint import MANIFEST, TENSORS, checkpoints, read_checkpoint, write_checkpoint


def write(folder: Path, step: int = 7, *, keep: int = 3, problem: str = "allocation") -> Path:
    tensors = {"w": torch.arange(6.0).view(2, 3), "step": torch.tensor(step)}
    return write_checkpoint(folder, step=step, tensors=tensors, meta={"problem": problem, "note": [1, "é"]}, keep=keep)


def test_what_is_written_is_read_bit_for_bit(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    tensors = {
        "float": torch.tensor([0.1, -0.0, float("inf"), 1e-45]),
        "transposed": torch.rand(3, 4, generator=generator).T,
        "double": torch.tensor(1 / 3, dtype=torch.float64),
        "bool": torch.tensor([True, False]),
        "rng": generator.get_state(),
        "empty": torch.zeros(0, 4),
        "brain": torch.rand(5).bfloat16(),
    }
    path = write_checkpoint(tmp_path, step=12, tensors=tensors, meta={"problem": "p", "x": 0.1}, keep=1)
    read, manifest = read_checkpoint(path, problem="p")
    assert read.keys() == tensors.keys()
    for name, value in tensors.items():
        assert read[name].dtype == value.dtype
        assert read[name].shape == value.shape
        assert torch.equal(read[name], value)
    assert torch.equal(read["float"].signbit(), tensors["float"].signbit())
    assert (manifest["step"], manifest["x"]) == (12, 0.1)


def test_only_the_newest_few_stay_in_the_order_of_their_steps(tmp_path: Path) -> None:
    for step in (5, 90, 100, 1_000_000):
        write(tmp_path, step, keep=2)
    assert [read_checkpoint(path)[1]["step"] for path in checkpoints(tmp_path)] == [100, 1_000_000]


def test_a_step_written_twice_holds_the_second(tmp_path: Path) -> None:
    write(tmp_path, 5, problem="first")
    path = write(tmp_path, 5, problem="second")
    assert checkpoints(tmp_path) == [path]
    assert read_checkpoint(path)[1]["problem"] == "second"


def test_what_a_killed_process_left_half_written_is_no_checkpoint(tmp_path: Path) -> None:
    whole = write(tmp_path, 5)
    draft = tmp_path / ".step-000000000009.draft"
    draft.mkdir()
    (draft / TENSORS).write_bytes(b"half")
    assert checkpoints(tmp_path) == [whole]
    path = write(tmp_path, 9)
    assert checkpoints(tmp_path) == [whole, path]
    assert not draft.exists()
    read_checkpoint(path)


def test_what_is_added_is_there_when_the_checkpoint_appears(tmp_path: Path) -> None:
    def add(draft: Path) -> None:
        assert checkpoints(tmp_path) == []
        (draft / "more").write_text("x")

    path = write_checkpoint(tmp_path, step=1, tensors={"w": torch.ones(1)}, meta={}, keep=1, add=add)
    assert checkpoints(tmp_path) == [path]
    assert (path / "more").read_text() == "x"

    def fail(draft: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path, step=2, tensors={"w": torch.ones(1)}, meta={}, keep=1, add=fail)
    assert checkpoints(tmp_path) == [path]


def test_there_are_none_where_there_is_no_folder(tmp_path: Path) -> None:
    assert checkpoints(tmp_path / "nope") == []


def truncate(path: Path) -> None:
    data = (path / TENSORS).read_bytes()
    (path / TENSORS).write_bytes(data[: len(data) // 2])


def empty(path: Path) -> None:
    (path / TENSORS).write_bytes(b"")


def flip_a_bit(path: Path) -> None:
    data = bytearray((path / TENSORS).read_bytes())
    data[-1] ^= 1
    (path / TENSORS).write_bytes(data)


def lose_tensors(path: Path) -> None:
    (path / TENSORS).unlink()


def lose_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def truncate_manifest(path: Path) -> None:
    (path / MANIFEST).write_text((path / MANIFEST).read_text()[:20])


def binary_manifest(path: Path) -> None:
    (path / MANIFEST).write_bytes(b"\xff\x00")


def list_manifest(path: Path) -> None:
    (path / MANIFEST).write_text("[1]")


def newer_format(path: Path) -> None:
    rewrite(path, format=2)


def not_safetensors(path: Path) -> None:
    (path / TENSORS).write_bytes(b"not tensors")
    rewrite(path, sha256=hashlib.sha256(b"not tensors").hexdigest())


def rewrite(path: Path, **changes: Any) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps(manifest | changes))


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (truncate, r"tensors\.safetensors: \d+ bytes do not match .* delete this folder"),
    (empty, r"tensors\.safetensors: 0 bytes do not match"),
    (flip_a_bit, "do not match"),
    (lose_tensors, r"tensors\.safetensors is missing; restore"),
    (lose_manifest, r"manifest\.json is missing"),
    (truncate_manifest, r"manifest\.json: not valid JSON .* restore"),
    (binary_manifest, r"manifest\.json: not valid JSON"),
    (list_manifest, "format"),
    (newer_format, "format 2, expected 1"),
    (not_safetensors, "not a safetensors file"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE, ids=lambda x: getattr(x, "__name__", ""))
def test_a_damaged_checkpoint_is_refused(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    path = write(tmp_path)
    damage(path)
    with pytest.raises(CheckpointError, match=message) as refused:
        read_checkpoint(path)
    assert str(path) in str(refused.value)


def test_a_checkpoint_of_another_problem_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, problem="prompt")
    with pytest.raises(CheckpointError, match="problem 'prompt', expected 'allocation'"):
        read_checkpoint(path, problem="allocation")


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x, max_size=3), max_leaves=5)
)
def test_json_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "value.json"
    write_json(path, value)
    assert json.loads(path.read_text("utf-8")) == value


def test_json_replaces_the_file_and_leaves_no_other_file(tmp_path: Path) -> None:
    for value in (1, {"a": 2}):
        write_json(tmp_path / "x.json", value)
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
