"""Which policy serves a slot, and every step that led there: the entries of a slot's ledger.

A slot is a named decision that one policy serves: `choice:model`, `workflow`. All that happens to it is an entry of an
append-only ledger, and each entry holds the serving state after it: the newest entry is the serving pointer.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from etude.contracts.decision import Amount, Name
from etude.contracts.errors import ReleaseError
from etude.contracts.trajectory import Id, PolicyVersion, Time

Slot = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,63}(:[^\x00-\x1f\x7f/\\%]{1,128})?$")]
"""PROBLEM, or PROBLEM:NAME: a name has no slash, backslash, percent sign or control character."""


class Mode(StrEnum):
    """How a candidate is exposed."""

    SHADOW = "shadow"  # it answers, its answer is only logged
    CANARY = "canary"  # it makes a growing share of the decisions
    EXPERIMENT = "experiment"  # it makes a fixed share, for comparison
    HOLDBACK = "holdback"  # it was promoted; the policy before it keeps a small share


class Exposure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A candidate next to the incumbent. A serving process needs nothing else to assign a unit to an arm."""

    release: Id
    """Id of the release."""
    candidate: PolicyVersion
    mode: Mode
    share: Annotated[float, Meta(ge=0, le=1)]
    """Probability that a new unit is assigned to the candidate; 0 in shadow mode and while paused: then no unit
    enters the evidence."""
    stage: Annotated[int, Meta(ge=0)] = 0
    """Index of the current stage of a canary."""
    status: Literal["running", "paused", "held"] = "running"
    """Paused: no unit is assigned. Held: a person decides; it may still be rolled back."""
    unit: Literal["trajectory", "conversation"] = "trajectory"
    """What is assigned to an arm as a whole."""


