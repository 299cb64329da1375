"""Executions to log, made by hand and drawn at random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

from etude.contracts.decision import LoggedDecision
from etude.orchestrator.log import to_line
from etude.orchestrator.record import Attempt, Execution, ExecutionResult, Graph, NodeRecord, PlannerOutputs
from etude.problems.catalogue import Catalogue, TaskType, Worker

CATALOGUE = Catalogue(
    task_types=(TaskType(name="draft"), TaskType(name="review"), TaskType(name="send")),
    workers=(Worker(name="small", usd_per_call=0.01), Worker(name="large", usd_per_call=0.1)),
)
DOCUMENT: dict[str, Any] = {
    "timestamp": "2024-12-24T10:30:00",
    "instruction": "Summarize document...",
    "success": True,
    "cost": 0.045,
    "latency_ms": 1200.0,
    "planner_outputs": {
        "model_selections": [1, 0, 1],
        "workflow_graph": {"adjacency": [[0, 1, 0], [0, 0, 1], [0, 0, 0]]},
    },
    "execution_result": {
        "success": True,
        "outputs": {"0": "text", "1": ""},
        "total_cost": 0.045,
        "total_latency_ms": 1200.0,
    },
}
"""The source document's own line."""


def attempt(worker: int = 0, fault: str | None = None, **changed: Any) -> Attempt:
    return msgspec.structs.replace(
        Attempt(worker=worker, started_ms=0.0, latency_ms=100.0, cost_usd=0.01, fault=fault), **changed
    )


def node(task_type: int, *dependencies: int, status: str = "done", **changed: Any) -> NodeRecord:
    made = NodeRecord(task_type=task_type, dependencies=dependencies, worker=0, status=status, attempts=(attempt(),))
    return msgspec.structs.replace(made, **changed)


def corrected(failed: int, correction: str) -> LoggedDecision:
    return LoggedDecision(
        problem="workflow",
        at_ms=1.0,
        context={"failed": failed},
        eligible={"corrections": ["retry", correction]},
        action={"correction": correction},
        propensity=0.5,
        policy="v1",
    )


def execution(instruction: str = "Draft it and send it", **changed: Any) -> Execution:
    """A success of two nodes, one after the other."""
    success = changed.get("success", True)
    made = Execution(
        timestamp="2026-01-01T00:00:00Z",
        instruction=instruction,
        success=success,
        cost=0.02,
        latency_ms=200.0,
        planner_outputs=PlannerOutputs(
            task_types=(0, 2), model_selections=(0, 0), workflow_graph=Graph(adjacency=((0, 1), (0, 0)))
        ),
        execution_result=ExecutionResult(success=success, outputs={}, total_cost=0.02, total_latency_ms=200.0),
        id="e1",
        policy="v1",
        reward=8.0,
        success_by="verifier",
        nodes=(node(0), node(2, 0)),
    )
    return msgspec.structs.replace(made, **changed)


def numbered(count: int) -> list[Execution]:
    return [execution(f"instruction {i}", id=f"e{i}", number=i) for i in range(count)]


def write_log(folder: Path, *lines: Execution | dict[str, Any] | bytes, name: str = "executions.jsonl") -> Path:
    """A folder with one log of these lines, and the catalogue."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "catalogue.json").write_bytes(msgspec.json.encode(CATALOGUE))
    (folder / name).write_bytes(b"".join(_bytes(line) for line in lines))
    return folder


def _bytes(line: Execution | dict[str, Any] | bytes) -> bytes:
    if isinstance(line, Execution):
        return to_line(line)
    return line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"


numbers = st.floats(allow_nan=False, allow_infinity=False)
ids = st.integers(0, 5)
several = st.lists(ids, max_size=3).map(tuple)
texts = st.text(max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
attempts = st.builds(
    Attempt,
    worker=ids,
    started_ms=numbers,
    latency_ms=numbers,
    cost_usd=numbers,
    fault=st.none() | st.sampled_from(["timeout", "refusal"]),
    message=texts,
)
nodes = st.builds(
    NodeRecord,
    task_type=ids,
    dependencies=several,
    worker=st.none() | ids,
    status=st.sampled_from(["done", "failed", "skipped", "planned", "dropped"]),
    attempts=st.lists(attempts, max_size=2).map(tuple),
)
names = st.text(min_size=1, max_size=20)
decisions = st.builds(
    LoggedDecision,
    problem=names,
    at_ms=st.floats(0, allow_nan=False, allow_infinity=False),
    context=json_values,
    eligible=json_values,
    action=json_values,
    propensity=st.none() | st.floats(0, 1, exclude_min=True),
    policy=names,
)
plans = st.builds(
    PlannerOutputs,
    task_types=several,
    model_selections=several,
    workflow_graph=st.builds(Graph, adjacency=st.lists(several, max_size=3).map(tuple)),
)
executions = st.builds(
    Execution,
    timestamp=texts,
    instruction=texts,
    success=st.booleans(),
    cost=numbers,
    latency_ms=numbers,
    planner_outputs=st.none() | plans,
    execution_result=st.builds(
        ExecutionResult,
        success=st.booleans(),
        outputs=st.dictionaries(texts, json_values, max_size=2),
        total_cost=numbers,
        total_latency_ms=numbers,
    ),
    id=texts,
    number=st.none() | ids,
    policy=texts,
    user=st.none() | texts,
    reward=numbers,
    ended=st.sampled_from(["done", "aborted", "cancelled"]),
    error=texts,
    success_by=st.sampled_from([None, "verifier", "judge", "person", "self"]),
    decisions=st.lists(decisions, max_size=2).map(tuple),
    nodes=st.lists(nodes, max_size=2).map(tuple),
    violations=st.lists(texts, max_size=2).map(tuple),
)
"""Whatever the types allow."""
