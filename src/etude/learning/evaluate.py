"""How good a policy is: whole episodes on seeds of their own, means with intervals, and what the agents did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit  # scipy.stats has it too, and takes most of a second to import
from torch import Generator

from etude.problems.base import Action, Actor, Obs, Policy, Problem

EVALUATION_SEED = 1_000_003
"""Far from any training seed, and the same for all that are compared."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """What `episodes` whole episodes gave. Means are over episodes; the interval is a 95 % t-interval."""

    episodes: int
    mean: float
    std: float
    low: float
    high: float
    metrics: dict[str, float]  # completion_rate, utilisation, …: one mean each
    returns: list[float]  # of every episode, in the order of seeds: pairs with another policy's
    taken: list[list[float]] | None = None  # tasks an episode by agent and type

    def to_json(self) -> dict[str, Any]:
        return {
            "episodes": self.episodes,
            "mean_return": self.mean,
            "return_std": self.std,
            "return_ci95": [self.low, self.high],
            **self.metrics,
        }


@torch.no_grad()
def evaluate(
    problem: Problem,
    actor: Actor,
    *,
    episodes: int,
    seed: int = EVALUATION_SEED,
    device: torch.device | str = "cpu",
) -> Score:
    """Plays each of `episodes` environments once, all at the same time, on one CPU thread: the tensors are small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _score(_play(problem, actor, episodes=episodes, seed=seed, device=device))
    finally:
        torch.set_num_threads(threads)


def _play(
    problem: Problem, actor: Actor, *, episodes: int, seed: int, device: torch.device | str
) -> dict[str, torch.Tensor]:
    """The metrics of each environment's first episode."""
    world = problem.world(episodes, device=device)
    generator = Generator(world.device).manual_seed(seed + 500_009)  # not the numbers the world draws
    obs = world.reset(seed)
    waiting = torch.ones(episodes, dtype=torch.bool, device=world.device)
    results: dict[str, torch.Tensor] = {}
    while waiting.any():
        step = world.step(actor(obs, generator))
        obs = step.obs
        if step.final_obs is None:
            continue
        first = waiting & (step.terminated | step.truncated)  # an environment counts with its first episode
        for name, value in step.metrics.items():
            results.setdefault(name, torch.zeros_like(value))[first] = value[first]
        waiting &= ~first
    return results


def _score(results: dict[str, torch.Tensor]) -> Score:
    returns = results.pop("return").double().cpu().numpy()
    taken = results.pop("taken", None)
    low, high = interval(returns)
    return Score(
        episodes=len(returns),
        mean=float(returns.mean()),
        std=float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
        low=low,
        high=high,
        metrics={name: float(value.double().mean()) for name, value in results.items() if name != "whole"},
        returns=returns.tolist(),
        taken=None if taken is None else taken.double().mean(0).tolist(),
    )


def interval(x: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean; a single number has none and gives itself."""
    if len(x) < 2 or x.std() == 0:
        return float(x.mean()), float(x.mean())
    half = stdtrit(len(x) - 1, (1 + confidence) / 2) * x.std(ddof=1) / len(x) ** 0.5
    return float(x.mean() - half), float(x.mean() + half)


def greedy(policy: Policy) -> Actor:
    """The policy's most probable action."""

    def act(obs: Obs, generator: Generator) -> Action:
        return policy.choose(obs, greedy=True)

    return act


def sampled(policy: Policy) -> Actor:
    """Actions drawn as in training."""

    def act(obs: Obs, generator: Generator) -> Action:
        return policy.choose(obs, generator=generator)

    return act
