"""A decision: the request, the answer, and the log entry."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Amount = Annotated[float, Meta(ge=0)]
Propensity = Annotated[float, Meta(gt=0, le=1)]


class DecisionRequest(Struct, frozen=True, kw_only=True):
    """A request for a decision. It holds everything that the answer depends on, besides the policy itself."""

    context: Any = None
    """What is known: text, numbers, or a mapping of these."""
    options: tuple[Any, ...] | None = None
    """Options to choose among, where the caller names them."""
    state: Any = None
    """Progress of the task, as the problem describes it; null at its start."""
    at_ms: float = 0.0
    """Milliseconds since the task began."""
    seed: int = 0
    """Seed of the random numbers, where the policy samples."""


class LoggedDecision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything needed to judge a later policy on a past decision."""

    problem: Name
    """Name of the problem: workflow, allocation, prompt, or choice:NAME for a choice of your own."""
    at_ms: Amount = 0.0
    """Milliseconds since the trajectory began."""
    context: Any = None
    """What was known when the decision was made, beyond the task."""
    eligible: Any = None
    """What could be chosen: a list of actions, or the problem's own description of them."""
    action: Any = None
    """What was chosen."""
    propensity: Propensity | None = None
    """Probability of the action; null where it is unknown, for example when a person chose."""
    policy: Name
    """Version of the behaviour policy, which made the decision."""


class Decision(Struct, frozen=True, kw_only=True):
    """The answer to a request."""

    action: Any
    """What to do."""
    propensity: float | None
    """Probability of the action, all its parts together; null where it is unknown."""
    policy: str
    """Version of the policy that decided."""
    logged: tuple[LoggedDecision, ...]
    """Log entries for the trajectory: one, or one per part of an action that was composed step by step."""
