"""REINFORCE leave-one-out from logs (Ahmadian et al., 2024): improves a policy without a value network.

The advantage of a trajectory's decisions is its reward less the mean reward of the others of its context.
Truncated ratios to the logged propensities weight trajectories, and a clip around an anchor that follows the policy
keeps steps small. Contexts with a single trajectory are left out. Read top to bottom.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from etude.contracts.errors import DataError
from etude.learning.compute import descend
from etude.learning.logged import (
    AnchoredConfig,
    Logged,
    Shards,
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
class RLOOConfig(AnchoredConfig):
    """Settings of RLOO from logs."""


class RLOO:
    """The learner: a policy, its optimiser and its progress."""

    def __init__(
        self, policy: Policy, config: RLOOConfig, *, device: torch.device | str = "cpu", seed: int = 0
    ) -> None:
        self.policy, self.config, self.device = policy, config, torch.device(device)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=config.lr, eps=1e-5, fused=True)
        self.generator, self.epoch = Generator(self.device).manual_seed(seed), 0

    def learn(self, shards: Shards) -> dict[str, float]:
        """One pass; its metrics."""
        c = self.config
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
                f"all {alone} trajectories are alone in their context, with no other to compare them with: log several "
                "trajectories per request, or learn with PPO"
            )
        return {**dict(zip(METRICS, torch.stack(rows).mean(0).tolist(), strict=True)), "left_out": float(alone)}

    def _improve(self, logged: Logged, advantage: Tensor) -> list[Tensor]:
        """One pass over these trajectories with the current policy as anchor; METRICS of each step."""
        c = self.config
        anchor = evaluated(self.policy, logged, minibatch=c.minibatch)
        log_ratio = anchor.log_prob - logged.log_propensity
        weight = trajectory_ratio(log_ratio, logged).clamp(max=c.truncation)
        own = advantage[logged.trajectory]
        own = own - (weight * own).sum() / weight.sum()  # the policy earns more by now than the behaviour policy did
        coverage = [effective_share(log_ratio.exp()), distance(log_ratio)]
        rows = []
        self.policy.train()
        for some in batches(logged, c.minibatch, self.generator):
            i = logged.rows(some)
            new = self.policy.evaluate(*logged.at(i))
            loss, metrics = rloo_loss(new, anchor.log_prob[i], own[i], weight[i], c)
            norm = descend(self.optimizer, self.policy, loss, max_norm=c.max_grad_norm)
            rows.append(torch.stack([*metrics, norm, *coverage]))
        return rows

    def estimate(self, held_out: Shards) -> dict[str, float]:
        """An estimate of the policy's value, and the effective share of the held-out logs behind it."""
        c = self.config
        return held_out_value(self.policy, held_out, truncation=c.truncation, minibatch=c.minibatch)


METRICS = ("loss", "entropy", "approx_kl", "clip_fraction", "grad_norm", "ess", "kl_logged")
"""What a gradient step reports; the last two compare its anchor with the behaviour policy."""


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
