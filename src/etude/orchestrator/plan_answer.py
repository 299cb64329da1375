"""A language model's answer in, a plan out: what can be meant in one way only is repaired, all else is a PlanError."""

from __future__ import annotations

import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from etude.contracts.errors import PlanError
from etude.contracts.suggestions import nearest
from etude.orchestrator.workers.answers import json_objects
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.plan import Node, Plan, topological_order

MIN_SIMILARITY = 0.8
"""Of a name to the only one that is as similar, for which it is then taken."""

Repairs = Counter[str]
"""Number of repairs by kind: `task_type` (a similar name), `worker` (a similar name, or the cheapest that is able),
`dependency` (on itself, or named twice), `duplicate` (the same node twice), `order` (nodes before those they need)."""


def read_plan(answer: str, instruction: str, now: Catalogue, done: Sequence[Node] = ()) -> tuple[Plan, Repairs]:
    """The plan of an answer after the nodes that are done, and its repairs; PlanError says what is wrong.

    `now` has the workers' live numbers. Ids of nodes are those of the answer; `done` has the ids from 1.
    """
    repairs = Repairs()
    found: dict[str, tuple[Node, list[str]]] = {str(i): (node, []) for i, node in enumerate(done, 1)}
    given = Counter[str]()
    for i, raw in enumerate(_nodes(answer), len(done) + 1):
        if not isinstance(raw, dict):
            raise PlanError(f"node {i} is {reprlib.repr(raw)}: expected an object with id, task_type, worker, after")
        own, name = _key(raw.get("id", i)), _task_type(raw, i, now, repairs)
        after = [_key(one) for one in _list(raw.get("after", raw.get("dependencies")))]
        worker = _worker(raw.get("worker"), name, now, given, repairs)
        node = Node(task_type=name, worker=worker)
        if own in found:
            if found[own] != (node, after):
                raise PlanError(f"two nodes have the id {own}: give each its own")
            repairs["duplicate"] += 1
            continue
        given[worker] += 1
        found[own] = (node, after)
    return _ordered(instruction, found, len(done), repairs), repairs


def _nodes(answer: str) -> list[Any]:
    """The nodes in the last JSON object that has some, whatever is around it."""
    found = [value["nodes"] for value in json_objects(answer) if isinstance(value.get("nodes"), list)]
    if not found:
        raise PlanError(f'the answer has no JSON object {{"nodes": […]}}: {reprlib.repr(answer.strip())}')
    nodes: list[Any] = found[-1]
    return nodes


def _key(value: Any) -> str:
    """An id as text: 1 and "1" are the same."""
    return str(value).strip()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _task_type(raw: dict[str, Any], i: int, now: Catalogue, repairs: Repairs) -> str:
    names, name = [t.name for t in now.task_types], raw.get("task_type")
    if not isinstance(name, str):
        raise PlanError(f"node {i} has task_type {reprlib.repr(name)}: expected the name of a task type")
    known = _known(name, names)
    if known is None:
        raise PlanError(f"node {i} is of task type {name!r}, which the catalogue does not have{nearest(name, names)}")
    repairs["task_type"] += known != name
    return known


def _worker(name: Any, task_type: str, now: Catalogue, given: Counter[str], repairs: Repairs) -> str:
    """The worker of this name, or of a similar one; the cheapest if it is not able to do this now."""
    able = {
        worker.name: (worker.cost_usd(), worker.latency_ms)
        for worker in now.workers
        if now.able(worker, task_type) and (worker.quota is None or given[worker.name] < worker.quota)
    }
    if not able:
        raise PlanError(f"no worker can do {task_type!r} now")
    known = _known(name, able) if isinstance(name, str) else None
    known = known if known is not None else min(able, key=able.__getitem__)
    repairs["worker"] += known != name
    return known


def _known(name: str, names: Iterable[str]) -> str | None:
    """The name itself, or the only one that differs in case, blanks and dashes alone, or that is similar."""
    names = list(names)
    if name in names:
        return name
    alike = [known for known in names if _folded(known) == _folded(name)]
    alike = alike or get_close_matches(name, names, n=2, cutoff=MIN_SIMILARITY)
    return alike[0] if len(alike) == 1 else None


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.casefold())


def _ordered(instruction: str, found: dict[str, tuple[Node, list[str]]], done: int, repairs: Repairs) -> Plan:
    """The plan with its nodes in topological order; those that are done stay first."""
    place = {own: i for i, own in enumerate(found)}
    needs: list[list[int]] = []
    for own, (node, after) in found.items():
        unknown = [one for one in after if one not in place]
        if unknown:
            raise PlanError(f"node {own} ({node.task_type!r}) is after {unknown[0]!r}, which is the id of no node")
        needs.append([place[one] for one in dict.fromkeys(after) if one != own])
        repairs["dependency"] += len(after) - len(needs[-1])
    try:
        order = topological_order(needs)
    except PlanError as error:
        edges = ", ".join(f"{own} after {' and '.join(after)}" for own, (_, after) in found.items() if after)
        raise PlanError(f"the nodes cannot be put in order, their `after` has a cycle: {edges}") from error
    repairs["order"] += order != sorted(order)
    nodes = [node for node, _ in found.values()]
    at = {i: j for j, i in enumerate(order)}
    assert order[:done] == list(range(done))  # they need nothing
    return Plan(
        instruction=instruction,
        nodes=tuple(
            Node(
                task_type=nodes[i].task_type,
                worker=nodes[i].worker,
                dependencies=tuple(sorted(at[j] for j in needs[i])),
            )
            for i in order
        ),
    )
