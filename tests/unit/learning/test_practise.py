"""Practice: why it stops, which policy is its best, what it measures, and a curriculum of growing problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.contracts.errors import ConfigError
from etude.learning.checkpoint import checkpoints
from etude.learning.health import HealthConfig, Symptom
from etude.learning.practise import PracticeConfig, Stage
from etude.learning.run import StopReason
from etude.problems.allocation.network import NetworkConfig
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.allocation.world import AllocationConfig
from tests.practice import (
    CONFIG,
    PPO,
    SMALL,
    ScriptedProblem,
    assert_equal,
    configured,
    final_state,
    finish,
    leave_after,
    practice,
    start,
)

ENTITY = replace(SMALL, network=NetworkConfig(kind="entity", hidden=(8,)))

STOPS: list[tuple[StopReason, list[float], dict[str, Any], int]] = [
    (StopReason.BUDGET, [1, 2, 3], {}, 480),
    (StopReason.BUDGET, [3, 2, 1, 0, 0], {"max_steps": 800, "decline_patience": None}, 800),
    (StopReason.TARGET, [1, 2, 3], {"target_return": 2.0}, 320),
    (StopReason.TARGET, [1, 2, 3], {"target_completion_rate": 0.2}, 320),  # a tenth of the return
    (StopReason.BUDGET, [1, 2, 3], {"target_completion_rate": 0.4, "target_return": 4.0}, 480),
    (StopReason.PLATEAU, [1, 5, 4, 5, 9], {"max_steps": 2000, "plateau_patience": 2}, 640),
    (StopReason.PLATEAU, [1, 5, 4, 6, 6, 6], {"max_steps": 2000, "plateau_patience": 2}, 960),
    (StopReason.DECLINE, [0, 10, 4.9, 4.9, 9], {"max_steps": 2000, "decline_patience": 2}, 640),
    (StopReason.DECLINE, [0, 10, 4, 6, 4, 3, 9], {"max_steps": 2000, "decline_patience": 2}, 960),
    (StopReason.BUDGET, [10, 4, 4], {"decline_patience": 2}, 480),  # never rose, so it cannot have declined
    (StopReason.BUDGET, [1, 2], {"max_steps": 800, "max_episodes": 200}, 240),  # one episode per step
    (StopReason.BUDGET, [1, 2, 3], {"max_episodes": 10_000}, 480),
]


@pytest.mark.parametrize(("reason", "script", "run", "step"), STOPS)
def test_it_stops_for_the_right_reason(
    reason: StopReason, script: list[float], run: dict[str, Any], step: int, tmp_path: Path
) -> None:
    training = start(tmp_path, configured(**run), ScriptedProblem(list(script)))
    updates = list(training.updates())
    assert [update.stopped for update in updates] == [None] * (len(updates) - 1) + [reason]
    assert training.step == updates[-1].step == step
    evaluated = [update.score for update in updates if update.score is not None]
    summary = training.folder.summary()
    assert summary is not None
    assert (summary["stopped"], summary["step"], summary["best_return"]) == (reason, step, max(evaluated))
    assert summary["best_score"] == max(evaluated)
    assert training.learner.reason_to_stop() is reason


def test_a_reached_completion_rate_is_remembered_and_a_higher_one_trains_on(tmp_path: Path) -> None:
    leave_after(start(tmp_path, configured(max_steps=960), ScriptedProblem([1, 2, 3])), 320)
    reached = start(tmp_path, configured(max_steps=960, target_completion_rate=0.2), ScriptedProblem([]))
    assert list(reached.updates()) == []
    assert reached.folder.summary()["stopped"] == StopReason.TARGET  # type: ignore[index]
    higher = start(tmp_path, configured(max_steps=960, target_completion_rate=0.3), ScriptedProblem([2, 3]))
    assert [update.step for update in higher.updates()] == [400, 480, 560, 640]


def test_the_best_policy_is_the_one_of_the_best_evaluation(tmp_path: Path) -> None:
    training = start(tmp_path, configured(max_steps=800), ScriptedProblem([1, 7, 3, 7, 2]))
    best, weights = [], {}
    for update in training.updates():
        if update.is_best:
            best.append(update.step)
            state = practice(training).net.state_dict()
            weights = {f"policy.{name}": value.clone() for name, value in state.items()}
    assert best == [160, 320]
    kept = training.artefact()
    assert (kept.manifest.step, kept.manifest.score) == (320, 7)
    assert_equal(kept.tensors(), weights)
    assert checkpoints(training.folder.best) == [kept.path]


@pytest.mark.parametrize(("script", "best"), [([5, 3, 9, 4], 320), ([9, 3, 5, 4], 0)])
def test_a_validation_problem_chooses_the_best_policy_and_that_may_be_the_first(
    script: list[float], best: int, tmp_path: Path
) -> None:
    learned, validation = ScriptedProblem([]), ScriptedProblem(script[:2] + script)
    config = configured(checkpoint_every=480)
    training = start(tmp_path, config, learned, validation)
    before = {f"policy.{name}": value.clone() for name, value in practice(training).net.state_dict().items()}
    next(training.updates())  # left before its first checkpoint: started again
    training = start(tmp_path, config, learned, validation)
    for _ in training.updates():
        pass
    assert (training.scores, validation.script) == (script, [])
    kept = training.artefact()
    assert (kept.manifest.step, kept.manifest.score) == (best, max(script))
    if not best:
        assert_equal(kept.tensors(), before)
    logged = training.folder.read_metrics()
    assert [line["eval_return"] for line in logged if "eval_return" in line] == script
    assert [line["step"] for line in logged][:2] == [0, 160]


@pytest.mark.parametrize(
    ("budget", "used"),
    [
        ({"max_steps": 1600}, [0.1, 0.15, 0.2]),
        ({"max_steps": 1600, "max_episodes": 320}, [0.5, 0.75, 1.0]),
        ({"max_steps": 320, "max_episodes": 3200}, [0.5, 0.75, 1.0]),
    ],
)
def test_the_learning_rate_falls_with_the_budget_that_ends_first(
    budget: dict[str, int], used: list[float], tmp_path: Path
) -> None:
    training = start(tmp_path, configured(**budget), ScriptedProblem([0.0] * 9))
    updates: Iterator[Any] = training.updates()
    for share in used:
        rate = next(updates).metrics["lr"]
        assert training.learner.used == pytest.approx(share)
        assert rate == pytest.approx(PPO.lr * (1 - 0.9 * share))


def test_a_resumed_run_counts_its_episodes_on(tmp_path: Path) -> None:
    config = configured(max_steps=800, max_episodes=400)
    leave_after(start(tmp_path, config, ScriptedProblem([0.0] * 9)), 240)  # saved at 160
    resumed = start(tmp_path, config, ScriptedProblem([0.0] * 9))
    assert (resumed.step, practice(resumed).episodes) == (160, 160)
    assert [update.step for update in resumed.updates()] == [240, 320, 400]
    assert resumed.folder.summary()["episodes"] == 400  # type: ignore[index]


def test_the_same_seed_gives_the_same_weights_and_another_others(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.rand(3)  # what happened before in the process does not matter
        finish(tmp_path / name, configured(seed=seed))
    a, b, c = (final_state(tmp_path / name) for name in "abc")
    assert_equal(a, b)
    weight = "learner.policy.policy_head.weight"
    assert not torch.equal(a[weight], c[weight])


EVERYTHING = PracticeConfig(
    ppo=replace(PPO, curiosity_coef=0.1, kl_coef=0.5, priority_alpha=0.6, value_clip=0.2, target_kl=0.05),
    run=CONFIG.run,
)
DROPOUT = replace(SMALL, network=NetworkConfig(hidden=(8,), dropout=0.2, norm="batch"))
MATCHED = AllocationProblem(
    config=AllocationConfig(variant="matched", agents=3, slots=4, horizon=10), network=NetworkConfig(hidden=(8,))
)
CURRICULUM = replace(CONFIG, curriculum=(Stage(size={"agents": 2}, share=0.3), Stage(size={"slots": 4}, share=0.3)))


@pytest.mark.parametrize(
    ("problem", "config"),
    [(SMALL, CONFIG), (DROPOUT, EVERYTHING), (MATCHED, CONFIG), (ENTITY, CURRICULUM)],
    ids=["default", "everything", "matched", "curriculum"],
)
def test_leaving_at_any_moment_and_resuming_gives_the_same_weights(
    problem: Any, config: PracticeConfig, tmp_path: Path
) -> None:
    whole = finish(tmp_path / "whole", config, problem)
    for step in (160, 240, 320, 400):
        training = start(tmp_path / "parts", config, problem)
        leave_after(training, step)
    resumed = finish(tmp_path / "parts", config, problem)
    assert resumed.resumed
    assert resumed.scores == whole.scores
    assert_equal(final_state(tmp_path / "parts"), final_state(tmp_path / "whole"))
    assert resumed.artefact().version == whole.artefact().version


def test_a_curriculum_grows_the_problem_and_ends_with_the_full_one(tmp_path: Path) -> None:
    training = start(tmp_path, CURRICULUM, ENTITY)
    sizes = {}
    for update in training.updates():
        config = practice(training).collector.world.config  # type: ignore[attr-defined]
        sizes[update.step] = (config.agents, config.slots)
    # The shares end at 144 and 288 steps; a stage changes with the first update that begins after its end.
    assert sizes == {160: (2, 10), 240: (4, 4), 320: (4, 4), 400: (4, 10), 480: (4, 10)}
    assert [line["stage"] for line in training.folder.read_metrics()] == [0, 1, 1, 2, 2]


@pytest.mark.parametrize("leaves_at", [None, 240, 400])
def test_a_new_stage_is_not_measured_by_the_returns_of_the_one_before(leaves_at: int | None, tmp_path: Path) -> None:
    counts = {}
    if leaves_at is not None:
        leave_after(start(tmp_path, replace(CURRICULUM, run=configured(checkpoint_every=80).run), ENTITY), leaves_at)
    training = start(tmp_path, replace(CURRICULUM, run=configured(checkpoint_every=80).run), ENTITY)
    assert training.health is not None
    for update in training.updates():
        counts[update.step] = training.health.state_dict()["episodes"]["count"]
    expected = {160: 1, 240: 1, 320: 2, 400: 1, 480: 2}
    assert counts == {step: count for step, count in expected.items() if step > (leaves_at or 0)}


WRONG_CURRICULA = [
    ((Stage(size={"agent": 2}, share=0.3),), ENTITY, "'agent'.*'agents', 'slots'"),
    ((Stage(size={"agents": 2}, share=0.5),) * 2, ENTITY, "add up to 1: leave some"),
    ((Stage(size={"agents": 2}, share=0.5),), SMALL, "set network.kind to 'entity'"),
]


@pytest.mark.parametrize(("stages", "problem", "message"), WRONG_CURRICULA)
def test_a_wrong_curriculum_is_refused_before_anything_is_written(
    stages: tuple[Stage, ...], problem: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        start(tmp_path / "run", replace(CONFIG, curriculum=stages), problem)
    assert not (tmp_path / "run").exists()


def test_warnings_come_with_the_update_that_brought_them(tmp_path: Path) -> None:
    training = start(tmp_path, replace(CONFIG, health=HealthConfig(kl_max=1e-12)))
    warned = [(update.step, warning) for update in training.updates() for warning in update.warnings]
    step, warning = next((step, w) for step, w in warned if w.name is Symptom.KL_BLOW_UP)
    assert warning.step == step
    assert warning.value > warning.threshold == 1e-12
    row = next(row for row in training.folder.read_metrics() if row["step"] == step)
    assert row["warning_kl_blow_up"] == warning.value


def test_every_update_is_measured(tmp_path: Path) -> None:
    training = finish(tmp_path)
    rows = training.folder.read_metrics()
    assert [row["step"] for row in rows] == [160, 240, 320, 400, 480]
    always = {"policy_loss", "value_loss", "entropy", "explained_variance", "approx_kl", "clip_fraction", "grad_norm"}
    always |= {"wall_s", "steps_per_s", "episode_return", "completion_rate", "utilisation", "lr"}
    assert [always - set(row) for row in rows] == [set()] * 5
    assert [row["step"] for row in rows if "eval_return" in row] == [160, 320, 480]
    assert rows[-1]["lr"] == pytest.approx(0.1 * PPO.lr)


def test_an_evaluation_is_logged_under_the_names_of_its_problem_too(tmp_path: Path) -> None:
    """And with half the width of its interval on the update."""
    training = start(tmp_path, CONFIG, ScriptedProblem([1, 2, 3]))
    margins = [update.margin for update in training.updates()]
    assert margins == [0, None, 0, None, 0]
    rows = [row for row in training.folder.read_metrics() if "eval_return" in row]
    assert [row["done_rate"] for row in rows] == [row["eval_completion_rate"] for row in rows]
    assert [row["done_rate"] for row in rows] == pytest.approx([0.1, 0.2, 0.3])


def test_threads_are_chosen_for_the_run_and_given_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    during = {torch.get_num_threads() for _ in start(tmp_path, configured(threads=3)).updates()}
    assert during == {3}
    assert torch.get_num_threads() == before
