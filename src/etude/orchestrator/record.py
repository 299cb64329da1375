"""One execution as it is logged: the source document's line, with decisions and what became of each node added.

`cost` is in USD, times are in milliseconds since the workflow began, ids are those of the catalogue that lies beside
the log. `planner_outputs` is the plan as it was first made, `nodes` what stood there in the end.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from etude.contracts.decision import Decision


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


class NodeRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node that stood in the plan at some time, with every try at it; those replanned away are `dropped`."""

    task_type: int
    dependencies: tuple[int, ...] = ()
    worker: int | None = None  # who had it last
    status: str  # done, failed, skipped, planned, dropped
    attempts: tuple[Attempt, ...] = ()


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
    policy: str  # the version that decided
    reward: float = 0.0  # the document's, of this outcome
    ended: str = "done"  # done, aborted, deadline, cancelled, failed
    error: str = ""  # why, where it did not end as it should
    decisions: tuple[Decision, ...] = ()
    nodes: tuple[NodeRecord, ...] = ()
    violations: tuple[str, ...] = ()  # rules that were broken: there are none
