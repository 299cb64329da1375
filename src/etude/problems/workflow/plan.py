"""A plan: a DAG of subtasks with their workers. Every plan is validated here, wherever it was made.

Nodes are in topological order and depend on earlier nodes only, so a cycle, a self-loop or a dangling edge cannot be
expressed; `Plan` still validates, because plans also arrive from outside. `check` compares a plan with a catalogue and
limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt
from msgspec import Struct

from etude.contracts.errors import PlanError
from etude.problems.catalogue import Catalogue

SLACK = 1e-9
"""Relative rounding error that limits allow: three calls of 0.1 USD are within 0.3."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits that no plan and no execution may exceed."""

    max_nodes: Annotated[int, Ge(1)] = 12
    """Maximum number of subtasks in one plan, repairs included."""
    max_cost_usd: Annotated[float, Gt(0)] | None = None
    """Maximum cost of one workflow in USD, corrections included; null is no limit."""
    max_time_ms: Annotated[float, Gt(0)] | None = None
    """Maximum time from a workflow's start to its end, in ms; null is no limit."""
    max_attempts: Annotated[int, Ge(1)] = 3
    """Maximum number of attempts at one subtask."""
    max_corrections: Annotated[int, Ge(0)] = 8
    """Maximum number of corrections in one workflow, of any kind."""
    max_replans: Annotated[int, Ge(0)] = 1
    """Maximum number of times that the rest of a plan may be planned again."""


class Node(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One subtask."""

    task_type: str
    dependencies: tuple[int, ...] = ()  # indices of earlier nodes
    worker: str | None = None


class Plan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    instruction: str
    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        if not self.nodes:
            raise PlanError("a plan has no nodes: it needs at least one")
        for i, node in enumerate(self.nodes):
            if len(set(node.dependencies)) < len(node.dependencies):
                raise PlanError(f"node {i} ({node.task_type!r}) names a dependency twice: {list(node.dependencies)}")
            for j in node.dependencies:
                if not 0 <= j < i:
                    earlier = f"an earlier node: 0 to {i - 1}" if i else "nothing: it is the first"
                    raise PlanError(f"node {i} ({node.task_type!r}) depends on {j}, expected {earlier}")

    @property
    def links(self) -> list[tuple[str, str]]:
        """(source, target) task types of every dependency."""
        return [(self.nodes[j].task_type, node.task_type) for node in self.nodes for j in node.dependencies]

    def check(self, catalogue: Catalogue, limits: Limits) -> None:
        """PlanError unless the catalogue has every task type, every worker is able to do its node, and limits hold."""
        if len(self.nodes) > limits.max_nodes:
            raise PlanError(f"the plan has {len(self.nodes)} nodes, the limit is {limits.max_nodes}")
        types, workers = {t.name for t in catalogue.task_types}, {w.name: w for w in catalogue.workers}
        finish, cost_usd = [0.0] * len(self.nodes), 0.0
        given = Counter(node.worker for node in self.nodes)
        for i, node in enumerate(self.nodes):
            if node.task_type not in types:
                raise PlanError(f"node {i} is of task type {node.task_type!r}, which the catalogue does not have")
            if (node.worker is None) != (not workers):
                raise PlanError(
                    f"node {i} ({node.task_type!r}) has worker {node.worker!r}: expected one if there is any"
                )
            latency_ms = 0.0
            if node.worker is not None:
                worker = workers.get(node.worker)
                if worker is None or not catalogue.able(worker, node.task_type):
                    raise PlanError(f"node {i}: worker {node.worker!r} is not able to do {node.task_type!r} now")
                if worker.quota is not None and given[node.worker] > worker.quota:
                    raise PlanError(
                        f"worker {node.worker!r} is given {given[node.worker]} nodes, it has {worker.quota} calls left"
                    )
                latency_ms, cost_usd = worker.latency_ms, cost_usd + worker.cost_usd()
            finish[i] = latency_ms + max((finish[j] for j in node.dependencies), default=0.0)
        if limits.max_cost_usd is not None and cost_usd > limits.max_cost_usd * (1 + SLACK):
            raise PlanError(f"the plan costs {cost_usd:g} USD, the limit is {limits.max_cost_usd:g}")
        if limits.max_time_ms is not None and max(finish) > limits.max_time_ms * (1 + SLACK):
            raise PlanError(f"the plan takes {max(finish):g} ms, the limit is {limits.max_time_ms:g}")


def name_plan(
    catalogue: Catalogue,
    instruction: str,
    task_types: Sequence[int],
    workers: Sequence[int] | None,
    dependencies: Sequence[Sequence[int]],
) -> Plan:
    """The plan with these ids of the catalogue, with its names in place of ids; nodes are in topological order."""
    chosen = [catalogue.workers[i].name for i in workers] if workers and catalogue.workers else [None] * len(task_types)
    return Plan(
        instruction=instruction,
        nodes=tuple(
            Node(task_type=catalogue.task_types[kind].name, dependencies=tuple(needs), worker=worker)
            for kind, needs, worker in zip(task_types, dependencies, chosen, strict=True)
        ),
    )


def topological_order(dependencies: Sequence[Sequence[int]]) -> list[int]:
    """Indices in topological order, in the given order where possible; PlanError where there is a cycle."""
    left = list(range(len(dependencies)))
    for i in left:
        for j in dependencies[i]:
            if not 0 <= j < len(left):
                raise PlanError(f"node {i} depends on {j}, expected a node: 0 to {len(left) - 1}")
    done: list[int] = []
    while left:
        ready = next((i for i in left if set(dependencies[i]) <= set(done)), None)
        if ready is None:
            raise PlanError(f"nodes {left} cannot be put in order: among them is a cycle")
        done.append(ready)
        left.remove(ready)
    return done
