"""A decision: the request, the answer, and the log entry."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from etude.contracts.errors import DataError

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Amount = Annotated[float, Meta(ge=0)]
Propensity = Annotated[float, Meta(gt=0, le=1)]


class Preferences(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the caller of a choice wants this time. One policy serves them all."""

    quality_weight: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Weight of the score against cost: 1 is the score alone, 0 cost alone; null as the policy was trained."""
    max_cost_usd: Amount | None = None
    """Options that are expected to cost more are not eligible."""
    max_latency_ms: Amount | None = None
    """Options that are expected to take longer are not eligible."""
    region: str | None = None
    """Options that list `regions` without this one are not eligible."""
    allowed: tuple[str, ...] | None = None
    """Names of the only options that are eligible; null allows all."""


class TaskFacts(Struct, frozen=True, kw_only=True):
    """What is known of a task when one of its decisions is made, for a server that records it."""

    task: str
    """Description of the task, in words."""
    user: str | None = None
    """User that the task is done for."""
    group: str | None = None
    """Group of the user."""
    agent: str | None = None
    """Name of the agent."""
    model: str | None = None
    """Model that the agent uses, with its version."""


class DecisionRequest(Struct, frozen=True, kw_only=True):
    """A request for a decision. It holds everything that the answer depends on, besides the policy itself."""

    context: Any = None
    """What is known: text, numbers, or a mapping of these."""
    options: tuple[Any, ...] | None = None
    """Options to choose among, where the caller names them."""
    default: str | None = None
    """Name of the option to choose where the policy has none to prefer; null is the first that is eligible."""
    preferences: Preferences = Preferences()
    """What the caller wants of this choice."""
    state: Any = None
    """Progress of the task, as the problem describes it; null at its start."""
    at_ms: float = 0.0
    """Milliseconds since the task began."""
    seed: int = 0
    """Seed of the random numbers, where the policy samples."""
    trajectory: str | None = None
    """Id of the trajectory that the decision belongs to: during a release, one policy makes all its decisions. Without
    it, the incumbent decides."""
    conversation: str | None = None
    """Id of the conversation that the trajectory belongs to, where all of it has to be on one policy."""
    explain: bool = True
    """Whether the answer of a choice says what is expected of each option."""
    about: TaskFacts | None = None
    """The task that the decision belongs to, where it may be recorded."""


class LoggedDecision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything needed to judge a later policy on a past decision."""

    problem: Name
    """Name of the problem: workflow, allocation, prompt, or choice:NAME for a choice of your own."""
    at_ms: Amount = 0.0
    """Milliseconds since the trajectory began."""
    context: Any = None
    """What was known when the decision was made, beyond the task."""
    eligible: Any = None
    """What could be chosen: a list of options or actions, or the problem's own description of them."""
    action: Any = None
    """What was chosen: of a choice of your own, the name of the option."""
    propensity: Propensity | None = None
    """Probability of the action; null where it is unknown, for example when a person chose."""
    policy: Name
    """Version of the behaviour policy, which made the decision."""


class Expected(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a policy expects of an option. Standard errors say how sure it is of the mean, not how outcomes vary."""

    score: float
    """Expected score: what the policy maximises before cost."""
    score_se: float
    """Standard error of that expectation."""
    success: float | None = None
    """Probability of success; null where it was never reported."""
    quality: float | None = None
    cost_usd: float | None = None
    latency_ms: float | None = None
    utility: float | None = None
    """Score and cost under the preferences of the request."""
    probability: float = 0.0
    """Probability with which it is chosen."""
    masked: str | None = None
    """Why it is not eligible; null if it is."""
    decisions: float = 0.0
    """Effective number of past outcomes of this option: fewer than there are where some count more than others, by
    their propensities or because old ones fade; 0 for a new option."""


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
    cost_usd: Amount = 0.0
    """Cost of deciding in USD, where a paid service was asked."""
    expected: dict[str, Expected] = {}
    """Of a choice: what is expected of each option, by name, where the policy knows."""
    proposal: Any = None
    """Of a workflow's first plan: its probability, doubts and alternatives, where the policy knows."""


class NoOptionError(DataError):
    """No option of a choice may be chosen; `expected` says of each why not."""

    def __init__(self, message: str, expected: dict[str, Expected]) -> None:
        super().__init__(message)
        self.expected = expected
