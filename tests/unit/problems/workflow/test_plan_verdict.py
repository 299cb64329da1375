"""Logged outcomes decide between two planners' plans, weighed by how probable the logged plans were."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from etude.problems.workflow.plan import Node, Plan
from etude.problems.workflow.plan_verdict import Tried, describe_changes, is_same_plan, judge_plans, reordered

LIKELY = {"short": 0.7, "right": 0.25, "never": 0.01}
"""What the behaviour policy samples; the rest is something else."""


def plan(request: str, *subtasks: str, chained: bool = True) -> Plan:
    nodes = (Node(task_type=t, dependencies=(i - 1,) if i and chained else ()) for i, t in enumerate(subtasks))
    return Plan(instruction=request, nodes=tuple(nodes))


def named(request: str, name: str) -> Plan:
    return plan(request, *{"short": ["a"], "right": ["a", "b"], "never": ["c"]}.get(name, ["d"]))


def probabilities(plans: Sequence[Plan]) -> list[float]:
    return [next((p for name, p in LIKELY.items() if is_same_plan(one, named("", name))), 0.04) for one in plans]


def logged(count: int, success: dict[str, float], seed: int = 0) -> list[Tried]:
    rng, names = random.Random(seed), [*LIKELY, "other"]
    found = []
    for i in range(count):
        name = rng.choices(names, [*LIKELY.values(), 0.04])[0]
        found.append(Tried(plan=named(f"request {i}", name), success=rng.random() < success.get(name, 0.0)))
    return found


def verdict(tried: Sequence[Tried], old: str, new: str) -> str:
    requests = [one.plan.instruction for one in tried]
    plans = ([named(request, name) for request in requests] for name in (old, new))
    return judge_plans(tried, *plans, probabilities).answer


def test_plans_that_succeed_where_they_were_tried_are_better() -> None:
    tried = logged(300, {"short": 0.3, "right": 0.9})
    assert verdict(tried, "short", "right") == "better"
    assert verdict(tried, "right", "short") == "worse"
    requests = [one.plan.instruction for one in tried]
    new, old = ([named(request, name) for request in requests] for name in ("right", "short"))
    found = judge_plans(tried, old, new, probabilities)
    assert found.success.low < 0.6 < found.success.high
    assert found.old == pytest.approx(0.3, abs=0.1)
    assert "300 of 300 plans changed" in found.sentences()[1]
    assert "subtasks added: b (300)" in found.sentences()[2]


def test_equal_plans_are_seldom_called_better() -> None:
    answers = [verdict(logged(200, {"short": 0.5, "right": 0.5}, seed), "short", "right") for seed in range(100)]
    assert answers.count("better") <= 9  # 5 % are allowed


def test_plans_that_were_never_tried_are_neither_better_nor_worse() -> None:
    assert verdict(logged(300, {"short": 0.9}), "short", "never") == "not distinguishable"


def test_few_outcomes_and_none_show_nothing() -> None:
    assert verdict(logged(12, {"short": 0.0, "right": 1.0}), "short", "right") == "not distinguishable"
    assert judge_plans([], [], [], probabilities).answer == "not distinguishable"


def test_order_and_workers_do_not_matter_and_links_do() -> None:
    both, chain = plan("x", "a", "b", chained=False), plan("x", "a", "b")
    assert is_same_plan(both, plan("x", "b", "a", chained=False))
    assert not is_same_plan(both, chain)
    assert len(reordered(both)) == 2
    assert reordered(chain) == [chain]
    assert all(is_same_plan(both, other) for other in reordered(both))


def test_changes_are_described_by_what_was_added_dropped_and_moved() -> None:
    before = [plan("1", "a"), plan("2", "a", "b"), plan("3", "a", "b")]
    after = [plan("1", "a", "c"), plan("2", "b"), plan("3", "a", "b", chained=False)]
    assert describe_changes(before, after) == [
        "  3 of 3 plans changed",
        "  subtasks added: c (1)",
        "  subtasks dropped: a (1)",
        "  subtasks moved: b (1)",
    ]
    assert describe_changes(before, before) == ["  the plans for 3 requests have the same subtasks and links as before"]
