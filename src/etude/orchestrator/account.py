"""How far a workflow came, as the log has it: its plan, what became of each node, and every rule that was broken."""

from __future__ import annotations

from collections.abc import Sequence

from etude.orchestrator.crew import Crew
from etude.orchestrator.record import Graph, NodeRecord, PlannerOutputs
from etude.problems.workflow.plan import SLACK, Limits
from etude.problems.workflow.progress import Progress, Step


def planner_outputs(steps: Sequence[Step]) -> PlannerOutputs:
    """A plan as the source document logs it."""
    place = {id(step): i for i, step in enumerate(steps)}
    edges = [[0] * len(steps) for _ in steps]
    for j, step in enumerate(steps):
        for before in step.dependencies:
            edges[place[id(before)]][j] = 1
    return PlannerOutputs(
        task_types=tuple(step.task_type for step in steps),
        model_selections=tuple(step.worker for step in steps),
        workflow_graph=Graph(adjacency=tuple(map(tuple, edges))),
    )


def node_records(progress: Progress) -> tuple[NodeRecord, ...]:
    """What stood there in the end, then what was planned away."""
    steps = [*progress.steps, *progress.dropped]
    place = {id(step): i for i, step in enumerate(steps)}
    return tuple(
        NodeRecord(
            task_type=step.task_type,
            dependencies=tuple(sorted(place[id(before)] for before in step.dependencies)),
            worker=step.worker,
            status=step.status.name.lower() if i < len(progress.steps) else "dropped",
            attempts=tuple(step.tries),
        )
        for i, step in enumerate(steps)
    )


def violations(progress: Progress, cost: float, latency_ms: float, limits: Limits, crew: Crew) -> list[str]:
    """Every rule that an execution has broken, in words. There is none to break: this looks all the same."""
    found, steps = [], [*progress.steps, *progress.dropped]
    if len(progress.steps) > limits.max_nodes:
        found.append(f"{len(progress.steps)} nodes, at most {limits.max_nodes}")
    if limits.max_cost_usd is not None and cost > limits.max_cost_usd * (1 + SLACK):
        found.append(f"{cost:g} USD, at most {limits.max_cost_usd:g}")
    if limits.max_time_ms is not None and latency_ms > limits.max_time_ms * (1 + SLACK):
        found.append(f"{latency_ms:g} ms, at most {limits.max_time_ms:g}")
    if progress.corrections > limits.max_corrections:
        found.append(f"{progress.corrections} corrections, at most {limits.max_corrections}")
    if progress.replans > limits.max_replans:
        found.append(f"{progress.replans} replans, at most {limits.max_replans}")
    for step in steps:
        kind = crew.catalogue.task_types[step.task_type].name
        if len(step.tries) > limits.max_attempts:
            found.append(f"{kind}: {len(step.tries)} attempts, at most {limits.max_attempts}")
        for tried in {attempt.worker for attempt in step.tries}:
            entry = crew.catalogue.workers[tried]
            if entry.task_types is not None and kind not in entry.task_types:
                found.append(f"{kind} was given to {entry.name}, who is not able to do it")
    return found
