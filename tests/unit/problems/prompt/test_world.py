from __future__ import annotations

import torch
from torch import Generator

from etude.problems.base import Action
from etude.problems.prompt.baselines import baselines, random_choice
from etude.problems.prompt.growth import OVER
from etude.problems.prompt.states import STOPPING
from etude.problems.prompt.world import ACTION, PromptWorld
from tests.unit.problems.prompt.tiny import states


def random_walk(world: PromptWorld, steps: int, seed: int = 0) -> list[torch.Tensor]:
    generator, rewards = Generator().manual_seed(seed), []
    for _ in range(steps):
        rewards.append(world.step(random_choice(world.observe(), generator)).reward)
    return rewards


def test_different_environments_begin_with_different_prompts() -> None:
    world = PromptWorld(states(), n=24)
    world.reset(3)
    assert sorted(world.row.tolist()) == states().start.tolist()


def test_a_reset_with_the_same_seed_gives_the_same_episodes() -> None:
    one, two = (PromptWorld(states(), n=7, noise=0.1) for _ in range(2))
    one.reset(5)
    two.reset(5)
    assert all(torch.equal(a, b) for a, b in zip(random_walk(one, 12), random_walk(two, 12), strict=True))


def test_a_restored_world_continues_exactly() -> None:
    world, other = (PromptWorld(states(), n=7, noise=0.1) for _ in range(2))
    world.reset(1)
    random_walk(world, 5)
    other.load_state_dict(world.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(random_walk(world, 9), random_walk(other, 9), strict=True))


def test_stop_ends_an_episode_and_pays_nothing() -> None:
    world = PromptWorld(states(), n=6, noise=1.0)
    world.reset(0)
    step = world.step({ACTION: torch.full((6,), STOPPING)})
    assert bool(step.terminated.all())
    assert not bool(step.truncated.any())
    assert step.reward.tolist() == [0.0] * 6
    assert step.metrics["return"].tolist() == [0.0] * 6


def test_the_return_is_the_sum_of_expected_rewards() -> None:
    found = states()
    world = PromptWorld(found, n=24)
    world.reset(0)
    row, generator, total = world.row.clone(), Generator().manual_seed(2), torch.zeros(24)
    waiting = torch.ones(24, dtype=torch.bool)
    while waiting.any():
        action: Action = random_choice(world.observe(), generator)
        total += torch.where(waiting, found.reward[row, action[ACTION]], 0.0)
        row = found.next[row, action[ACTION]]
        step = world.step(action)
        ended = waiting & step.terminated
        assert torch.allclose(step.metrics["return"][ended], total[ended])
        assert torch.equal(ended, waiting & (row == OVER))
        waiting &= ~step.terminated
        row = world.row.clone()


def test_no_baseline_takes_what_is_masked() -> None:
    for actor in baselines().values():
        world = PromptWorld(states(), n=24)
        obs, generator = world.reset(0), Generator().manual_seed(0)
        for _ in range(8):
            action = actor(obs, generator)
            assert bool(obs["legal"].gather(1, action[ACTION][:, None]).all())
            obs = world.step(action).obs
