"""Evaluation: every environment counts once, on seeds of its own, with an interval one can check by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from etude.learning.evaluate import EVALUATION_SEED, evaluate, greedy, sampled
from etude.problems.allocation.network import NetworkConfig
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.allocation.world import AllocationConfig
from etude.problems.base import Action, Actor, Obs, Transition


class CountingWorld:
    """Environment i ends its k-th episode after i + 1 more steps; the episode's return is 100·k + i."""

    def __init__(self, n: int) -> None:
        self.n, self.device = n, torch.device("cpu")

    def reset(self, seed: int) -> Obs:
        self.time = torch.zeros(self.n)
        self.episode = torch.zeros(self.n)
        return self.observe()

    def observe(self) -> Obs:
        return {"time": self.time.clone()}

    def step(self, action: Action) -> Transition:
        index = torch.arange(self.n)
        self.time += 1
        over = self.time == index + 1
        metrics = {
            "return": 100 * self.episode + index,
            "whole": over,
            "bonus": index * 0.5,
            "parts": torch.stack([index, index + 1], 1),
        }
        self.time[over] = 0
        self.episode[over] += 1
        ended = over.any()
        return Transition(
            obs=self.observe(),
            reward=torch.zeros(self.n),
            terminated=over & (index % 2 == 0),
            truncated=over & (index % 2 == 1),
            final_obs=self.observe() if ended else None,
            metrics=metrics if ended else {},
        )

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class CountingProblem:
    name: str = "counting"

    @property
    def size(self) -> Mapping[str, int]:
        return {}

    def world(self, n: int, *, device: torch.device | str, phases: int = 1) -> CountingWorld:
        return CountingWorld(n)

    def policy(self) -> torch.nn.Module:
        raise AssertionError

    def baselines(self) -> Mapping[str, Actor]:
        return {}

    def resized(self, size: Mapping[str, int]) -> CountingProblem:
        return self


def idle(obs: Obs, generator: Generator) -> Action:
    return {}


def test_every_environment_counts_with_its_first_episode_only() -> None:
    score = evaluate(CountingProblem(), idle, episodes=4)
    assert score.returns == [0, 1, 2, 3]
    assert (score.episodes, score.mean) == (4, 1.5)
    assert score.std == pytest.approx(np.std([0, 1, 2, 3], ddof=1))
    assert score.metrics == {"bonus": 0.75}
    assert score.details == {"parts": [1.5, 2.5]}


def test_a_single_episode_has_no_spread() -> None:
    score = evaluate(CountingProblem(), idle, episodes=1)
    assert (score.mean, score.std, score.low, score.high) == (0, 0, 0, 0)


def test_json_says_what_was_measured() -> None:
    result = evaluate(CountingProblem(), idle, episodes=4).to_json()
    assert result["mean_return"] == 1.5
    assert result["return_ci95"][0] < 1.5 < result["return_ci95"][1]
    assert (result["episodes"], result["bonus"]) == (4, 0.75)


SMALL = AllocationProblem(config=AllocationConfig(horizon=20), network=NetworkConfig(hidden=(16,)))


def policy(problem: AllocationProblem = SMALL) -> Any:
    torch.manual_seed(0)
    return problem.policy().train(False)


def test_a_score_names_its_episodes() -> None:
    one, same, other = (evaluate(CountingProblem(), idle, episodes=2, seed=seed).stream for seed in (1, 1, 2))
    assert one == same == "seed 1 on cpu"
    assert one != other


@pytest.mark.parametrize("actor", [greedy, sampled])
def test_the_same_seed_gives_the_same_score_whatever_the_global_random_state(actor: Any) -> None:
    net = policy()
    scores = []
    for state in (1, 2):
        torch.manual_seed(state)
        scores.append(evaluate(SMALL, actor(net), episodes=8, seed=5))
        torch_state = torch.get_rng_state()
        assert torch.equal(torch_state, torch.manual_seed(state).get_state())
    assert scores[0] == scores[1]
    assert evaluate(SMALL, actor(net), episodes=8, seed=6) != scores[0]


def test_greedy_ignores_the_generator_and_sampled_follows_it() -> None:
    obs = SMALL.world(4, device="cpu").reset(0)

    def chosen(actor: Actor, seed: int) -> Tensor:
        return torch.stack(list(actor(obs, Generator().manual_seed(seed)).values()))

    net = policy()
    assert torch.equal(chosen(greedy(net), 1), chosen(greedy(net), 2))
    assert torch.equal(chosen(sampled(net), 1), chosen(sampled(net), 1))
    assert not torch.equal(chosen(sampled(net), 1), chosen(sampled(net), 2))


def test_evaluation_does_not_touch_the_weights() -> None:
    net = policy()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    evaluate(SMALL, greedy(net), episodes=4)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_scripted_policies_score_as_the_document_says() -> None:
    """All ones 1517 ± 73, ones but never collaborating 317, uniform random 411 ± 53, completion about .98."""
    problem = replace(SMALL, config=AllocationConfig())
    scores = {name: evaluate(problem, actor, episodes=200) for name, actor in problem.baselines().items()}
    assert scores["scripted"].mean == pytest.approx(1517, abs=20)
    assert scores["scripted"].std == pytest.approx(73, abs=15)
    assert scores["never collaborate"].mean == pytest.approx(317, abs=20)
    assert scores["random"].mean == pytest.approx(411, abs=15)
    assert scores["scripted"].metrics["completion_rate"] == pytest.approx(0.98, abs=0.01)
    assert scores["scripted"].metrics["collaboration"] == 1


def test_evaluation_episodes_are_not_training_episodes() -> None:
    assert evaluate(SMALL, greedy(policy()), episodes=4) == evaluate(
        SMALL, greedy(policy()), episodes=4, seed=EVALUATION_SEED
    )
    first = SMALL.world(4, device="cpu").reset(EVALUATION_SEED)["agents"]
    assert not torch.equal(first, SMALL.world(4, device="cpu").reset(0)["agents"])
