"""The workflow world: against a plain version written here, each error and correction by hand, and its laws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from etude.contracts.errors import ConfigError
from etude.problems.base import Action, Obs, Transition
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.experts import random_choice
from etude.problems.workflow.grammar import Correction, Status
from etude.problems.workflow.office.scenarios import Scenarios, from_examples
from etude.problems.workflow.office.world import (
    DISTRACTED,
    DOWN,
    FLAKY,
    FLAKY_LOADED,
    MEMORY,
    SKILL_AFTER_FAILURE,
    SLOWER,
    ErrorCategory,
    WorkflowConfig,
    WorkflowWorld,
)
from etude.problems.workflow.plan import Limits

torch.set_num_threads(1)
A, B, C, STOP = 0, 1, 2, 3
CATALOGUE = Catalogue(
    task_types=tuple(TaskType(name=name) for name in "abc"),
    workers=(
        Worker(name="cheap", usd_per_call=0.01, latency_ms=1000, success_rate=0.8),
        Worker(name="costly", usd_per_call=0.05, latency_ms=2000, success_rate=0.9),
    ),
)
CONFIG = WorkflowConfig(limits=Limits(max_nodes=5, max_corrections=4))
LUCKY, TRANSIENT, UNLUCKY = 0.5, 0.0, 0.999


def scenarios(*plans: tuple[list[int], list[list[int]]]) -> Scenarios:
    return from_examples([(f"do {i}", *plan) for i, plan in enumerate(plans)], CATALOGUE)


CHAIN = scenarios(([A, B], [[], [0]]))


def made(given: Scenarios = CHAIN, config: WorkflowConfig = CONFIG, *, skill: float = 1.0) -> WorkflowWorld:
    """One environment with no worker down, no load, and the same skill everywhere."""
    world = WorkflowWorld(config, n=1, scenarios=given)
    world.reset(0)
    world.tables.skill[:] = skill
    world.state = world._restart(world.state, torch.ones(1, dtype=torch.bool), quiet(1, 2 + 2))
    return world


def quiet(*shape: int) -> Tensor:
    """A restart's numbers: the first scenario, no worker down, no load."""
    u = torch.zeros(shape)
    u[:, -3] = 0.99
    return u


def rng(*by_node: float) -> Callable[..., Tensor]:
    """Generator by node (the last one for the rest), then a quiet restart."""

    def uniform(*shape: int) -> Tensor:
        u = quiet(*shape)
        nodes = shape[1] - 4
        u[:, :nodes] = torch.tensor([*by_node, *[by_node[-1]] * nodes][:nodes])
        return u

    return uniform


def act(
    task_type: int = STOP, *needs: int, worker: int = 0, correction: Correction = Correction.ABORT, nodes: int = 5
) -> Action:
    links = torch.zeros((1, nodes), dtype=torch.bool)
    links[0, list(needs)] = True
    return {
        "correction": torch.tensor([correction]),
        "type": torch.tensor([task_type]),
        "links": links,
        "worker": torch.tensor([worker]),
    }


ALL_WELL = rng(LUCKY)


def plan(world: WorkflowWorld, *nodes: Action, by: Callable[..., Tensor] = ALL_WELL) -> Transition:
    for node in nodes:
        assert world.apply(node, by).reward.item() == 0
    return world.apply(act(STOP), by)


def test_a_right_plan_succeeds_and_pays_what_the_document_says() -> None:
    world = made()
    end = plan(world, act(A), act(B, 0, worker=1))
    assert end.terminated.item()
    paid = 10 - 0.1 * (1 + 5) - 0.01 * (1 + 2) + 0.1 * 2  # cents and seconds: cheap, then costly
    assert end.reward.item() == pytest.approx(paid)
    got = {name: value.item() for name, value in end.metrics.items()}
    assert got == pytest.approx(
        {
            "return": paid,
            "success": 1,
            "cost_usd": 0.06,
            "latency_ms": 3000,
            "nodes": 2,
            "corrections": 0,
            "subtasks": 2,
            "validity": 1,
        }
    )
    assert end.final_obs is not None
    assert end.final_obs["status"][0, :2].tolist() == [Status.DONE, Status.DONE]
    assert end.obs["length"].item() == 0


