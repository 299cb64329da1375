"""Logged decisions as tensors, in parts, estimates of a policy from them, and the settings of passes over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Generator, Tensor

from etude.contracts.errors import DataError
from etude.evidence.intervals import estimate_mean
from etude.problems.base import Action, Evaluation, Obs, Policy


@dataclass(frozen=True, kw_only=True)
class PassesConfig:
    """Settings of every algorithm that makes passes over logs."""

    epochs: Annotated[int, Ge(1)] = 6
    """Maximum number of passes over the logs."""
    lr: Annotated[float, Gt(0)] = 3e-4
    """Adam's step size at the start."""
    lr_final: Annotated[float, Ge(0), Le(1)] = 0.1
    """Share of `lr` left at the end; the decay is linear."""
    truncation: Annotated[float, Gt(0)] = 2.0
    """Importance ratios above this count as this."""
    max_grad_norm: Annotated[float, Gt(0)] = 0.5
    """Gradients are scaled down to this norm."""
    min_ess: Annotated[float, Ge(0), Le(1)] = 0.02
    """Stop if the effective share of the logged decisions under the policy falls below this."""
    patience: Annotated[int, Ge(1)] = 2
    """Passes without a better estimate on held-out logs before it stops."""


@dataclass(frozen=True, kw_only=True)
class AnchoredConfig(PassesConfig):
    """Settings of those that clip around an anchor, which follows the policy."""

    anchor: Annotated[int, Ge(2)] = 32_768
    """Decisions between two anchors: the current policy becomes the centre of the clip."""
    minibatch: Annotated[int, Ge(2)] = 1024
    """Approximate number of decisions per gradient step; trajectories are not split."""
    clip_coef: Annotated[float, Gt(0)] = 0.2
    """How far the ratio to the anchor may move before its gain stops counting."""
    entropy_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the entropy bonus."""


ROUNDING = 1e-4
"""Rounding error: how far above 0 the logarithm of a probability may be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """Logged decisions, flat: rows in the order of trajectories and, within one, of time."""

    obs: Obs  # (N, …)
    action: Action  # (N, …)
    log_propensity: Tensor  # (N,) of the joint action
    trajectory: Tensor  # (N,) long 0 … M−1, non-decreasing
    reward: Tensor  # (M,) of whole trajectories: only their total is known
    context: Tensor  # (M,) long: trajectories that answer the same request share a number
    eligible: Tensor  # (N,) log of how many joint actions could have been chosen; nan where unknown

    def __len__(self) -> int:
        """Decisions."""
        return len(self.trajectory)

    @property
    def lengths(self) -> Tensor:
        """(M,) decisions of each trajectory."""
        return torch.bincount(self.trajectory, minlength=len(self.reward))

    def rows(self, trajectories: Tensor) -> Tensor:
        """The rows of these trajectories, one trajectory after the other."""
        lengths = self.lengths
        many, start = lengths[trajectories], (lengths.cumsum(0) - lengths)[trajectories]
        ahead = torch.arange(int(many.sum()), device=many.device) - (many.cumsum(0) - many).repeat_interleave(many)
        return start.repeat_interleave(many) + ahead

    def at(self, rows: Tensor) -> tuple[Obs, Action]:
        obs, action = ({name: x[rows] for name, x in part.items()} for part in (self.obs, self.action))
        return obs, action

    def only(self, trajectories: Tensor) -> Logged:
        """These trajectories, in this order."""
        rows = self.rows(trajectories)
        obs, action = self.at(rows)
        number = torch.arange(len(trajectories), device=rows.device)
        return Logged(
            obs=obs,
            action=action,
            log_propensity=self.log_propensity[rows],
            trajectory=number.repeat_interleave(self.lengths[trajectories]),
            reward=self.reward[trajectories],
            context=self.context[trajectories],
            eligible=self.eligible[rows],
        )

    def check(self) -> None:
        """Raise DataError if a propensity is not a probability, or a reward is not finite."""
        log_p = self.log_propensity
        wrong = {"no numbers": log_p.isnan(), "0 or below": log_p == -torch.inf, "above 1": log_p > ROUNDING}
        found = [f"{int(which.sum())} are {name}" for name, which in wrong.items() if which.any()]
        if found:
            raise DataError(
                f"of {len(self)} logged propensities {', '.join(found)}: expected the probability in (0, 1] with which "
                "each action was sampled; leave these trajectories out, or log that probability"
            )
        bad = int((~self.reward.isfinite()).sum())
        if bad:
            raise DataError(f"{bad} of {len(self.reward)} trajectories have no finite reward: leave them out")


SHORT = 6
"""Maximum number of decisions of trajectories whose ratios are multiplied to estimate a policy's value."""

Shards = Callable[[], Iterator[Logged]]
"""Starts a pass over the data, part by part. Each part fits into memory and has all trajectories of its contexts; no
part is used after the next one is requested."""


def batches(logged: Logged, decisions: int, generator: Generator) -> Iterator[Tensor]:
    """All trajectories that have decisions, in random order, in groups of about this many decisions."""
    order = torch.randperm(len(logged.reward), generator=generator, device=generator.device)
    order = order[logged.lengths[order] > 0]
    group = (logged.lengths[order].cumsum(0) - 1) // decisions
    yield from order.split(group.unique_consecutive(return_counts=True)[1].tolist())  # one may be longer than a group


