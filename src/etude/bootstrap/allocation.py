"""Allocation: settings to a training, and a run folder back to its policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.bootstrap.runs import CONFIG, find_root, read_settings, read_weights
from etude.contracts.errors import CheckpointError
from etude.learning.checkpoint import under
from etude.learning.runs import RunFolder
from etude.learning.train import TrainConfig, Training
from etude.problems.allocation.network import EntityPolicy, MLPPolicy
from etude.problems.allocation.problem import AllocationProblem
from etude.settings.tree import Settings


def make_problem(settings: Settings) -> AllocationProblem:
    return AllocationProblem(config=settings.allocation, network=settings.network)


def make_training(settings: Settings, out: Path) -> Training:
    """A run in `out`, new, or where an earlier one with the same settings stopped."""
    s = settings
    config = TrainConfig(ppo=s.ppo, run=s.run, health=s.health, curriculum=s.curriculum)
    return Training(make_problem(s), config, RunFolder(out), to_config(s))


def to_config(settings: Settings) -> dict[str, Any]:
    """What config.json keeps: enough to make the same problem and training again."""
    sections = {"allocation", "network", "ppo", "run", "health", "curriculum"}
    return {"problem": "allocation", **settings.model_dump(mode="json", include=sections)}


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
    tensors, meta = read_weights(path, folder, problem.name)
    network = problem.policy()
    try:
        network.load_state_dict(under("policy.", tensors))
    except RuntimeError as error:
        raise CheckpointError(
            f"{path}: its weights do not fit the network that {root / CONFIG} describes: was one of them copied from "
            "another run?"
        ) from error
    return TrainedPolicy(folder=folder, settings=settings, problem=problem, network=network.eval(), step=meta["step"])
