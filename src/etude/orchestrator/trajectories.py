"""A workflow that was carried out as a trajectory, and a trajectory as a line of an execution log and back.

Attempts are the trajectory's turns. In its metadata, in the ids of the catalogue that `catalogue` identifies:
    plan    subtasks as they were first planned: task_type, worker, dependencies; null where no plan could be made
    nodes   subtasks of the end, then those that a replan dropped: the same, with their status and, as `tried`, the
            worker of each attempt
    inputs  the inputs of the workflow by name, each with its size in bytes and its sha256 unless it is short
    number  its place in a collection, execution_reward  the source document's reward, violations  limits exceeded
    probability  that the policy's first plan has exactly the right subtasks and links, where the policy says so
    min_probability  what was required of it, fallback  the version that was to plan instead, where it was below that
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from etude.contracts.plain import plain
from etude.contracts.trajectory import Outcome, Trajectory, Turn
from etude.orchestrator.record import Attempt, Execution, ExecutionResult, Graph, NodeRecord, PlannerOutputs
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.decisions import PROBLEM, catalogue_id
from etude.problems.workflow.plan import SLACK, Limits

if TYPE_CHECKING:
    from etude.orchestrator.crew import Crew
    from etude.problems.workflow.progress import Progress, Step

Nodes = list[dict[str, Any]]


def planned_nodes(steps: Sequence[Step]) -> Nodes:
    place = {id(step): i for i, step in enumerate(steps)}
    return [_node(step.task_type, step.worker, sorted(place[id(b)] for b in step.dependencies)) for step in steps]


def _node(task_type: int, worker: int | None, dependencies: Iterable[int]) -> dict[str, Any]:
    return {"task_type": task_type, "worker": worker, "dependencies": list(dependencies)}


def final_nodes(progress: Progress) -> Nodes:
    """The nodes of the end, then those that were replanned away."""
    steps = [*progress.steps, *progress.dropped]
    status = [step.status.name.lower() for step in progress.steps] + ["dropped"] * len(progress.dropped)
    return [
        node | {"status": of, "tried": [attempt.worker for attempt in step.tries]}
        for node, of, step in zip(planned_nodes(steps), status, steps, strict=True)
    ]


def turns(
    progress: Progress, catalogue: Catalogue, parameters: Mapping[int, Mapping[str, Any]] = {}
) -> tuple[Turn, ...]:
    """Attempts in the order in which they began; `parameters` are by task type."""
    found = [
        _turn(i, step.task_type, attempt, catalogue, step.output, parameters.get(step.task_type, {}))
        for i, step in enumerate((*progress.steps, *progress.dropped))
        for attempt in step.tries
    ]
    return tuple(sorted(found, key=lambda turn: turn.at_ms))


def _turn(
    node: int, task_type: int, attempt: Attempt, catalogue: Catalogue, output: Any, parameters: Mapping[str, Any]
) -> Turn:
    done = attempt.fault is None
    action = {
        "node": node,
        "task_type": catalogue.task_types[task_type].name,
        "worker": catalogue.workers[attempt.worker].name if catalogue.workers else None,
    }
    more = {"parameters": plain(dict(parameters)), "verified": attempt.verified}
    return Turn(
        at_ms=attempt.started_ms,
        action=action | {name: value for name, value in more.items() if value},
        result=plain(output) if done else None,
        error=None if done else f"{attempt.fault}: {attempt.message}",
        cost_usd=attempt.cost_usd,
        latency_ms=attempt.latency_ms,
    )


def violations(progress: Progress, outcome: Outcome, limits: Limits, crew: Crew) -> list[str]:
    """Every limit that an execution has exceeded, in words. There should be none: this checks all the same."""
    compared = (
        (len(progress.steps), limits.max_nodes, "nodes"),
        (outcome.cost_usd, limits.max_cost_usd, "USD"),
        (outcome.latency_ms, limits.max_time_ms, "ms"),
        (progress.corrections, limits.max_corrections, "corrections"),
        (progress.replans, limits.max_replans, "replans"),
    )
    found = [
        f"{value:g} {unit}, at most {most:g}"
        for value, most, unit in compared
        if value is not None and most is not None and value > most * (1 + SLACK)
    ]
    for step in (*progress.steps, *progress.dropped):
        kind = crew.catalogue.task_types[step.task_type].name
        if len(step.tries) > limits.max_attempts:
            found.append(f"{kind}: {len(step.tries)} attempts, at most {limits.max_attempts}")
        for tried in {attempt.worker for attempt in step.tries}:
            entry = crew.catalogue.workers[tried]
            if not crew.catalogue.able(entry, kind):
                found.append(f"{kind} was given to {entry.name}, which is not able to do it")
    return found


def to_execution(trajectory: Trajectory) -> Execution:
    """A line of the log, in the source document's format."""
    outcome, known = trajectory.outcome, trajectory.metadata or {}
    success, cost, latency_ms = bool(outcome.success), outcome.cost_usd or 0.0, outcome.latency_ms or 0.0
    nodes: Nodes = known.get("nodes") or []
    attempts = _attempts(trajectory, nodes)
    results = {turn.action["node"]: turn.result for turn in trajectory.turns if turn.error is None}
    done = {str(i): results.get(i) for i, node in enumerate(nodes) if node["status"] == "done"}
    parameters = {turn.action["node"]: turn.action.get("parameters", {}) for turn in trajectory.turns}
    return Execution(
        timestamp=trajectory.time.isoformat(timespec="milliseconds"),
        instruction=trajectory.task,
        success=success,
        cost=cost,
        latency_ms=latency_ms,
        planner_outputs=_planner_outputs(known.get("plan")),
        execution_result=ExecutionResult(success=success, outputs=done, total_cost=cost, total_latency_ms=latency_ms),
        id=trajectory.id,
        number=known.get("number"),
        probability=known.get("probability"),
        min_probability=known.get("min_probability"),
        fallback=known.get("fallback"),
        revised=bool(known.get("revised")),
        policy=trajectory.policy or "",
        user=trajectory.user,
        reward=known.get("execution_reward", 0.0),
        ended=outcome.ended,
        error=outcome.error or "",
        success_by=outcome.success_by,
        decisions=trajectory.decisions,
        nodes=tuple(
            msgspec.convert(node | {"attempts": attempts[i], "parameters": parameters.get(i, {})}, NodeRecord)
            for i, node in enumerate(nodes)
        ),
        inputs=known.get("inputs", {}),
        violations=tuple(known.get("violations", ())),
    )


