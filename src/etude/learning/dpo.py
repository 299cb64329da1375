"""Direct preference optimisation from logs (Rafailov et al., 2023): a policy and parts of logs in, a better policy out.

Of two trajectories for the same request the one that earned more is preferred, the surer the more it earned; people's
own preferences may be given beside them. The reference is whoever logged, by the logged propensities, so no second
network is needed: the loss is −log σ(β (Δ log π − Δ log μ)) of whole trajectories. Read top to bottom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from etude.contracts.errors import DataError
from etude.learning.checkpoint import load_optimizer, optimizer_tensors, under
from etude.learning.logged import Best, Logged, Shards, StopReason, distance, effective_share, held_out_value, possible
from etude.problems.base import Policy


@dataclass(frozen=True, kw_only=True)
class DPOConfig:
    """How preferences teach."""

    epochs: Annotated[int, Ge(1)] = 8
    """At most this many passes over the logs."""
    minibatch: Annotated[int, Ge(1)] = 256
    """Pairs per gradient step."""
    lr: Annotated[float, Gt(0)] = 3e-4
    """Adam's step size at the start."""
    lr_final: Annotated[float, Ge(0), Le(1)] = 0.1
    """Share of `lr` left at the end; the decay is linear."""
    beta: Annotated[float, Gt(0)] = 0.1
    """How closely the policy is kept to who logged: the smaller, the further a preference moves it."""
    pairs: Annotated[int, Ge(1)] = 4
    """Pairs drawn from each context, anew each pass; fewer where there are fewer."""
    margin: Annotated[float, Ge(0)] = 1.0
    """A trajectory is better than another only if it earned more by this."""
    temperature: Annotated[float, Gt(0)] | None = 2.0
    """A difference in reward of so much makes a preference 73 % sure; null makes every one certain."""
    truncation: Annotated[float, Gt(0)] = 2.0
    """Importance ratios above this count as this in the estimate on held-out logs."""
    max_grad_norm: Annotated[float, Gt(0)] = 0.5
    """Gradients are scaled down to this norm."""
    min_ess: Annotated[float, Ge(0), Le(1)] = 0.01
    """Stop where the effective share of the logged decisions under the policy falls below this."""
    patience: Annotated[int, Ge(1)] = 2
    """Passes without a better estimate on held-out logs before it stops."""