@torch.no_grad()
def evaluated(policy: Policy, logged: Logged, *, minibatch: int, learns: bool = True) -> Evaluation:
    """The policy's evaluation of every decision, (N,) each; a policy that `learns` must be able to make them all."""
    policy.train(False)
    rows = torch.arange(len(logged), device=logged.trajectory.device)
    found = [policy.evaluate(*logged.at(some)) for some in rows.split(minibatch)]
    log_prob = torch.cat([e.log_prob for e in found])
    advantages = [e.advantage for e in found if e.advantage is not None]
    return Evaluation(
        log_prob=possible(log_prob) if learns else log_prob,
        entropy=torch.cat([e.entropy for e in found]),
        value=torch.cat([e.value for e in found]),
        advantage=torch.cat(advantages) if len(advantages) == len(found) else None,
    )


def possible(log_prob: Tensor) -> Tensor:
    """The input; DataError if a logged decision is impossible for the policy: its log-ratio would be infinite."""
    never = int((log_prob == -torch.inf).sum())
    if never:
        raise DataError(
            f"{never} of {len(log_prob)} logged choices are impossible for this policy: its rules forbid them. Start "
            "from one with the rules of the behaviour policy, or leave these trajectories out"
        )
    return log_prob


def per_trajectory(x: Tensor, logged: Logged) -> Tensor:
    """Sums (M,) over the decisions (N,) of each trajectory."""
    return torch.zeros(len(logged.reward), dtype=x.dtype, device=x.device).index_add(0, logged.trajectory, x)


def trajectory_ratio(log_ratio: Tensor, logged: Logged) -> Tensor:
    """(N,) the ratio of each decision's whole trajectory, as the geometric mean over its decisions.

    A product over ten decisions is 0 or huge; the mean still ranks trajectories by how likely the policy makes them.
    """
    mean = per_trajectory(log_ratio, logged) / logged.lengths.clamp(min=1)
    return mean.exp()[logged.trajectory]


def leave_one_out(logged: Logged) -> tuple[Tensor, Tensor]:
    """(M,) each trajectory's reward less the mean of the others of its context, and which contexts have others."""
    _, place = logged.context.unique(return_inverse=True)
    count = torch.bincount(place).to(logged.reward.dtype)
    total = torch.zeros_like(count).index_add(0, place, logged.reward)
    others = (count - 1)[place]
    return (logged.reward - (total[place] - logged.reward) / others.clamp(min=1)) * (others > 0), others > 0


def effective_share(weight: Tensor) -> Tensor:
    """The effective sample size of these importance weights (Kish, 1965), as a share of their number."""
    share = weight.double() / weight.double().max().clamp(min=1e-300)  # their squares may be beyond any float
    return (share.sum() ** 2 / (len(share) * (share**2).sum()).clamp(min=1e-300)).to(weight.dtype)


def distance(log_ratio: Tensor) -> Tensor:
    """KL divergence of the policy from the behaviour policy, nats per decision, from log-ratios (N,)."""
    ratio = log_ratio.clamp(max=20).exp()
    return (ratio * log_ratio - (ratio - 1)).mean()


@torch.no_grad()
def held_out_values(policy: Policy, shards: Shards, *, truncation: float, minibatch: int) -> tuple[Tensor, Tensor]:
    """Estimates (M,) of the policy's value, one per trajectory, and log-ratios (N,), one per decision.

    An estimate is the logged reward plus the advantage, within its context, of what the policy chooses more often.
    Short trajectories are weighted by the product of their ratios, so that decisions count together. Of longer ones
    that product varies too much: the sum over decisions is its first-order approximation.
    """
    log_ratios, values = [], []
    for logged in shards():
        logged.check()
        log_ratio = evaluated(policy, logged, minibatch=minibatch).log_prob - logged.log_propensity
        advantage, counts = leave_one_out(logged)
        if not counts.any():  # every context has one trajectory: compare with all others
            advantage, counts = leave_one_out(replace(logged, context=torch.zeros_like(logged.context)))
        if int(logged.lengths.max()) <= SHORT:
            more = per_trajectory(log_ratio.clamp(max=math.log(truncation)), logged).expm1() * advantage
        else:
            more = per_trajectory((log_ratio.exp().clamp(max=truncation) - 1) * advantage[logged.trajectory], logged)
        log_ratios.append(log_ratio)
        values.append((logged.reward + more)[counts])
    log_ratio, value = torch.cat(log_ratios), torch.cat(values)
    if not len(value):
        raise DataError("a single trajectory is held out, with no other to compare it with: hold out more")
    return value, log_ratio


def held_out_value(policy: Policy, shards: Shards, *, truncation: float, minibatch: int) -> dict[str, float]:
    """The estimate of the policy's value, with the effective share of the decisions and their distance."""
    return estimated(*held_out_values(policy, shards, truncation=truncation, minibatch=minibatch))


def estimated(value: Tensor, log_ratio: Tensor) -> dict[str, float]:
    """The mean of estimates (M,) with its 95 % interval, the effective share of the decisions (N,), their distance."""
    found = estimate_mean(value.double().cpu().numpy())
    return {
        "estimate": found.mean,
        "estimate_low": found.low,
        "estimate_high": found.high,
        "held_out_ess": float(effective_share(log_ratio.exp())),
        "held_out_kl": float(distance(log_ratio)),
    }
