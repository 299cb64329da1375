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
