"""Compares a policy with others: which ones, the difference with its interval, and a summary in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from etude.contracts.formats import fixed, percent, signed
from etude.evidence.intervals import estimate_difference
from etude.learning.evaluate import Score, greedy
from etude.problems.base import Actor, Problem

POLICY, UNTRAINED, RANDOM, ORACLE = "policy", "untrained", "random", "oracle"
NO_RIVALS = (RANDOM, UNTRAINED, ORACLE)
"""Not the policies to beat: random choice is too weak, and an oracle knows what no policy can."""


def contenders(problem: Problem, policy: Any, *, seed: int = 0) -> dict[str, Actor]:
    """The policy first, then the problem's baselines, then an untrained network of the same kind."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        untrained: Any = problem.policy().train(False)
    untrained.to(next(policy.parameters()).device)
    return {POLICY: greedy(policy), **problem.baselines(), UNTRAINED: greedy(untrained)}


def difference(a: Score, b: Score) -> tuple[float, float, float]:
    """Mean of a − b and its 95 % interval, paired by episode where both played the same ones."""
    found = estimate_difference(a.returns, b.returns, paired=are_paired(a, b))
    return found.mean, found.low, found.high


def are_paired(a: Score, b: Score) -> bool:
    """Whether both scores are of the same episodes. Seeds give other episodes on another kind of device."""
    return a.episodes == b.episodes and a.stream == b.stream


def strongest(scores: Mapping[str, Score]) -> str | None:
    """The best of the policies to compare the first with; random choice or an oracle only where there is no other."""
    others = list(scores)[1:]
    rivals = [name for name in others if name not in NO_RIVALS] or others
    return max(rivals, key=lambda name: scores[name].mean, default=None)


def interpret(scores: Mapping[str, Score], *, shares: Mapping[str, tuple[str, str]], digits: int = 0) -> list[str]:
    """What a comparison shows, in sentences that follow from its numbers alone; the first entry is the policy.

    `shares` are the problem's metrics between 0 and 1, each with its label and what it means; `digits` are the decimal
    places of a return.
    """
    rival = strongest(scores)
    if rival is None:
        return []
    policy = next(iter(scores.values()))
    mean, low, high = difference(policy, scores[rival])
    verdict = "better than" if low > 0 else "worse than" if high < 0 else "not distinguishable from"
    own, its = fixed(policy.mean, digits), fixed(scores[rival].mean, digits)
    gain, least, most = (signed(x, digits) for x in (mean, low, high))
    played = "over the same episodes" if are_paired(policy, scores[rival]) else "over different episodes"
    sentences = [
        f"The policy returns {own} per episode, {verdict} {rival} with {its}: "
        f"{played} the difference is {gain} (95 % interval {least} to {most})."
    ]
    chance, oracle = scores.get(RANDOM), scores.get(ORACLE)
    if chance is not None and chance is not policy:
        sentences.append(_compared_with_chance(policy, chance, shares, digits))
    if oracle is not None and rival != ORACLE and oracle.mean > 0:
        sentences.append(f"It is {percent(policy.mean / oracle.mean)} of what an oracle that knows everything returns.")
    return sentences


def _compared_with_chance(policy: Score, chance: Score, shares: Mapping[str, tuple[str, str]], digits: int) -> str:
    """Differences below five points are left out: they may be chance."""
    shared = [key for key in shares if key in policy.metrics and key in chance.metrics]
    moved = [key for key in shared if abs(policy.metrics[key] - chance.metrics[key]) >= 0.05]
    parts = [f"{shares[k][0]} {percent(policy.metrics[k])} (random {percent(chance.metrics[k])})" for k in moved]
    gain = f"{signed(policy.mean - chance.mean, digits)} compared with random choice"
    if chance.mean > abs(policy.mean) / 100:  # a ratio to a loss, or to almost nothing, says nothing
        gain = f"{policy.mean / chance.mean:.1f} times what random choice returns"
    return f"That is {gain}" + (f"; what differs: {', '.join(parts)}." if parts else ".")
