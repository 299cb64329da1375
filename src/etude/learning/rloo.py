"""REINFORCE leave-one-out from logs (Ahmadian et al., 2024): a policy and parts of logs in, a better policy out.

What a trajectory earned beyond the others of its context is what its decisions are praised for. No value is learned.
Ratios to the logged propensities, truncated, weigh trajectories; a clip around an anchor that follows the policy keeps
steps small. Contexts with a single trajectory say nothing and are left out. Read top to bottom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Generator, Tensor, nn

from etude.contracts.errors import DataError
from etude.learning.checkpoint import load_optimizer, optimizer_tensors, under
from etude.learning.logged import (
    Best,
    Logged,
    Shards,
    StopReason,
    batches,
    distance,
    effective_share,
    evaluated,
    held_out_value,
    leave_one_out,
    trajectory_ratio,
)
from etude.problems.base import Evaluation, Policy


@dataclass(frozen=True, kw_only=True)
class RLOOConfig:
    """How leave-one-out learns from logs."""

    epochs: Annotated[int, Ge(1)] = 6
    """At most this many passes over the logs."""
    anchor: Annotated[int, Ge(2)] = 32_768
    """Decisions learned from before the policy is anchored anew."""
    minibatch: Annotated[int, Ge(2)] = 1024
    """Decisions per gradient step, about: trajectories stay whole."""
    lr: Annotated[float, Gt(0)] = 3e-4
    """Adam's step size at the start."""
    lr_final: Annotated[float, Ge(0), Le(1)] = 0.1
    """Share of `lr` left at the end; the decay is linear."""
    truncation: Annotated[float, Gt(0)] = 2.0
    """Importance ratios above this count as this."""
    clip_coef: Annotated[float, Gt(0)] = 0.2
    """How far the ratio to the anchor may move before its gain stops counting."""
    entropy_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: Annotated[float, Gt(0)] = 0.5
    """Gradients are scaled down to this norm."""
    min_ess: Annotated[float, Ge(0), Le(1)] = 0.02
    """Stop where the effective share of the logged decisions under the policy falls below this."""
    patience: Annotated[int, Ge(1)] = 2
    """Passes without a better estimate on held-out logs before it stops."""


class RLOO:
    """The learner: a policy, its optimiser, and how far it has come."""

    def __init__(
        self, policy: Policy, config: RLOOConfig, *, device: torch.device | str = "cpu", seed: int = 0
    ) -> None:
        self.policy, self.config, self.device = policy, config, torch.device(device)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=config.lr, eps=1e-5, fused=True)
        self.generator = Generator(self.device).manual_seed(seed)
        self.best, self.epoch = Best(policy), 0
        self.stopped: StopReason | None = None

    def run(self, shards: Shards, held_out: Shards | None = None) -> Iterator[dict[str, float]]:
        """Pass after pass, with its metrics, until it stops; with held-out logs the best weights stay."""
        c = self.config
        while self.stopped is None and self.epoch < c.epochs:
            metrics = self.learn(shards)
            if held_out is not None:
                metrics |= held_out_value(self.policy, held_out, truncation=c.truncation, minibatch=c.minibatch)
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

    def learn(self, shards: Shards) -> dict[str, float]:
        """One pass; its metrics."""
        c = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = c.lr * (c.lr_final + (1 - c.lr_final) * (1 - self.epoch / c.epochs))
        rows: list[Tensor] = []
        alone = 0
        for logged in shards():
            logged.check()
            advantage, counts = leave_one_out(logged)
            alone += int((~counts).sum())
            kept = counts.nonzero()[:, 0]
            if not len(kept):
                continue
            logged, advantage = logged.only(kept), advantage[kept] / advantage[kept].std().clamp(min=1e-8)
            for part in batches(logged, c.anchor, self.generator):
                rows += self._improve(logged.only(part), advantage[part])
        self.policy.train(False)
        if not rows:
            raise DataError(
                f"all {alone} trajectories are alone in their context, so there is nothing to compare them with: log "
                "several for each request, or learn by PPO"
            )
        self.epoch += 1
        return {**dict(zip(METRICS, torch.stack(rows).mean(0).tolist(), strict=True)), "left_out": float(alone)}

    def _improve(self, logged: Logged, advantage: Tensor) -> list[Tensor]:
        """From the policy as it is now, over these trajectories once; METRICS of each step."""
        c = self.config
        anchor = evaluated(self.policy, logged, minibatch=c.minibatch)
        log_ratio = anchor.log_prob - logged.log_propensity
        weight = trajectory_ratio(log_ratio, logged).clamp(max=c.truncation)
        own = advantage[logged.trajectory]
        own = own - (weight * own).sum() / weight.sum()  # what is likely by now earns more than those who logged did
        told = [effective_share(log_ratio.exp()), distance(log_ratio)]
        rows = []
        self.policy.train()
        for some in batches(logged, c.minibatch, self.generator):
            i = logged.rows(some)
            new = self.policy.evaluate(*logged.at(i))
            loss, metrics = rloo_loss(new, anchor.log_prob[i], own[i], weight[i], c)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.policy.parameters(), c.max_grad_norm)
            self.optimizer.step()
            rows.append(torch.stack([*metrics, norm, *told]))
        return rows

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


METRICS = ("loss", "entropy", "approx_kl", "clip_fraction", "grad_norm", "ess", "kl_logged")
"""What a gradient step reports; the last two are of its anchor and who logged."""


def rloo_loss(
    new: Evaluation, anchor: Tensor, advantage: Tensor, weight: Tensor, c: RLOOConfig
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loss of one minibatch, and its metrics. `anchor` has log-probabilities; all are (b,)."""
    log_ratio = new.log_prob - anchor
    ratio = log_ratio.exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - c.clip_coef, 1 + c.clip_coef) * advantage)
    entropy = new.entropy.mean()
    loss = -(weight * gain).mean() - c.entropy_coef * entropy
    kl = ((ratio - 1) - log_ratio).mean()
    outside = ((ratio - 1).abs() > c.clip_coef).float().mean()
    return loss, (loss.detach(), entropy.detach(), kl.detach(), outside.detach())