class DPO:
    """The learner: a policy, its optimiser, and how far it has come."""

    def __init__(self, policy: Policy, config: DPOConfig, *, device: torch.device | str = "cpu", seed: int = 0) -> None:
        self.policy, self.config, self.device = policy, config, torch.device(device)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=config.lr, eps=1e-5, fused=True)
        self.generator = Generator(self.device).manual_seed(seed)
        self.best, self.epoch = Best(policy), 0
        self.stopped: StopReason | None = None

    def run(
        self, shards: Shards, held_out: Shards | None = None, *, preferences: Sequence[Tensor] | None = None
    ) -> Iterator[dict[str, float]]:
        """Pass after pass, with its metrics, until it stops; with held-out logs the best weights stay.

        `preferences` are certain: for each part of the logs, in their order, (P, 2) of its trajectories, the better
        one first. They come beside those that rewards tell.
        """
        c = self.config
        while self.stopped is None and self.epoch < c.epochs:
            metrics = self.learn(shards, preferences)
            if held_out is not None:
                metrics |= held_out_value(self.policy, held_out, truncation=c.truncation, minibatch=4 * c.minibatch)
                self.best.see(metrics["estimate"])
            self.stopped = self._why(metrics)
            if self.stopped is not None:
                self.best.restore()
            yield metrics

    def _why(self, metrics: Mapping[str, float]) -> StopReason | None:
        if metrics["ess"] < self.config.min_ess:
            return StopReason.OVERLAP
        if self.best.stale >= self.config.patience:
            return StopReason.STALE
        return StopReason.EPOCHS if self.epoch >= self.config.epochs else None

    def learn(self, shards: Shards, preferences: Sequence[Tensor] | None = None) -> dict[str, float]:
        """One pass; its metrics."""
        c = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = c.lr * (c.lr_final + (1 - c.lr_final) * (1 - self.epoch / c.epochs))
        rows: list[Tensor] = []
        self.policy.train()
        for number, logged in enumerate(shards()):
            logged.check()
            pairs = mined(logged, c, self.generator)
            sure = torch.ones(len(pairs), device=pairs.device)
            if c.temperature is not None:
                sure = ((logged.reward[pairs[:, 0]] - logged.reward[pairs[:, 1]]) / c.temperature).sigmoid()
            if preferences is not None:
                own = preferences[number].to(pairs.device)
                pairs, sure = torch.cat([pairs, own]), torch.cat([sure, torch.ones_like(own[:, 0], dtype=sure.dtype)])
                order = torch.randperm(len(pairs), generator=self.generator, device=pairs.device)
                pairs, sure = pairs[order], sure[order]
            for some, surely in zip(pairs.split(c.minibatch), sure.split(c.minibatch), strict=True):
                if len(some):
                    rows.append(self._step(logged, some, surely))
        self.policy.train(False)
        if not rows:
            raise DataError(
                f"no two trajectories of a context differ in reward by more than dpo.margin, {c.margin}: lower it, log "
                "several trajectories for each request, or give preferences"
            )
        self.epoch += 1
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
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_grad_norm)
        self.optimizer.step()
        far = log_ratio.detach()
        return torch.stack(
            [loss.detach(), right, new.entropy.detach().mean(), norm, effective_share(far.exp()), distance(far)]
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Everything the next pass depends on, the policy's weights apart."""
        state = {"generator": self.generator.get_state(), "epoch": torch.tensor(self.epoch)}
        state |= {f"optimizer.{name}": value for name, value in optimizer_tensors(self.optimizer).items()}
        return state | {f"best.{name}": value for name, value in self.best.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.generator.set_state(state["generator"].cpu())
        self.epoch = int(state["epoch"])
        load_optimizer(self.optimizer, under("optimizer.", state))
        self.best.load_state_dict(under("best.", state))


METRICS = ("loss", "accuracy", "entropy", "grad_norm", "ess", "kl_logged")
"""What a gradient step reports; the last two are of the policy and who logged, over its trajectories."""


AMONG = 32
"""Trajectories of a context that are compared in a pass, drawn anew where there are more: pairs are their square."""


def mined(logged: Logged, c: DPOConfig, generator: Generator) -> Tensor:
    """(P, 2) trajectories of the same context, the better first: at most `pairs` of each, contexts in random order."""
    _, place = logged.context.unique(return_inverse=True)
    count = torch.bincount(place)
    order, most = place.argsort(stable=True), int(count.max())
    if most > AMONG:
        order = torch.randperm(len(place), generator=generator, device=generator.device)
        order, most = order[place[order].argsort(stable=True)], AMONG
    among = torch.arange(len(order), device=order.device) - (count.cumsum(0) - count)[place[order]]
    order, among = order[among < most], among[among < most]
    group = torch.full((len(count), most), -1, device=order.device)
    group[place[order], among] = order  # (contexts, most): their trajectories, then −1
    better, worse = (x.expand(-1, most, most).flatten(1) for x in (group[:, :, None], group[:, None]))
    there = (better >= 0) & (worse >= 0)
    there &= logged.reward[better.clamp(min=0)] - logged.reward[worse.clamp(min=0)] > c.margin
    lot = torch.rand(there.shape, generator=generator, device=there.device).masked_fill(~there, -1)
    drawn, which = lot.topk(min(c.pairs, lot.shape[1]), 1)
    pairs = torch.stack([better.gather(1, which), worse.gather(1, which)], 2)  # (contexts, pairs, 2)
    shuffled = torch.randperm(len(pairs), generator=generator, device=pairs.device)
    return pairs[shuffled][drawn[shuffled] >= 0]


def dpo_loss(better: Tensor, worse: Tensor, sure: Tensor, c: DPOConfig) -> tuple[Tensor, Tensor]:
    """From log-ratios (b,) of trajectories to who logged, and how `sure` (b,) one is; with the share it agrees to."""
    margin = c.beta * (better - worse)
    loss = -(sure * F.logsigmoid(margin) + (1 - sure) * F.logsigmoid(-margin)).mean()
    return loss, (margin.detach() > 0).float().mean()
