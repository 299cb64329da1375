"""Workflow as a Problem: planners decide within its scenarios, with and without what they bring along."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import msgspec
import pytest
import torch
from torch import Generator

from etude.contracts.errors import CheckpointError, ConfigError
from etude.learning.evaluate import evaluate, greedy
from etude.problems.workflow.encode import TextReader
from etude.problems.workflow.examples import Example
from etude.problems.workflow.experts import expert_examples
from etude.problems.workflow.memory import fit_memory
from etude.problems.workflow.network import PlannerConfig
from etude.problems.workflow.office.problem import (
    PretrainedPlanner,
    WorkflowProblem,
    empty_memory,
    known_names,
    without_new_entries,
)
from etude.problems.workflow.office.scenarios import generate
from etude.problems.workflow.office.world import WorkflowConfig
from etude.problems.workflow.phase2 import read_office
from etude.text.ngrams import NGramEncoder
from tests.office import second_phase

torch.set_num_threads(1)
ENCODER = NGramEncoder(32)
PROBLEM = WorkflowProblem(
    reader=TextReader(encoder=ENCODER),
    config=WorkflowConfig(scenarios=40),
    planner=PlannerConfig(width=16, heads=2, layers=1),
)


PARTS = ("learn", "choose", "measure")


def parts(problem: WorkflowProblem) -> list[WorkflowProblem]:
    return [replace(problem, part=part) for part in PARTS]


def begun(problem: WorkflowProblem) -> WorkflowProblem:
    """With a network's weights, and the plans of the experts in its memory."""
    known = known_names(problem.scenarios)
    examples = [msgspec.convert(record, Example) for record in expert_examples(problem.scenarios)]
    memory, _ = fit_memory(ENCODER, examples, types=len(known.task_types))
    torch.manual_seed(5)
    pretrained = PretrainedPlanner(known=known, weights=problem.policy().state_dict(), memory=memory)
    return replace(problem, pretrained=pretrained)


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


