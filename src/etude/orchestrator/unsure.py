"""A plan that the planner is unsure of: a person chooses a plan, another policy plans, or the workflow is refused.

Where another policy plans, the minimum probability may follow how often that policy is right: the planner takes over
each request that it is surer of.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from etude.contracts.errors import ConfigError, UnsureError
from etude.contracts.ports import Decider
from etude.orchestrator.config import WhenUnsure
from etude.orchestrator.record import Execution
from etude.problems.workflow.attempts import VERIFIED
from etude.problems.workflow.doubt import Proposal
from etude.problems.workflow.plan import Plan

AskPlan = Callable[[Proposal], Awaitable[Plan | None]]
"""Asks a person for one of the proposed plans; None if none of them is right."""


@dataclass(kw_only=True)
class Verdicts:
    """How many workflows of the fallback were right and wrong."""

    right: int = 0
    wrong: int = 0

    @property
    def share(self) -> float:
        """The share that is right: the posterior mean under a uniform prior, Beta(1, 1), so that it starts at 0.5."""
        return (self.right + 1) / (self.right + self.wrong + 2)


@dataclass(frozen=True, kw_only=True)
class Unsure:
    """What to do about plans below a probability."""

    min_probability: float | None  # None: the share of the fallback's workflows that are right
    then: WhenUnsure = "refuse"
    fallback: Decider | None = None  # plans instead, and leaves corrections to the policy
    ask: AskPlan | None = None  # without it, the workflow is refused
    verdicts: Verdicts = field(default_factory=Verdicts)  # on workflows of the fallback, counted as they end

    def __post_init__(self) -> None:
        if self.then == "fallback" and self.fallback is None:
            raise ConfigError("when_unsure is 'fallback', and there is no policy to fall back to: give one")
        if self.min_probability is None and self.then != "fallback":
            raise ConfigError(f"when_unsure is {self.then!r}, and there is no min_probability: give one")
        if self.min_probability is not None and not 0 <= self.min_probability <= 1:
            raise ConfigError(f"min_probability is {self.min_probability!r}: expected a probability from 0 to 1")

    def threshold(self) -> float:
        """The minimum probability now. A workflow asks once, and keeps to it."""
        return self.verdicts.share if self.min_probability is None else self.min_probability

    def refusal(self, proposal: Proposal) -> UnsureError:
        subtasks = ", ".join(node.task_type for node in proposal.plan.nodes)
        how = "" if proposal.calibrated else " (uncalibrated)"
        return UnsureError(
            f"the plan ({subtasks}) is right with probability {proposal.probability_with_links:.2f}{how}, and "
            f"min_probability is {self.threshold():g}: say it in other words, or lower min_probability"
        )

    def learn(self, executions: Iterable[Execution], *, judged: bool) -> None:
        """Count the verdicts on workflows of the fallback; `judged` says whether whole workflows are verified."""
        for execution in executions:
            right = None if self.fallback is None else verdict(execution, self.fallback.version, judged=judged)
            if right is not None:
                self.verdicts.right += right
                self.verdicts.wrong += not right


def is_unsure(proposal: Proposal | None, min_probability: float) -> bool:
    """Whether a plan is not probable enough. Policies that give no probability are never unsure.

    A plan with a wrong link fails too, so the probability is that of the links as well.
    """
    return proposal is not None and proposal.probability_with_links < min_probability


def verdict(execution: Execution, planner: str, *, judged: bool) -> bool | None:
    """Whether a workflow that a policy was to plan was right; None if another one was, or if no one can say.

    Self-declared success says nothing about the plan. Where whole workflows are verified, one without a plan is wrong,
    and so is a plan where another one succeeded in its place.
    """
    if planner != (execution.fallback or execution.policy):
        return None
    if execution.revised:
        return False if execution.success and execution.success_by in VERIFIED else None
    if execution.success_by in VERIFIED:
        return execution.success
    return False if judged and execution.planner_outputs is None and execution.ended != "cancelled" else None


def with_fallback(decider: Decider, other: Decider, *, min_probability: float | None = None) -> Unsure:
    """Another policy for the plans that a trained planner is unsure of; ConfigError where it is never unsure."""
    if not getattr(decider, "proposes", False):
        raise ConfigError(
            f"{decider.version!r} does not say how probable its plans are: a fallback is for a trained planner that "
            "does not explore"
        )
    return Unsure(min_probability=min_probability, then="fallback", fallback=other)
