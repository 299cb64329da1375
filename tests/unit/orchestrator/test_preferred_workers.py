"""Examples get the workers that all logged attempts speak for, and keep their own where no other is better."""

from __future__ import annotations

from etude.orchestrator.preferred_workers import PreferredWorkers
from etude.problems.workflow.examples import Example, Targets
from tests.unit.problems.workflow.test_worker_model import CATALOGUE, attempts

BOTH = Targets(task_types=(0, 1), dependencies=((), (0,)), model_selections=(1, 0))


def test_a_cheaper_worker_that_does_as_well_and_one_that_does_better_take_over() -> None:
    preferred = PreferredWorkers(attempts(600), CATALOGUE)
    given = preferred.give(Example(instruction="x", targets=BOTH))
    assert given.targets.model_selections == (0, 1)
    assert (given.targets.task_types, given.targets.dependencies) == (BOTH.task_types, BOTH.dependencies)
    assert dict(preferred.changes) == {"sort: dear → cheap": 1, "count: cheap → dear": 1}


def test_without_attempts_or_workers_nothing_changes() -> None:
    example = Example(instruction="x", targets=BOTH)
    assert PreferredWorkers([], CATALOGUE).give(example) == example
    nameless = Example(instruction="x", targets=Targets(task_types=(0,), dependencies=((),)))
    assert PreferredWorkers(attempts(100), CATALOGUE).give(nameless) == nameless
