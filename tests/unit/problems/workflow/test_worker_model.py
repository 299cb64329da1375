"""What is expected of workers follows the logged attempts; a planner's own choice stays unless another is better."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from etude.contracts.errors import DatasetError
from etude.contracts.trajectory import Outcome, Trajectory, Turn
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.attempts import Attempt, read_attempts
from etude.problems.workflow.faults import ErrorCategory
from etude.problems.workflow.worker_model import (
    WorkerModel,
    WorkerModelConfig,
    fit_workers,
    is_verified,
    judged_by_whole,
)

TYPES, WORKERS = ("sort", "count"), ("cheap", "dear")
CATALOGUE = Catalogue(
    task_types=tuple(TaskType(name=name) for name in TYPES), workers=tuple(Worker(name=name) for name in WORKERS)
)
SKILL = {("sort", "cheap"): 0.9, ("sort", "dear"): 0.9, ("count", "cheap"): 0.2, ("count", "dear"): 0.95}
PRICE = {"cheap": 0.001, "dear": 0.01}


def turn(node: int, task_type: str, worker: str, fault: str | None = None) -> Turn:
    return Turn(
        at_ms=float(node),
        action={"node": node, "task_type": task_type, "worker": worker, "verified": True},
        error=None if fault is None else f"{fault}: it did not work",
        cost_usd=PRICE[worker],
        latency_ms=100.0,
    )


def workflow(turns: Sequence[Turn], name: str = "x", **outcome: object) -> Trajectory:
    return Trajectory(
        id=name,
        time=datetime(2026, 1, 1, tzinfo=UTC),
        task=f"do {name}",
        problem="workflow",
        turns=tuple(turns),
        outcome=Outcome(**outcome),  # type: ignore[arg-type]
    )


def attempts(count: int, seed: int = 0, skill: dict[tuple[str, str], float] = SKILL) -> list[Attempt]:
    """First attempts by workers chosen at random."""
    rng, found = random.Random(seed), list[Attempt]()
    for i in range(count):
        turns = []
        for node, task_type in enumerate(TYPES):
            worker = rng.choice(WORKERS)
            turns.append(
                turn(node, task_type, worker, None if rng.random() < skill[task_type, worker] else "invalid_output")
            )
        found += read_attempts([workflow(turns, str(i))])
    return found


def choose(model: WorkerModel, task_type: str, own: str) -> str:
    chances = model.chances(WORKERS, np.ones(2, bool), task_type, own=WORKERS.index(own))
    assert chances is not None
    return WORKERS[int(chances.argmax())]


def test_each_worker_is_expected_to_do_what_it_did_at_that_task_type() -> None:
    model = fit_workers(attempts(400), CATALOGUE)
    for task_type in TYPES:
        expected = model.expect(task_type)
        for i, worker in enumerate(WORKERS):
            assert expected.success[i] == pytest.approx(SKILL[task_type, worker], abs=0.1)
            assert expected.cost_usd[i] == pytest.approx(PRICE[worker], rel=0.05)
    assert (choose(model, "sort", "dear"), choose(model, "count", "cheap")) == ("cheap", "dear")


def test_few_attempts_do_not_replace_the_planners_own_choice() -> None:
    model = fit_workers(attempts(4), CATALOGUE, config=WorkerModelConfig(caution=2.0, cost_weight=0.0))
    assert [choose(model, t, w) for t in TYPES for w in WORKERS] == [w for _ in TYPES for w in WORKERS]


def test_cost_counts_as_much_as_the_setting_says() -> None:
    skill = SKILL | {("sort", "cheap"): 0.7}
    given = attempts(600, skill=skill)
    by_weight = {
        weight: choose(fit_workers(given, CATALOGUE, config=WorkerModelConfig(cost_weight=weight)), "sort", "dear")
        for weight in (0.0, 1.0)
    }
    assert by_weight == {0.0: "dear", 1.0: "cheap"}


def test_after_a_failure_a_worker_is_expected_to_do_what_it_did_then() -> None:
    """Whoever failed fails again; the other one succeeds."""
    rng, logged = random.Random(0), []
    for i in range(300):
        first, again = rng.choice(WORKERS), rng.choice(WORKERS)
        second = turn(0, "sort", again, "invalid_output" if again == first else None)
        logged.append(workflow([turn(0, "sort", first, "invalid_output"), second], str(i)))
    model = fit_workers(list(read_attempts(logged)), CATALOGUE)
    for i, worker in enumerate(WORKERS):
        after = model.expect("sort", (worker,), 2).success
        assert after[i] < 0.3 < 0.7 < after[1 - i]


def test_what_is_not_the_workers_fault_does_not_count_and_the_order_of_attempts_is_kept() -> None:
    turns = [turn(0, "sort", "cheap", "timeout"), turn(0, "sort", "dear"), turn(1, "count", "dear", "wrong_input")]
    first, second = read_attempts([workflow(turns)])
    assert (first.worker, first.failed, first.category, first.done) == ("cheap", (), 0, False)
    assert (second.worker, second.failed, second.category, second.done) == ("dear", ("cheap",), 1, True)


def test_where_the_whole_was_verified_a_silent_mistake_counts() -> None:
    """`cheap` says that it is done, and half of the workflows with it turn out to be wrong."""
    rng, logged = random.Random(1), []
    for i in range(300):
        worker = rng.choice(WORKERS)
        right = worker == "dear" or rng.random() < 0.5
        logged.append(workflow([turn(0, "sort", worker)], str(i), success=right, success_by="verifier"))
    given = list(read_attempts(logged))
    assert judged_by_whole(given)
    assert is_verified(logged)
    success = fit_workers(given, CATALOGUE).expect("sort").success
    assert success[0] == pytest.approx(0.5, abs=0.1)
    assert success[1] > 0.9

    declared = [workflow(t.turns, t.id, success=True, success_by="self") for t in logged]
    assert not is_verified(declared)
    assert fit_workers(list(read_attempts(declared)), CATALOGUE).expect("sort").success[0] > 0.9


def test_it_is_read_back_from_its_tensors() -> None:
    model = fit_workers(attempts(100), CATALOGUE)
    again = WorkerModel.from_state(model.tensors(), model.to_json(), model.config)
    for task_type in TYPES:
        np.testing.assert_allclose(again.expect(task_type).success, model.expect(task_type).success, atol=1e-4)


def test_exploring_samples_uncertain_workers() -> None:
    model = fit_workers(attempts(30), CATALOGUE)
    chances = model.chances(WORKERS, np.ones(2, bool), "sort", explore=True)
    assert chances is not None
    assert chances.sum() == pytest.approx(1)
    assert (chances > 0.05).all()
    only = model.chances(WORKERS, np.array([False, True]), "sort", explore=True)
    assert only is not None
    assert only.tolist() == [0.0, 1.0]


def test_unknown_workers_and_task_types_are_left_to_the_planner() -> None:
    model = fit_workers(attempts(30), CATALOGUE)
    assert model.chances(["another"], np.ones(1, bool), "sort") is None
    assert model.chances(WORKERS, np.ones(2, bool), "another") is None
    with pytest.raises(DatasetError, match="no attempt by a worker of the catalogue"):
        fit_workers([], CATALOGUE)


def test_workers_that_came_after_the_catalogue_are_learned_about_too() -> None:
    new = [replace(attempt, worker="new", done=True) for attempt in attempts(60, seed=1) if attempt.task_type == "sort"]
    model = fit_workers([*attempts(200), *new], CATALOGUE)
    assert model.workers[-1] == "new"
    assert model.tried["sort"]["new"] == len(new)
    assert model.expect("sort").success[-1] > 0.9
    chances = model.chances(["new"], np.array([True]), "sort")
    assert chances is not None
    assert chances.tolist() == [1.0]


def after_failures(count: int, seed: int = 0) -> list[Attempt]:
    """First attempts at random, and after an output that is not usable the same worker, in vain, or the other."""
    rng, found = random.Random(seed), list[Attempt]()
    for i in range(count):
        worker, again = rng.choice(WORKERS), rng.choice(WORKERS)
        done = rng.random() < 0.8
        turns = [turn(0, "sort", worker, None if done else "invalid_output")]
        if not done:
            turns.append(turn(0, "sort", again, "invalid_output" if again == worker or rng.random() > 0.8 else None))
        found += read_attempts([workflow(turns, str(i))])
    return found


def test_after_a_failure_it_is_expected_what_followed_such_failures_of_any_worker() -> None:
    model = fit_workers(after_failures(200), CATALOGUE)
    first = model.expect("sort").success
    after = model.expect("sort", ("cheap",), int(ErrorCategory.CAPABILITY)).success
    assert after[0] < 0.3 * first[0]
    assert after[1] == pytest.approx(first[1], abs=0.2)
    unseen = model.expect("count", ("cheap",), int(ErrorCategory.CAPABILITY)).success
    assert unseen[0] < 0.3 * model.expect("count").success[0]


def test_a_model_of_before_expects_what_it_did() -> None:
    model = fit_workers(after_failures(200), CATALOGUE)
    about = model.to_json()
    assert WorkerModel.from_state(model.tensors(), about, model.config).again == pytest.approx(model.again)
    del about["again"]
    old = WorkerModel.from_state(model.tensors(), about, model.config)
    assert old.again is None
    assert old.expect("sort", ("cheap",), 2).success.shape == (2,)


def test_a_little_known_choice_gives_way_to_one_that_is_known_as_well() -> None:
    few = [a for a in attempts(400) if a.task_type == "count"]
    for tried, chosen in ((2, "dear"), (40, "cheap")):
        own = [a for a in few if a.worker == "cheap"][:tried]
        model = fit_workers([*own, *[a for a in few if a.worker == "dear"][:3]], CATALOGUE)
        assert choose(model, "count", "cheap") == chosen