@pytest.mark.parametrize("shift", ["none", "new_tool"])
def test_every_plan_of_a_policy_that_learned_from_outcomes_is_valid(
    shift: Literal["none", "new_tool"], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of one half learned, drawn at random: while it plans, and after failures and corrections."""
    learned, policies = read_office(second_phase(tmp_path_factory))
    problem = replace(learned, config=replace(learned.config, shift=shift))
    policy, world = policies["policy"].with_context(problem.policy_context), problem.world(64, device="cpu")
    scenarios, limits = problem.scenarios, problem.config.limits
    offered = scenarios.catalogue if shift == "new_tool" else without_new_entries(scenarios)
    obs, generator, checked, corrected = world.reset(0), Generator().manual_seed(0), 0, 0
    used: set[str] = set()
    for _ in range(40):
        begun = obs["length"] > 0
        drafts = {name: value[begun] for name, value in obs.items()}
        texts = [scenarios.instructions[row] for row in drafts["instruction"].tolist()]
        for plan in world.rules.plans(drafts, texts):
            plan.check(offered, limits)
            used |= {node.task_type for node in plan.nodes}
        given = drafts["workers"].clamp(min=0)
        assert (drafts["available"].gather(1, given) | (drafts["workers"] < 0)).all()
        checked, corrected = checked + len(texts), corrected + int((drafts["corrections"] > 0).sum())
        obs = world.step(policy.choose(obs, generator=generator)).obs
    assert checked > 1000
    assert corrected > 100
    assert ("transcribe_audio" in used) == (shift == "new_tool")


def test_what_ppo_evaluates_is_what_was_decided() -> None:
    """Nothing is dropped while it learns: the first ratio is 1."""
    policy, obs = PROBLEM.policy().train(), PROBLEM.world(32, device="cpu").reset(0)
    with torch.no_grad():
        decision = policy.act(obs, generator=Generator().manual_seed(0))
    torch.testing.assert_close(policy.evaluate(obs, decision.action).log_prob, decision.log_prob)


def test_it_is_made_of_its_instructions() -> None:
    problem = begun(PROBLEM)
    encoded = problem.policy_context.encoded
    assert encoded.mask.shape[0] == len(problem.scenarios) == 40
    assert encoded.votes.abs().sum(1).gt(0).all()
    assert problem.world(2, device="cpu").scenarios is problem.scenarios


def test_other_scenarios_are_decided_within_theirs() -> None:
    problem = begun(PROBLEM)
    held_out = replace(problem, config=replace(problem.config, scenario_seed=1))
    policy = problem.policy().train(False)
    own = evaluate(held_out, greedy(held_out.policy().train(False)), episodes=32)
    assert evaluate(held_out, greedy(policy.with_context(held_out.policy_context)), episodes=32).returns == own.returns


def test_it_begins_with_the_weights_it_is_given() -> None:
    problem = begun(PROBLEM)
    assert problem.pretrained is not None
    for name, value in problem.policy().state_dict().items():
        assert torch.equal(value, problem.pretrained.weights[name])
    with pytest.raises(CheckpointError, match="does not fit"):
        replace(problem, planner=PlannerConfig(width=32)).policy()


def test_new_entries_are_known_by_their_description_alone() -> None:
    context = replace(PROBLEM, config=replace(PROBLEM.config, shift="new_tool")).policy_context
    catalogue = context.rules.catalogue
    unknown = [t.name for t, row in zip(catalogue.task_types, context.type_row.tolist(), strict=True) if row < 0]
    unknown += [w.name for w, row in zip(catalogue.workers, context.worker_row.tolist(), strict=True) if row < 0]
    assert tuple(unknown) == PROBLEM.scenarios.new_entries


def test_the_catalogue_before_anything_new_has_come() -> None:
    scenarios = PROBLEM.scenarios
    before, after = without_new_entries(scenarios), scenarios.catalogue
    gone = {entry.name for entry in (*after.task_types, *after.workers)}
    gone -= {entry.name for entry in (*before.task_types, *before.workers)}
    assert gone == set(scenarios.new_entries)
    assert before.task_types == tuple(t for t in after.task_types if t in before.task_types)
    assert known_names(scenarios).task_types == tuple(t.name for t in before.task_types)
    assert known_names(scenarios).workers == tuple(w.name for w in before.workers)


@pytest.mark.parametrize("held_out", [1, 6, 20])
def test_parts_share_no_instruction_and_are_all_together(held_out: int) -> None:
    problem = replace(PROBLEM, config=WorkflowConfig(scenarios=30, held_out=held_out))
    rows = [part.rows for part in parts(problem)]
    assert [len(some) for some in rows] == [30, held_out, held_out]
    assert [row for some in rows for row in some] == list(range(len(problem.scenarios)))
    texts = [{problem.scenarios.instructions[row] for row in some} for some in rows]
    assert len(set.union(*texts)) == sum(map(len, texts)) == 30 + 2 * held_out


@pytest.mark.parametrize("part", PARTS)
def test_a_world_draws_instructions_of_its_part_alone_and_all_of_them(part: str) -> None:
    config = WorkflowConfig(scenarios=12, held_out=7)
    problem = replace(PROBLEM, config=config, part=part)  # type: ignore[arg-type]
    world, random = problem.world(64, device="cpu"), problem.baselines()["random"]
    obs, generator, seen = world.reset(0), Generator().manual_seed(0), set()
    for _ in range(30):
        seen |= set(obs["instruction"].tolist())
        obs = world.step(random(obs, generator)).obs
    assert seen == set(problem.rows)


def test_without_held_out_ones_every_part_is_everything() -> None:
    assert [part.rows for part in parts(PROBLEM)] == [range(40)] * 3


def test_a_larger_office_has_the_same_instructions_first() -> None:
    few, many = (replace(PROBLEM, config=WorkflowConfig(scenarios=n, held_out=5)).scenarios for n in (20, 40))
    assert many.instructions[:30] == few.instructions


@pytest.mark.parametrize("held_out", [20, 21, 1000])
def test_too_many_held_out_are_refused(held_out: int) -> None:
    problem = replace(PROBLEM, given=generate(0, 40), config=WorkflowConfig(held_out=held_out))
    for part in parts(problem):
        with pytest.raises(ConfigError, match=f"office.held_out is {held_out}, of 40 scenarios"):
            part.world(2, device="cpu")
    assert replace(problem, config=WorkflowConfig(held_out=19)).rows == range(2)


def test_given_scenarios_are_played() -> None:
    given = generate(9, 12)
    problem = replace(PROBLEM, given=given, config=WorkflowConfig(held_out=3))
    assert problem.scenarios is given
    assert [part.rows for part in parts(problem)] == [range(6), range(6, 9), range(9, 12)]
    assert problem.policy_context.encoded.mask.shape[0] == 12
    assert evaluate(problem, problem.baselines()["oracle"], episodes=32).metrics["success"] > 0.8


def test_an_empty_memory_votes_for_nothing() -> None:
    votes = empty_memory(7, ENCODER.width).votes(ENCODER, ["Mail it.", ""])
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
