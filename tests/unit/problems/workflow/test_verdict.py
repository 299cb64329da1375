"""A verdict says better only where held-out attempts show it."""

from __future__ import annotations

import random
from dataclasses import replace

from etude.problems.workflow.attempts import Attempt
from etude.problems.workflow.verdict import Choices, Verdict, cross_fit, judge
from etude.problems.workflow.worker_model import fit_workers
from tests.unit.problems.workflow.test_worker_model import CATALOGUE, attempts


def verdict(given: list[Attempt], own: str) -> Verdict:
    old = [own] * len(given)
    return judge(given, cross_fit(given, CATALOGUE, old, fit_workers(given, CATALOGUE)))


def test_a_better_worker_is_found() -> None:
    found = verdict(attempts(400), "cheap")
    assert found.answer == "better"
    assert found.success.low > 0.1  # `count` rises from .2 to .95, `sort` stays
    assert found.changes == {"count: cheap → dear": 400}
    assert "Verdict: better" in found.sentences()[0]
    assert "self-declared" in found.sentences()[0]


def test_a_cheaper_worker_that_does_as_well_is_better() -> None:
    found = verdict(attempts(2000), "dear")
    assert found.answer == "better"
    assert found.changes.keys() == {"sort: dear → cheap"}
    assert found.cost_usd.high < 0


def test_outcomes_at_random_show_nothing() -> None:
    """Of twenty logs whose outcomes were shuffled, none is called better by success."""
    answers = []
    for seed in range(20):
        given, rng = attempts(150, seed), random.Random(seed)
        outcomes = rng.sample([a.done for a in given], len(given))
        mixed = [replace(a, done=done, cost_usd=0.001) for a, done in zip(given, outcomes, strict=True)]
        answers.append(verdict(mixed, "cheap").answer)
    assert answers.count("better") <= 1


def test_a_worse_choice_is_called_worse() -> None:
    given = attempts(400)
    model = fit_workers(given, CATALOGUE)
    choices = Choices(old=["dear"] * len(given), new=["cheap"] * len(given), models=[model] * len(given))
    count = [i for i, a in enumerate(given) if a.task_type == "count"]
    only = Choices(old=["dear"] * len(count), new=["cheap"] * len(count), models=[model] * len(count))
    assert judge([given[i] for i in count], only).answer == "worse"
    assert judge(given, choices).success.high < 0


def test_nothing_is_claimed_of_a_worker_that_was_hardly_tried() -> None:
    given = [a for a in attempts(200) if a.worker == "cheap"]
    rare = [replace(a, worker="dear", done=True, cost_usd=0.0) for a in given[:5]]
    model = fit_workers([*given, *rare], CATALOGUE)
    every = [*given, *rare]
    choices = Choices(old=["cheap"] * len(every), new=["dear"] * len(every), models=[model] * len(every))
    assert judge(every, choices).answer == "not distinguishable"


def test_without_a_change_there_is_nothing_to_tell() -> None:
    given = attempts(50)
    model = fit_workers(given, CATALOGUE)
    same = [a.worker for a in given]
    found = judge(given, Choices(old=same, new=same, models=[model] * len(given)))
    assert (found.answer, found.changed) == ("not distinguishable", 0)
    assert "No subtask gets another worker" in found.sentences()[0]
