"""What executions came to: means and shares with 95 % intervals, by worker, task type and fault.

Intervals are Student's for a mean and Wilson's for a share. Attempts count one by one, so that an interval over
attempts takes those of one workflow for independent.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import zip_longest
from typing import Any

from etude.evidence.intervals import Estimate, estimate_mean, estimate_share
from etude.orchestrator.record import Attempt, Execution, NodeRecord, correction_of, failed_node
from etude.problems.catalogue import Catalogue

NO_CORRECTION = NO_PLAN = "none"


@dataclass(frozen=True, kw_only=True)
class Calls:
    """The attempts of one worker, or at one task type."""

    calls: int
    success: Estimate  # share of attempts
    cost_usd: Estimate  # of an attempt
    latency_ms: Estimate
    faults: dict[str, int]  # the most frequent first


@dataclass(frozen=True, kw_only=True)
class Faults:
    """One kind of fault: how often, what was chosen then, and whether it helped."""

    count: int  # attempts
    corrections: dict[str, int]  # which followed; `none` where nothing was left to choose
    done: Estimate  # share of the nodes it befell that were done in the end


@dataclass(frozen=True, kw_only=True)
class Summary:
    count: int
    successes: int
    success: Estimate
    cost_usd: Estimate
    latency_ms: Estimate
    reward: Estimate
    validity: Estimate  # share of the workflows with a plan that is a DAG, and no rule broken
    violations: dict[str, int]
    ended: dict[str, int]
    planned_by: dict[str, int]  # workflows by the policy of their first plan; `none` where there is none
    planned_by_half: tuple[dict[str, int], dict[str, int]]  # the same of the first half, and of the second
    unsuccessful: dict[str, int]  # how those without success ended
    successes_by: dict[str, int]  # who said so: verifier, judge, person, self, unknown
    corrections_per_workflow: Estimate
    attempts_per_node: Estimate  # that was tried
    workers: dict[str, Calls]  # by name, in the catalogue's order; those that were asked
    task_types: dict[str, Calls]
    faults: dict[str, Faults]  # the most frequent first

    def to_json(self) -> dict[str, Any]:
        return {name: _json(value) for name, value in vars(self).items()}


def _json(value: Any) -> Any:
    if isinstance(value, Estimate):
        return value.to_json()
    held = vars(value) if isinstance(value, Calls | Faults) else value
    return {name: _json(each) for name, each in held.items()} if isinstance(held, dict) else held


ABORT = "abort"
"""Is chosen after a failure, too, but corrects nothing."""


def summarise(executions: Iterable[Execution], catalogue: Catalogue) -> Summary:
    """Of executions whose ids are the catalogue's. Of each, a few numbers are held in memory."""
    numbers: defaultdict[str, array[float]] = defaultdict(_numbers)
    violations, ended, planners = Counter[str](), Counter[str](), _Planners()
    unsuccessful, successes_by = Counter[str](), Counter[str]()
    workers, types = defaultdict[int, _Calls](_Calls), defaultdict[int, _Calls](_Calls)
    faults = defaultdict[str, _Faults](_Faults)
    for execution in executions:
        numbers["success"].append(execution.success)
        numbers["cost_usd"].append(execution.cost)
        numbers["latency_ms"].append(execution.latency_ms)
        numbers["reward"].append(execution.reward)
        violations.update(execution.violations)
        ended[execution.ended] += 1
        planners.add(execution.decisions[0].policy if execution.decisions else NO_PLAN)
        if execution.success:
            successes_by[execution.success_by or "unknown"] += 1
        else:
            unsuccessful[execution.ended] += 1
        if execution.planner_outputs is not None or execution.violations:
            numbers["valid"].append(is_valid(execution))
        chosen = _corrections(execution)
        numbers["corrections"].append(sum(c != ABORT for choices in chosen.values() for c in choices))
        done = {node.task_type for node in execution.nodes if node.status == "done"}
        for i, node in enumerate(execution.nodes):
            if node.attempts:
                numbers["attempts"].append(len(node.attempts))
            for attempt in node.attempts:
                workers[attempt.worker].add(attempt)
                types[node.task_type].add(attempt)
            # What was replanned counts as done where its task type is.
            is_done = node.status == "done" or (is_dropped(node) and node.task_type in done)
            _add_faults(faults, node, chosen.get(i, []), is_done=is_done)
    return Summary(
        count=len(numbers["success"]),
        successes=int(sum(numbers["success"])),
        success=_share(numbers["success"]),
        cost_usd=estimate_mean(numbers["cost_usd"]),
        latency_ms=estimate_mean(numbers["latency_ms"]),
        reward=estimate_mean(numbers["reward"]),
        validity=_share(numbers["valid"]),
        violations=dict(violations.most_common()),
        ended=dict(ended.most_common()),
        planned_by=planners.counts(),
        planned_by_half=(planners.counts(end=planners.half), planners.counts(planners.half)),
        unsuccessful=dict(unsuccessful.most_common()),
        successes_by=dict(successes_by.most_common()),
        corrections_per_workflow=estimate_mean(numbers["corrections"]),
        attempts_per_node=estimate_mean(numbers["attempts"]),
        workers=_by_name(workers, [worker.name for worker in catalogue.workers]),
        task_types=_by_name(types, [task_type.name for task_type in catalogue.task_types]),
        faults={
            name: Faults(count=f.count, corrections=dict(f.corrections.most_common()), done=_share(f.done))
            for name, f in sorted(faults.items(), key=lambda item: (-item[1].count, item[0]))
        },
    )


