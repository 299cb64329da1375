"""Tensors and a manifest to a folder and back: atomic, checked by hash, never pickled.

A checkpoint is `step-000000081920/` with `tensors.safetensors` and `manifest.json`. It appears by one rename, so a
process killed at any moment leaves the one before it whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.contracts.errors import CheckpointError

if TYPE_CHECKING:  # torch takes seconds to import, and listing runs needs none of it
    from torch import Tensor
    from torch.optim import Optimizer

FORMAT = 1
TENSORS, MANIFEST = "tensors.safetensors", "manifest.json"


def write_checkpoint(
    folder: Path, *, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], keep: int
) -> Path:
    """Add a checkpoint below `folder` and drop all but the newest `keep`."""
    from safetensors.torch import save

    final = folder / f"step-{step:012d}"
    draft = folder / f".{final.name}.draft"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    data = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    manifest = {"format": FORMAT, "step": step, "sha256": hashlib.sha256(data).hexdigest(), **meta}
    _write(draft / TENSORS, data)
    _write(draft / MANIFEST, json.dumps(manifest, indent=1).encode())
    _sync_folder(draft)
    shutil.rmtree(final, ignore_errors=True)
    draft.rename(final)
    _sync_folder(folder)
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints below `folder`, oldest first."""
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def read_checkpoint(path: Path, *, problem: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and manifest of one checkpoint; CheckpointError when it is not whole or of another problem."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    remedy = "restore the file, or delete this folder: an older one beside it is used then, or training starts anew"
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
    try:
        return load(data), manifest
    except SafetensorError as error:
        raise CheckpointError(f"{path / TENSORS}: not a safetensors file ({error}); {remedy}") from error


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One part's tensors, by the names it gave them."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """What an optimiser remembers of each parameter; its settings are not part of it."""
    remembered: dict[int, dict[str, Tensor]] = optimizer.state_dict()["state"]
    return {f"{i}.{name}": value for i, slots in remembered.items() for name, value in slots.items()}


def load_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Make it remember just what `optimizer_tensors` gave."""
    remembered: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        i, name = key.split(".")
        remembered.setdefault(int(i), {})[name] = value.clone()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": remembered})


def write_json(path: Path, value: Any) -> None:
    """Atomically: a reader sees the old file or the new one."""
    draft = path.with_name(f".{path.name}.draft")
    _write(draft, json.dumps(value, indent=1).encode())
    os.replace(draft, path)
    _sync_folder(path.parent)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
