"""Workflow as a Problem: planners decide within its scenarios, with and without what they bring along."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch
from torch import Generator

from etude.contracts.errors import CheckpointError, ConfigError
from etude.learning.evaluate import evaluate, greedy
from etude.problems.workflow.examples import Example
from etude.problems.workflow.experts import expert_examples
from etude.problems.workflow.lesson import Reader
from etude.problems.workflow.memory import remember
from etude.problems.workflow.network import PlannerConfig
from etude.problems.workflow.problem import Beginning, WorkflowProblem, names, no_memory
from etude.problems.workflow.world import WorkflowConfig
from etude.text.ngrams import NGramEncoder

torch.set_num_threads(1)
ENCODER = NGramEncoder(32)
PROBLEM = WorkflowProblem(
    reader=Reader(encoder=ENCODER),
    config=WorkflowConfig(scenarios=40),
    planner=PlannerConfig(width=16, heads=2, layers=1),
)


def begun(problem: WorkflowProblem) -> WorkflowProblem:
    """With a network's weights, and the plans of the experts in its memory."""
    known = names(problem.scenarios)
    examples = [msgspec.convert(record, Example) for record in expert_examples(problem.scenarios)]
    memory, _ = remember(ENCODER, examples, types=len(known.task_types))
    torch.manual_seed(5)
    beginning = Beginning(known=known, weights=problem.policy().state_dict(), memory=memory)
    return replace(problem, beginning=beginning)


@pytest.mark.parametrize("with_memory", [False, True])
def test_a_planner_decides_legally_about_its_scenarios(with_memory: bool) -> None:
    problem = begun(PROBLEM) if with_memory else PROBLEM
    world, policy = problem.world(16, device="cpu", phases=4), problem.policy().train(False)
    rules, obs, generator = world.rules, world.reset(0), Generator().manual_seed(0)
    for _ in range(12):
        decision = policy.act(obs, generator=generator)
        action = decision.action
        legal = rules.workers_for(obs, action["correction"], action["type"], action["links"])
        assert legal.gather(1, action["worker"][:, None]).all()
        assert rules.task_types(obs, action["correction"]).gather(1, action["type"][:, None]).all()
        assert decision.value.shape == decision.log_prob.shape == (16,)
        obs = world.step(action).obs


def test_what_ppo_evaluates_is_what_was_decided() -> None:
    """Nothing is dropped while it learns: the first ratio is 1."""
    policy, obs = PROBLEM.policy().train(), PROBLEM.world(32, device="cpu").reset(0)
    with torch.no_grad():
        decision = policy.act(obs, generator=Generator().manual_seed(0))
    torch.testing.assert_close(policy.evaluate(obs, decision.action).log_prob, decision.log_prob)


def test_it_is_made_of_its_instructions() -> None:
    problem = begun(PROBLEM)
    library = problem.surroundings.library
    assert library.mask.shape[0] == len(problem.scenarios) == 40
    assert library.votes.abs().sum(1).gt(0).all()
    assert problem.world(2, device="cpu").scenarios is problem.scenarios


def test_other_scenarios_are_decided_within_theirs() -> None:
    problem = begun(PROBLEM)
    held_out = replace(problem, config=replace(problem.config, scenario_seed=1))
    policy = problem.policy().train(False)
    own = evaluate(held_out, greedy(held_out.policy().train(False)), episodes=32)
    assert evaluate(held_out, greedy(policy.within(held_out.surroundings)), episodes=32).returns == own.returns


def test_it_begins_with_the_weights_it_is_given() -> None:
    problem = begun(PROBLEM)
    assert problem.beginning is not None
    for name, value in problem.policy().state_dict().items():
        assert torch.equal(value, problem.beginning.weights[name])
    with pytest.raises(CheckpointError, match="does not fit"):
        replace(problem, planner=PlannerConfig(width=32)).policy()


def test_newcomers_are_known_by_their_description_alone() -> None:
    around = replace(PROBLEM, config=replace(PROBLEM.config, shift="new_tool")).surroundings
    catalogue = around.rules.catalogue
    unknown = [t.name for t, row in zip(catalogue.task_types, around.type_row.tolist(), strict=True) if row < 0]
    unknown += [w.name for w, row in zip(catalogue.workers, around.worker_row.tolist(), strict=True) if row < 0]
    assert tuple(unknown) == PROBLEM.scenarios.newcomers


def test_an_empty_memory_votes_for_nothing() -> None:
    votes = no_memory(7, ENCODER.width).votes(ENCODER, ["Mail it.", ""])
    assert votes.shape == (2, 7)
    assert not votes.any()


def test_baselines_play_its_scenarios() -> None:
    actors = PROBLEM.baselines()
    assert {"rules", "oracle"} <= set(actors)
    rules, oracle = (evaluate(PROBLEM, actors[name], episodes=64).mean for name in ("rules", "oracle"))
    assert rules < oracle


def test_it_has_no_size_to_change() -> None:
    assert PROBLEM.size == {}
    assert PROBLEM.resized({}) is PROBLEM
    with pytest.raises(ConfigError, match="agents"):
        PROBLEM.resized({"agents": 3})
