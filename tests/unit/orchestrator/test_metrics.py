"""Metrics of executions: equal to what a plain computation over all of them gives, with the intervals of the books."""

from __future__ import annotations

import json
import math
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit

from etude.evidence.intervals import estimate_share
from etude.orchestrator.metrics import is_valid, summarise
from etude.orchestrator.record import Execution, Graph, PlannerOutputs
from tests.unit.orchestrator.lines import CATALOGUE, attempt, corrected, execution, executions, node

MIXED = [
    execution(cost=0.1, latency_ms=100.0, reward=9.0),
    execution(
        cost=0.3,
        latency_ms=300.0,
        reward=7.0,
        nodes=(
            node(0, attempts=(attempt(0, "timeout", cost_usd=0.0, latency_ms=500.0), attempt(1, cost_usd=0.2))),
            node(2, 0, attempts=(attempt(0, "refusal"), attempt(0, "timeout"), attempt(1))),
        ),
        decisions=(corrected(1, "retry"), corrected(0, "switch"), corrected(1, "switch")),
    ),
    execution(
        cost=0.2,
        latency_ms=900.0,
        reward=-1.0,
        success=False,
        ended="deadline",
        nodes=(node(0, status="failed", attempts=(attempt(0, "timeout"),)), node(2, 0, status="planned", attempts=())),
    ),
]


def with_graph(*rows: tuple[int, ...], task_types: tuple[int, ...] | None = None) -> Execution:
    types = tuple(0 for _ in rows) if task_types is None else task_types
    plan = PlannerOutputs(task_types=types, model_selections=types, workflow_graph=Graph(adjacency=rows))
    return execution(planner_outputs=plan)


def test_the_document_s_metrics() -> None:
    summary = summarise(MIXED, CATALOGUE)
    assert summary.count == 3
    assert summary.success.mean == pytest.approx(2 / 3)
    assert (summary.success.low, summary.success.high) == pytest.approx((0.2077, 0.9385), abs=1e-4)
    assert summary.cost_usd.mean == pytest.approx(0.2)
    assert (summary.cost_usd.low, summary.cost_usd.high) == pytest.approx((-0.0484, 0.4484), abs=1e-4)
    assert summary.latency_ms.mean == pytest.approx(1300 / 3)
    assert summary.reward.mean == pytest.approx(5.0)
    assert (summary.validity.mean, summary.validity.count) == (1.0, 3)
    assert summary.corrections_per_workflow.mean == pytest.approx(1.0)
    assert (summary.attempts_per_node.mean, summary.attempts_per_node.count) == pytest.approx((8 / 5, 5))
    assert summary.ended == {"done": 2, "deadline": 1}


def test_who_planned_and_how_that_moved() -> None:
    planned = [msgspec.structs.replace(corrected(0, "retry"), policy=policy) for policy in "aabab"]
    summary = summarise([execution(decisions=(by,)) for by in planned] + [execution(decisions=())], CATALOGUE)
    assert summary.planned_by == {"a": 3, "b": 2, "none": 1}
    assert summary.planned_by_half == ({"a": 2, "b": 1}, {"a": 1, "b": 1, "none": 1})
    assert json.loads(json.dumps(summary.to_json()))["planned_by_half"][0] == {"a": 2, "b": 1}


def test_by_worker() -> None:
    workers = summarise(MIXED, CATALOGUE).workers
    assert list(workers) == ["small", "large"]
    assert [workers[name].calls for name in workers] == [6, 2]
    assert workers["small"].success.mean == pytest.approx(2 / 6)
    assert (workers["small"].success.low, workers["small"].success.high) == estimate_share(2, 6).interval
    assert workers["small"].faults == {"timeout": 3, "refusal": 1}
    assert workers["small"].latency_ms.mean == pytest.approx(1000 / 6)
    assert workers["large"].cost_usd.mean == pytest.approx(0.105)
    assert workers["large"].faults == {}


def test_by_task_type() -> None:
    types = summarise(MIXED, CATALOGUE).task_types
    assert list(types) == ["draft", "send"]  # no worker was asked for a review
    assert [(types[name].calls, types[name].success.mean) for name in types] == [(4, 0.5), (4, 0.5)]
    assert types["draft"].faults == {"timeout": 2}
    assert types["send"].faults == {"refusal": 1, "timeout": 1}


def test_by_fault() -> None:
    faults = summarise(MIXED, CATALOGUE).faults
    assert list(faults) == ["timeout", "refusal"]
    assert faults["timeout"].count == 3
    assert faults["timeout"].corrections == {"switch": 2, "none": 1}
    assert (faults["timeout"].done.mean, faults["timeout"].done.count) == pytest.approx((2 / 3, 3))
    assert (faults["refusal"].count, faults["refusal"].corrections) == (1, {"retry": 1})