def test_parallel_branches_take_the_time_of_the_longer() -> None:
    world = made(scenarios(([A, B, C], [[], [], [0, 1]])))
    end = plan(world, act(A), act(B, worker=1), act(C, 0, 1))
    assert end.metrics["latency_ms"].item() == 3000


def test_an_incomplete_plan_ends_without_success() -> None:
    end = plan(made(), act(A))
    assert end.terminated.item()
    assert end.reward.item() == pytest.approx(-0.1 - 0.01 + 0.1)
    assert end.metrics["success"].item() == 0


def test_a_transient_error_goes_away_with_a_retry() -> None:
    world = made()
    failed = plan(world, act(A), act(B, 0), by=rng(LUCKY, TRANSIENT))
    assert failed.obs["failed"].item() == 1
    assert failed.obs["error"].item() == ErrorCategory.TRANSIENT
    assert not failed.obs["tried"].any()
    assert failed.final_obs is None
    assert failed.reward.item() == pytest.approx(0.1 - 0.1 * 2 - 0.01 * 2)  # A is done; both calls are paid
    end = world.apply(act(correction=Correction.RETRY), rng(LUCKY))
    assert end.terminated.item()
    assert end.reward.item() == pytest.approx(10 + 0.1 - 0.1 - 0.01)
    assert end.metrics["corrections"].item() == 1


def test_load_makes_a_worker_slow_and_flaky() -> None:
    world = made()
    world.state["load"] = torch.tensor([[1.0, 0.0]])
    assert plan(world, act(A), by=rng(FLAKY + FLAKY_LOADED - 0.01)).obs["error"].item() == ErrorCategory.TRANSIENT
    world = made()
    world.state["load"] = torch.tensor([[1.0, 0.0]])
    assert plan(world, act(A, worker=1), by=rng(FLAKY + FLAKY_LOADED - 0.01)).metrics["subtasks"].item() == 1
    u = quiet(1, 4)
    u[:, -2:] = torch.tensor([1.0, 0.5])
    fresh = world._restart(world.state, torch.ones(1, dtype=torch.bool), u)
    assert fresh["latency"][0].tolist() == pytest.approx([1000 * (1 + SLOWER), 2000 * (1 + SLOWER * 0.25)])


def test_a_worker_stays_unable_and_a_switch_samples_again() -> None:
    world = made(skill=0.6)
    failed = plan(world, act(A), act(B, 0), by=rng(LUCKY, 0.7))
    assert failed.obs["error"].item() == ErrorCategory.CAPABILITY
    assert failed.obs["tried"].tolist() == [[True, False]]
    again = world.apply(act(correction=Correction.RETRY), rng(LUCKY))  # it would have been done at first
    assert again.obs["error"].item() == ErrorCategory.CAPABILITY
    end = world.apply(act(correction=Correction.SWITCH, worker=1), rng(LUCKY))
    assert end.metrics["success"].item() == 1
    assert end.metrics["cost_usd"].item() == pytest.approx(0.01 * 3 + 0.05)


def test_a_second_wind_is_rare() -> None:
    world = made(skill=0.6)
    plan(world, act(A), act(B, 0), by=rng(LUCKY, 0.7))
    end = world.apply(act(correction=Correction.RETRY), rng(FLAKY + (1 - FLAKY) * SKILL_AFTER_FAILURE - 0.001))
    assert end.metrics["success"].item() == 1


def test_what_is_beyond_a_worker_stays_so_after_a_replan_and_not_in_the_next_episode() -> None:
    world = made(skill=0.6)
    plan(world, act(A), act(B, 0), by=rng(LUCKY, 0.7))
    planning = world.apply(act(correction=Correction.REPLAN), rng(LUCKY))
    assert planning.obs["length"].item() == 1
    assert planning.obs["failed"].item() == -1
    assert planning.obs["tried"].tolist() == [[True, False]]
    assert plan(world, act(B, 0)).obs["error"].item() == ErrorCategory.CAPABILITY
    world.apply(act(correction=Correction.ABORT), rng(LUCKY))
    assert plan(world, act(A), act(B, 0)).metrics["success"].item() == 1


