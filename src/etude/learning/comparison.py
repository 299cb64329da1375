"""A policy beside others from the same seeds: who takes part, how much better it is, and what that says in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from etude.learning.evaluate import Score, greedy, interval
from etude.learning.formats import fixed, percent, signed
from etude.problems.base import Actor, Problem

POLICY, UNTRAINED, RANDOM, ORACLE = "policy", "untrained", "random", "oracle"
NO_RIVALS = (RANDOM, UNTRAINED, ORACLE)
"""Chance is too little to be measured by; an oracle knows what no policy can."""

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
    """The best of those the first is measured beside; chance, or what knows all, only where there is nothing else."""
    others = list(scores)[1:]
    rivals = [name for name in others if name not in NO_RIVALS] or others
    return max(rivals, key=lambda name: scores[name].mean, default=None)


def interpret(
    scores: Mapping[str, Score], *, shares: Mapping[str, tuple[str, str]] = METRICS, digits: int = 0
) -> list[str]:
    """What a comparison shows, in sentences that follow from its numbers alone; the first entry is the policy.

    `shares` are the metrics between 0 and 1 to speak of, `digits` those of a return after the point.
    """
    rival = strongest(scores)
    if rival is None:
        return []
    policy = next(iter(scores.values()))
    mean, low, high = difference(policy, scores[rival])
    verdict = "better than" if low > 0 else "worse than" if high < 0 else "not distinguishable from"
    own, its = fixed(policy.mean, digits), fixed(scores[rival].mean, digits)
    gain, least, most = (signed(x, digits) for x in (mean, low, high))
    sentences = [
        f"The policy returns {own} an episode, {verdict} {rival} with {its}: "
        f"from the same seeds the difference is {gain} (95 % interval {least} to {most})."
    ]
    chance, oracle = scores.get(RANDOM), scores.get(ORACLE)
    if chance is not None and chance is not policy:
        sentences.append(_beside_chance(policy, chance, shares, digits))
    if oracle is not None and rival != ORACLE and oracle.mean > 0:
        sentences.append(f"It is {percent(policy.mean / oracle.mean)} of what an oracle that knows everything returns.")
    return sentences


def _beside_chance(policy: Score, chance: Score, shares: Mapping[str, tuple[str, str]], digits: int) -> str:
    """Differences below five points are left out: they may be scatter."""
    shared = [key for key in shares if key in policy.metrics and key in chance.metrics]
    moved = [key for key in shared if abs(policy.metrics[key] - chance.metrics[key]) >= 0.05]
    parts = [f"{shares[k][0]} {percent(policy.metrics[k])} (random {percent(chance.metrics[k])})" for k in moved]
    gain = f"{signed(policy.mean - chance.mean, digits)} beside random choice"
    if chance.mean > abs(policy.mean) / 100:  # of a loss, or of next to nothing, a ratio says nothing
        gain = f"{policy.mean / chance.mean:.1f} times what random choice returns"
    return f"That is {gain}" + (f"; what differs: {', '.join(parts)}." if parts else ".")
