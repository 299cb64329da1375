"""What executions came to: means and shares with 95 % intervals, by worker, task type and fault. One pass, no history.

Intervals are Student's for a mean and Wilson's for a share. Attempts count one by one, so that an interval over
attempts takes those of one workflow for independent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import zip_longest
from typing import Any

from etude.evidence.intervals import Estimate, estimate_moments, estimate_share
from etude.orchestrator.record import Attempt, Execution, NodeRecord, correction_of, failed_node
from etude.problems.catalogue import Catalogue

NO_CORRECTION = "none"


@dataclass(frozen=True, kw_only=True)
class Calls:
    """The attempts of one worker, or at one task type."""

    calls: int
    success: Estimate  # share of attempts
    cost_usd: Estimate  # of an attempt
    latency_ms: Estimate
    faults: dict[str, int]  # the most frequent first

    def to_json(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "success": self.success.to_json(),
            "cost_usd": self.cost_usd.to_json(),
            "latency_ms": self.latency_ms.to_json(),
            "faults": self.faults,
        }


@dataclass(frozen=True, kw_only=True)
class Faults:
    """One kind of fault: how often, what was chosen then, and whether it helped."""

    count: int  # attempts
    corrections: dict[str, int]  # which followed; `none` where nothing was left to choose
    done: Estimate  # share of the nodes it befell that were done in the end

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "corrections": self.corrections, "done": self.done.to_json()}


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
    corrections: Estimate  # per workflow
    attempts: Estimate  # per node that was tried
    workers: dict[str, Calls]  # by name, in the catalogue's order; those that were asked
    task_types: dict[str, Calls]
    faults: dict[str, Faults]  # the most frequent first

    def to_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "successes": self.successes,
            "success": self.success.to_json(),
            "cost_usd": self.cost_usd.to_json(),
            "latency_ms": self.latency_ms.to_json(),
            "reward": self.reward.to_json(),
            "validity": self.validity.to_json(),
            "violations": self.violations,
            "ended": self.ended,
            "corrections_per_workflow": self.corrections.to_json(),
            "attempts_per_node": self.attempts.to_json(),
            "workers": {name: calls.to_json() for name, calls in self.workers.items()},
            "task_types": {name: calls.to_json() for name, calls in self.task_types.items()},
            "faults": {name: faults.to_json() for name, faults in self.faults.items()},
        }


def summarise(executions: Iterable[Execution], catalogue: Catalogue) -> Summary:
    """Of executions whose ids are the catalogue's."""
    tally = Tally(catalogue)
    for execution in executions:
        tally.add(execution)
    return tally.summary()


ABORT = "abort"
"""Is chosen after a failure, too, but corrects nothing."""


class Tally:
    """Sums over executions as they come; `summary` at any time."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._worker_names = [worker.name for worker in catalogue.workers]
        self._type_names = [task_type.name for task_type in catalogue.task_types]
        self._succeeded, self._valid = _Share(), _Share()
        self._cost_usd, self._latency_ms, self._reward = _Mean(), _Mean(), _Mean()
        self._corrections, self._attempts = _Mean(), _Mean()
        self._violations: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._workers: defaultdict[int, _Calls] = defaultdict(_Calls)
        self._types: defaultdict[int, _Calls] = defaultdict(_Calls)
        self._faults: defaultdict[str, _Faults] = defaultdict(_Faults)

    def add(self, execution: Execution) -> None:
        self._succeeded.add(execution.success)
        self._cost_usd.add(execution.cost)
        self._latency_ms.add(execution.latency_ms)
        self._reward.add(execution.reward)
        self._violations.update(execution.violations)
        self._ended[execution.ended] += 1
        if execution.planner_outputs is not None or execution.violations:
            self._valid.add(is_valid(execution))
        chosen = _corrections(execution)
        self._corrections.add(sum(c != ABORT for choices in chosen.values() for c in choices))
        done = {node.task_type for node in execution.nodes if node.status == "done"}
        for i, node in enumerate(execution.nodes):
            self._add_node(
                node, chosen.get(i, []), is_done=node.status == "done" or (is_dropped(node) and node.task_type in done)
            )

    def summary(self) -> Summary:
        return Summary(
            count=self._succeeded.count,
            successes=self._succeeded.hits,
            success=self._succeeded.estimate(),
            cost_usd=self._cost_usd.estimate(),
            latency_ms=self._latency_ms.estimate(),
            reward=self._reward.estimate(),
            validity=self._valid.estimate(),
            violations=dict(self._violations.most_common()),
            ended=dict(self._ended.most_common()),
            corrections=self._corrections.estimate(),
            attempts=self._attempts.estimate(),
            workers=_by_name(self._workers, self._worker_names),
            task_types=_by_name(self._types, self._type_names),
            faults={
                fault: self._faults[fault].summary()
                for fault in sorted(self._faults, key=lambda fault: (-self._faults[fault].count, fault))
            },
        )

    def _add_node(self, node: NodeRecord, chosen: Sequence[str], *, is_done: bool) -> None:
        """What was replanned counts as done where its task type is."""
        if node.attempts:
            self._attempts.add(len(node.attempts))
        for attempt in node.attempts:
            self._workers[attempt.worker].add(attempt)
            self._types[node.task_type].add(attempt)
        faults = [attempt.fault for attempt in node.attempts if attempt.fault is not None]
        for fault in dict.fromkeys(faults):
            self._faults[fault].done.add(is_done)
        # A choice follows each failed attempt, unless the workflow ends over it; a replan answers all that it drops.
        otherwise = "replan" if is_dropped(node) else NO_CORRECTION
        for fault, correction in zip_longest(faults, chosen[: len(faults)], fillvalue=otherwise):
            self._faults[fault].count += 1
            self._faults[fault].corrections[correction] += 1


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


@dataclass(kw_only=True)
class _Mean:
    """Welford's sums: exact for many numbers that are large and differ little."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # of distances from the mean

    def add(self, x: float) -> None:
        self.count += 1
        step = x - self.mean
        self.mean += step / self.count
        self.squares += step * (x - self.mean)

    def estimate(self) -> Estimate:
        return estimate_moments(self.count, self.mean, self.squares)


@dataclass(kw_only=True)
class _Share:
    count: int = 0
    hits: int = 0

    def add(self, hit: bool) -> None:
        self.count += 1
        self.hits += hit

    def estimate(self) -> Estimate:
        return estimate_share(self.hits, self.count)


@dataclass(kw_only=True)
class _Calls:
    success: _Share = field(default_factory=_Share)
    cost_usd: _Mean = field(default_factory=_Mean)
    latency_ms: _Mean = field(default_factory=_Mean)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, attempt: Attempt) -> None:
        self.success.add(attempt.fault is None)
        self.cost_usd.add(attempt.cost_usd)
        self.latency_ms.add(attempt.latency_ms)
        if attempt.fault is not None:
            self.faults[attempt.fault] += 1

    def summary(self) -> Calls:
        return Calls(
            calls=self.success.count,
            success=self.success.estimate(),
            cost_usd=self.cost_usd.estimate(),
            latency_ms=self.latency_ms.estimate(),
            faults=dict(self.faults.most_common()),
        )


@dataclass(kw_only=True)
class _Faults:
    count: int = 0
    corrections: Counter[str] = field(default_factory=Counter)
    done: _Share = field(default_factory=_Share)

    def summary(self) -> Faults:
        return Faults(count=self.count, corrections=dict(self.corrections.most_common()), done=self.done.estimate())
