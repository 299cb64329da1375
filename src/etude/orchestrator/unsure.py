"""A plan that the planner is unsure of: a person chooses a plan, another policy plans, or the workflow is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from etude.contracts.errors import ConfigError, UnsureError
from etude.contracts.ports import Decider
from etude.orchestrator.config import MIN_PROBABILITY, WhenUnsure
from etude.problems.workflow.doubt import Proposal
from etude.problems.workflow.plan import Plan

AskPlan = Callable[[Proposal], Awaitable[Plan | None]]
"""Asks a person for one of the proposed plans; None if none of them is right."""


@dataclass(frozen=True, kw_only=True)
class Unsure:
    """What to do about plans below a probability."""

    min_probability: float
    then: WhenUnsure = "refuse"
    fallback: Decider | None = None  # plans instead, and leaves corrections to the policy
    ask: AskPlan | None = None  # without it, the workflow is refused

    def __post_init__(self) -> None:
        if not 0 <= self.min_probability <= 1:
            raise ConfigError(f"min_probability is {self.min_probability!r}: expected a probability from 0 to 1")
        if self.then == "fallback" and self.fallback is None:
            raise ConfigError("when_unsure is 'fallback', and there is no policy to fall back to: give one")

    def applies(self, proposal: Proposal | None) -> bool:
        """Whether the plan is not probable enough. Policies that give no probability are never unsure."""
        return proposal is not None and proposal.probability < self.min_probability

    def refusal(self, proposal: Proposal) -> UnsureError:
        subtasks = ", ".join(node.task_type for node in proposal.plan.nodes)
        how = "" if proposal.calibrated else " (uncalibrated)"
        return UnsureError(
            f"the plan ({subtasks}) is right with probability {proposal.probability:.2f}{how}, and min_probability is "
            f"{self.min_probability:g}: say it in other words, or lower min_probability"
        )


def with_fallback(decider: Decider, other: Decider, *, min_probability: float = MIN_PROBABILITY) -> Unsure:
    """Another policy for the plans that a trained planner is unsure of; ConfigError where it is never unsure."""
    if not getattr(decider, "proposes", False):
        raise ConfigError(
            f"{decider.version!r} does not say how probable its plans are: a fallback is for a trained planner that "
            "does not explore"
        )
    return Unsure(min_probability=min_probability, then="fallback", fallback=other)
