"""A line of an execution log, in the source document's format: an export of a trajectory, which is the record.

`cost` is in USD, times are in milliseconds since the workflow began, ids are those of the catalogue next to the log.
`planner_outputs` is the plan as it was first made, `nodes` are those of the end, with every attempt.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from etude.contracts.decision import LoggedDecision
from etude.contracts.trajectory import SuccessBy

LANGUAGE_MODEL = "llm:"
"""Prefix of policies that are language models."""


class Graph(Struct, frozen=True, kw_only=True):
    adjacency: tuple[tuple[int, ...], ...]  # [i][j] is 1 where node j depends on node i


class PlannerOutputs(Struct, frozen=True, kw_only=True):
    task_types: tuple[int, ...]
    model_selections: tuple[int, ...]  # empty where there are no workers to choose among
    workflow_graph: Graph


class ExecutionResult(Struct, frozen=True, kw_only=True):
    success: bool
    outputs: dict[str, Any]  # by node, of those that are done
    total_cost: float
    total_latency_ms: float


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One try of a worker at a node."""

    worker: int
    started_ms: float
    latency_ms: float
    cost_usd: float
    fault: str | None = None  # a Fault; null where it was done
    message: str = ""
    verified: bool = False  # a verifier of its task type checked the output


class NodeRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node that was in the plan at some time, with every attempt at it; those replanned away are `dropped`."""

    task_type: int
    dependencies: tuple[int, ...] = ()
    worker: int | None = None  # the last that it was given to
    status: str  # done, failed, skipped, planned, dropped
    attempts: tuple[Attempt, ...] = ()
    parameters: dict[str, Any] = {}  # of its task type, as workers got them


class Execution(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the log."""

    timestamp: str  # ISO 8601, UTC: when it began
    instruction: str
    success: bool
    cost: float
    latency_ms: float
    planner_outputs: PlannerOutputs | None  # null where no plan could be made
    execution_result: ExecutionResult
    id: str
    number: int | None = None  # within a collection
    probability: float | None = None  # that the first plan is right, links included, where the policy says so
    min_probability: float | None = None  # required of that plan, where there is a minimum
    fallback: str | None = None  # the version that was to plan instead, where it was not probable enough
    revised: bool = False  # the policy changed the subtasks or links of the fallback's plan
    policy: str  # the version that decided
    user: str | None = None  # for whom: a name that means nothing elsewhere
    reward: float = 0.0  # the document's, of this outcome
    ended: str = "done"  # done, aborted, deadline, cancelled, failed
    error: str = ""  # why, where it did not end as it should
    success_by: SuccessBy | None = None  # who said whether it succeeded; null if unknown
    decisions: tuple[LoggedDecision, ...] = ()
    nodes: tuple[NodeRecord, ...] = ()
    violations: tuple[str, ...] = ()  # limits that were exceeded: there are none
    inputs: dict[str, dict[str, Any]] = {}  # of the workflow by name: bytes and sha256, no content


def correction_of(decision: LoggedDecision) -> str | None:
    """What was chosen after a failure; None while planning."""
    found = decision.action.get("correction") if isinstance(decision.action, dict) else None
    return found if isinstance(found, str) else None


def failed_node(decision: LoggedDecision) -> int | None:
    """The node that a correction is about, as the record numbers them."""
    found = decision.context.get("failed") if isinstance(decision.context, dict) else None
    return found if isinstance(found, int) else None
