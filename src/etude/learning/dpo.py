"""Direct preference optimisation from logs (Rafailov et al., 2023): improves a policy by preferences.

Of two trajectories for the same request the one with the higher reward is preferred, with a certainty that grows with
the difference. The reference is the behaviour policy; the logged propensities
replace a second network: the loss is −log σ(β (Δ log π − Δ log μ)) of whole trajectories. Read top to bottom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Generator, Tensor
from torch.nn import functional as F

from etude.contracts.errors import DataError
from etude.learning.compute import descend
from etude.learning.logged import Logged, PassesConfig, Shards, distance, effective_share, held_out_value, possible
from etude.problems.base import Policy


@dataclass(frozen=True, kw_only=True)
class DPOConfig(PassesConfig):
    """Settings of DPO from logs."""

    epochs: Annotated[int, Ge(1)] = 8
    """Maximum number of passes over the logs."""
    minibatch: Annotated[int, Ge(1)] = 256
    """Pairs per gradient step."""
    beta: Annotated[float, Gt(0)] = 0.1
    """Strength of the pull towards the behaviour policy; a smaller value lets a preference move the policy further."""
    pairs: Annotated[int, Ge(1)] = 4
    """Maximum number of pairs per context, sampled again in each pass."""
    margin: Annotated[float, Ge(0)] = 0.15
    """Minimum difference in reward between the two of a pair, in standard deviations of the logged rewards."""
    temperature: Annotated[float, Gt(0)] | None = 0.3
    """Difference in reward, in standard deviations, that makes a preference 73 % certain; null makes all certain."""
    min_ess: Annotated[float, Ge(0), Le(1)] = 0.01
    """Stop if the effective share of the logged decisions under the policy falls below this."""


class DPO:
    """The learner: a policy, its optimiser and its progress."""

    def __init__(self, policy: Policy, config: DPOConfig, *, device: torch.device | str = "cpu", seed: int = 0) -> None:
        self.policy, self.config, self.device = policy, config, torch.device(device)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=config.lr, eps=1e-5, fused=True)
        self.generator, self.epoch = Generator(self.device).manual_seed(seed), 0

    def learn(self, shards: Shards) -> dict[str, float]:
        """One pass; its metrics."""
        c = self.config
        rows: list[Tensor] = []
        self.policy.train()
        for logged in shards():
            logged.check()
            pairs = mined(logged, c, self.generator)
            sure = torch.ones(len(pairs), device=pairs.device)
            if c.temperature is not None:
                gap = logged.reward[pairs[:, 0]] - logged.reward[pairs[:, 1]]
                sure = (gap / (c.temperature * spread(logged))).sigmoid()
            for some, surely in zip(pairs.split(c.minibatch), sure.split(c.minibatch), strict=True):
                if len(some):
                    rows.append(self._step(logged, some, surely))
        self.policy.train(False)
        if not rows:
            raise DataError(
                f"no two trajectories of the same context differ in reward by more than margin, {c.margin:g} standard "
                "deviations of the logged rewards: set dpo.margin to 0, or log several trajectories for each request"
            )
        return dict(zip(METRICS, torch.stack(rows).mean(0).tolist(), strict=True))

    def _step(self, logged: Logged, pairs: Tensor, sure: Tensor) -> Tensor:
        """One gradient step; returns its METRICS."""
        own, place = pairs.unique(return_inverse=True)  # each trajectory is evaluated once
        i = logged.rows(own)
        new = self.policy.evaluate(*logged.at(i))
        log_ratio = possible(new.log_prob) - logged.log_propensity[i]
        which = torch.arange(len(own), device=own.device).repeat_interleave(logged.lengths[own])
        total = torch.zeros(len(own), dtype=log_ratio.dtype, device=own.device).index_add(0, which, log_ratio)
        loss, right = dpo_loss(total[place[:, 0]], total[place[:, 1]], sure, self.config)
        norm = descend(self.optimizer, self.policy, loss, max_norm=self.config.max_grad_norm)
        far = log_ratio.detach()
        return torch.stack(
            [loss.detach(), right, new.entropy.detach().mean(), norm, effective_share(far.exp()), distance(far)]
        )

    def estimate(self, held_out: Shards) -> dict[str, float]:
        """An estimate of the policy's value, and the effective share of the held-out logs behind it."""
        c = self.config
        return held_out_value(self.policy, held_out, truncation=c.truncation, minibatch=4 * c.minibatch)


METRICS = ("loss", "accuracy", "entropy", "grad_norm", "ess", "kl_logged")
"""What a gradient step reports; the last two compare the policy with the behaviour policy, over its trajectories."""

MAX_COMPARED = 32
"""Trajectories of a context that are compared in a pass, a random sample where there are more."""


def mined(logged: Logged, c: DPOConfig, generator: Generator) -> Tensor:
    """(P, 2) trajectories of the same context, the better first: at most `pairs` per context, in random order."""
    _, place = logged.context.unique(return_inverse=True)
    count = torch.bincount(place)
    order, most = place.argsort(stable=True), int(count.max())
    if most > MAX_COMPARED:
        order = torch.randperm(len(place), generator=generator, device=generator.device)
        order, most = order[place[order].argsort(stable=True)], MAX_COMPARED
    among = torch.arange(len(order), device=order.device) - (count.cumsum(0) - count)[place[order]]
    order, among = order[among < most], among[among < most]
    group = torch.full((len(count), most), -1, device=order.device)
    group[place[order], among] = order  # (contexts, most): their trajectories, then −1
    better, worse = (x.expand(-1, most, most).flatten(1) for x in (group[:, :, None], group[:, None]))
    there = (better >= 0) & (worse >= 0)
    there &= logged.reward[better.clamp(min=0)] - logged.reward[worse.clamp(min=0)] > c.margin * spread(logged)
    order_key = torch.rand(there.shape, generator=generator, device=there.device).masked_fill(~there, -1)
    drawn, which = order_key.topk(min(c.pairs, order_key.shape[1]), 1)
    pairs = torch.stack([better.gather(1, which), worse.gather(1, which)], 2)  # (contexts, pairs, 2)
    shuffled = torch.randperm(len(pairs), generator=generator, device=pairs.device)
    return pairs[shuffled][drawn[shuffled] >= 0]


def spread(logged: Logged) -> Tensor:
    """Standard deviation of the rewards: the unit of `margin` and `temperature`."""
    return logged.reward.std(correction=0)


def dpo_loss(better: Tensor, worse: Tensor, sure: Tensor, c: DPOConfig) -> tuple[Tensor, Tensor]:
    """From log-ratios (b,) of both trajectories to the behaviour policy and the certainty of each preference.

    Returns the loss and the share of pairs that the policy orders alike.
    """
    margin = c.beta * (better - worse)
    loss = -(sure * F.logsigmoid(margin) + (1 - sure) * F.logsigmoid(-margin)).mean()
    return loss, (margin.detach() > 0).float().mean()