@pytest.mark.parametrize("missing", ["unlinked", "absent"])
def test_a_missing_input_is_repaired_by_its_type_and_nothing_else(missing: str) -> None:
    world = made()
    nodes = [act(A), act(B)] if missing == "unlinked" else [act(B)]
    failed = plan(world, *nodes)
    assert failed.obs["error"].item() == ErrorCategory.MISSING_INPUT
    before = failed.obs["success"]
    for useless in (act(correction=Correction.RETRY), act(correction=Correction.SWITCH, worker=1)):
        failed = world.apply(useless, rng(LUCKY))
        assert failed.obs["error"].item() == ErrorCategory.MISSING_INPUT
    assert failed.obs["success"].equal(before)  # which is not the workers' fault
    world = made()
    plan(world, *nodes)
    end = world.apply(act(A, worker=1, correction=Correction.REPAIR), rng(LUCKY))
    assert end.metrics["success"].item() == 1
    assert end.metrics["nodes"].item() == len(nodes) + 1
    assert end.metrics["subtasks"].item() == 2
    assert end.metrics["cost_usd"].item() == pytest.approx(0.01 * (len(nodes) + 1) + 0.05)


def test_a_repair_that_fails_is_corrected_before_what_it_repairs_is_tried_again() -> None:
    world = made()
    plan(world, act(B))
    failed = world.apply(act(A, correction=Correction.REPAIR), rng(LUCKY, TRANSIENT))
    assert failed.obs["failed"].item() == 1
    assert failed.obs["status"][0, :2].tolist() == [Status.PLANNED, Status.FAILED]
    assert world.apply(act(correction=Correction.RETRY), rng(LUCKY)).metrics["success"].item() == 1


def test_a_skipped_dependency_is_missing() -> None:
    world = made(skill=0.6)
    plan(world, act(A), act(B, 0), by=rng(0.7))
    failed = world.apply(act(correction=Correction.SKIP), rng(LUCKY))
    assert failed.obs["failed"].item() == 1
    assert failed.obs["error"].item() == ErrorCategory.MISSING_INPUT
    planning = world.apply(act(correction=Correction.REPLAN), rng(LUCKY))
    assert planning.obs["length"].item() == 0
    assert plan(world, act(A, worker=1), act(B, 0)).metrics["success"].item() == 1


def test_a_type_that_is_not_required_fails_and_costs_and_is_skipped() -> None:
    world = made()
    failed = plan(world, act(C, worker=1), act(A), act(B, 1))
    assert failed.obs["error"].item() == ErrorCategory.NOT_APPLICABLE
    assert failed.reward.item() == pytest.approx(-0.1 * 5 - 0.01 * 2)
    end = world.apply(act(correction=Correction.SKIP), rng(LUCKY))
    assert end.metrics["success"].item() == 1


def test_a_wanted_type_done_twice_counts_once_and_costs_twice() -> None:
    end = plan(made(), act(A), act(A), act(B, 0))
    assert end.metrics["subtasks"].item() == 2
    assert end.metrics["cost_usd"].item() == pytest.approx(0.03)


def test_needless_inputs_distract() -> None:
    given = scenarios(([A, B, C], [[], [], []]))
    edge = FLAKY + (1 - FLAKY) * 0.9 * DISTRACTED + 0.001  # enough for a skill of .9, not for what distraction leaves
    hard = rng(LUCKY, LUCKY, edge)
    assert plan(made(given, skill=0.9), act(A), act(B), act(C), by=hard).metrics["success"].item() == 1
    failed = plan(made(given, skill=0.9), act(A), act(B), act(C, 0), by=hard)
    assert failed.obs["error"].item() == ErrorCategory.CAPABILITY


