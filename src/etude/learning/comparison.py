"""A policy beside others from the same seeds: who takes part, how much better it is, and what that says in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from etude.learning.evaluate import Score, greedy, interval
from etude.learning.formats import percent, signed, whole
from etude.problems.base import Actor, Problem

POLICY, UNTRAINED, RANDOM = "policy", "untrained", "random"

METRICS = {
    "completion_rate": ("completion", "tasks completed of those that arrived"),
    "utilisation": ("utilisation", "agent-steps with a task in work"),
    "collaboration": ("collaboration", "share of possible pairs (in matched, of agents) that worked together"),
    "specialisation": ("specialisation", "how much the agent tells about its tasks’ type, some of it by chance"),
    "load_balance": ("load balance", "Jain’s index of completed tasks, 100 % when all agents carry the same"),
}
"""What is told of a Score beside its return: name, and what it means."""


def contenders(problem: Problem, policy: Any, *, seed: int = 0) -> dict[str, Actor]:
    """The policy first, then the problem's baselines, then a network of the same kind that has learned nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        untrained: Any = problem.policy().train(False)
    untrained.to(next(policy.parameters()).device)
    return {POLICY: greedy(policy), **problem.baselines(), UNTRAINED: greedy(untrained)}


def difference(a: Score, b: Score) -> tuple[float, float, float]:
    """Mean of a − b and its 95 % interval, paired by episode where both played the same ones."""
    mean = a.mean - b.mean
    if a.episodes == b.episodes:
        return mean, *interval(np.subtract(a.returns, b.returns))
    half = 1.96 * math.sqrt(a.std**2 / a.episodes + b.std**2 / b.episodes)
    return mean, mean - half, mean + half


def strongest(scores: Mapping[str, Score]) -> str | None:
    """The best of those the first is measured beside; chance only where there is nothing else."""
    others = list(scores)[1:]
    rivals = [name for name in others if name not in (RANDOM, UNTRAINED)] or others
    return max(rivals, key=lambda name: scores[name].mean, default=None)


def interpret(scores: Mapping[str, Score]) -> list[str]:
    """What a comparison shows, in sentences that follow from its numbers alone; the first entry is the policy."""
    rival = strongest(scores)
    if rival is None:
        return []
    policy = next(iter(scores.values()))
    mean, low, high = difference(policy, scores[rival])
    verdict = "better than" if low > 0 else "worse than" if high < 0 else "not distinguishable from"
    sentences = [
        f"The policy returns {whole(policy.mean)} an episode, {verdict} {rival} with {whole(scores[rival].mean)}: "
        f"from the same seeds the difference is {signed(mean)} (95 % interval {signed(low)} to {signed(high)})."
    ]
    chance = scores.get(RANDOM)
    if chance is not None and chance is not policy:
        sentences.append(_beside_chance(policy, chance))
    return sentences


def _beside_chance(policy: Score, chance: Score) -> str:
    """Differences below five points are left out: they may be scatter."""
    shared = [key for key in METRICS if key in policy.metrics and key in chance.metrics]
    moved = [key for key in shared if abs(policy.metrics[key] - chance.metrics[key]) >= 0.05]
    parts = [f"{METRICS[k][0]} {percent(policy.metrics[k])} (random {percent(chance.metrics[k])})" for k in moved]
    ratio = f"{policy.mean / chance.mean:.1f} times what random choice returns"
    if chance.mean <= 0:  # a ratio of a loss says nothing
        ratio = f"{signed(policy.mean - chance.mean)} beside random choice"
    return f"That is {ratio}" + (f"; what differs: {', '.join(parts)}." if parts else ".")
