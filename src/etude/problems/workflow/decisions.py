"""What a logged decision about a workflow holds: its `action`, its `eligible` and the state in its `context`."""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec import Struct

from etude.problems.catalogue import Catalogue

PROBLEM = "workflow"


def catalogue_id(catalogue: Catalogue) -> str:
    """The same where ids mean the same: what is known of each entry may differ."""
    names = [[t.name for t in catalogue.task_types], [w.name for w in catalogue.workers]]
    return sha256(msgspec.json.encode(names)).hexdigest()[:16]


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


class ReplacedState(Struct, frozen=True, array_like=True):
    """A node that the last replan dropped."""

    task_type: int
    dependencies: tuple[int, ...]  # nodes: those that are left, then those that were dropped
    error: int  # the category of its failure, 0 where it had not failed


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
    replaced: tuple[ReplacedState, ...] = ()  # what the last replan dropped