def test_an_abort_ends_it_and_pays_only_what_was_run() -> None:
    world = made()
    plan(world, act(A), act(B, 0, worker=1), by=rng(TRANSIENT))
    end = world.apply(act(correction=Correction.ABORT), rng(LUCKY))
    assert end.terminated.item()
    assert end.reward.item() == 0
    assert end.metrics["cost_usd"].item() == pytest.approx(0.01)


def test_success_so_far_follows_the_calls_over_episodes() -> None:
    world = made()
    before = world.observe()["success"][0].tolist()
    plan(world, act(A), act(B, 0), by=rng(LUCKY))
    keep = (1 - 1 / MEMORY) ** 2
    assert world.observe()["success"][0].tolist() == pytest.approx([before[0] * keep + 1 - keep, before[1]])


# ── against a plain version ──────────────────────────────────────────────────────────────────────────────────────────


class Plain:
    """One environment's outcomes, node after node, in plain Python. Drafts are kept by the rules, as in the world."""

    def __init__(self, world: WorkflowWorld, row: int) -> None:
        self.world, self.row = world, row
        state = {name: value[row : row + 1] for name, value in world.state.items()}
        self.draft: Obs = {name: state[name] for name in world._fresh}
        self.load, self.success = state["load"][0].tolist(), state["success"][0].tolist()
        self.calls: dict[int, list[bool]] = {}
        self.begin(int(state["instruction"]))

    def begin(self, instruction: int) -> None:
        self.instruction, self.done, self.beyond = instruction, set[int](), set[tuple[int, int]]()
        self.cost, self.latency, self.total = 0.0, 0.0, 0.0

    def step(self, action: Action, u: list[float]) -> tuple[float, bool]:
        world, rules, config = self.world, self.world.rules, self.world.config
        failed, correction = int(self.draft["failed"]) >= 0, int(action["correction"])
        draft, stopped = rules.amend(self.draft, action) if failed else rules.grow(self.draft, action)
        runs = correction not in (Correction.ABORT, Correction.REPLAN) if failed else bool(stopped)
        before, over = len(self.done), failed and correction == Correction.ABORT
        if runs:
            self.execute(draft, u)
            over = int(draft["failed"]) < 0
        gold = world.tables.gold[self.instruction].tolist()
        success = self.done == {t for t in gold if t >= 0}
        status, length = draft["status"][0].tolist(), int(draft["length"])
        planned = [i for i in range(length) if status[i] == Status.PLANNED]
        cost = float(draft["spent"]) - sum(draft["cost"][0, i].item() for i in planned)
        ends = [draft["finish"][0, i].item() for i in range(length) if i not in planned]
        latency = max([*ends, float(draft["clock"])])
        reward = 10 * success + config.shaped_reward * (len(self.done) - before)
        reward -= config.beta * 100 * (cost - self.cost) + config.gamma_latency * (latency - self.latency) / 1000
        self.cost, self.latency, self.total = cost, latency, self.total + reward
        self.draft = draft
        if over or success:
            self.restart(u[rules.nodes :])
        return reward, over or success

    def execute(self, draft: Obs, u: list[float]) -> None:
        tables, N = self.world.tables, self.world.rules.nodes
        types, workers, links = (draft[name][0].tolist() for name in ("types", "workers", "links"))
        status = draft["status"][0].tolist()
        gold = tables.gold[self.instruction].tolist()
        repairs = [j for j in range(N) if any(links[i][j] for i in range(j))]
        order = [*reversed(repairs), *(i for i in range(N) if i not in repairs)]
        draft["failed"], draft["error"] = torch.tensor([-1]), torch.tensor([0])
        for i in order:
            if types[i] < 0 or status[i] != Status.PLANNED:
                continue
            error = ErrorCategory.NONE
            if types[i] not in gold:
                error = ErrorCategory.NOT_APPLICABLE
            else:
                needs = {gold[k] for k in tables.gold_links[self.instruction, gold.index(types[i])].nonzero()[:, 0]}
                inputs = [j for j in range(N) if links[i][j]]
                useful = [j for j in inputs if types[j] in needs and status[j] == Status.DONE]
                skill = tables.skill[types[i], workers[i]].item() * DISTRACTED ** (len(inputs) - len(useful))
                if (types[i], workers[i]) in self.beyond:
                    skill = SKILL_AFTER_FAILURE
                flaky = FLAKY + FLAKY_LOADED * self.load[workers[i]]
                if {types[j] for j in useful} != needs:
                    error = ErrorCategory.MISSING_INPUT
                elif u[i] < flaky:
                    error = ErrorCategory.TRANSIENT
                elif u[i] >= flaky + (1 - flaky) * skill:
                    error = ErrorCategory.CAPABILITY
                    self.beyond.add((types[i], workers[i]))
            if error in (ErrorCategory.NONE, ErrorCategory.TRANSIENT, ErrorCategory.CAPABILITY):
                self.calls.setdefault(workers[i], []).append(error == ErrorCategory.NONE)
            status[i] = Status.DONE if error == ErrorCategory.NONE else Status.FAILED
            if error != ErrorCategory.NONE:
                draft["failed"], draft["error"] = torch.tensor([i]), torch.tensor([int(error)])
                break
            self.done.add(types[i])
        draft["status"] = torch.tensor([status])
        for worker, outcomes in self.calls.items():
            keep = (1 - 1 / MEMORY) ** len(outcomes)
            self.success[worker] = self.success[worker] * keep + sum(outcomes) / len(outcomes) * (1 - keep)
        self.calls.clear()

    def restart(self, u: list[float]) -> None:
        rules, tables = self.world.rules, self.world.tables
        S, W = len(self.world.scenarios), rules.workers
        self.draft = rules.begin(1) | {"offered": tables.offered[None]}
        self.load = [x**2 for x in u[2:]]
        listed = self.draft["latency"][0].tolist()
        self.draft["latency"] = torch.tensor(
            [[x * (1 + SLOWER * load) for x, load in zip(listed, self.load, strict=True)]], dtype=torch.float64
        )
        down = int(u[1] * W / DOWN)
        self.draft["available"] = torch.tensor([[w != down and bool(tables.exists[w]) for w in range(W)]])
        self.begin(min(int(u[0] * S), S - 1))


