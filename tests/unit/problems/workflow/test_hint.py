"""Plans near a hint: as the hint where differences cost much, without what was not asked for, with what was missing."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.problems.workflow.decode import empty_drafts, plan_by_beam, take
from etude.problems.workflow.doubt import Calibration, Hinted
from etude.problems.workflow.faults import ErrorCategory
from etude.problems.workflow.hint import Costs, Subtask, costs_of, hint_of, same_as, slip, subtasks_of
from etude.problems.workflow.network import PlanPolicy
from etude.problems.workflow.plan import Limits, Plan
from tests.language import CATALOGUE
from tests.unit.problems.workflow.test_decode import TEXTS, make_policy

LIMITS = Limits(max_nodes=6)
FETCH, TRANSLATE, SUMMARISE, COUNT, DRAW, MAIL = range(6)
GIVEN = [
    Subtask(task_type=FETCH, dependencies=()),
    Subtask(task_type=SUMMARISE, dependencies=(0,)),
    Subtask(task_type=COUNT, dependencies=(0,)),
    Subtask(task_type=MAIL, dependencies=(1, 2)),
]
PROHIBITIVE = Costs(missing=1e6, extra=1e6, link=1e6)
"""Nothing that the network knows outweighs them."""


def near(policy: PlanPolicy, given: list[Subtask], costs: Costs, row: int = 0, width: int = 5) -> Plan:
    draft = {name: value[row : row + 1] for name, value in empty_drafts(policy.context).items()}
    return plan_by_beam(policy, draft, TEXTS[row], beam=width, hint=hint_of(policy.rules, given, costs))


def needs_of(policy: PlanPolicy, plan: Plan, task_type: int) -> set[int]:
    own = subtasks_of(policy.rules, plan)
    return {own[j].task_type for one in own if one.task_type == task_type for j in one.dependencies}


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), row=st.integers(0, 3), width=st.integers(1, 8))
def test_where_every_difference_costs_too_much_the_hint_is_the_plan(seed: int, row: int, width: int) -> None:
    policy = make_policy(CATALOGUE, LIMITS, seed)
    assert same_as(policy.rules, near(policy, GIVEN, PROHIBITIVE, row, width), GIVEN)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), cost=st.floats(0, 20), data=st.data())
def test_any_hint_gives_a_valid_plan(seed: int, cost: float, data: st.DataObject) -> None:
    policy = make_policy(CATALOGUE, LIMITS, seed)
    errors = data.draw(st.lists(st.sampled_from(list(ErrorCategory)), min_size=4, max_size=4))
    given_ = [
        Subtask(task_type=one.task_type, dependencies=one.dependencies, error=error)
        for one, error in zip(GIVEN, errors, strict=True)
    ]
    near(policy, given_, costs_of(cost)).check(CATALOGUE, LIMITS)


def test_a_free_hint_changes_nothing() -> None:
    policy = make_policy(CATALOGUE, LIMITS, 3)
    free = Costs(missing=0.0, extra=0.0, link=0.0)
    draft = take(empty_drafts(policy.context), empty_drafts(policy.context)["instruction"][:1])
    assert near(policy, GIVEN, free) == plan_by_beam(policy, draft, TEXTS[0])


@pytest.mark.parametrize("seed", range(5))
def test_what_was_not_asked_for_is_out(seed: int) -> None:
    policy = make_policy(CATALOGUE, LIMITS, seed)
    wrong = Subtask(task_type=COUNT, dependencies=(0,), error=ErrorCategory.NOT_APPLICABLE)
    plan = near(policy, [*GIVEN[:2], wrong, GIVEN[3]], costs_of(6.0))
    assert COUNT not in {one.task_type for one in subtasks_of(policy.rules, plan)}


@pytest.mark.parametrize("seed", range(5))
def test_a_subtask_whose_inputs_did_not_suffice_gets_another(seed: int) -> None:
    policy = make_policy(CATALOGUE, LIMITS, seed)
    done = [Subtask(task_type=FETCH, dependencies=(), done=True), Subtask(task_type=COUNT, dependencies=(), done=True)]
    lacking = Subtask(task_type=MAIL, dependencies=(0,), error=ErrorCategory.MISSING_INPUT)
    plan = near(policy, [*done, lacking], Costs(missing=30.0, extra=30.0, link=30.0))
    assert needs_of(policy, plan, MAIL) > {FETCH}


def test_a_subtask_whose_input_was_not_made_needs_no_other() -> None:
    policy = make_policy(CATALOGUE, LIMITS, 0)
    undone = Subtask(task_type=FETCH, dependencies=(), error=ErrorCategory.CAPABILITY)
    waiting = Subtask(task_type=MAIL, dependencies=(0,), error=ErrorCategory.MISSING_INPUT)
    assert same_as(policy.rules, near(policy, [undone, waiting], PROHIBITIVE), [undone, waiting])


@given(seed=st.integers(0, 10_000))
def test_a_slip_is_one_subtask_dropped_replaced_or_added(seed: int) -> None:
    made = slip(GIVEN, 6, Random(seed))
    before, after = [one.task_type for one in GIVEN], [one.task_type for one in made]
    assert abs(len(after) - len(before)) <= 1
    assert sum(kind in after for kind in before) >= len(before) - 1
    assert all(0 <= j < i for i, one in enumerate(made) for j in one.dependencies)


def test_the_cost_of_a_difference_follows_how_often_hints_are_right() -> None:
    tried = (
        Hinted(cost=3.0, examples=100, kept=0.9, mended=0.8),
        Hinted(cost=9.0, examples=100, kept=0.99, mended=0.3),
    )
    calibration = Calibration(hints=tried)
    assert (calibration.hint_cost(0.5), calibration.hint_cost(0.9), calibration.hint_cost(1.0)) == (3.0, 9.0, None)


def test_hints_stay_as_they_are_where_a_planner_knows_little_or_was_made_before() -> None:
    poor = Hinted(cost=9.0, examples=29, kept=0.9, mended=0.2)
    assert Calibration(hints=(poor,)).hint_cost(0.75) is None
    assert Calibration().hint_cost(0.1) is None
