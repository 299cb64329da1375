"""A run: why it stops, which policy is its best, and that leaving and coming back changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from etude.contracts.errors import CheckpointError, ConfigError, RunError
from etude.learning.checkpoint import checkpoints, read_checkpoint, write_checkpoint
from etude.learning.health import HealthConfig, Symptom
from etude.learning.ppo import PPOConfig
from etude.learning.runs import RunFolder
from etude.learning.train import RunConfig, Stage, StopReason, TrainConfig, Training, choose_threads, resolve_device
from etude.problems.allocation.network import NetworkConfig
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.allocation.world import AllocationConfig
from etude.problems.base import Action, Actor, Decision, Evaluation, Obs, Transition

SETTINGS = {"problem": "test"}
SMALL = AllocationProblem(config=AllocationConfig(horizon=10), network=NetworkConfig(hidden=(8,)))
ENTITY = replace(SMALL, network=NetworkConfig(kind="entity", hidden=(8,)))
PPO = PPOConfig(envs=8, steps=10, minibatch=40, epochs=1)  # updates of 80 steps, the first of 160
RUN = RunConfig(max_steps=480, eval_every=160, eval_episodes=5, checkpoint_every=160, phases=2, device="cpu")
CONFIG = TrainConfig(ppo=PPO, run=RUN)


def configured(**run: Any) -> TrainConfig:
    return replace(CONFIG, run=replace(RUN, **run))


def start(path: Path, config: TrainConfig = CONFIG, problem: Any = SMALL, exam: Any = None) -> Training:
    return Training(problem, config, RunFolder(path), SETTINGS, exam=exam)


def finish(path: Path, config: TrainConfig = CONFIG, problem: Any = SMALL) -> Training:
    training = start(path, config, problem)
    for _ in training.updates():
        pass
    return training


def final_state(path: Path) -> dict[str, Tensor]:
    return read_checkpoint(checkpoints(path / "checkpoints")[-1])[0]


def assert_equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


class Coin(nn.Module):
    """A policy with one weight: how often it says yes."""

    def __init__(self) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(1))
        self.worth = nn.Parameter(torch.zeros(1))

    def choose(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Action:
        return self.act(obs, greedy=greedy, generator=generator).action

    def act(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Decision:
        yes = (torch.rand(len(obs["x"]), generator=generator) < self.logit.sigmoid()).float()
        evaluation = self.evaluate(obs, {"yes": yes})
        return Decision(action={"yes": yes}, log_prob=evaluation.log_prob, value=evaluation.value)

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        coin = torch.distributions.Bernoulli(logits=self.logit.expand(len(obs["x"])))
        return Evaluation(log_prob=coin.log_prob(action["yes"]), entropy=coin.entropy(), value=self.value(obs))

    def value(self, obs: Obs) -> Tensor:
        return self.worth.expand(len(obs["x"]))

    def observed(self, obs: Obs) -> None: ...


class ScriptedWorld:
    """Episodes of one step; yes pays one. `score` is what every episode reports as its return."""

    def __init__(self, n: int, score: float) -> None:
        self.n, self.device, self.score = n, torch.device("cpu"), score

    def reset(self, seed: int) -> Obs:
        return self.observe()

    def observe(self) -> Obs:
        return {"x": torch.zeros(self.n, 1)}

    def step(self, action: Action) -> Transition:
        over = torch.ones(self.n, dtype=torch.bool)
        return Transition(
            obs=self.observe(),
            reward=action["yes"],
            terminated=over,
            truncated=torch.zeros_like(over),
            final_obs=self.observe(),
            metrics={"return": torch.full((self.n,), self.score), "whole": over},
        )

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class ScriptedProblem:
    """Its evaluations give the scores of the script, one after the other."""

    script: list[float]
    name: str = "scripted"
    size: Mapping[str, int] = field(default_factory=dict)

    def world(self, n: int, *, device: torch.device | str, phases: int = 1) -> ScriptedWorld:
        return ScriptedWorld(n, self.script.pop(0) if n == RUN.eval_episodes else 0.0)

    def policy(self) -> Coin:
        return Coin()

    def baselines(self) -> Mapping[str, Actor]:
        return {}

    def resized(self, size: Mapping[str, int]) -> ScriptedProblem:
        return self


STOPS: list[tuple[StopReason, list[float], dict[str, Any], int]] = [
    (StopReason.BUDGET, [1, 2, 3], {}, 480),
    (StopReason.BUDGET, [3, 2, 1, 0, 0], {"max_steps": 800, "decline_patience": None}, 800),
    (StopReason.TARGET, [1, 2, 3], {"target_return": 2.0}, 320),
    (StopReason.PLATEAU, [1, 5, 4, 5, 9], {"max_steps": 2000, "plateau_patience": 2}, 640),
    (StopReason.PLATEAU, [1, 5, 4, 6, 6, 6], {"max_steps": 2000, "plateau_patience": 2}, 960),
    (StopReason.DECLINE, [0, 10, 4.9, 4.9, 9], {"max_steps": 2000, "decline_patience": 2}, 640),
    (StopReason.DECLINE, [0, 10, 4, 6, 4, 3, 9], {"max_steps": 2000, "decline_patience": 2}, 960),
    (StopReason.BUDGET, [10, 4, 4], {"decline_patience": 2}, 480),  # never rose, so it cannot have declined
    (StopReason.BUDGET, [1, 2], {"max_steps": 800, "max_episodes": 200}, 240),  # an episode a step
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
    evaluated = [update.score.mean for update in updates if update.score is not None]
    summary = training.folder.summary()
    assert summary is not None
    assert (summary["stopped"], summary["step"], summary["best_return"]) == (reason, step, max(evaluated))
    assert training.reason_to_stop() is reason


def test_the_best_policy_is_the_one_of_the_best_evaluation(tmp_path: Path) -> None:
    training = start(tmp_path, configured(max_steps=800), ScriptedProblem([1, 7, 3, 7, 2]))
    best, weights = [], {}
    for update in training.updates():
        if update.is_best:
            best.append(update.step)
            weights = {f"policy.{name}": value.clone() for name, value in training.policy.state_dict().items()}
    assert best == [160, 320]
    tensors, manifest = training.folder.best_policy("scripted")
    assert (manifest["step"], manifest["return"]) == (320, 7)
    assert_equal(tensors, weights)
    assert len(checkpoints(training.folder.best)) == 1


@pytest.mark.parametrize(("script", "best"), [([5, 3, 9, 4], 320), ([9, 3, 5, 4], 0)])
def test_an_exam_chooses_the_best_policy_and_that_may_be_the_first(
    script: list[float], best: int, tmp_path: Path
) -> None:
    learned, exam, config = ScriptedProblem([]), ScriptedProblem(script[:2] + script), configured(checkpoint_every=480)
    training = start(tmp_path, config, learned, exam)
    before = {f"policy.{name}": value.clone() for name, value in training.policy.state_dict().items()}
    next(training.updates())  # left before its first checkpoint: begun anew
    training = start(tmp_path, config, learned, exam)
    for _ in training.updates():
        pass
    assert (training.scores, exam.script) == (script, [])
    tensors, manifest = training.folder.best_policy()
    assert manifest["step"] == best
    if not best:
        assert_equal(tensors, before)
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
        assert training.used == pytest.approx(share)
        assert rate == pytest.approx(PPO.lr * (1 - 0.9 * share))


def test_a_resumed_run_counts_its_episodes_on(tmp_path: Path) -> None:
    config = configured(max_steps=800, max_episodes=400)
    leave_after(start(tmp_path, config, ScriptedProblem([0.0] * 9)), 240)  # saved at 160
    resumed = start(tmp_path, config, ScriptedProblem([0.0] * 9))
    assert (resumed.step, resumed.episodes) == (160, 160)
    assert [update.step for update in resumed.updates()] == [240, 320, 400]


def leave_after(training: Training, step: int) -> None:
    """Stop looking, as an interrupted program does."""
    updates: Iterator[Any] = training.updates()
    while training.step < step:
        next(updates)


def test_a_best_policy_found_after_the_last_checkpoint_does_not_cost_the_one_before(tmp_path: Path) -> None:
    config = configured(max_steps=960, checkpoint_every=320)
    leave_after(start(tmp_path, config, ScriptedProblem([1, 2, 5])), 480)  # saved at 320
    assert RunFolder(tmp_path).best_policy()[1]["return"] == 5
    resumed = start(tmp_path, config, ScriptedProblem([1.5, 1, 1, 1]))
    assert RunFolder(tmp_path).best_policy()[1]["return"] == 2
    for _ in resumed.updates():
        pass
    assert RunFolder(tmp_path).best_policy()[1]["return"] == max(resumed.scores) == 2


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    finish(tmp_path)
    before, summary = final_state(tmp_path), RunFolder(tmp_path).summary()
    again = start(tmp_path)
    assert again.resumed
    assert list(again.updates()) == []
    assert_equal(final_state(tmp_path), before)
    assert RunFolder(tmp_path).summary() == summary


def test_a_finished_run_goes_on_with_a_larger_budget(tmp_path: Path) -> None:
    finish(tmp_path)
    longer = start(tmp_path, configured(max_steps=640))
    assert [update.step for update in longer.updates()] == [560, 640]


def test_a_budget_below_what_was_used_still_gives_a_policy(tmp_path: Path) -> None:
    leave_after(start(tmp_path, configured(eval_every=10_000)), 320)
    assert not checkpoints(RunFolder(tmp_path).best)
    training = finish(tmp_path, configured(eval_every=10_000, max_steps=200))
    summary = training.folder.summary()
    assert summary is not None
    assert summary["stopped"] == StopReason.BUDGET
    assert training.folder.best_policy()[1]["return"] == summary["best_return"]


def test_the_same_seed_gives_the_same_weights_and_another_others(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.rand(3)  # what happened before in the process does not matter
        finish(tmp_path / name, configured(seed=seed))
    a, b, c = (final_state(tmp_path / name) for name in "abc")
    assert_equal(a, b)
    assert not torch.equal(a["policy.policy_head.weight"], c["policy.policy_head.weight"])


EVERYTHING = TrainConfig(
    ppo=replace(PPO, curiosity_coef=0.1, kl_coef=0.5, priority_alpha=0.6, value_clip=0.2, target_kl=0.05),
    run=RUN,
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
    problem: Any, config: TrainConfig, tmp_path: Path
) -> None:
    whole = finish(tmp_path / "whole", config, problem)
    for step in (160, 240, 320, 400):
        training = start(tmp_path / "parts", config, problem)
        leave_after(training, step)
    resumed = finish(tmp_path / "parts", config, problem)
    assert resumed.resumed
    assert resumed.scores == whole.scores
    assert_equal(final_state(tmp_path / "parts"), final_state(tmp_path / "whole"))


def test_a_curriculum_grows_the_problem_and_ends_with_the_full_one(tmp_path: Path) -> None:
    training = start(tmp_path, CURRICULUM, ENTITY)
    sizes = {}
    for update in training.updates():
        config = training.collector.world.config  # type: ignore[attr-defined]
        sizes[update.step] = (config.agents, config.slots)
    # The shares end at 144 and 288 steps; a stage changes with the first update that begins after its end.
    assert sizes == {160: (2, 10), 240: (4, 4), 320: (4, 4), 400: (4, 10), 480: (4, 10)}


def test_a_new_stage_is_not_measured_by_the_returns_of_the_one_before(tmp_path: Path) -> None:
    training = start(tmp_path, CURRICULUM, ENTITY)
    counts = [training.health.state_dict()["episodes"]["count"] for _ in training.updates()]
    assert counts == [1, 1, 2, 1, 2]


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


def test_a_checkpoint_of_another_problem_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.open(SETTINGS)
    meta = {"problem": "prompt"}
    write_checkpoint(folder.checkpoints, step=1, tensors={"x": torch.zeros(1)}, meta=meta, keep=1)
    with pytest.raises(CheckpointError, match="problem 'prompt', expected 'allocation'"):
        start(tmp_path)


@pytest.mark.parametrize("width", [4, 8])
def test_a_checkpoint_copied_from_another_run_is_refused(width: int, tmp_path: Path) -> None:
    other = replace(SMALL, config=replace(SMALL.config, agents=3), network=NetworkConfig(hidden=(width,)))
    finish(tmp_path / "a", CONFIG, other)
    RunFolder(tmp_path / "b").open(SETTINGS)
    (tmp_path / "b" / "checkpoints").rmdir()
    (tmp_path / "a" / "checkpoints").rename(tmp_path / "b" / "checkpoints")
    with pytest.raises(CheckpointError, match="not of this run"):
        start(tmp_path / "b")


def test_a_truncated_checkpoint_is_refused_and_the_one_before_can_be_used(tmp_path: Path) -> None:
    finish(tmp_path / "whole")
    leave_after(start(tmp_path / "cut"), 320)
    newest = checkpoints(tmp_path / "cut" / "checkpoints")[-1]
    file = newest / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="or delete this folder"):
        start(tmp_path / "cut")
    for part in newest.iterdir():
        part.unlink()
    newest.rmdir()
    assert start(tmp_path / "cut").step == 160
    finish(tmp_path / "cut")
    assert_equal(final_state(tmp_path / "cut"), final_state(tmp_path / "whole"))


def test_other_settings_in_the_same_folder_are_refused(tmp_path: Path) -> None:
    finish(tmp_path)
    with pytest.raises(RunError, match="other settings"):
        Training(SMALL, CONFIG, RunFolder(tmp_path), SETTINGS | {"ppo": 1})


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


def test_only_the_last_few_checkpoints_stay(tmp_path: Path) -> None:
    finish(tmp_path, configured(checkpoint_every=80, keep_checkpoints=2))
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-000000000400", "step-000000000480"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.device is 'cuda', but torch sees no GPU"):
        resolve_device("cuda")
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")


def test_threads_are_chosen_for_the_run_and_given_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    during = {torch.get_num_threads() for _ in start(tmp_path, configured(threads=3)).updates()}
    assert during == {3}
    assert torch.get_num_threads() == before
    assert choose_threads(nn.Linear(10, 10), 64) == 1
    assert choose_threads(nn.Linear(1000, 1000), 1024) >= 1