def _attempts(trajectory: Trajectory, nodes: Nodes) -> list[list[Attempt]]:
    """Of each node, in order. A turn names its worker for people; the node says by its id which it was."""
    found: list[list[Attempt]] = [[] for _ in nodes]
    for turn in trajectory.turns:
        node = turn.action["node"]
        fault, _, message = (turn.error or "").partition(": ")
        found[node].append(
            Attempt(
                worker=nodes[node]["tried"][len(found[node])],
                started_ms=turn.at_ms,
                latency_ms=turn.latency_ms or 0.0,
                cost_usd=turn.cost_usd or 0.0,
                fault=fault or None,
                message=message,
                verified=bool(turn.action.get("verified")),
            )
        )
    return found


def _planner_outputs(plan: Sequence[Mapping[str, Any]] | None) -> PlannerOutputs | None:
    """A plan as the source document logs it."""
    if plan is None:
        return None
    edges = [[0] * len(plan) for _ in plan]
    for j, node in enumerate(plan):
        for i in node["dependencies"]:
            edges[i][j] = 1
    workers = tuple(node["worker"] for node in plan)
    return PlannerOutputs(
        task_types=tuple(node["task_type"] for node in plan),
        model_selections=() if None in workers else workers,
        workflow_graph=Graph(adjacency=tuple(map(tuple, edges))),
    )


ENDED = ("done", "failed", "aborted", "cancelled", "deadline")


def to_trajectory(execution: Execution, catalogue: Catalogue, **about: Any) -> Trajectory:
    """A line of a log, ours or the source document's; `about` are fields such as group and agent."""
    time = datetime.fromisoformat(execution.timestamp)
    nodes = execution.nodes
    wanted = [node for node in nodes if node.status != "dropped"]
    known = {
        "number": execution.number,
        "probability": execution.probability,
        "min_probability": execution.min_probability,
        "fallback": execution.fallback,
        "revised": execution.revised or None,
        "violations": list(execution.violations),
        "inputs": execution.inputs,
    }
    outputs = execution.execution_result.outputs
    found = [
        _turn(i, node.task_type, attempt, catalogue, outputs.get(str(i)), node.parameters)
        for i, node in enumerate(nodes)
        for attempt in node.attempts
    ]
    return Trajectory(
        id=execution.id,
        time=time if time.tzinfo else time.replace(tzinfo=UTC),
        task=execution.instruction,
        problem=PROBLEM,
        policy=execution.policy or None,
        decisions=execution.decisions,
        turns=tuple(sorted(found, key=lambda turn: turn.at_ms)),
        outcome=Outcome(
            success=execution.success,
            success_by=execution.success_by,
            ended=execution.ended if execution.ended in ENDED else "failed",  # type: ignore[arg-type]  # just checked
            error=execution.error or None,
            cost_usd=execution.cost,
            latency_ms=execution.latency_ms,
            subtasks=len(wanted),
            subtasks_done=sum(node.status == "done" for node in wanted),
        ),
        metadata={
            "catalogue": catalogue_id(catalogue),
            "execution_reward": execution.reward,
            "plan": list(_planned(execution.planner_outputs)) if execution.planner_outputs else None,
            "nodes": [
                _node(node.task_type, node.worker, node.dependencies)
                | {"status": node.status, "tried": [attempt.worker for attempt in node.attempts]}
                for node in nodes
            ],
            **{name: value for name, value in known.items() if value not in (None, [], {})},
        },
        **({"user": execution.user} | about),
    )


def _planned(plan: PlannerOutputs) -> Iterator[dict[str, Any]]:
    adjacency, workers = plan.workflow_graph.adjacency, plan.model_selections
    for j, task_type in enumerate(plan.task_types):
        earlier = [i for i, row in enumerate(adjacency) if j < len(row) and row[j]]
        yield _node(task_type, workers[j] if j < len(workers) else None, earlier)
