"""A decision as it is logged: what could be chosen, what was, how probable that was, and by which policy."""

from __future__ import annotations

from msgspec import Struct


class Choice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One choice within a workflow, in the ids of the catalogue that the log names; null where a part did not apply.

    While planning, `task_type` is null for *stop*.
    """

    correction: str | None = None  # after a failure: retry, switch, repair, replan, skip, abort
    task_type: int | None = None
    dependencies: tuple[int, ...] | None = None  # nodes
    worker: int | None = None


class Eligible(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What each part could be, given the parts chosen before it; null where it did not apply."""

    corrections: tuple[str, ...] | None = None
    task_types: tuple[int, ...] | None = None
    stop: bool = False
    dependencies: tuple[int, ...] | None = None  # each may be taken or left
    workers: tuple[int, ...] | None = None


class StepState(Struct, frozen=True, array_like=True):
    """A node as it stood; ids are those of the catalogue, times ms since the workflow began."""

    task_type: int
    worker: int
    dependencies: tuple[int, ...]  # nodes
    status: int  # planned, done, failed, skipped: the grammar's Status
    attempts: int  # given out, the one that is planned included
    begun: bool
    cost_usd: float  # of the last attempt, expected or known
    ready_ms: float
    latency_ms: float


class State(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a workflow was when it was decided about: with its workers' `live` numbers, all that a policy reads."""

    steps: tuple[StepState, ...] = ()
    spent_usd: float = 0.0
    clock_ms: float = 0.0
    corrections: int = 0
    replans: int = 0
    failed: int | None = None  # the node to correct, among these steps
    error: int = 0  # the category of what failed
    tried: tuple[int, ...] = ()  # workers that proved unable to do what failed


class Decision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything a later policy needs to be judged on it."""

    at_ms: float  # since the workflow began
    failed: int | None = None  # the node to correct, as the record numbers them; null while planning
    eligible: Eligible
    choice: Choice
    propensity: float | None = None  # of the choice, all parts together; null where a person chose
    policy: str  # its version
    live: tuple[tuple[float, float, float, bool, float | None], ...] | None = None
    """Of each worker: USD and ms of a call, share of successes, available, calls left; null is as in the one before."""
    state: State | None = None
    """Null where nothing had been carried out, and where the decision before added a node."""