@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_a_plain_version_step_by_step(seed: int) -> None:
    n, config = 8, WorkflowConfig(limits=Limits(max_nodes=7, max_corrections=5))
    given = small_office()
    world = WorkflowWorld(config, n=n, scenarios=given)
    obs = world.reset(seed)
    plain = [Plain(world, row) for row in range(n)]
    generator, choose = torch.Generator().manual_seed(seed), random_choice(world.rules)
    ended = corrected = 0
    for _ in range(100):
        action = choose(obs, generator)
        u = torch.rand((n, world.rules.nodes + 2 + world.rules.workers), generator=generator)
        step = world.apply(action, lambda *shape, u=u: u)
        corrected += int((obs["failed"] >= 0).sum())
        obs = step.obs
        for row, one in enumerate(plain):
            reward, over = one.step({name: value[row : row + 1] for name, value in action.items()}, u[row].tolist())
            assert step.terminated[row].item() == over
            assert step.reward[row].item() == pytest.approx(reward, abs=1e-4)
            assert obs["instruction"][row].item() == one.instruction
            assert obs["success"][row].tolist() == pytest.approx(one.success)
            for name in ("types", "workers", "status", "failed", "error", "length", "available"):
                assert obs[name][row].tolist() == one.draft[name][0].tolist(), name
            assert obs["latency"][row].tolist() == pytest.approx(one.draft["latency"][0].tolist(), rel=1e-5)
            ended += over
    assert ended > 40
    assert corrected > 40


def small_office() -> Scenarios:
    """Few types, so that random plans often are half right."""
    plans = [([A], [[]]), ([A, B], [[], [0]]), ([A, B, C], [[], [0], [0, 1]]), ([C, A], [[], []])]
    return scenarios(*plans)


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def wander(world: WorkflowWorld, obs: Obs, *, steps: int, seed: int) -> list[Transition]:
    generator, choose = torch.Generator().manual_seed(seed), random_choice(world.rules)
    found = []
    for _ in range(steps):
        found.append(world.step(choose(obs, generator)))
        obs = found[-1].obs
    return found


