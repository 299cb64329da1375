"""What an allocation policy is asked before it is released: observations of its world."""

from __future__ import annotations

from collections.abc import Iterable

from etude.contracts.decision import DecisionRequest
from etude.contracts.trajectory import Trajectory
from etude.learning.artefact import Artefact
from etude.learning.settings import read_own
from etude.problems.allocation.problem import AllocationSettings, make_problem


def gate_requests(
    artefact: Artefact, trajectories: Iterable[Trajectory], number: int, seed: int
) -> list[DecisionRequest]:
    """First observations of episodes: nothing is logged."""
    problem = make_problem(read_own(AllocationSettings, artefact.manifest.settings, source=artefact.path))
    shown = problem.world(number, device="cpu").reset(seed)
    return [
        DecisionRequest(context={name: value[i].tolist() for name, value in shown.items()}, seed=seed + i)
        for i in range(number)
    ]
