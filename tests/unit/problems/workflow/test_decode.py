"""From scores to plans: greedily as step by step, by a beam as if every plan were looked at, and always valid."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

from etude.contracts.errors import CatalogueError
from etude.problems.base import Obs
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.decode import (
    _extend,
    empty_drafts,
    plan_by_beam,
    plan_greedily,
    search_by_beam,
    take,
)
from etude.problems.workflow.encode import KnownNames, encode_instructions, make_policy_context
from etude.problems.workflow.memory import fit_memory
from etude.problems.workflow.metrics import score_plans
from etude.problems.workflow.network import DraftState, PlannerConfig, PlanPolicy
from etude.problems.workflow.plan import Limits, Plan
from etude.problems.workflow.similarity import SimilarityEncoder
from etude.text.ngrams import NGramEncoder
from tests.language import CATALOGUE, WORDS, examples

ENCODER = NGramEncoder(16)
KNOWN = KnownNames(task_types=tuple(WORDS), workers=("quick", "careful"))
MEMORY = fit_memory(ENCODER, examples(10), types=len(WORDS))[0]
TEXTS = [
    "fetch the novel, then mail it",
    "draw",
    "please summarise the report then count it and mail the lot to us",
    "",
]
HOSTILE = (math.nan, math.inf, -math.inf, 1e38, -1e38)


def make_policy(catalogue: Catalogue, limits: Limits, seed: int, *, scale: float = 0.4, layers: int = 1) -> PlanPolicy:
    torch.manual_seed(seed)
    config = PlannerConfig(width=16, layers=layers, heads=2)
    policy = PlanPolicy(config, text_width=16, known_types=6, known_workers=2, nodes=limits.max_nodes)
    with torch.no_grad():
        for value in policy.parameters():
            value.copy_(torch.randn_like(value) * scale)
    similarity = SimilarityEncoder(ENCODER, catalogue.task_types)(TEXTS)
    encoded = encode_instructions(ENCODER, TEXTS, MEMORY.votes(ENCODER, TEXTS), similarity)
    return policy.with_context(make_policy_context(ENCODER, catalogue, limits, KNOWN, MEMORY, encoded)).train(False)


def greedy(policy: PlanPolicy) -> list[Plan]:
    return plan_greedily(policy, empty_drafts(policy.context), TEXTS)


def beam(policy: PlanPolicy, row: int, width: int) -> Plan:
    drafts = empty_drafts(policy.context)
    return plan_by_beam(policy, {name: value[row : row + 1] for name, value in drafts.items()}, TEXTS[row], beam=width)


def kinds(plan: Plan) -> list[str]:
    return [node.task_type for node in plan.nodes]


FREE = Limits(max_nodes=4)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000))
def test_greedy_plans_are_the_most_probable_choices_step_by_step(seed: int) -> None:
    policy = make_policy(CATALOGUE, FREE, seed)
    for row, plan in enumerate(greedy(policy)):
        d = policy.rules.begin(1) | {"instruction": torch.tensor([row])}
        stopped = torch.tensor([False])
        while not stopped:
            d, stopped = policy.rules.grow(d, policy.choose(d, greedy=True))
        assert policy.rules.plans(d, [TEXTS[row]]) == [plan]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, len(TEXTS) - 1))
def test_a_beam_of_one_is_greedy(seed: int, row: int) -> None:
    policy = make_policy(CATALOGUE, FREE, seed)
    assert beam(policy, row, 1) == greedy(policy)[row]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([*HOSTILE, 0.0]),
    st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    st.sampled_from([1, 3, 20]),
    st.builds(
        Limits,
        max_nodes=st.integers(1, 4),
        max_cost_usd=st.sampled_from([None, 0.01, 0.06, 0.11]),
        max_time_ms=st.sampled_from([None, 10.0, 55.0, 70.0]),
    ),
    st.sampled_from([None, 1, 2]),
)
def test_whatever_the_weights_and_limits_plans_are_valid(
    seed: int, worst: float, share: float, width: int, limits: Limits, quota: int | None
) -> None:
    catalogue = CATALOGUE.updated("quick", quota=quota)
    policy = make_policy(catalogue, limits, seed)
    draws = Generator().manual_seed(seed)
    with torch.no_grad():
        for value in policy.parameters():
            value[torch.rand(value.shape, generator=draws) < share] = worst
    for plan in (*greedy(policy), beam(policy, seed % len(TEXTS), width)):
        plan.check(catalogue, limits)
        assert plan.instruction in TEXTS


@pytest.mark.parametrize("head", ["type_query", "link_query", "worker_query", "stop", "vote_gate"])
@pytest.mark.parametrize("worst", HOSTILE)
def test_one_head_gone_wrong_makes_no_plan_invalid(head: str, worst: float) -> None:
    limits = Limits(max_nodes=4, max_cost_usd=0.12)
    policy = make_policy(CATALOGUE, limits, 3)
    with torch.no_grad():
        for value in getattr(policy, head).parameters():
            value.fill_(worst)
    for plan in (*greedy(policy), *(beam(policy, row, 5) for row in range(len(TEXTS)))):
        plan.check(CATALOGUE, limits)


def test_a_weight_gone_wrong_never_makes_an_unavailable_task_type_part_of_a_plan() -> None:
    policy = make_policy(CATALOGUE, FREE, 0)
    with torch.no_grad():
        policy.link_bias.fill_(math.nan)
    drafts = empty_drafts(policy.context)
    drafts["offered"] = torch.tensor([True, True, False, False, False, False]).expand(len(TEXTS), -1)
    for row, text in enumerate(TEXTS):
        one = {name: value[row : row + 1] for name, value in drafts.items()}
        assert set(kinds(plan_by_beam(policy, one, text))) <= {"fetch", "translate"}


@torch.no_grad()
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, len(TEXTS) - 1), st.sampled_from([1, 3, 20]))
def test_a_beam_follows_its_drafts_as_if_each_were_read_from_the_start(seed: int, row: int, width: int) -> None:
    policy = make_policy(CATALOGUE, FREE, seed, layers=2)
    d = take(empty_drafts(policy.context), torch.tensor([row, 0]))
    reading = policy.read(d["instruction"])
    total, state, steps = torch.zeros((2, 1)), policy.encode_drafts(d, reading), 0
    choices = torch.zeros((2, 0, 2 + policy.nodes))
    while bool((total > -torch.inf).any()):
        d, total, choices, stopped, state = _extend(policy, d, total, choices, state, reading, width)
        there = total.flatten() > -torch.inf
        torch.testing.assert_close(choices.sum((1, 2))[there], total.flatten()[there])
        going = there & ~stopped
        total = torch.where(going.view_as(total), total, -torch.inf)
        if bool(going.any()):
            steps += 1
            assert set(d["length"][going].tolist()) == {steps}
            of = torch.arange(2).repeat_interleave(total.shape[1])[going]
            same_state(
                policy,
                take(d, going),
                state.take(going.nonzero()[:, 0], reading.take(of)),
                policy.encode_drafts(take(d, going), reading.take(of)),
            )
    assert steps


@torch.no_grad()
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 3, 20]), st.sampled_from([FREE, Limits(max_nodes=2)]))
def test_beams_of_many_instructions_are_those_of_each(seed: int, width: int, limits: Limits) -> None:
    policy = make_policy(CATALOGUE, limits, seed)
    drafts = empty_drafts(policy.context)
    for row, many in enumerate(search_by_beam(policy, drafts, TEXTS, beam=width)):
        (one,) = search_by_beam(policy, take(drafts, torch.tensor([row])), [TEXTS[row]], beam=width)
        assert [found.plan for found in many] == [found.plan for found in one]
        assert [found.log_prob for found in many] == pytest.approx([found.log_prob for found in one], abs=1e-3)
        assert [found.types for found in many] == [pytest.approx(found.types, abs=1e-3) for found in one]


def same_state(policy: PlanPolicy, d: Obs, with_node: DraftState, scratch: DraftState) -> None:
    close = partial(torch.testing.assert_close, atol=1e-4, rtol=1e-4)
    assert with_node.there.all()
    close(with_node.h, scratch.h)
    close(with_node.nodes, scratch.nodes)
    for ours, theirs in zip(with_node.layers, scratch.layers, strict=True):
        close(ours[0], theirs[0])
        close(ours[1], theirs[1])
    close(policy.type_scores(d, with_node), policy.type_scores(d, scratch))
    task_type = torch.arange(len(d["length"])) % policy.rules.types
    (one, _), (two, _) = policy.add(d, with_node, task_type), policy.add(d, scratch, task_type)
    close(policy.link_scores(d, with_node, one, task_type), policy.link_scores(d, scratch, two, task_type))
    close(policy.worker_scores(d, with_node, one, task_type), policy.worker_scores(d, scratch, two, task_type))


SMALL = CATALOGUE.withdrawn("summarise", "count", "draw")


def everything(policy: PlanPolicy, row: int) -> list[tuple[float, Plan]]:
    """Every plan by types there is, links and workers by their best choice, with its log-probability, best first."""
    rules, found = policy.rules, []
    for length in range(1, rules.nodes + 1):
        for chosen in product(range(rules.types), repeat=length):
            d, total = rules.begin(1) | {"instruction": torch.tensor([row])}, 0.0
            for kind in (*chosen, rules.types):
                action = forced(policy, d, kind)
                total += float(policy.evaluate(d, action).log_prob)
                d, _ = rules.grow(d, action)
            found.append((total, rules.plans(d, [TEXTS[row]])[0]))
    return sorted(found, key=lambda entry: -entry[0])


def forced(policy: PlanPolicy, d: dict[str, torch.Tensor], kind: int) -> dict[str, torch.Tensor]:
    """The greedy decision, were this the type."""
    state = policy.encode_drafts(d, policy.read(d["instruction"]))
    task_type = torch.tensor([kind])
    token, _ = policy.add(d, state, task_type)
    links = (policy.link_scores(d, state, token, task_type) > 0) & policy.rules.dependencies(d, task_type)
    correction = policy.choose(d, greedy=True)["correction"]
    able = policy.rules.workers_for(d, correction, task_type, links)
    worker = policy.worker_scores(d, state, token, task_type).masked_fill(~able, -math.inf).argmax(1)
    return {"correction": correction, "type": task_type, "links": links, "worker": worker}


def agreement(plan: Plan, found: list[tuple[float, Plan]]) -> float:
    """Node F1 + link F1 + accuracy against every plan, each weighed by its probability."""
    total = 0.0
    for log_prob, other in found:
        scores = score_plans([plan], [other])
        total += math.exp(log_prob) * float(scores.node_f1[0] + scores.link_f1[0] + scores.accuracy[0])
    return total


@torch.no_grad()
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_over_everything_finds_the_plan_that_agrees_best_with_all(seed: int) -> None:
    policy = make_policy(SMALL, Limits(max_nodes=2), seed)
    found = everything(policy, 0)
    assert len(found) == 3 + 9
    best = max(agreement(plan, found) for _, plan in found)
    assert agreement(beam(policy, 0, len(found)), found) == pytest.approx(best, rel=1e-4)


@torch.no_grad()
def test_that_is_not_always_the_most_probable_plan() -> None:
    differs = 0
    for seed in range(5):
        policy = make_policy(SMALL, Limits(max_nodes=2), seed, scale=0.2)
        found = everything(policy, 0)
        differs += beam(policy, 0, len(found)) != found[0][1]
    assert 0 < differs < 5


def test_a_plan_is_made_the_same_way_every_time() -> None:
    first, second = (make_policy(CATALOGUE, FREE, 5) for _ in range(2))
    assert greedy(first) == greedy(second)
    assert [beam(first, row, 5) for row in range(4)] == [beam(second, row, 5) for row in range(4)]
    assert beam(first, 0, 5) == beam(first, 0, 5)


def test_many_at_once_are_planned_as_one_by_one() -> None:
    policy = make_policy(CATALOGUE, FREE, 7)
    together = greedy(policy)
    for row, text in enumerate(TEXTS):
        one = {"instruction": torch.tensor([row]), **policy.rules.begin(1)}
        assert plan_greedily(policy, one, [text]) == [together[row]]


def test_for_no_instructions_there_are_no_plans() -> None:
    policy = make_policy(CATALOGUE, FREE, 7)
    none = policy.rules.begin(0) | {"instruction": torch.tensor([], dtype=torch.long)}
    assert plan_greedily(policy, none, []) == []


def test_where_nothing_can_be_done_it_says_so() -> None:
    catalogue = CATALOGUE.updated("quick", available=False).updated("careful", quota=0)
    policy = make_policy(catalogue, FREE, 0)
    with pytest.raises(CatalogueError, match="no task type can be done now"):
        greedy(policy)
    with pytest.raises(CatalogueError, match="no task type can be done now"):
        beam(policy, 0, 5)