class Serving(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which policies serve a slot now."""

    incumbent: PolicyVersion | None = None
    """Null until the first policy is promoted."""
    previous: PolicyVersion | None = None
    """The policy that a rollback of the incumbent returns to."""
    exposure: Exposure | None = None


class State(StrEnum):
    """The state of a version in a slot."""

    REGISTERED = "registered"
    PASSED = "passed"  # all gates
    REFUSED = "refused"  # by a gate
    EXPOSED = "exposed"  # in shadow, canary or experiment
    SERVING = "serving"
    PREVIOUS = "previous"  # served before; a rollback returns to it
    ROLLED_BACK = "rolled_back"
    RETIRED = "retired"


class Action(StrEnum):
    """What happened to a version; past tense, as in the audit log."""

    REGISTERED = "registered"
    GATES_PASSED = "gates_passed"
    GATES_FAILED = "gates_failed"
    GATES_UNDECIDED = "gates_undecided"
    APPROVED = "approved"
    STARTED = "started"  # a shadow, canary or experiment
    ADVANCED = "advanced"  # to the next stage
    PAUSED = "paused"
    RESUMED = "resumed"
    HELD = "held"  # undecided at its horizon or deadline
    STOPPED = "stopped"  # a shadow or an experiment ended without a change
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"  # a candidate on evidence of harm, or an incumbent by a person
    RETIRED = "retired"
    DELETED = "deleted"  # its files, by retention
    ALARMED = "alarmed"  # rewards of the serving version fell after its release; a person decides


_EXPOSED = dict.fromkeys((Action.ADVANCED, Action.PAUSED, Action.RESUMED, Action.HELD), State.EXPOSED)

TRANSITIONS: Mapping[State | None, Mapping[Action, State]] = {
    None: {Action.REGISTERED: State.REGISTERED},
    State.REGISTERED: {
        Action.GATES_PASSED: State.PASSED,
        Action.GATES_FAILED: State.REFUSED,
        Action.GATES_UNDECIDED: State.REGISTERED,
        Action.APPROVED: State.REGISTERED,
        Action.RETIRED: State.RETIRED,
    },
    State.REFUSED: {
        Action.GATES_PASSED: State.PASSED,
        Action.GATES_FAILED: State.REFUSED,
        Action.GATES_UNDECIDED: State.REGISTERED,
        Action.RETIRED: State.RETIRED,
    },
    State.PASSED: {
        Action.GATES_PASSED: State.PASSED,
        Action.GATES_FAILED: State.REFUSED,
        Action.GATES_UNDECIDED: State.REGISTERED,
        Action.APPROVED: State.PASSED,
        Action.STARTED: State.EXPOSED,
        Action.PROMOTED: State.SERVING,  # the first policy of a slot, or direct with approval
        Action.RETIRED: State.RETIRED,
    },
    State.EXPOSED: {
        **_EXPOSED,
        Action.APPROVED: State.EXPOSED,
        Action.STOPPED: State.PASSED,
        Action.PROMOTED: State.SERVING,
        Action.ROLLED_BACK: State.ROLLED_BACK,
    },
    State.SERVING: {
        # of its holdback:
        Action.STARTED: State.SERVING,
        Action.STOPPED: State.SERVING,
        Action.ROLLED_BACK: State.ROLLED_BACK,
        Action.ALARMED: State.SERVING,
    },
    State.PREVIOUS: {Action.STARTED: State.EXPOSED, Action.PROMOTED: State.SERVING, Action.RETIRED: State.RETIRED},
    State.ROLLED_BACK: {Action.RETIRED: State.RETIRED},
    State.RETIRED: {Action.DELETED: State.RETIRED},
}
"""State of a version → action → its next state; whatever is not here is refused. When one version is promoted, the
one that served becomes `previous`; when a serving version is rolled back, `previous` serves again."""


def next_state(version: str, state: State | None, action: Action) -> State:
    found = TRANSITIONS[state].get(action)
    if found is None:
        allowed = ", ".join(TRANSITIONS[state]) or "nothing"
        raise ReleaseError(
            f"version {version} is {state or 'not registered'}, so it cannot be {action}: what can happen to it is "
            f"{allowed}"
        )
    return found


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step, with who took it and on what evidence."""

    number: Annotated[int, Meta(ge=1)]
    """Its place in the ledger, from 1."""
    time: Time
    actor: Name
    """`controller` and `coordinator` are automatic; a person is a name given by `--by` or the login name."""
    action: Action
    version: PolicyVersion | None = None
    reason: str = ""
    evidence: dict[str, Any] = {}
    """E-values with their thresholds, gate verdicts, the release's ledger and the number of its last entry: all that
    is needed to recompute the step."""
    serving: Serving
    """After this step."""
    states: dict[PolicyVersion, State]
    """State of every version of the slot after this step."""
    before: str = ""
    """SHA-256 of the entry before, in hexadecimal; empty for the first."""


class ReleaseSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a candidate is released; it does not change while the release runs."""

    id: Id
    slot: Slot
    candidate: PolicyVersion
    incumbent: PolicyVersion
    mode: Mode
    stages: tuple[Annotated[float, Meta(gt=0, lt=1)], ...]
    """The candidate's share in each stage before it makes all decisions; one share in an experiment, none in shadow."""
    stage_minutes: Amount
    """Minimum duration of a stage."""
    deadline_minutes: Amount | None = None
    """Duration after which an undecided release is held; null waits for the horizon."""
    unit: Literal["trajectory", "conversation"] = "trajectory"
    window_s: Amount
    """Seconds after its assignment at which a unit closes and enters the evidence."""
    early_window_s: Amount | None = None
    """Seconds after its assignment at which a unit enters the evidence about early errors; null has none."""
    latency_limit_ms: Amount | None = None
    """Latency that scores 0 as a guardrail; 0 ms scores 1."""
    cost_limit_usd: Amount | None = None
    """Cost that scores 0 as a guardrail."""
    latency_objective_ms: Amount | None = None
    """Latency that few of the candidate's tasks may exceed."""
    reward_version: Annotated[int, Meta(ge=1)]
    low: float
    high: float
    """Bounds of the reward; they become 0 and 1."""
    shadow_answers: Annotated[int, Meta(ge=0)] = 0
    """Answers in shadow mode before the first stage."""
    holdback_share: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Share of decisions that the previous policy keeps after the promotion."""
    holdback_days: Amount = 0.0
    evidence: dict[str, Any] = {}
    """Settings of the statistics: the fields of `evidence.eprocess.EvidenceConfig`."""
    when_undecided: Literal["hold", "roll_back"] = "hold"


class ClosedUnit(Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """A unit whose window has closed, as it enters the evidence."""

    unit: str
    assigned_ns: int
    """Nanoseconds since 1970."""
    candidate: bool
    share: float
    """Probability of the candidate when the unit was assigned."""
    score: float
    """Reward between 0 and 1; 0 without a reward."""
    error: bool
    group: str | None = None
    guardrails: dict[str, float] = {}
    """Further scores between 0 and 1, by name."""
    slow: bool = False
    """Whether it took longer than the latency objective."""


class EarlyUnit(Struct, frozen=True, kw_only=True, omit_defaults=True, array_like=True):
    """A unit when its early window has closed: whether it failed by then."""

    unit: str
    candidate: bool
    share: float
    error: bool


class ReleaseEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of a release's own ledger: how it began, or units that entered the evidence, in their order."""

    number: Annotated[int, Meta(ge=1)]
    time: Time
    spec: ReleaseSpec | None = None
    """In the first entry only."""
    early: tuple[EarlyUnit, ...] = ()
    """Units whose early window closed."""
    units: tuple[ClosedUnit, ...] = ()
    before: str = ""
    """SHA-256 of the entry before, in hexadecimal; empty for the first."""