def test_a_node_counts_once_for_a_fault_it_had_twice() -> None:
    twice = node(0, status="failed", attempts=(attempt(0, "timeout"), attempt(0, "timeout")))
    faults = summarise([execution(nodes=(twice,))], CATALOGUE).faults["timeout"]
    assert (faults.count, faults.done.count, faults.done.mean) == (2, 1, 0.0)


def test_ids_that_the_catalogue_does_not_have() -> None:
    summary = summarise([execution(nodes=(node(7, attempts=(attempt(9), attempt(-1, "budget"))),))], CATALOGUE)
    assert list(summary.workers) == ["#-1", "#9"]
    assert list(summary.task_types) == ["#7"]


def test_nothing_is_known_of_nothing() -> None:
    summary = summarise([], CATALOGUE)
    assert summary.count == 0
    assert math.isnan(summary.success.mean)
    reported = summary.to_json()
    assert reported["success"] == {"count": 0, "mean": None, "ci95": None}
    json.dumps(reported, allow_nan=False)


@pytest.mark.parametrize(
    ("one", "valid"),
    [
        (with_graph((0, 1), (0, 0)), True),
        (with_graph((0, 0, 0), (1, 0, 0), (1, 1, 0)), True),
        (with_graph((0, 1), (1, 0)), False),
        (with_graph((0, 1, 0), (0, 0, 1), (1, 0, 0)), False),
        (with_graph((1,)), False),
        (
            with_graph(
                (0, 1),
            ),
            False,
        ),
        (with_graph((0, 1), (0, 0), task_types=(0,)), False),
        (with_graph((0, 1), (0, 0), task_types=()), True),  # the document's line
        (execution(violations=("worker 1 was asked twice",)), False),
        (execution(nodes=(node(0, 1), node(1, 0))), False),
        (execution(nodes=(node(0, 2), node(1))), False),
        (execution(planner_outputs=None, nodes=()), True),
    ],
)
def test_validity_is_checked_again(one: Execution, valid: bool) -> None:
    assert is_valid(one) is valid
    planned = one.planner_outputs is not None
    assert summarise([one], CATALOGUE).validity.count == planned
    if planned:
        assert summarise([one], CATALOGUE).validity.mean == float(valid)


def test_a_broken_rule_counts_without_a_plan() -> None:
    summary = summarise([execution(planner_outputs=None, violations=("a", "b", "a"))], CATALOGUE)
    assert (summary.validity.count, summary.validity.mean, summary.violations) == (1, 0.0, {"a": 2, "b": 1})


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(-1e9, 1e9))
@settings(deadline=None)
def test_means_and_intervals_are_student_s(values: list[float], shift: float) -> None:
    x = np.array(values) + shift
    found = summarise([execution(cost=float(value)) for value in x], CATALOGUE).cost_usd
    assert found.mean == pytest.approx(x.mean(), rel=1e-9, abs=1e-6)
    half = stdtrit(len(x) - 1, 0.975) * x.std(ddof=1) / len(x) ** 0.5 if len(x) > 1 else 0.0
    assert found.high - found.mean == pytest.approx(half, rel=1e-4, abs=1e-5)
    assert found.mean - found.low == pytest.approx(half, rel=1e-4, abs=1e-5)


@given(st.lists(executions, max_size=5))
@settings(max_examples=50, deadline=None)
def test_whatever_was_logged_is_summed(many: list[Execution]) -> None:
    small = [e for e in many if all(abs(x) < 1e100 for x in (e.cost, e.latency_ms, e.reward))]
    calm = [e for e in small if all(abs(a.cost_usd) + abs(a.latency_ms) < 1e100 for n in e.nodes for a in n.attempts)]
    summary = summarise(calm, CATALOGUE)
    reported = summary.to_json()
    json.dumps(reported, allow_nan=False)
    tries = [a for e in calm for n in e.nodes for a in n.attempts]
    assert summary.count == len(calm)
    for kind in (summary.workers, summary.task_types):
        assert sum(calls.calls for calls in kind.values()) == len(tries)
        assert sum(sum(calls.faults.values()) for calls in kind.values()) == sum(a.fault is not None for a in tries)
    for fault in summary.faults.values():
        assert sum(fault.corrections.values()) == fault.count


def test_of_each_execution_only_numbers_are_held() -> None:
    tracemalloc.start()
    try:
        summary = summarise((MIXED[1] for _ in range(1_000)), CATALOGUE)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert summary.count == 1_000
    assert summary.workers["large"].calls == 2_000
