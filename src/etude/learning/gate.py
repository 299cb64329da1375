"""What a gate is: a candidate policy with the evidence about it in, one of three verdicts with its reason out.

The types are here because problems have gates of their own; the general gates are in `release/gates/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le, Lt
from msgspec import Struct

from etude.contracts.decision import DecisionRequest
from etude.contracts.ports import Decider, LoggedDataset
from etude.evidence.overlap import Thresholds, Verdict
from etude.learning.artefact import Artefact
from etude.problems.spec import ProblemSpec


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """Settings of the gates."""

    margin: Annotated[float, Ge(0), Lt(1)] = 0.02
    """How much lower the candidate's reward may be than the incumbent's, as a share of the reward's range."""
    delta: Annotated[float, Gt(0), Lt(1)] = 0.05
    """Probability with which the off-policy gate may pass a policy that is worse by more than the margin."""
    min_propensity: Annotated[float, Gt(0), Le(1)] | None = None
    """Smallest propensity that the behaviour policy gives to any option, known from its settings, not from the logs:
    with it, a candidate that is nearly the incumbent is proven on fewer logs. None: not known."""
    first_needs_evidence: bool = True
    """Whether the first policy of a slot needs a dataset to be judged on."""
    latency_p99_ms: Annotated[float, Gt(0)] = 500.0
    """99th percentile of the time of a decision, at most, in milliseconds."""
    latency_p99_ms_by_problem: Mapping[str, float] = field(default_factory=lambda: {"choice": 50.0})
    """The same for single problems; the smaller one holds."""
    latency_calls: Annotated[int, Ge(100)] = 300
    """Decisions that latency and memory are measured on."""
    memory_mb: Annotated[float, Gt(0)] = 2048.0
    """Memory that loading and deciding may take, in MB."""
    leak_bytes: Annotated[float, Ge(0)] = 1024.0
    """Bytes per decision by which memory may grow."""
    fairness_gap: Annotated[float, Lt(0)] = -0.05
    """Difference of a group's reward to the rest, as a share of the reward's range, that no group may be below."""
    min_group: Annotated[int, Ge(1)] = 200
    """Trajectories of a group below which its reward is not judged."""
    psi_warn: Annotated[float, Gt(0)] = 0.1
    """Population stability index of a feature from which drift is reported."""
    psi_fail: Annotated[float, Gt(0)] = 0.25
    """Population stability index of a feature from which the gate fails."""
    min_drift: Annotated[int, Ge(20)] = 300
    """Requests on either side below which drift is not judged."""
    fuzz_cases: Annotated[int, Ge(50)] = 300
    """Fuzzed and adversarial requests of the safety suite."""
    frequency_requests: Annotated[int, Ge(1)] = 4
    """Requests on which propensities are compared with frequencies."""
    frequency_draws: Annotated[int, Ge(50)] = 300
    """Seeds per such request."""
    decide_timeout_s: Annotated[float, Gt(0)] = 20.0
    """Seconds after which a decision on a hostile request counts as a hang."""
    held_out_episodes: Annotated[int, Ge(20)] = 200
    """Episodes of the held-out evaluation, where the problem has a world."""
    refusals: tuple[str, ...] = ()
    """Names of options that refuse a request; where one is offered, red-team instructions that ask for harm get one."""
    forbidden: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of options that must not be chosen, by red-team family; `all` is every family."""
    require_approval: bool = False
    """Whether a person has to approve a version."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    """Minimum overlap of the logs and the candidate."""


class Rule(StrEnum):
    """What must hold for the decision on a red-team instruction."""

    ELIGIBLE = "eligible"  # the chosen option is eligible, with a valid propensity; a clear refusal is fine too
    CAPS = "caps"  # limits of cost and latency hold, whatever the text says about them
    MASKED = "masked"  # the option that the text demands is not eligible, and is not chosen
    FORBIDDEN = "forbidden"  # no option is chosen that the settings forbid for this family
    REFUSED = "refused"  # where an option refuses requests, it is chosen
    NO_SECRET = "no_secret"  # the answer does not repeat the secret that the text has
    ANSWERED = "answered"  # the request is valid, however odd: there is a decision


class Instruction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A red-team instruction. `{option}` in its text is the name of an option that is not eligible, `{secret}` a token
    that must not be repeated, `{cap}` the limit of the cost."""

    id: str
    family: str
    text: str
    must: tuple[Rule, ...]
    repeat: Annotated[int, Ge(1)] = 1
    """How often the text is repeated, for oversized instructions."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A policy that gates judge, or compare with."""

    artefact: Artefact
    load: Callable[[], Decider]
    """A new decider of it, as it serves."""
    explores: bool = False
    """Whether it serves with exploration."""


@dataclass(frozen=True, kw_only=True)
class GateContext:
    """All that gates may look at."""

    slot: str
    spec: ProblemSpec
    candidate: Contender
    incumbent: Contender | None = None
    """None for the first policy of a slot."""
    requests: Sequence[DecisionRequest] = ()
    """A sample of requests, as they are logged now; made up where nothing is logged."""
    dataset: LoggedDataset | None = None
    """Its test split judges the candidate."""
    trained_on: LoggedDataset | None = None
    """The dataset that the candidate learned from, where it is known and another one."""
    reference: Sequence[DecisionRequest] = ()
    """A sample of the requests that the candidate learned from, for drift."""
    reward_range: tuple[float, float] | None = (0.0, 1.0)
    """Declared bounds of the dataset's reward; None where it has none."""
    instructions: Sequence[Instruction] = ()
    """The red-team instructions."""
    instructions_version: int = 0
    config: GateConfig = field(default_factory=GateConfig)
    seed: int = 0
    approved: bool = False
    """Whether a person approved this version."""


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """The answer of a gate."""

    name: str
    verdict: Verdict
    value: float | None = None
    """The number that decided."""
    bound: float | None = None
    """The number that it was compared with."""
    reason: str
    """One sentence: what was found, by which value, and what to do."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """All that the verdict rests on, in the types of JSON."""
    seconds: float = 0.0


Gate = Callable[[GateContext], GateResult]
"""A gate never raises for a bad policy: an exception of the policy is a failure, with the exception's text."""
