"""Settings to objects, and a run folder back to a policy: the only place where objects are wired."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.contracts.errors import CheckpointError, RunError
from etude.learning.checkpoint import MANIFEST, checkpoints, read_checkpoint, under
from etude.learning.runs import RunFolder
from etude.learning.train import TrainConfig, Training
from etude.problems.allocation.network import EntityPolicy, MLPPolicy
from etude.problems.allocation.problem import AllocationProblem
from etude.serving.runtime import LoadedPolicy
from etude.settings import Settings, restore

CONFIG = "config.json"


def make_problem(settings: Settings) -> AllocationProblem:
    return AllocationProblem(config=settings.allocation, network=settings.network)


def make_training(settings: Settings, out: Path) -> Training:
    """A run in `out`, new, or where an earlier one with the same settings stopped."""
    s = settings
    config = TrainConfig(ppo=s.ppo, run=s.run, health=s.health, curriculum=s.curriculum)
    return Training(make_problem(s), config, RunFolder(out), to_config(s))


def to_config(settings: Settings) -> dict[str, Any]:
    """What config.json keeps: enough to make the same problem and training again."""
    return {"problem": "allocation", **settings.model_dump(mode="json")}


@dataclass(frozen=True, kw_only=True)
class TrainedPolicy:
    """A policy read from a run, with what it was trained on."""

    folder: RunFolder
    settings: Settings
    problem: AllocationProblem
    network: MLPPolicy | EntityPolicy
    step: int


def read_policy(path: Path) -> TrainedPolicy:
    """`path` is a run (its best policy), its best/ or checkpoints/ (the newest in it), or one checkpoint."""
    root = find_root(path)
    folder = RunFolder(root)
    settings = read_settings(folder)
    problem = make_problem(settings)
    tensors, meta = _read_weights(path, folder, problem.name)
    network = problem.policy()
    try:
        network.load_state_dict(under("policy.", tensors))
    except RuntimeError as error:
        raise CheckpointError(
            f"{path}: its weights do not fit the network that {root / CONFIG} describes: was one of them copied from "
            "another run?"
        ) from error
    return TrainedPolicy(folder=folder, settings=settings, problem=problem, network=network.eval(), step=meta["step"])


def read_settings(folder: RunFolder) -> Settings:
    """Settings of a run; RunError where it is of a problem this version does not know."""
    config = folder.config()
    if config.get("problem") != "allocation":
        raise RunError(f"{folder.path} is a run of problem {config.get('problem')!r}, expected 'allocation'")
    return restore(config, source=folder.path / CONFIG)


def find_root(path: Path) -> Path:
    """The run folder that `path` is, or lies in."""
    if not path.exists():
        raise RunError(f"{path} does not exist: `etude runs list` shows the runs")
    for folder in (path, *path.absolute().parents[:2]):
        if (folder / CONFIG).is_file():
            return folder
    raise RunError(f"{path} is not a run: {CONFIG} is missing; `etude runs list` shows the runs")


def load_policy(path: Path, *, seed: int = 0) -> LoadedPolicy:
    trained = read_policy(path)
    return LoadedPolicy(trained.network, trained.problem, seed=seed, step=trained.step)


def _read_weights(path: Path, folder: RunFolder, problem: str) -> tuple[dict[str, Any], dict[str, Any]]:
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
