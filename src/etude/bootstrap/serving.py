"""A run folder of any problem to the policy that is used."""

from __future__ import annotations

from pathlib import Path

from etude.bootstrap.allocation import read_policy
from etude.bootstrap.planner import load_planner
from etude.bootstrap.runs import problem_of
from etude.serving.planner import Planner
from etude.serving.runtime import LoadedPolicy


def load_policy(path: Path, *, seed: int = 0) -> LoadedPolicy | Planner:
    if problem_of(path) == "workflow":
        return load_planner(path)
    trained = read_policy(path)
    return LoadedPolicy(trained.network, trained.problem, seed=seed, step=trained.step)
