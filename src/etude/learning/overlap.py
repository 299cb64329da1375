"""Whether logs can teach a policy: were the actions sampled with the logged propensities, and do they cover it?

Under true propensities μ the mean of π(a|s)/μ(a|s) over logged decisions is at most 1, whatever the policy π. It is
computed for three: a uniform policy, the policy to train, and one fitted to the logged actions. A mean above 1 by more
than chance shows that the propensities belong to something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Generator

from etude.contracts.errors import DataError
from etude.evidence.intervals import estimate_mean
from etude.evidence.overlap import effective_sample_size
from etude.learning.compute import descend
from etude.learning.logged import Logged, Shards, batches, evaluated
from etude.problems.base import Policy

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class OverlapConfig:
    """Settings of the check of logs before a policy learns from them."""

    decisions: Annotated[int, Ge(2)] = 40_000
    """Approximate maximum number of decisions to check; that propensities are probabilities is checked for all."""
    minibatch: Annotated[int, Ge(2)] = 1024
    """Decisions evaluated at once, and per step of fitting."""
    fit_steps: Annotated[int, Ge(1)] = 60
    """Gradient steps to fit a copy of the policy to the logged actions."""
    lr: Annotated[float, Gt(0)] = 1e-3
    """Step size of the fit."""
    truncation: Annotated[float, Gt(1)] = 20.0
    """Ratios above this count as this: the mean stays at most 1 and varies less."""
    deviations: Annotated[float, Gt(0)] = 4.0
    """Standard errors by which a mean ratio may be above 1."""
    tolerance: Annotated[float, Ge(0)] = 0.03
    """Additional distance from 1: probabilities are rounded, networks run on other machines."""
    min_correlation: Annotated[float, Ge(0), Le(1)] = 0.1
    """Minimum correlation between the logarithms of the propensities and of the fitted probabilities."""
    min_ess: Annotated[float, Ge(0), Le(1)] = 0.03
    """Minimum effective sample size under the policy to train, as a share of the logged decisions."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Result of the check. Means are of truncated ratios to the logged propensities."""

    decisions: int  # checked
    ess: float  # effective share of them under the policy to train
    policy: float  # mean ratio of that policy
    uniform: float  # of a uniform policy; nan where the number of eligible actions is unknown
    behaviour: float  # of a policy fitted to other logged decisions
    correlation: float  # of its log-probabilities with the logged ones; nan where either does not vary


def check_overlap(policy: Policy, shards: Shards, config: OverlapConfig, *, seed: int = 0) -> Overlap:
    """Raise DataError if propensities cannot be right, or cover too little of the policy, which stays unchanged."""
    for logged in shards():
        logged.check()
    c = config
    log_mu, eligible, log_pi = _judged(policy, shards, c)
    own = {name: value.detach().clone() for name, value in policy.state_dict().items()}
    try:
        _imitate(policy, shards, c, seed)
        log_b = _judged(policy, shards, c)[2]
    finally:
        policy.load_state_dict(own)
        policy.train(False)
    known = np.isfinite(eligible)
    ratios = {
        "a uniform policy": np.exp((-eligible - log_mu)[known]),
        "the policy to train": np.exp(log_pi - log_mu),
        "a policy fitted to the logged actions": np.exp(log_b - log_mu),
    }
    means = [_mean(ratio, name, c) for name, ratio in ratios.items()]
    varies = log_b.std() > 0 and log_mu.std() > 0
    correlation = float(np.corrcoef(log_b, log_mu)[0, 1]) if varies else float("nan")
    if log_mu.std() > 0.1 and correlation < c.min_correlation:
        raise DataError(
            f"logged propensities have nothing to do with the logged actions: over {len(log_mu)} decisions their "
            f"correlation with a fitted policy is {correlation:.3f}, expected at least {c.min_correlation}. {REMEDY}"
        )
    ess = min(effective_sample_size(ratios["the policy to train"]) / len(log_mu), means[1])
    if ess < c.min_ess:
        raise DataError(
            f"the logs say too little about what this policy does: its effective sample size is {ess:.2%} of "
            f"{len(log_mu)} decisions, expected at least {c.min_ess:.0%}. Start from the behaviour policy, or log with "
            "one that explores more"
        )
    return Overlap(
        decisions=len(log_mu), ess=ess, uniform=means[0], policy=means[1], behaviour=means[2], correlation=correlation
    )


REMEDY = (
    "They belong to other decisions or to another policy: log each action with the probability it was sampled with, in "
    "the same row"
)


def _halves(shards: Shards, c: OverlapConfig, which: int) -> Iterator[Logged]:
    """Every second context: one half to fit on, the other to judge with."""
    left = c.decisions
    for logged in shards():
        _, number = logged.context.unique(return_inverse=True)
        half = logged.only((number % 2 == which).nonzero()[:, 0])
        if len(half):
            yield half
        left -= len(logged)
        if left <= 0:
            return


def _judged(policy: Policy, shards: Shards, c: OverlapConfig) -> tuple[Array, Array, Array]:
    """Log-propensities, log of the number of eligible actions and the policy's log-probabilities, of one half."""
    parts = [
        (half.log_propensity, half.eligible, evaluated(policy, half, minibatch=c.minibatch).log_prob)
        for half in _halves(shards, c, 0)
    ]
    log_mu, eligible, log_pi = (torch.cat(part).double().cpu().numpy() for part in zip(*parts, strict=True))
    return log_mu, eligible, log_pi


def _imitate(policy: Policy, shards: Shards, c: OverlapConfig, seed: int) -> None:
    """Fit the policy to the logged actions of the other half, with a few steps."""
    optimizer, left = torch.optim.Adam(policy.parameters(), lr=c.lr), c.fit_steps
    while left > 0:
        before = left
        for half in _halves(shards, c, 1):
            policy.train()
            generator = Generator(half.trajectory.device).manual_seed(seed + left)
            for some in batches(half, c.minibatch, generator):
                loss = -policy.evaluate(*half.at(half.rows(some))).log_prob.mean()
                descend(optimizer, policy, loss, max_norm=1.0)
                left -= 1
                if left <= 0:
                    return
        if left == before:  # a single context: nothing to fit on
            return


def _mean(ratio: Array, name: str, c: OverlapConfig) -> float:
    """Mean of the truncated ratios; DataError where it is above 1 by more than chance."""
    found = estimate_mean(ratio.clip(max=c.truncation))
    if found.mean - c.deviations * found.error > 1 + c.tolerance:
        raise DataError(
            f"logged propensities cannot be right: over {len(ratio)} decisions the mean ratio of {name} to the logged "
            f"one is {found.mean:.3f} ± {found.error:.3f}, and true propensities give at most 1. {REMEDY}"
        )
    return found.mean