def _add_faults(faults: dict[str, _Faults], node: NodeRecord, chosen: Sequence[str], *, is_done: bool) -> None:
    found = [attempt.fault for attempt in node.attempts if attempt.fault is not None]
    for fault in dict.fromkeys(found):
        faults[fault].done.append(is_done)
    # A choice follows each failed attempt, unless the workflow ends over it; a replan answers all that it drops.
    otherwise = "replan" if is_dropped(node) else NO_CORRECTION
    for fault, correction in zip_longest(found, chosen[: len(found)], fillvalue=otherwise):
        faults[fault].count += 1
        faults[fault].corrections[correction] += 1


def is_dropped(node: NodeRecord) -> bool:
    """Whether it was replanned away."""
    return node.status == "dropped"


def is_valid(execution: Execution) -> bool:
    """No rule was broken, and both the first plan and what stood there in the end are DAGs."""
    plan = execution.planner_outputs
    if execution.violations or not _is_dag([node.dependencies for node in execution.nodes]):
        return False
    if plan is None:
        return True
    adjacency = plan.workflow_graph.adjacency
    sizes = {len(adjacency), *map(len, adjacency)}
    if len(sizes) > 1 or (plan.task_types and sizes != {len(plan.task_types)}):
        return False
    return _is_dag([[i for i, row in enumerate(adjacency) if row[j]] for j in range(len(adjacency))])


def _is_dag(dependencies: Sequence[Sequence[int]]) -> bool:
    if any(not 0 <= j < len(dependencies) for earlier in dependencies for j in earlier):
        return False
    try:
        TopologicalSorter(dict(enumerate(dependencies))).prepare()
    except CycleError:
        return False
    return True


def _corrections(execution: Execution) -> dict[int, list[str]]:
    """What was chosen after each failure of a node, in order."""
    chosen: dict[int, list[str]] = {}
    for decision in execution.decisions:
        correction, node = correction_of(decision), failed_node(decision)
        if correction is not None:
            chosen.setdefault(-1 if node is None else node, []).append(correction)
    return chosen


def _by_name(calls: dict[int, _Calls], names: Sequence[str]) -> dict[str, Calls]:
    """An id that the catalogue does not have is named by it."""
    return {names[i] if 0 <= i < len(names) else f"#{i}": calls[i].summary() for i in sorted(calls)}


def _numbers() -> array[float]:
    return array("d")


def _share(hits: array[float]) -> Estimate:
    return estimate_share(int(sum(hits)), len(hits))


@dataclass(kw_only=True)
class _Planners:
    """Who planned each workflow, in order."""

    names: dict[str, int] = field(default_factory=dict)
    each: array[int] = field(default_factory=lambda: array("l"))

    def add(self, name: str) -> None:
        self.each.append(self.names.setdefault(name, len(self.names)))

    @property
    def half(self) -> int:
        return len(self.each) // 2

    def counts(self, start: int = 0, end: int | None = None) -> dict[str, int]:
        """Workflows by planner, the most frequent first."""
        names = list(self.names)
        return {names[i]: count for i, count in Counter(self.each[start:end]).most_common()}


@dataclass(kw_only=True)
class _Calls:
    success: array[float] = field(default_factory=_numbers)
    cost_usd: array[float] = field(default_factory=_numbers)
    latency_ms: array[float] = field(default_factory=_numbers)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, attempt: Attempt) -> None:
        self.success.append(attempt.fault is None)
        self.cost_usd.append(attempt.cost_usd)
        self.latency_ms.append(attempt.latency_ms)
        if attempt.fault is not None:
            self.faults[attempt.fault] += 1

    def summary(self) -> Calls:
        return Calls(
            calls=len(self.success),
            success=_share(self.success),
            cost_usd=estimate_mean(self.cost_usd),
            latency_ms=estimate_mean(self.latency_ms),
            faults=dict(self.faults.most_common()),
        )


@dataclass(kw_only=True)
class _Faults:
    count: int = 0
    corrections: Counter[str] = field(default_factory=Counter)
    done: array[float] = field(default_factory=_numbers)
