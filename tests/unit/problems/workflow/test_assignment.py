"""Workers are replaced within the rules, with exact probabilities; subtasks and dependencies stay."""

from __future__ import annotations

import pytest
import torch

from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.assignment import Assignment
from etude.problems.workflow.grammar import Correction, Rules, Status
from etude.problems.workflow.plan import Limits, Node, Plan
from etude.problems.workflow.worker_model import fit_workers
from tests.unit.problems.workflow.test_worker_model import CATALOGUE, attempts

PLAN = Plan(
    instruction="sort, then count",
    nodes=(
        Node(task_type="sort", worker="dear", dependencies=()),
        Node(task_type="count", worker="cheap", dependencies=(0,)),
    ),
)


def assignment(catalogue: Catalogue = CATALOGUE, limits: Limits | None = None) -> Assignment:
    return Assignment(model=fit_workers(attempts(400), CATALOGUE), rules=Rules(catalogue, limits or Limits()))


def planned(given: Assignment, plan: Plan = PLAN) -> Plan:
    d = given.rules.begin(1)
    for action in given.plan(d, given.rules.actions(plan)):
        d, _ = given.rules.grow(d, action)
    return given.rules.plans(d, [plan.instruction])[0]


def test_a_plan_gets_the_workers_that_do_best_and_keeps_its_subtasks() -> None:
    found = planned(assignment())
    assert [(n.task_type, n.worker, n.dependencies) for n in found.nodes] == [
        ("sort", "cheap", ()),
        ("count", "dear", (0,)),
    ]


def test_a_worker_that_may_not_be_taken_is_not() -> None:
    able = Catalogue(
        task_types=CATALOGUE.task_types, workers=(Worker(name="cheap"), Worker(name="dear", task_types=("sort",)))
    )
    assert [n.worker for n in planned(assignment(able)).nodes] == ["cheap", "cheap"]


def test_a_plan_stays_as_it_is_where_the_limits_would_forbid_the_rest() -> None:
    priced = Catalogue(
        task_types=(TaskType(name="count"), TaskType(name="sort")),
        workers=(
            Worker(name="dear", usd_per_call=1.0, task_types=("count",)),
            Worker(name="cheap", usd_per_call=0.1),
        ),
    )
    plan = Plan(
        instruction="count, then sort",
        nodes=(
            Node(task_type="count", worker="cheap", dependencies=()),
            Node(task_type="sort", worker="cheap", dependencies=(0,)),
        ),
    )
    assert [n.worker for n in planned(assignment(priced), plan).nodes] == ["dear", "cheap"]
    assert [n.worker for n in planned(assignment(priced, Limits(max_cost_usd=1.05)), plan).nodes] == ["cheap", "cheap"]


def test_a_plan_stays_as_it_is_where_a_later_worker_would_exceed_the_limits() -> None:
    """A cheaper worker could still do the second subtask, but the plan has another one."""
    priced = Catalogue(
        task_types=(TaskType(name="count"), TaskType(name="sort")),
        workers=(
            Worker(name="dear", usd_per_call=1.0, task_types=("count",)),
            Worker(name="cheap", usd_per_call=0.1),
            Worker(name="unknown", usd_per_call=0.3, task_types=("sort",)),
        ),
    )
    plan = Plan(
        instruction="count, then sort",
        nodes=(
            Node(task_type="count", worker="cheap", dependencies=()),
            Node(task_type="sort", worker="unknown", dependencies=(0,)),
        ),
    )
    limits = Limits(max_cost_usd=1.2)
    found = planned(assignment(priced, limits), plan)
    found.check(priced, limits)
    assert found == plan


def failed_draft(rules: Rules, worker: int, kind: str) -> dict[str, torch.Tensor]:
    d = rules.begin(1)
    names = [t.name for t in CATALOGUE.task_types]
    action = {
        "correction": torch.tensor([int(Correction.ABORT)]),
        "type": torch.tensor([names.index(kind)]),
        "links": torch.zeros((1, rules.nodes), dtype=torch.bool),
        "worker": torch.tensor([worker]),
    }
    d, _ = rules.grow(d, action)
    return d | {
        "failed": torch.tensor([0]),
        "error": torch.tensor([2]),
        "status": torch.full_like(d["status"], int(Status.FAILED)),
    }


def test_after_a_failure_the_other_worker_is_asked_where_it_is_better() -> None:
    given = assignment()
    found = given.correct(failed_draft(given.rules, 0, "count"), None, None)
    assert found is not None
    action, probability = found
    assert (int(action["correction"]), int(action["worker"]), probability) == (Correction.SWITCH, 1, 1.0)
    again = given.correct(failed_draft(given.rules, 1, "count"), None, None)
    assert again is not None
    assert int(again[0]["correction"]) == Correction.RETRY


def test_without_an_attempt_left_the_planner_decides() -> None:
    given = assignment(limits=Limits(max_attempts=1))
    assert given.correct(failed_draft(given.rules, 0, "count"), None, None) is None


def test_exploring_gives_every_able_worker_a_probability() -> None:
    given = Assignment(model=fit_workers(attempts(25), CATALOGUE), rules=Rules(CATALOGUE, Limits()))
    draft, action = given.rules.begin(1), given.rules.actions(PLAN)[0]
    chances = given.chances(draft, action, explore=True)
    assert chances is not None
    assert chances.sum() == pytest.approx(1)
    assert (chances > 0).all()
    certain = given.chances(draft, action)
    assert certain is not None
    assert sorted(certain.tolist()) == [0.0, 1.0]
