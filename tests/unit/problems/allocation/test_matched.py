"""`matched`: one plain step worked out by hand from its rules, and laws that hold whatever the agents do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator, Tensor

from etude.problems.allocation import matched
from etude.problems.allocation.baselines import greedy_match, optimal_match, scheduler
from etude.problems.allocation.matched import HANDS, MAX_DEADLINE_STEPS, MISSED, WORK, MatchedWorld
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.allocation.world import AllocationConfig
from etude.problems.base import Action

AGENTS, SLOTS = 5, 12
CONFIG = AllocationConfig(variant="matched", agents=AGENTS, slots=SLOTS, horizon=60)


def world(n: int = 6, seed: int = 0, config: AllocationConfig = CONFIG) -> MatchedWorld:
    made = MatchedWorld(config, n=n, dtype=torch.float64)
    made.reset(seed)
    return made


def legal_action(world: MatchedWorld, generator: Generator) -> Action:
    """Any legal choice, conflicts between agents included."""
    legal = world.observe()["legal"]
    u = torch.rand(legal.shape, generator=generator)
    share, willing = torch.rand((2, *legal.shape[:2]), generator=generator)
    return {"accept": (u * legal).argmax(2), "allocate": share, "collaborate": willing}


def waiting(n: int = 1, agents: int = AGENTS) -> Action:
    still = torch.zeros(n, agents)
    return {"accept": torch.full((n, agents), SLOTS), "allocate": still + 1, "collaborate": still}


def never(*shape: int) -> Tensor:
    """Random numbers with which progress is exactly the expected one and no task arrives."""
    return torch.full(shape, 0.5, dtype=torch.float64) if len(shape) == 3 else torch.ones(shape, dtype=torch.float64)


def queue(world: MatchedWorld, *tasks: tuple[float, float, float, float, int]) -> None:
    """Only these tasks wait: work, priority, deadline, born, type."""
    world.state["queue"].zero_()
    world.state["queue"][0, : len(tasks)] = torch.tensor(tasks, dtype=torch.float64)


def single() -> MatchedWorld:
    made = world(n=1)
    made.state["expertise"][0] = torch.linspace(0.2, 1.0, AGENTS)[:, None]  # .2 .4 .6 .8 1
    made.state["capacity"][:] = 0.5
    return made


def test_a_task_is_taken_worked_on_and_completed_as_the_rules_say() -> None:
    w = single()
    queue(w, (0.9, 0.5, 20.0, 0.0, 2))
    action = waiting()
    action["accept"][0, 4] = 0  # expertise 1, capacity .5: .9 of work takes two steps
    first = w.apply(action, never)
    assert first.reward.sum().item() == pytest.approx(1.0 * 0.5)
    assert w.state["held"][0, 4, 0, 0].item() == pytest.approx(0.4)
    second = w.apply(waiting(), never)
    ahead = (20 - 1) / 20
    assert second.reward.sum().item() == pytest.approx(10 * 0.5 * 1.0 * (1 + ahead))
    assert w.state["completed"][0].tolist() == [0, 0, 0, 0, 1]
    assert not w.state["held"].any()


def test_credit_is_what_an_agent_earned_beyond_the_average_one_and_the_rest_is_shared() -> None:
    w = single()  # on average, expertise .6
    queue(w, (9.0, 1.0, 40.0, 0.0, 1))
    action = waiting()
    action["accept"][0, 0] = 0  # the worst takes it: .2 · 1
    reward = w.apply(action, never).reward[0]
    assert reward.tolist() == pytest.approx([0.2 - 0.6 + 0.6 / 5, *[0.6 / 5] * 4])


def test_of_several_who_name_a_slot_the_first_gets_it() -> None:
    w = single()
    queue(w, (9.0, 1.0, 40.0, 0.0, 1))
    action = waiting()
    action["accept"][0, 2:] = 0
    w.apply(action, never)
    assert (w.state["held"][0, :, :, 0] > 0).sum(1).tolist() == [0, 0, 1, 0, 0]


def test_capacity_is_shared_by_the_tasks_in_hand_and_allocate_favours_the_oldest() -> None:
    w = single()
    queue(w, (9.0, 1.0, 40.0, 0.0, 1), (9.0, 1.0, 40.0, 0.0, 1))
    for slot in (0, 1):
        action = waiting()
        action["accept"][0, 4] = slot
        action["allocate"][:] = 0.6
        w.apply(action, never)
    # Alone the first gets all: .5. Then .6 + .4/2 of it against .4/2.
    assert w.state["held"][0, 4, :2, 0].tolist() == pytest.approx([9 - 0.5 - 0.4, 9 - 0.1])


def test_a_pair_gives_a_tenth_of_its_capacity_and_multiplies_its_progress() -> None:
    w = single()
    queue(w, (9.0, 1.0, 40.0, 0.0, 1))
    w.state["matrix"][0] = 0.4
    w.state["matrix"][0, 4, 1] = w.state["matrix"][0, 1, 4] = 0.9
    action = waiting()
    action["accept"][0, 4] = 0
    action["collaborate"][:] = 1
    w.apply(action, never)
    assert w.state["held"][0, 4, 0, 0].item() == pytest.approx(9 - 0.5 * 0.9 * (0.7 + 0.8 * 0.9))
    assert w.state["matrix"][0, 1, 4].item() == pytest.approx(0.9 * 1.03)  # the strongest pair grows with use
    assert w.state["matrix"][0, 1, 2].item() == pytest.approx(0.4 * 0.997)  # the others decay without


def test_a_missed_deadline_costs_five_times_the_priority_wherever_the_task_is() -> None:
    w = single()
    queue(w, (90.0, 0.5, 1.0, 0.0, 1), (90.0, 0.25, 1.0, 0.0, 1))
    action = waiting()
    action["accept"][0, 4] = 0
    w.apply(action, never)
    reward = w.apply(waiting(), never).reward[0]
    assert reward.sum().item() == pytest.approx(-MISSED * 0.75)
    assert reward[4] < reward[0]  # who took it answers for it
    assert not w.state["held"].any()
    assert not w.state["queue"].any()
    assert w.state["missed"].item() == 2


def test_tasks_that_find_the_queue_full_are_lost() -> None:
    w = single()
    queue(w, *[(90.0, 0.5, 50.0, 0.0, 1)] * SLOTS)
    most = math.ceil(2 * matched.BURST * AGENTS)
    reward = w.apply(waiting(), lambda *shape: torch.zeros(shape, dtype=torch.float64)).reward
    assert reward.sum().item() == pytest.approx(-MISSED * 0.1 * most)  # the least priority there is


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_chosen_the_laws_hold(seed: int) -> None:
    w, generator = world(n=16, seed=seed), Generator().manual_seed(seed)
    arrived = w.state["arrived"].clone()
    for _ in range(CONFIG.horizon - 1):
        before = w.observe()
        w.apply(legal_action(w, generator), w._uniform)
        s, after = w.state, w.observe()
        held, queued = (s["held"][..., 0] > 0).sum((1, 2)), (s["queue"][..., 0] > 0).sum(1)
        # Every task that ever came waits, is held, was completed or was missed.
        assert (queued + held + s["completed"].sum(1) + s["missed"] == s["arrived"]).all()
        assert (s["arrived"] >= arrived).all()
        arrived = s["arrived"].clone()
        assert ((s["held"][..., 0] > 0).sum(2) <= HANDS).all()
        # Hands are filled from the front, and the matrix stays symmetric and bounded.
        there = (s["held"][..., 0] > 0).int()
        assert (there[..., 1:] <= there[..., :-1]).all()
        assert torch.equal(s["matrix"], s["matrix"].mT)
        assert ((s["matrix"] >= 0) & (s["matrix"] <= 1)).all()
        assert after["legal"][..., -1].all()
        assert not (after["legal"][..., :-1] & (after["tasks"][..., 0] == 0)[:, None]).any()
        assert before["legal"].shape == (16, AGENTS, SLOTS + 1)
        assert all(bool(value.isfinite().all()) for value in after.values())


def test_illegal_choices_are_waits() -> None:
    w, other = world(seed=3), world(seed=3)
    empty = ~w.observe()["legal"][:, 0, :-1]
    action = waiting(6)
    action["accept"][:, 0] = empty.int().argmax(1)
    assert empty.any(1).all()
    moved, still = w.step(action), other.step(waiting(6))
    assert torch.equal(moved.reward, still.reward)


def test_the_same_seed_gives_the_same_episode_and_state_continues_bit_for_bit() -> None:
    one, two = world(seed=5), world(seed=5)
    generator = Generator().manual_seed(0)
    for _ in range(20):
        action = legal_action(one, generator)
        assert torch.equal(one.step(action).reward, two.step(action).reward)
    later = MatchedWorld(CONFIG, n=6, dtype=torch.float64)
    later.load_state_dict(one.state_dict())
    action = legal_action(one, generator)
    assert torch.equal(one.step(action).reward, later.step(action).reward)
    assert not torch.equal(world(seed=6).observe()["agents"], world(seed=5).observe()["agents"])


def test_arrivals_come_in_bursts() -> None:
    w = MatchedWorld(AllocationConfig(variant="matched", agents=8, slots=256), n=64)
    w.reset(0)
    counts = []
    for _ in range(150):
        before = w.state["arrived"].clone()
        w.step({"accept": torch.full((64, 8), 256), "allocate": torch.ones(64, 8), "collaborate": torch.zeros(64, 8)})
        counts.append(w.state["arrived"] - before)
    arrivals = torch.stack(counts)
    assert arrivals.var() > 1.5 * arrivals.mean()  # even arrivals have a variance below their mean
    share = matched.TO_BURST / (matched.TO_BURST + matched.TO_CALM)
    expected = 8 * (matched.CALM * (1 - share) + matched.BURST * share)
    assert float(arrivals.mean()) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("match", [greedy_match, optimal_match])
def test_schedulers_choose_only_what_is_legal_and_no_slot_twice(match: object) -> None:
    w, act = world(n=8, seed=1), scheduler(match)  # type: ignore[arg-type]
    for _ in range(30):
        obs = w.observe()
        action = act(obs, Generator())
        assert obs["legal"].gather(2, action["accept"][..., None]).all()
        for row in action["accept"].tolist():
            taken = [slot for slot in row if slot < SLOTS]
            assert len(taken) == len(set(taken))
        w.step(action)


def test_an_assignment_is_never_worth_less_than_a_greedy_one() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        value = torch.rand(6, 9, generator=generator, dtype=torch.float64).numpy()
        best, greedily = (value[match(value)].sum() for match in (optimal_match, greedy_match))
        assert best >= greedily - 1e-12


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("scale", [1.0, 1e4, math.inf])
def test_the_network_chooses_only_what_is_legal_and_no_slot_twice(greedy: bool, scale: float) -> None:
    problem = AllocationProblem(config=CONFIG)
    torch.manual_seed(0)
    policy = problem.policy().train(False)
    with torch.no_grad():
        for parameter in policy.parameters():  # hostile weights: huge, or so large that outputs overflow
            parameter.mul_(1e30 if math.isinf(scale) else scale)
    w = problem.world(8, device="cpu")
    obs, generator = w.reset(0), Generator().manual_seed(0)
    for _ in range(15):
        action = policy.choose(obs, greedy=greedy, generator=generator)
        assert obs["legal"].gather(2, action["accept"][..., None]).all()
        for row in action["accept"].tolist():
            taken = [slot for slot in row if slot < SLOTS]
            assert len(taken) == len(set(taken))
        obs = w.step(action).obs


def test_features_are_scaled_to_about_one() -> None:
    w, generator = world(n=32), Generator().manual_seed(0)
    for _ in range(40):
        w.apply(legal_action(w, generator), w._uniform)
    obs = w.observe()
    assert float(obs["tasks"].abs().max()) <= 1.01
    assert float(obs["agents"].abs().max()) <= HANDS
    assert WORK / MAX_DEADLINE_STEPS < 1