def same(a: Transition, b: Transition) -> bool:
    return a.reward.equal(b.reward) and all(a.obs[name].equal(b.obs[name]) for name in a.obs)


def test_a_seed_gives_the_same_episodes_and_a_saved_state_goes_on_exactly() -> None:
    config = WorkflowConfig(scenarios=50, held_out=0)
    one, two = WorkflowWorld(config, n=16), WorkflowWorld(config, n=16)
    for a, b in zip(*(wander(w, w.reset(5), steps=30, seed=1) for w in (one, two)), strict=True):
        assert same(a, b)
    other = WorkflowWorld(config, n=16)
    other.reset(99)
    other.load_state_dict(one.state_dict())
    for a, b in zip(*(wander(w, w.observe(), steps=30, seed=2) for w in (one, other)), strict=True):
        assert same(a, b)
    assert not one.reset(6)["instruction"].equal(two.reset(7)["instruction"])


def test_a_device_that_is_not_asked_gives_the_same() -> None:
    config = WorkflowConfig(scenarios=50, held_out=0)
    asked, left_alone = WorkflowWorld(config, n=16), WorkflowWorld(config, n=16)
    left_alone._is_cpu = False
    for a, b in zip(*(wander(w, w.reset(5), steps=40, seed=1) for w in (asked, left_alone)), strict=True):
        assert same(a, b)
        assert b.final_obs is not None
    assert all(asked.state[name].equal(left_alone.state[name]) for name in asked.state)


def test_what_was_observed_does_not_change_afterwards() -> None:
    world = WorkflowWorld(WorkflowConfig(scenarios=50, held_out=0), n=16)
    obs = world.reset(0)
    copy = {name: value.clone() for name, value in obs.items()}
    wander(world, obs, steps=20, seed=0)
    assert all(obs[name].equal(copy[name]) for name in copy)


def test_every_executed_draft_is_a_valid_plan_and_every_episode_ends() -> None:
    config = WorkflowConfig(scenarios=100, held_out=0, limits=Limits(max_nodes=8, max_corrections=4))
    world = WorkflowWorld(config, n=64)
    obs, ends = world.reset(0), 0
    for step in wander(world, obs, steps=120, seed=0):
        assert not step.truncated.any()
        if step.final_obs is None:
            continue
        rows = step.terminated.nonzero()[:, 0]
        final = {name: value[rows] for name, value in step.final_obs.items()}
        texts = [world.scenarios.instructions[i] for i in final["instruction"].tolist()]
        assert len(world.rules.plans(final, texts)) == len(rows)
        assert (final["corrections"] <= 4).all()
        assert step.metrics["validity"][rows].eq(1).all()
        ends += len(rows)
    assert ends > 64 * 120 / (2 * 9 + 4) * 0.9


def test_rewards_of_an_episode_add_up_to_its_return() -> None:
    world = WorkflowWorld(WorkflowConfig(scenarios=100, held_out=0), n=32)
    total, config = torch.zeros(32), world.config
    for step in wander(world, world.reset(0), steps=60, seed=0):
        total = total + step.reward
        if step.final_obs is not None:
            m, rows = step.metrics, step.terminated
            paid = 10 * m["success"] + config.shaped_reward * m["subtasks"]
            paid = paid - config.beta * 100 * m["cost_usd"] - config.gamma_latency * m["latency_ms"] / 1000
            torch.testing.assert_close(total[rows], m["return"][rows], atol=1e-3, rtol=1e-4)
            torch.testing.assert_close(paid[rows], m["return"][rows], atol=1e-3, rtol=1e-4)
        total = torch.where(step.terminated, 0.0, total)


