"""Whether logs can teach a policy: are their propensities what the actions were drawn with, and do they cover it?

Under true propensities μ the mean of π(a|s)/μ(a|s) over logged decisions is at most 1, whatever the policy π. It is
taken for three: a uniform one, the policy that is to learn, and one fitted to the logged actions. A mean above 1 by
more than chance says that the propensities belong to something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Generator, Tensor, nn

from etude.contracts.errors import DataError
from etude.learning.logged import Logged, Shards, batches, effective_share, evaluated
from etude.problems.base import Policy


@dataclass(frozen=True, kw_only=True)
class OverlapConfig:
    """How logs are checked before they teach."""

    decisions: Annotated[int, Ge(2)] = 40_000
    """At most about so many decisions are looked at; all propensities must be probabilities."""
    minibatch: Annotated[int, Ge(2)] = 1024
    """Decisions evaluated at once, and per step of fitting."""
    fit_steps: Annotated[int, Ge(1)] = 60
    """Gradient steps with which a copy of the policy learns to act as was logged."""
    lr: Annotated[float, Gt(0)] = 1e-3
    """Their size."""
    truncation: Annotated[float, Gt(1)] = 20.0
    """Ratios above this count as this: the mean stays at most 1, and chance moves it little."""
    deviations: Annotated[float, Gt(0)] = 4.0
    """Standard errors by which a mean may be above 1."""
    tolerance: Annotated[float, Ge(0)] = 0.03
    """And how far beyond: probabilities are rounded, networks run elsewhere."""
    min_correlation: Annotated[float, Ge(0), Le(1)] = 0.1
    """Between logarithms of propensities that vary and of the fitted probabilities, at least."""
    min_ess: Annotated[float, Ge(0), Le(1)] = 0.03
    """Share of the logged decisions that must be effective under the policy that is to learn."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """What the check found. Means are of truncated ratios to the logged propensities."""

    decisions: int  # looked at
    ess: float  # effective share of them under the policy that is to learn
    policy: float  # mean ratio of that policy
    uniform: float  # of a uniform one; nan where nobody knows what could have been chosen
    behaviour: float  # of one fitted to other logged decisions
    correlation: float  # of its log-probabilities with the logged ones; nan where either does not vary


def check_overlap(policy: Policy, shards: Shards, config: OverlapConfig, *, seed: int = 0) -> Overlap:
    """DataError where propensities cannot be right, or say too little of what the policy does. It stays as it is."""
    for logged in shards():
        logged.check()
    c = config
    log_mu, eligible, log_pi = _odd(policy, shards, c)
    own = {name: value.detach().clone() for name, value in policy.state_dict().items()}
    try:
        _imitate(policy, shards, c, seed)
        log_b = _odd(policy, shards, c)[2]
    finally:
        policy.load_state_dict(own)
        policy.train(False)
    told = eligible.isfinite()
    ratios = {
        "a uniform policy": (-eligible - log_mu)[told].exp(),
        "the policy that is to learn": (log_pi - log_mu).exp(),
        "a policy fitted to the logged actions": (log_b - log_mu).exp(),
    }
    means = [_mean(ratio, of, c) for of, ratio in ratios.items()]
    correlation = _correlation(log_b, log_mu)
    if float(log_mu.std(correction=0)) > 0.1 and correlation < c.min_correlation:
        raise DataError(
            f"logged propensities have nothing to do with the logged actions: over {len(log_mu)} decisions their "
            f"correlation with a fitted policy is {correlation:.3f}, expected at least {c.min_correlation}. {REMEDY}"
        )
    ess = min(float(effective_share(ratios["the policy that is to learn"])), means[1])
    if ess < c.min_ess:
        raise DataError(
            f"the logs say too little of what this policy does: of {len(log_mu)} decisions {ess:.2%} are effective "
            f"under it, expected at least {c.min_ess:.0%}. Begin with the policy that logged, or log with one that "
            "explores more"
        )
    return Overlap(
        decisions=len(log_mu), ess=ess, uniform=means[0], policy=means[1], behaviour=means[2], correlation=correlation
    )


REMEDY = (
    "They are of other decisions or of another policy: log each action with the probability it was drawn with, in the "
    "same row"
)


def _halves(shards: Shards, c: OverlapConfig, which: int) -> Iterator[Logged]:
    """Every second context: one half to fit on, the other to judge by."""
    left = c.decisions
    for logged in shards():
        _, number = logged.context.unique(return_inverse=True)
        half = logged.only((number % 2 == which).nonzero()[:, 0])
        if len(half):
            yield half
        left -= len(logged)
        if left <= 0:
            return


def _odd(policy: Policy, shards: Shards, c: OverlapConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Of the half to judge by: logged log-propensities, log of how many could be chosen, what the policy says."""
    parts = [
        (half.log_propensity, half.eligible, evaluated(policy, half, minibatch=c.minibatch).log_prob)
        for half in _halves(shards, c, 0)
    ]
    log_mu, eligible, log_pi = (torch.cat(part).double() for part in zip(*parts, strict=True))
    return log_mu, eligible, log_pi


def _imitate(policy: Policy, shards: Shards, c: OverlapConfig, seed: int) -> None:
    """A few steps towards acting as was logged."""
    optimizer, left = torch.optim.Adam(policy.parameters(), lr=c.lr), c.fit_steps
    while left > 0:
        before = left
        for half in _halves(shards, c, 1):
            policy.train()
            generator = Generator(half.trajectory.device).manual_seed(seed + left)
            for some in batches(half, c.minibatch, generator):
                loss = -policy.evaluate(*half.at(half.rows(some))).log_prob.mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
                optimizer.step()
                left -= 1
                if left <= 0:
                    return
        if left == before:  # one context alone: nothing to fit on
            return


def _mean(ratio: Tensor, of: str, c: OverlapConfig) -> float:
    """Of the truncated ratios; DataError where it is above 1 by more than chance."""
    if not len(ratio):
        return float("nan")
    ratio = ratio.clamp(max=c.truncation)
    mean = float(ratio.mean())
    error = float(ratio.std()) / len(ratio) ** 0.5 if len(ratio) > 1 else 0.0
    if mean - c.deviations * error > 1 + c.tolerance:
        raise DataError(
            f"logged propensities cannot be right: over {len(ratio)} decisions the mean of the ratio of {of} to the "
            f"logged one is {mean:.3f} ± {error:.3f}, and true ones give at most 1. {REMEDY}"
        )
    return mean


def _correlation(a: Tensor, b: Tensor) -> float:
    varies = all(float(x.std(correction=0)) > 0 for x in (a, b))
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1]) if varies else float("nan")
