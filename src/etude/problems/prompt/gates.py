"""What a prompt policy is asked before it is released: logged prompts, or generated ones."""

from __future__ import annotations

from collections.abc import Iterable

from etude.contracts.decision import DecisionRequest
from etude.contracts.trajectory import Trajectory
from etude.learning.artefact import Artefact
from etude.problems.prompt.generated.prompts import make_prompts


def gate_requests(
    artefact: Artefact, trajectories: Iterable[Trajectory], number: int, seed: int
) -> list[DecisionRequest]:
    """The logged prompts in the states in which they were decided on; without any, generated ones."""
    logged = [
        decision.context
        for trajectory in trajectories
        for decision in trajectory.decisions
        if decision.problem == trajectory.problem
    ][:number]
    contexts = logged or [prompt.text for prompt in make_prompts(number, seed, split="held out")]
    return [DecisionRequest(context=context, seed=seed + i) for i, context in enumerate(contexts)]