def test_shaping_adds_up_to_minus_the_first_potential() -> None:
    shaped = WorkflowWorld(
        WorkflowConfig(potential=3.0, discount=0.9, limits=CONFIG.limits), n=64, scenarios=small_office()
    )
    bare = WorkflowWorld(WorkflowConfig(limits=CONFIG.limits), n=64, scenarios=small_office())
    added, discount, seen = torch.zeros(64), torch.ones(64), 0
    steps = [wander(world, world.reset(3), steps=80, seed=4) for world in (shaped, bare)]
    for with_, without in zip(*steps, strict=True):
        added = added + discount * (with_.reward - without.reward)
        over = with_.terminated
        assert over.equal(without.terminated)
        assert (with_.reward - without.reward).abs().max() > 0
        torch.testing.assert_close(added[over], torch.zeros(int(over.sum())), atol=1e-4, rtol=0)  # it starts at 0
        added, discount = torch.where(over, 0.0, added), torch.where(over, 1.0, discount * 0.9)
        seen += int(over.sum())
    assert seen > 200


SHAPED = replace(CONFIG, potential=3.0, discount=0.9)


def test_the_potential_is_what_stands_of_the_best_plan_less_what_is_to_be_paid() -> None:
    world = made(scenarios(([A, B, C], [[], [0], [0, 1]])), SHAPED)
    assert world.potential(world.state).item() == 0
    planned = [
        (act(A), 1 / 3, 1, 1),  # a share, then cents and seconds that are planned
        (act(B, worker=1), 1 / 3, 6, 2),  # without what it needs; parallel to the first
        (act(C, 0, 1), 2 / 3, 7, 3),
    ]
    for node, share, cents, seconds in planned:
        world.apply(node, ALL_WELL)
        assert world.potential(world.state).item() == pytest.approx(3 * share - 0.1 * cents - 0.01 * seconds)
    world.apply(act(STOP), ALL_WELL)  # A is done, B fails: both are paid, and C, which needs B, is to come
    assert world.state["failed"].item() == 1
    assert world.potential(world.state).item() == pytest.approx(3 * 1 / 3 - 0.1 * 1 - 0.01 * 1)
    world.apply(act(correction=Correction.REPLAN), ALL_WELL)  # nothing is planned any more
    assert world.potential(world.state).item() == pytest.approx(3 * 1 / 3)


def test_its_change_is_added_to_the_reward_as_it_is() -> None:
    shaped, bare = (WorkflowWorld(config, n=64, scenarios=small_office()) for config in (SHAPED, CONFIG))
    obs, seen = shaped.reset(3), 0
    bare.reset(3)
    generator, choose = torch.Generator().manual_seed(4), random_choice(shaped.rules)
    for _ in range(60):
        action, before = choose(obs, generator), shaped.potential(shaped.state)
        with_, without = shaped.step(action), bare.step(action)
        after = torch.where(with_.terminated, 0.0, shaped.potential(shaped.state))
        torch.testing.assert_close(with_.reward - without.reward, 0.9 * after - before, atol=1e-4, rtol=0)
        obs, seen = with_.obs, seen + int(with_.terminated.sum())
    assert seen > 200


def test_who_chooses_a_costly_worker_learns_it_at_once() -> None:
    cheap, costly = (made(config=SHAPED).apply(act(A, worker=worker), ALL_WELL).reward.item() for worker in (0, 1))
    assert cheap == pytest.approx(0.9 * (3 / 2 - 0.1 * 1 - 0.01 * 1))
    assert costly == pytest.approx(0.9 * (3 / 2 - 0.1 * 5 - 0.01 * 2))


