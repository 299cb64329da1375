"""A run folder back to what it is of, its settings and its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.contracts.errors import CheckpointError, RunError
from etude.learning.checkpoint import MANIFEST, checkpoints, read_checkpoint
from etude.learning.runs import RunFolder
from etude.settings.tree import Settings, restore

CONFIG, CATALOGUE = "config.json", "catalogue.json"


def find_root(path: Path) -> Path:
    """The run folder that `path` is, or lies in."""
    if not path.exists():
        raise RunError(f"{path} does not exist: `etude runs list` shows the runs")
    for folder in (path, *path.absolute().parents[:2]):
        if (folder / CONFIG).is_file():
            return folder
    raise RunError(f"{path} is not a run: {CONFIG} is missing; `etude runs list` shows the runs")


def problem_of(path: Path) -> str:
    """Which problem the run at `path` learned."""
    return str(RunFolder(find_root(path)).config().get("problem"))


def read_settings(folder: RunFolder, problem: str = "allocation") -> Settings:
    """Settings of a run; RunError where it is of another problem."""
    config = folder.config()
    if config.get("problem") != problem:
        raise RunError(f"{folder.path} is a run of problem {config.get('problem')!r}, expected {problem!r}")
    return restore(config, source=folder.path / CONFIG)


def read_weights(path: Path, folder: RunFolder, problem: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a run those of its best policy; else of the checkpoint that `path` is, or the newest in it."""
    if (path / CONFIG).is_file():
        return folder.best_policy(problem)
    if (path / MANIFEST).is_file() or path.name.startswith("step-"):
        return read_checkpoint(path, problem=problem)
    saved = checkpoints(path)
    if not saved:
        raise CheckpointError(
            f"{path} holds no checkpoint: give the run folder {folder.path}, or a step-… folder in it"
        )
    return read_checkpoint(saved[-1], problem=problem)
