"""What executions came to: means and shares with 95 % intervals, by worker, task type and fault. One pass, no history.

Intervals are Student's for a mean and Wilson's for a share. Attempts count one by one, so that an interval over
attempts takes those of one workflow for independent.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import zip_longest
from typing import Any

from etude.orchestrator.record import Attempt, Execution, NodeRecord
from etude.problems.workflow.catalogue import Catalogue

Z = 1.959963984540054
"""The normal distribution's 97.5 % quantile."""
T = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157)
"""Student's, for 1 to 9 degrees of freedom."""
NO_CORRECTION = "none"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean or a share, and where the true one lies in 95 of 100 cases; NaN where nothing was counted."""

    count: int
    mean: float
    low: float
    high: float

    def to_json(self) -> dict[str, Any]:
        known = self.count > 0
        return {
            "count": self.count,
            "mean": self.mean if known else None,
            "ci95": [self.low, self.high] if known else None,
        }


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
        """What was planned anew is done where its task type is."""
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
        if decision.choice.correction is not None:
            node = -1 if decision.failed is None else decision.failed
            chosen.setdefault(node, []).append(decision.choice.correction)
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
        if self.count == 0:
            return Estimate(count=0, mean=math.nan, low=math.nan, high=math.nan)
        if self.count == 1:
            return Estimate(count=1, mean=self.mean, low=self.mean, high=self.mean)
        half = student(self.count - 1) * math.sqrt(self.squares / (self.count - 1) / self.count)
        return Estimate(count=self.count, mean=self.mean, low=self.mean - half, high=self.mean + half)


@dataclass(kw_only=True)
class _Share:
    count: int = 0
    hits: int = 0

    def add(self, hit: bool) -> None:
        self.count += 1
        self.hits += hit

    def estimate(self) -> Estimate:
        if self.count == 0:
            return Estimate(count=0, mean=math.nan, low=math.nan, high=math.nan)
        low, high = wilson(self.hits, self.count)
        return Estimate(count=self.count, mean=self.hits / self.count, low=low, high=high)


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


def wilson(hits: int, count: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927): within [0, 1], and of some width even where all or none hit."""
    p, z2 = hits / count, Z * Z / count
    middle, half = p + z2 / 2, Z * math.sqrt(p * (1 - p) / count + z2 / (4 * count))
    low, high = (middle - half) / (1 + z2), (middle + half) / (1 + z2)
    return (0.0 if hits == 0 else low), (1.0 if hits == count else high)


def student(freedom: int) -> float:
    """The t distribution's 97.5 % quantile, to 1e-5: Abramowitz & Stegun 26.7.5. It needs no SciPy."""
    if freedom <= len(T):
        return T[freedom - 1]
    z, v = Z, freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )
