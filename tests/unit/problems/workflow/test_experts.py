"""Baselines: legal in every state, in their order of quality, and an oracle whose value is the exact expectation."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch
from torch import Generator, Tensor

from etude.problems.base import Actor, Obs
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.experts import KeywordReader, Oracle, baselines, expert_examples, random_choice, read_all
from etude.problems.workflow.grammar import Correction
from etude.problems.workflow.office.phrases import CATALOGUE
from etude.problems.workflow.office.scenarios import from_examples, generate
from etude.problems.workflow.office.world import (
    SKILL_AFTER_FAILURE,
    ErrorCategory,
    Tables,
    WorkflowConfig,
    WorkflowWorld,
    flakiness,
)
from etude.problems.workflow.plan import Limits

torch.set_num_threads(1)
CONFIG = WorkflowConfig(scenarios=400)
NAMES = ("random", "cheapest", "best_single", "greedy", "rules", "oracle")


def play(world: WorkflowWorld, actor: Actor, *, seed: int = 0) -> dict[str, Tensor]:
    """The metrics of each environment's first episode."""
    obs, generator = world.reset(seed), Generator().manual_seed(seed)
    waiting, found = torch.ones(world.n, dtype=torch.bool), {}
    while waiting.any():
        step = world.step(actor(obs, generator))
        obs, first = step.obs, waiting & step.terminated
        for name, value in step.metrics.items():
            found.setdefault(name, torch.zeros_like(value))[first] = value[first]
        waiting &= ~first
    return found


@cache
def result(name: str, shift: str = "none") -> dict[str, Tensor]:
    config = WorkflowConfig(scenarios=400, shift=shift)  # type: ignore[arg-type]
    return play(WorkflowWorld(config, n=384), baselines(config)[name])


@pytest.mark.parametrize("name", NAMES)
def test_they_choose_what_is_legal(name: str) -> None:
    world, generator = WorkflowWorld(CONFIG, n=64), Generator().manual_seed(0)
    actor, rules, obs = baselines(CONFIG)[name], world.rules, world.reset(1)
    for _ in range(25):
        action = actor(obs, generator)
        correction, task_type, links = action["correction"], action["type"], action["links"]
        assert rules.corrections(obs).gather(1, correction[:, None]).all()
        assert rules.task_types(obs, correction).gather(1, task_type[:, None]).all()
        assert not (links & ~rules.dependencies(obs, task_type)).any()
        assert rules.workers_for(obs, correction, task_type, links).gather(1, action["worker"][:, None]).all()
        obs = world.step(action).obs


def test_they_come_in_their_order() -> None:
    success = {name: result(name)["success"].mean().item() for name in NAMES}
    assert success["random"] < 0.05
    assert success["random"] < success["cheapest"] < success["greedy"] < success["rules"] < success["oracle"]
    assert success["random"] < success["best_single"] < success["rules"]
    assert success["oracle"] > 0.93
    assert 0.35 < success["rules"] < 0.7  # phrasings, overrated workers and wrong corrections leave much to learn
    earned = {name: result(name)["return"].mean().item() for name in NAMES}
    assert earned["random"] < earned["cheapest"] < earned["rules"] < earned["oracle"]


def test_cheap_is_cheap_and_regret_is_never_negative_on_average() -> None:
    assert result("cheapest")["cost_usd"].mean() < result("greedy")["cost_usd"].mean()
    for name in NAMES[:-1]:
        regret = result("oracle")["return"] - result(name)["return"]  # paired: the same episodes
        assert regret.mean() > 3 * regret.std() / len(regret) ** 0.5


@pytest.mark.parametrize("shift", ["new_tool", "phrasings"])
def test_new_words_are_hard_on_rules(shift: str) -> None:
    assert result("rules", shift)["success"].mean() < 0.8 * result("rules")["success"].mean()
    assert result("oracle", shift)["success"].mean() > 0.9


def test_who_does_not_know_that_a_worker_degraded_loses_by_it() -> None:
    config = WorkflowConfig(scenarios=400, shift="degraded")
    unaware = Oracle(Tables(CONFIG, None, "cpu"), CONFIG)
    lost = result("oracle", "degraded")["return"] - play(WorkflowWorld(config, n=384), unaware)["return"]
    assert lost.mean() > 3 * lost.std() / len(lost) ** 0.5
    assert result("oracle", "degraded")["success"].mean() > 0.9


# ── the oracle against every choice there is ─────────────────────────────────────────────────────────────────────────

TINY = Catalogue(
    task_types=(TaskType(name="a"), TaskType(name="b")),
    workers=(
        Worker(name="cheap", usd_per_call=0.01, latency_ms=1000, success_rate=0.6),
        Worker(name="dear", usd_per_call=0.20, latency_ms=9000, success_rate=0.9),
        Worker(name="only-b", task_types=("b",), usd_per_call=0.03, latency_ms=500, success_rate=0.7),
    ),
)
CHAIN = from_examples([("a then b", [0, 1], [[], [0]])], TINY)
SMALL = WorkflowConfig(limits=Limits(max_nodes=3, max_corrections=7, max_replans=1))


def brute_force(tables: Tables, obs: Obs, row: int, *, corrections: int, replans: int) -> float:
    """The expectation under the best choice in every state, one outcome after the other."""
    price, latency = obs["price"][row].tolist(), obs["latency"][row].tolist()
    load = [(x / listed - 1) / 2 for x, listed in zip(latency, (1000, 9000, 500), strict=True)]
    attempts_allowed = SMALL.limits.max_attempts

    @cache
    def value(node: int, attempts: int, beyond: frozenset[int], left: int, replans: int) -> float:
        if attempts == attempts_allowed and replans:
            return value(node, 0, beyond, left, replans - 1)
        if node == 2:
            return 10.0
        if attempts == attempts_allowed or left < 0:
            return 0.0
        choices = [0.0]
        for w in range(3):
            if not tables.rules.capable[node, w] or not obs["available"][row, w]:
                continue
            flaky = flakiness(torch.tensor(load[w], dtype=torch.float64)).item()
            skill = SKILL_AFTER_FAILURE if w in beyond else tables.skill[node, w].item()
            earned = -0.1 * 100 * price[w] - 0.01 * latency[w] / 1000
            earned += flaky * value(node, attempts + 1, beyond, left - 1, replans)
            earned += (1 - flaky) * skill * (0.1 + value(node + 1, 0, frozenset(), left, replans))
            earned += (1 - flaky) * (1 - skill) * value(node, attempts + 1, beyond | {w}, left - 1, replans)
            choices.append(earned)
        return max(choices)

    return value(0, 0, frozenset(), corrections, replans)


@pytest.mark.parametrize("workers", [(), TINY.workers[:1]])
def test_without_a_choice_of_workers_baselines_that_only_choose_are_left_out(workers: tuple[Worker, ...]) -> None:
    given = from_examples([("a then b", [0, 1], [[], [0]])], Catalogue(task_types=TINY.task_types, workers=workers))
    actors = baselines(SMALL, scenarios=given)
    assert list(actors) == ["random", "rules", "oracle"]
    returns = {
        name: play(WorkflowWorld(SMALL, n=64, scenarios=given), a)["return"].mean() for name, a in actors.items()
    }
    assert returns["random"] < returns["oracle"]


def test_its_values_are_those_of_brute_force() -> None:
    tables, world = Tables(SMALL, CHAIN, "cpu"), WorkflowWorld(SMALL, n=24, scenarios=CHAIN)
    obs = world.reset(0)
    values = Oracle(tables, SMALL).values(obs)
    for row, corrections, replans in product(range(24), (0, 1, 4, 7), (0, 1)):
        expected = brute_force(tables, obs, row, corrections=corrections, replans=replans)
        assert values[row, 0, replans, corrections].item() == pytest.approx(expected, abs=1e-4)


def test_what_it_earns_is_its_value() -> None:
    """Corrections are never short here, and nothing runs in parallel: the value is exact."""
    tables, world = Tables(SMALL, CHAIN, "cpu"), WorkflowWorld(SMALL, n=20_000, scenarios=CHAIN)
    oracle = Oracle(tables, SMALL)
    promised = oracle.values(world.reset(0))[:, 0, 1, SMALL.limits.max_corrections]
    difference = play(world, oracle)["return"] - promised
    assert difference.mean().abs() < 4 * difference.std() / len(difference) ** 0.5


def test_it_tries_the_cheap_worker_while_attempts_last_and_the_expensive_one_last() -> None:
    given = from_examples([("a", [0], [[]])], TINY)
    config = WorkflowConfig(limits=Limits(max_nodes=3, max_replans=0))
    world = WorkflowWorld(config, n=1, scenarios=given)
    world.tables.skill[0, :2] = torch.tensor([0.6, 0.97])
    oracle, obs, generator = Oracle(world.tables, config), world.reset(0), Generator()
    while not obs["available"].all():  # until no worker is down
        obs = world.reset(int(torch.randint(10_000, (), generator=generator)))
    chosen = []
    for _ in range(4):  # plan, stop, and two corrections of transient errors
        action = oracle(obs, generator)
        chosen.append((int(action["correction"]), int(action["worker"])))
        obs = world.apply(action, lambda *shape: torch.zeros(shape)).obs
    assert chosen[0][1] == 0
    assert chosen[2:] == [(Correction.RETRY, 0), (Correction.SWITCH, 1)]


def test_it_plans_again_what_is_worth_it_once_attempts_are_used_up() -> None:
    config = WorkflowConfig(limits=Limits(max_nodes=3, max_attempts=1, max_corrections=2))
    bare = WorkflowConfig(limits=Limits(max_nodes=3, max_attempts=1, max_corrections=2, max_replans=0))
    success = [
        play(WorkflowWorld(c, n=1000, scenarios=CHAIN), Oracle(Tables(c, CHAIN, "cpu"), c))["success"].mean()
        for c in (config, bare)
    ]
    assert success[0] > success[1] + 0.02


def test_it_takes_over_a_draft_that_somebody_else_spoilt() -> None:
    config = WorkflowConfig(limits=Limits(max_nodes=3, max_corrections=4))
    world, generator = WorkflowWorld(config, n=200, scenarios=CHAIN), Generator().manual_seed(0)
    obs, spoil, oracle = world.reset(0), random_choice(world.rules), Oracle(world.tables, config)
    spoilt, taken, rescued = torch.zeros(200, dtype=torch.bool), 0, 0.0
    for _ in range(40):
        spoilt |= (obs["failed"] >= 0) & (obs["error"] >= ErrorCategory.MISSING_INPUT)
        ours, theirs = oracle(obs, generator), spoil(obs, generator)
        action = {k: torch.where(spoilt.view(-1, *[1] * (v.dim() - 1)), v, theirs[k]) for k, v in ours.items()}
        step = world.step(action)
        rescued += step.metrics["success"][spoilt & step.terminated].sum().item() if step.metrics else 0
        taken += int((spoilt & step.terminated).sum())
        spoilt &= ~step.terminated
        obs = step.obs
    assert rescued > 0.5 * taken > 50


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def read(text: str) -> list[tuple[str, list[str]]]:
    types, needs = KeywordReader(CATALOGUE, without=set()).read(text)
    names = [CATALOGUE.task_types[t].name for t in types]
    return [(name, [names[j] for j in some]) for name, some in zip(names, needs, strict=True)]


def test_the_rules_read_plain_instructions() -> None:
    assert read("Summarise the scanned lease, then mail it to Ana.") == [
        ("read_document", []),
        ("summarise", ["read_document"]),
        ("send_email", ["summarise"]),
    ]
    assert read("Before you mail it to Ana, translate the text below into French.") == [
        ("translate", []),
        ("send_email", ["translate"]),
    ]
    assert read("Make slides on the text below, but summarise it first. No chart needed.") == [
        ("summarise", []),
        ("make_slides", ["summarise"]),
    ]
    assert read("Plot last quarter's sales. Also, test the function below. Then write a report on both.") == [
        ("query_database", []),
        ("make_chart", ["query_database"]),
        ("run_tests", []),
        ("write_report", ["make_chart", "run_tests"]),
    ]


def test_the_rules_are_lost_where_keywords_are() -> None:
    assert read("Let accounting have what matters of the text below.") != [
        ("summarise", []),
        ("send_email", ["summarise"]),
    ]
    assert read("…") == [("search_web", [])]  # a plan is owed


def test_a_share_of_plans_is_read_right_and_never_out_of_line() -> None:
    given = generate(0, 400)
    guess = read_all(given)
    assert guess.instructions == given.instructions
    right = sum(set(a) == set(b) for a, b in zip(given.types.tolist(), guess.types.tolist(), strict=True)) / 400
    assert 0.4 < right < 0.85


# ── examples for phase 1 ─────────────────────────────────────────────────────────────────────────────────────────────


def test_gold_examples_are_the_best_plans_with_advertised_workers() -> None:
    given = generate(0, 100)
    again = from_examples(
        [
            (e["instruction"], e["targets"]["task_types"], e["targets"]["dependencies"])
            for e in expert_examples(given, source="gold")
        ],
        CATALOGUE,
    )
    assert again.types.equal(given.types)
    assert again.links.equal(given.links)
    for example in expert_examples(given, source="gold"):
        targets = example["targets"]
        for task_type, worker in zip(targets["task_types"], targets["model_selections"], strict=True):
            name, chosen = CATALOGUE.task_types[task_type].name, CATALOGUE.workers[worker]
            assert CATALOGUE.able(chosen, name)
            rivals = [w for w in CATALOGUE.workers[:-1] if CATALOGUE.able(w, name)]
            assert chosen.success_rate == max(w.success_rate or 0 for w in rivals)


def test_noisy_examples_are_imperfect_and_still_plans() -> None:
    given = generate(0, 200)
    clean, noisy = expert_examples(given), expert_examples(given, noise=0.2, seed=1)
    assert noisy == expert_examples(given, noise=0.2, seed=1)
    changed = sum(a["targets"] != b["targets"] for a, b in zip(clean, noisy, strict=True))
    assert 80 < changed < 200
    for example in noisy:
        targets = example["targets"]
        assert len(targets["task_types"]) == len(targets["dependencies"]) == len(targets["model_selections"]) > 0
        assert all(j < i for i, needs in enumerate(targets["dependencies"]) for j in needs)
        assert max(targets["task_types"]) < len(CATALOGUE.task_types) - 1  # the new tool has not come
