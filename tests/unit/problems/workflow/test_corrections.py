"""Failures are corrected by the kind of fault, and exploring tries other ways with exact probabilities."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Generator

from etude.problems.base import Obs
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.corrections import correct_by_fault, explore_correction
from etude.problems.workflow.faults import ErrorCategory
from etude.problems.workflow.grammar import Correction, Rules, Status
from etude.problems.workflow.plan import Limits, Node, Plan

CATALOGUE = Catalogue(
    task_types=(TaskType(name="sort"),),
    workers=tuple(Worker(name=name, success_rate=rate) for name, rate in (("a", 0.5), ("b", 0.6), ("c", 0.9))),
)
RULES = Rules(CATALOGUE, Limits(max_attempts=3))


def failed(category: ErrorCategory, *, attempts: int = 1, rules: Rules = RULES) -> Obs:
    """A workflow whose only subtask has failed, by the first worker."""
    d = rules.begin(1)
    plan = Plan(instruction="x", nodes=(Node(task_type="sort", worker=rules.catalogue.workers[0].name),))
    for action in rules.actions(plan):
        d, _ = rules.grow(d, action)
    at_first = torch.zeros_like(d["status"])
    at_first[0, 0] = 1
    return d | {
        "failed": torch.tensor([0]),
        "error": torch.tensor([int(category)]),
        "attempts": at_first * attempts,
        "status": at_first * int(Status.FAILED),
    }


@pytest.mark.parametrize(
    ("category", "attempts", "chosen"),
    [
        (ErrorCategory.TRANSIENT, 1, Correction.RETRY),
        (ErrorCategory.TRANSIENT, 2, Correction.SWITCH),
        (ErrorCategory.CAPABILITY, 1, Correction.SWITCH),
        (ErrorCategory.CAPABILITY, 3, Correction.SKIP),  # no attempt is left
        (ErrorCategory.MISSING_INPUT, 1, Correction.SKIP),
        (ErrorCategory.NOT_APPLICABLE, 1, Correction.SKIP),
    ],
)
def test_what_may_pass_is_retried_and_what_is_beyond_a_worker_goes_to_another(
    category: ErrorCategory, attempts: int, chosen: Correction
) -> None:
    action = correct_by_fault(RULES, failed(category, attempts=attempts))
    assert int(action["correction"]) == chosen
    if chosen == Correction.SWITCH:
        assert int(action["worker"]) == 2  # the best by its success so far


def test_a_single_worker_is_tried_again() -> None:
    rules = Rules(Catalogue(task_types=CATALOGUE.task_types, workers=CATALOGUE.workers[:1]), Limits(max_attempts=3))
    action = correct_by_fault(rules, failed(ErrorCategory.CAPABILITY, rules=rules))
    assert int(action["correction"]) == Correction.RETRY


def test_exploring_takes_each_way_as_often_as_it_says() -> None:
    draft, rng = failed(ErrorCategory.CAPABILITY), Generator().manual_seed(0)
    usual = correct_by_fault(RULES, draft)
    taken, said = Counter[tuple[int, int]](), dict[tuple[int, int], float]()
    for _ in range(3000):
        action, probability = explore_correction(RULES, draft, usual, 0.6, rng)
        key = int(action["correction"]), int(action["worker"])
        taken[key] += 1
        said[key] = probability
    assert len(said) == 3  # a retry, and a switch to either of the others
    assert sum(said.values()) == pytest.approx(1)
    for key, probability in said.items():
        assert taken[key] / 3000 == pytest.approx(probability, abs=0.03)


def test_where_nothing_can_be_tried_the_usual_is_certain() -> None:
    draft = failed(ErrorCategory.CAPABILITY, attempts=3)
    usual = correct_by_fault(RULES, draft)
    assert explore_correction(RULES, draft, usual, 1.0, Generator().manual_seed(0)) == (usual, 1.0)
