"""A trained planner with a fallback: it plans what it is sure of, the fallback plans the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from etude.contracts.decision import Decision, DecisionRequest
from etude.contracts.errors import ConfigError
from etude.contracts.ports import AsyncDecider
from etude.orchestrator.record import correction_of
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.decisions import PROBLEM
from etude.problems.workflow.plan import Limits

if TYPE_CHECKING:
    from etude.problems.workflow.decide import WorkflowDecider

MIN_PROBABILITY = 0.5
"""Probability of its plan from which a trained planner plans without the fallback."""


def with_fallback(decider: object, other: object, *, min_probability: float = MIN_PROBABILITY) -> FallbackDecider:
    """The decider of a trained planner with a language model as its fallback."""
    from etude.problems.workflow.decide import WorkflowDecider

    if not isinstance(decider, WorkflowDecider) or decider.probability is None:
        version = getattr(decider, "version", decider)
        raise ConfigError(f"{version!r} does not say how probable its plans are: a fallback is for a trained planner")
    if not isinstance(other, AsyncDecider):
        raise ConfigError(
            f"the fallback is {getattr(other, 'version', other)!r}: expected a language model, llm:URL#MODEL"
        )
    if not 0 <= min_probability <= 1:
        raise ConfigError(f"min_probability is {min_probability!r}: expected a probability from 0 to 1")
    return FallbackDecider(decider, other, min_probability)


class FallbackDecider:
    """An `AsyncDecider`: plans are the trained planner's from a probability on, else the fallback's.

    Decisions after a failure are the trained planner's. `policy` of a logged decision says which of them made it, and
    `plan_probability` in its context how probable the trained planner's plan was.
    """

    problem = PROBLEM

    def __init__(self, planner: WorkflowDecider, fallback: AsyncDecider, min_probability: float) -> None:
        self.planner, self.fallback, self.min_probability = planner, fallback, min_probability
        self.version = f"{planner.version}+{fallback.version}<{min_probability:g}"

    @property
    def catalogue(self) -> Catalogue:
        return self.planner.catalogue

    @property
    def limits(self) -> Limits:
        return self.planner.limits

    def decide(self, request: DecisionRequest) -> Decision:
        decision, probability = self._sure(request)
        return decision or _with_probability(self.fallback.decide(request), probability)

    async def adecide(self, request: DecisionRequest) -> Decision:
        decision, probability = self._sure(request)
        return decision or _with_probability(await self.fallback.adecide(request), probability)

    def _sure(self, request: DecisionRequest) -> tuple[Decision | None, float]:
        """The trained planner's decision, None where it is not sure enough; and the probability of its plan."""
        decision = self.planner.decide(request)
        if correction_of(decision.logged[0]) is not None:
            return decision, 1.0
        assert self.planner.probability is not None
        probability = self.planner.probability(request, decision)
        sure = probability >= self.min_probability
        return _with_probability(decision, probability) if sure else None, probability

    async def check(self) -> None:
        await self.fallback.check()

    async def close(self) -> None:
        await self.fallback.close()


def _with_probability(decision: Decision, probability: float) -> Decision:
    first, *others = decision.logged
    context: dict[str, Any] = {**(first.context or {}), "plan_probability": round(probability, 6)}
    logged = (msgspec.structs.replace(first, context=context), *others)
    return msgspec.structs.replace(decision, logged=logged)
