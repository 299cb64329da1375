"""Writes and reads checkpoints, folders of tensors and a manifest: atomic, checked by hash, no pickle.

A checkpoint is `step-000000081920/` with `tensors.safetensors` and `manifest.json`. It appears by one rename, so a
process killed at any time leaves the previous checkpoint complete.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from etude.contracts.errors import CheckpointError
from etude.files.durable import SHARED, sync_folder, write_file

if TYPE_CHECKING:  # torch takes seconds to import, and listing runs needs none of it
    from torch import Tensor
    from torch.optim import Optimizer

T = TypeVar("T")

FORMAT = 1
TENSORS, MANIFEST = "tensors.safetensors", "manifest.json"


def write_checkpoint(
    folder: Path,
    *,
    step: int,
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    keep: int,
    add: Callable[[Path], object] = lambda draft: None,
) -> Path:
    """Add a checkpoint below `folder`, with what `add` writes into it, and drop all but the newest `keep`."""
    final, data = folder / f"step-{step:012d}", save_tensors(tensors)
    manifest = {"format": FORMAT, "step": step, "sha256": hashlib.sha256(data).hexdigest(), **meta}
    files = {TENSORS: data, MANIFEST: json.dumps(manifest, indent=1).encode()}
    write_folder(final, files, add)
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def write_folder(folder: Path, files: Mapping[str, bytes], add: Callable[[Path], object] = lambda draft: None) -> None:
    """Write a folder of these files, and of what `add` writes into it, by one rename."""
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for name, data in files.items():
        write_file(draft / name, data, mode=SHARED)
    add(draft)
    sync_folder(draft)
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)
    sync_folder(folder.parent)


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints below `folder`, oldest first."""
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def read_checkpoint(path: Path, *, problem: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and manifest of one checkpoint; CheckpointError if it is incomplete or of another problem."""
    remedy = "restore the file, or delete this folder: an older one next to it is used then, or training starts again"
    try:
        manifest: Any = json.loads((path / MANIFEST).read_bytes())
        data = (path / TENSORS).read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: {Path(str(error.filename)).name} is missing; {remedy}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path / MANIFEST}: not valid JSON ({error}); {remedy}") from error
    found = manifest.get("format") if isinstance(manifest, dict) else manifest
    if found != FORMAT:
        raise CheckpointError(f"{path}: checkpoint format {found!r}, expected {FORMAT}: use the Etude that wrote it")
    if hashlib.sha256(data).hexdigest() != manifest.get("sha256"):
        raise CheckpointError(f"{path / TENSORS}: {len(data)} bytes do not match the manifest's SHA-256; {remedy}")
    if problem is not None and manifest.get("problem") != problem:
        raise CheckpointError(
            f"{path}: holds a policy for problem {manifest.get('problem')!r}, expected {problem!r}: "
            f"give a run of {problem!r}"
        )
    return read_tensors(data, path / TENSORS), manifest


def save_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    return save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})


def read_tensors(data: bytes, source: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except SafetensorError as error:
        raise CheckpointError(f"{source}: not a safetensors file ({error}): restore it, or train again") from error


def under(prefix: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """The tensors whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with the prefix before their names: `under` undoes it."""
    return {f"{prefix}{name}": value for name, value in tensors.items()}


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """The state of an optimiser per parameter, without its settings."""
    remembered: dict[int, dict[str, Tensor]] = optimizer.state_dict()["state"]
    return {f"{i}.{name}": value for i, slots in remembered.items() for name, value in slots.items()}


def load_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the state that `optimizer_tensors` returned."""
    remembered: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        i, name = key.split(".")
        remembered.setdefault(int(i), {})[name] = value.clone()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": remembered})