def test_the_best_sequence_is_the_best_with_shaping_too() -> None:
    """Every sequence of up to two nodes and a stop, each played out."""
    returns: dict[float, list[float]] = {}
    nodes = [
        (),
        *([node] for node in (act(A), act(B))),
        *product((act(A), act(B)), (act(A), act(B), act(A, 0), act(B, 0))),
    ]
    for weight in (0.0, 5.0):
        config = WorkflowConfig(potential=weight, discount=0.95, limits=Limits(max_nodes=2, max_corrections=0))
        for chosen in nodes[1:]:
            world = WorkflowWorld(config, n=1, scenarios=CHAIN)
            world.reset(0)
            world.tables.skill[:] = 1
            world.state = world._restart(world.state, torch.ones(1, dtype=torch.bool), quiet(1, 4))
            sequence = [{**node, "links": node["links"][:, :2]} for node in chosen]
            stop = act(STOP, nodes=2)
            total = 0.0
            for t, action in enumerate([*sequence, stop, stop]):
                step = world.apply(action, rng(LUCKY))
                total += 0.95**t * step.reward.item()
                if step.terminated.item():
                    break
            returns.setdefault(weight, []).append(total)
    assert returns[0.0] == pytest.approx(returns[5.0], abs=1e-5)
    assert max(returns[0.0]) > 8


# ── shifts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def office(shift: str) -> WorkflowWorld:
    world = WorkflowWorld(WorkflowConfig(scenarios=300, held_out=0, shift=shift), n=256)  # type: ignore[arg-type]
    world.reset(0)
    return world


def test_a_strong_worker_degrades_and_it_shows() -> None:
    before, after = office("none"), office("degraded")
    changed = (before.tables.skill != after.tables.skill).any(0)
    assert changed.sum() == 1
    worker = int(changed.int().argmax())
    assert worker == before.tables.strongest(before.config)
    seen = [world.observe()["success"][:, worker].mean() for world in (before, after)]
    assert seen[1] < 0.5 * seen[0]


def test_a_new_tool_appears_that_no_policy_could_choose_before() -> None:
    before, after = office("none"), office("new_tool")
    names = [w.name for w in before.rules.catalogue.workers]
    new_type, new_worker = before.rules.types - 1, names.index("speech-model")
    assert not before.observe()["offered"][:, new_type].any()
    assert not before.observe()["available"][:, new_worker].any()
    assert not before.rules.task_types(before.observe(), torch.full((256,), 5))[:, new_type].any()
    assert after.observe()["offered"][:, new_type].all()
    assert after.observe()["available"][:, new_worker].float().mean() > 0.9
    assert before.tables.skill.equal(after.tables.skill)
    assert (after.tables.gold == new_type).any()


def test_phrasings_change_the_words_alone() -> None:
    before, after = office("none"), office("phrasings")
    assert not set(before.scenarios.instructions) & set(after.scenarios.instructions)
    assert before.tables.skill.equal(after.tables.skill)


def test_at_most_one_worker_is_down_and_everything_can_be_done() -> None:
    world = office("none")
    available = world.observe()["available"][:, world.tables.exists]
    assert (~available).sum(1).max() == 1
    assert 0.3 < (~available).any(1).float().mean() < 0.5
    for step in wander(world, world.observe(), steps=20, seed=0):
        able = (world.rules.capable & step.obs["available"][:, None]).any(2)
        assert able[:, world.tables.offered].all()


def test_somebody_is_good_at_everything_and_some_are_worse_than_they_say() -> None:
    tables = office("none").tables
    known = tables.exists & (tables.rules.begin(1)["success"][0] > 0)
    assert (tables.skill[:, known].amax(1)[tables.offered] >= 0.95).all()
    advertised = tables.rules.begin(1)["success"].float()
    worse = (tables.skill < advertised - 0.1) & tables.rules.capable
    better = (tables.skill > advertised + 0.05) & tables.rules.capable
    assert worse.sum() > 8
    assert better.sum() > 3


def test_a_plan_longer_than_the_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 nodes"):
        WorkflowWorld(WorkflowConfig(limits=Limits(max_nodes=1)), n=1, scenarios=CHAIN)


def test_a_catalogue_without_workers_is_a_world_too() -> None:
    without_workers = Catalogue(task_types=CATALOGUE.task_types)
    world = WorkflowWorld(CONFIG, n=8, scenarios=from_examples([("x", [A, B], [[], [0]])], without_workers))
    steps = wander(world, world.reset(0), steps=60, seed=0)
    assert sum(step.metrics["success"][step.terminated].sum().item() for step in steps if step.metrics) > 0
