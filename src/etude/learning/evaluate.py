"""Evaluates a policy on whole episodes with their own seeds: means with intervals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator

from etude.evidence.intervals import estimate_mean
from etude.learning.compute import one_thread
from etude.problems.base import Actor, Policy, Problem

EVALUATION_SEED = 1_000_003
"""Seed of evaluations: far from any training seed, and the same for all compared policies."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """The outcome of `episodes` whole episodes. Means are over episodes; the interval is Student's 95 % interval."""

    episodes: int
    mean: float
    std: float
    low: float
    high: float
    metrics: dict[str, float]  # the problem's own, one mean each
    returns: list[float]  # of every episode, in the order of environments
    details: dict[str, list[Any]] = field(default_factory=dict)  # means of metrics that are arrays, as nested lists
    stream: str = ""  # which episodes these are: only scores of the same stream can be paired

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
    """Play each of `episodes` environments once, all at the same time, on one CPU thread: the tensors are small."""
    with one_thread(only=True):
        results = _play(problem, actor, episodes=episodes, seed=seed, device=device)
        results.pop("whole", None)
        returns = results.pop("return").double().cpu().numpy()
        found = estimate_mean(returns)
        return Score(
            episodes=len(returns),
            mean=found.mean,
            std=float(returns.std(ddof=1)) if len(returns) > 1 else 0.0,
            low=found.low,
            high=found.high,
            metrics={name: float(value.double().mean()) for name, value in results.items() if value.dim() == 1},
            returns=returns.tolist(),
            details={name: value.double().mean(0).tolist() for name, value in results.items() if value.dim() > 1},
            stream=f"seed {seed} on {torch.device(device).type}",  # devices have their own numbers
        )


def _play(
    problem: Problem, actor: Actor, *, episodes: int, seed: int, device: torch.device | str
) -> dict[str, torch.Tensor]:
    """The metrics of each environment's first episode."""
    world = problem.world(episodes, device=device)
    generator = Generator(world.device).manual_seed(seed + 500_009)  # not the numbers that the world samples
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


def greedy(policy: Policy) -> Actor:
    """The policy's most probable action."""
    return lambda obs, generator: policy.choose(obs, greedy=True)


def sampled(policy: Policy) -> Actor:
    """Actions sampled as in training."""
    return lambda obs, generator: policy.choose(obs, generator=generator)
