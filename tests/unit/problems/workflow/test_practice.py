"""Phase 2: its settings reach what they are about, a workflow is never longer than it allows, and it may be left."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator

from etude.contracts.errors import ConfigError
from etude.learning.checkpoint import checkpoints, read_checkpoint, under
from etude.learning.ppo import PPOConfig
from etude.learning.practise import Practice, PracticeConfig, practise
from etude.learning.run import About, Run, RunConfig, StopReason
from etude.learning.run_folder import RunFolder
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.encode import TextReader
from etude.problems.workflow.experts import random_choice
from etude.problems.workflow.network import PlannerConfig
from etude.problems.workflow.office.problem import PretrainedPlanner, WorkflowProblem, empty_memory, known_names
from etude.problems.workflow.office.scenarios import from_examples
from etude.problems.workflow.office.world import OfficeConfig, Rewards, WorkflowConfig, WorkflowWorld
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.practice import OutcomesConfig
from etude.text.ngrams import NGramEncoder

torch.set_num_threads(1)
LIMITS = Limits(max_nodes=7, max_corrections=2, max_cost_usd=3.0)
OFFICE = OfficeConfig(
    scenarios=30, held_out=7, scenario_seed=3, skill_seed=4, expert_noise=0.25, shift="degraded"
)  # nothing as it is by default
RUN = RunConfig(seed=5, device="cpu", threads=1)
OTHER = OutcomesConfig(
    learning_rate=0.01,
    num_episodes=11,
    max_steps_per_episode=40,
    gamma=0.9,
    epsilon=0.3,
    alpha=1.0,
    beta=2.0,
    gamma_latency=3.0,
    shaped_reward=4.0,
    potential=6.0,
    kl_coef=0.7,
    entropy_coef=0.8,
    gae_lambda=0.6,
    envs=12,
    steps=13,
    epochs=14,
    minibatch=15,
    eval_every=16,
    eval_episodes=17,
)


def test_ppo_learns_as_the_document_s_settings_say() -> None:
    assert OTHER.ppo() == PPOConfig(
        lr=0.01,
        gamma=0.9,
        clip_coef=0.3,
        reference_coef=0.7,
        entropy_coef=0.8,
        gae_lambda=0.6,
        envs=12,
        steps=13,
        epochs=14,
        minibatch=15,
        together=True,
    )


def test_a_run_lasts_as_many_workflows_and_keeps_the_rest() -> None:
    longest = 11 * 40
    expected = {"max_episodes": 11, "max_steps": longest, "eval_every": 16, "eval_episodes": 17}
    assert OTHER.run(RUN) == replace(RUN, **expected)


def test_the_world_pays_what_they_say_and_is_the_office_s() -> None:
    world = OTHER.world(OFFICE, LIMITS)
    paid = {"alpha": 1.0, "beta": 2.0, "gamma_latency": 3.0, "shaped_reward": 4.0, "potential": 6.0}
    assert {name: getattr(world, name) for name in paid} == paid
    assert set(paid) == {f.name for f in fields(Rewards)}
    assert {name: getattr(world, name) for name in asdict(OFFICE)} == asdict(OFFICE)
    assert (world.discount, world.limits) == (0.9, LIMITS)
    assert isinstance(world, WorkflowConfig)


@pytest.mark.parametrize("name", sorted({f.name for f in fields(OutcomesConfig)} - {"algorithm"}))
def test_no_setting_is_left_behind(name: str) -> None:
    """Changed alone, it changes what is made of it."""

    def made(config: OutcomesConfig) -> tuple[Any, ...]:
        return config.ppo(), config.run(RUN), config.world(OFFICE, LIMITS)

    default = OutcomesConfig()
    assert getattr(default, name) != getattr(OTHER, name)
    assert made(replace(default, **{name: getattr(OTHER, name)})) != made(default)


# How long a workflow may last

HOPELESS = from_examples(
    [("do it", [0], [[]])],
    Catalogue(task_types=(TaskType(name="a"), TaskType(name="b")), workers=(Worker(name="x"), Worker(name="y"))),
)
BOUNDS = [
    (Limits(max_nodes=1, max_corrections=0, max_replans=0), 3),
    (Limits(max_nodes=1, max_corrections=3, max_replans=1), 8),
    (Limits(max_nodes=2, max_corrections=2, max_replans=1), 9),
    (Limits(max_nodes=3, max_corrections=1, max_replans=1, max_attempts=1), 10),
    (Limits(max_nodes=2, max_corrections=4, max_replans=2, max_attempts=2), 14),
]


@pytest.mark.parametrize(("limits", "most"), BOUNDS)
def test_random_play_takes_as_many_decisions_as_are_allowed_and_never_more(limits: Limits, most: int) -> None:
    """Where no worker is able to do anything, some of 2000 workflows drag on to the last decision."""
    config = OutcomesConfig(max_steps_per_episode=most).world(OFFICE, limits)
    with pytest.raises(ConfigError, match=f"allow a workflow {most} decisions"):
        OutcomesConfig(max_steps_per_episode=most - 1).world(OFFICE, limits)
    world = WorkflowWorld(config, n=2000, scenarios=HOPELESS)
    obs, act, generator = world.reset(0), random_choice(world.rules), Generator().manual_seed(0)
    world.tables.skill[:] = 0
    taken, longest = torch.zeros(world.n, dtype=torch.long), 0
    for _ in range(5 * most):
        step = world.step(act(obs, generator))
        obs, taken = step.obs, taken + 1
        longest = max(longest, int(taken[step.terminated].max()) if step.terminated.any() else 0)
        taken[step.terminated] = 0
    assert longest == most
    assert int(taken.max()) <= most


def test_limits_that_allow_more_are_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError) as refused:
        OutcomesConfig(max_steps_per_episode=18).world(OFFICE, LIMITS)
    message = str(refused.value)
    assert message.startswith("training.phase2_rl.max_steps_per_episode is 18, but the limits allow a workflow 19")
    assert message.endswith("raise it, or lower limits.max_nodes, max_replans or max_corrections")


# A run


PHASE = OutcomesConfig(
    learning_rate=0.01, num_episodes=40, kl_coef=0.5, envs=8, steps=8, minibatch=32, eval_every=128, eval_episodes=8
)
CONFIG = PracticeConfig(ppo=PHASE.ppo(), run=PHASE.run(replace(RUN, checkpoint_every=128)))


@pytest.fixture(scope="module")
def problem() -> WorkflowProblem:
    new = WorkflowProblem(
        reader=TextReader(encoder=NGramEncoder(32)),
        config=PHASE.world(OfficeConfig(scenarios=30, held_out=5), Limits(max_nodes=8, max_corrections=2)),
        planner=PlannerConfig(width=16, heads=2, layers=1),
    )
    torch.manual_seed(1)
    known = known_names(new.scenarios)
    memory = empty_memory(len(known.task_types), 32)
    return replace(new, pretrained=PretrainedPlanner(known=known, weights=new.policy().state_dict(), memory=memory))


ABOUT = About(
    problem="workflow",
    method="practise",
    title="a test",
    unit="steps",
    budget="40 workflows",
    score="return",
    settings={},
    policy_sections=(),
)


def start(path: Path, problem: WorkflowProblem) -> Run:
    return practise(ABOUT, problem, CONFIG, RunFolder(path), validation=replace(problem, part="choose"))


def practice(run: Run) -> Practice:
    assert isinstance(run.learner, Practice)
    return run.learner


def newest(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    return read_checkpoint(checkpoints(path / "checkpoints")[-1])


def test_a_run_left_again_and_again_ends_like_a_whole_one(problem: WorkflowProblem, tmp_path: Path) -> None:
    whole = start(tmp_path / "whole", problem)
    steps = [update.step for update in whole.updates()]
    assert len(steps) > 4
    for left_at in (steps[1], steps[-2]):
        for update in start(tmp_path / "parts", problem).updates():
            if update.step >= left_at:
                break
    resumed = start(tmp_path / "parts", problem)
    assert resumed.resumed
    assert 0 < practice(resumed).episodes < PHASE.num_episodes
    for _ in resumed.updates():
        pass
    (tensors, found), (expected, wanted) = newest(tmp_path / "parts"), newest(tmp_path / "whole")
    assert tensors.keys() == expected.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], expected[name])] == []
    assert [found[key] for key in ("step", "values", "scores")] == [wanted[key] for key in ("step", "values", "scores")]
    assert found["values"]["episodes"] >= PHASE.num_episodes
    assert resumed.artefact().version == whole.artefact().version

    assert problem.pretrained is not None
    reference, weights = under("learner.ppo.reference.", tensors), under("learner.policy.", tensors)
    assert reference.keys() == problem.pretrained.weights.keys()
    for name, began in problem.pretrained.weights.items():
        assert torch.equal(reference[name], began)
    assert any(not torch.equal(weights[name], began) for name, began in problem.pretrained.weights.items())


def test_it_ends_with_its_workflows_and_has_slowed_down_by_then(problem: WorkflowProblem, tmp_path: Path) -> None:
    run = start(tmp_path, problem)
    updates, episodes = [], []
    for update in run.updates():
        updates.append(update)
        episodes.append(practice(run).episodes)
    assert updates[-1].stopped is StopReason.BUDGET
    assert episodes[-2] < PHASE.num_episodes <= episodes[-1]
    assert run.step < CONFIG.run.max_steps / 2
    assert updates[-1].score is not None
    rates = [update.metrics["lr"] for update in updates]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(0.1 * PHASE.learning_rate)


def test_what_chooses_the_policy_is_not_what_it_learns_from(problem: WorkflowProblem, tmp_path: Path) -> None:
    learner = practice(start(tmp_path, problem))
    assert learner.collector.world.rows == range(30)  # type: ignore[attr-defined]
    assert learner.validation.rows == range(30, 35)  # type: ignore[attr-defined]


def test_evaluations_have_the_names_of_the_source_document(problem: WorkflowProblem, tmp_path: Path) -> None:
    run = start(tmp_path, problem)
    for _ in run.updates():
        pass
    rows = [row for row in run.folder.read_metrics() if "eval_return" in row]
    assert [row["step"] for row in rows][:2] == [0, 128]
    names = {"success": "success_rate", "cost_usd": "avg_cost", "latency_ms": "avg_latency"}
    for ours, theirs in names.items():
        assert [row[theirs] for row in rows] == [row[f"eval_{ours}"] for row in rows]
    assert all(0 <= row["success_rate"] <= 1 < row["avg_latency"] for row in rows)
