"""PPO from logged decisions and their propensities.

A single clip around the behaviour policy would end learning after a step of ±20 %. So the anchor of the clip becomes
the current policy every few thousand decisions. Trajectories are weighted by their truncated importance ratio to the
behaviour policy, and a value fitted under the same weights is the baseline of their rewards. Learning ends when the
effective sample size is too small, when the policy is too far from the behaviour policy, or when its doubly robust
estimate on held-out logs stops rising. Read top to bottom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Generator, Tensor

from etude.learning.compute import descend
from etude.learning.logged import (
    AnchoredConfig,
    Logged,
    Shards,
    batches,
    distance,
    effective_share,
    estimated,
    evaluated,
    trajectory_ratio,
)
from etude.problems.base import Evaluation, Policy


@dataclass(frozen=True, kw_only=True)
class LoggedPPOConfig(AnchoredConfig):
    """Settings of PPO from logs."""

    warm_up: Annotated[int, Ge(0)] = 1
    """Passes at the start that fit the value and hold the policy constant."""
    target_kl: Annotated[float, Gt(0)] | None = 0.1
    """KL divergence from the anchor, nats, after which the rest of its decisions is skipped; null never skips."""
    value_coef: Annotated[float, Ge(0)] = 0.5
    """Weight of the value loss."""
    hold_coef: Annotated[float, Ge(0)] = 10.0
    """Weight of the distance from the anchor while warming up."""
    max_kl: Annotated[float, Gt(0)] | None = 3.0
    """Stop if the policy is this far from the behaviour policy, nats per decision; null never stops."""


class LoggedPPO:
    """The learner: a policy, its optimiser and its progress."""

    def __init__(
        self, policy: Policy, config: LoggedPPOConfig, *, device: torch.device | str = "cpu", seed: int = 0
    ) -> None:
        self.policy, self.config, self.device = policy, config, torch.device(device)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=config.lr, eps=1e-5, fused=True)
        self.generator, self.epoch = Generator(self.device).manual_seed(seed), 0
        self.moments = torch.tensor([0.0, 0.0], device=self.device)  # mean and deviation of rewards, of the first part

    def learn(self, shards: Shards) -> dict[str, float]:
        """One pass; its metrics."""
        c = self.config
        rows: list[Tensor] = []
        for logged in shards():
            logged.check()
            if not self.moments[1]:
                self.moments = moments(logged.reward).to(self.device)
            for part in batches(logged, c.anchor, self.generator):
                rows += self._improve(logged.only(part))
        self.policy.train(False)
        return dict(zip(METRICS, torch.stack(rows).mean(0).tolist(), strict=True))

    def _improve(self, logged: Logged) -> list[Tensor]:
        """One pass over these trajectories with the current policy as anchor; METRICS of each step."""
        c = self.config
        anchor = evaluated(self.policy, logged, minibatch=c.minibatch)
        log_ratio = anchor.log_prob - logged.log_propensity
        weight = trajectory_ratio(log_ratio, logged).clamp(max=c.truncation)
        returns = self._scaled(logged)[logged.trajectory]
        advantage = returns - anchor.value
        mean = (weight * advantage).sum() / weight.sum()
        deviation = ((weight * (advantage - mean) ** 2).sum() / weight.sum()).sqrt()
        advantage = (advantage - mean) / (deviation + 1e-8)
        coverage = [effective_share(log_ratio.exp()), distance(log_ratio)]
        rows = []
        self.policy.train()
        for some in batches(logged, c.minibatch, self.generator):
            i = logged.rows(some)
            new = self.policy.evaluate(*logged.at(i))
            loss, metrics = logged_ppo_loss(
                new, anchor.log_prob[i], returns[i], advantage[i], weight[i], c, warm=self.epoch < c.warm_up
            )
            norm = descend(self.optimizer, self.policy, loss, max_norm=c.max_grad_norm)
            rows.append(torch.stack([*metrics, norm, *coverage]))
            if c.target_kl is not None and float(metrics[3]) > c.target_kl:
                break
        return rows

    def _scaled(self, logged: Logged) -> Tensor:
        """(M,) standardised rewards."""
        return (logged.reward - self.moments[0]) / self.moments[1]

    @torch.no_grad()
    def estimate(self, held_out: Shards) -> dict[str, float]:
        """A doubly robust estimate of the policy's value, and the effective share of the held-out logs behind it."""
        c, values, log_ratios = self.config, [], []
        for logged in held_out():
            logged.check()
            now = evaluated(self.policy, logged, minibatch=c.minibatch)
            log_ratios.append(now.log_prob - logged.log_propensity)
            values.append(doubly_robust(logged, self._scaled(logged), now.value, log_ratios[-1].exp(), c.truncation))
        return estimated(torch.cat(values) * self.moments[1] + self.moments[0], torch.cat(log_ratios))


def moments(reward: Tensor) -> Tensor:
    """(2,) mean and standard deviation of rewards; 1 instead of a deviation of 0."""
    deviation = reward.std() if len(reward) > 1 else torch.zeros_like(reward[0])
    return torch.stack([reward.mean(), deviation if deviation > 1e-6 else torch.ones_like(deviation)])


METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm", "ess", "kl_logged")
"""What a gradient step reports; the last two compare its anchor with the behaviour policy."""


def logged_ppo_loss(
    new: Evaluation,
    anchor: Tensor,
    returns: Tensor,
    advantage: Tensor,
    weight: Tensor,
    c: LoggedPPOConfig,
    *,
    warm: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loss of one minibatch, and its metrics. `anchor` has log-probabilities; all are (b,)."""
    log_ratio = new.log_prob - anchor
    ratio = log_ratio.exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - c.clip_coef, 1 + c.clip_coef) * advantage)
    kl = (weight * ((ratio - 1) - log_ratio)).mean()
    policy_loss = c.hold_coef * kl if warm else -(weight * gain).mean()
    value_loss = (weight * (new.value - returns) ** 2).mean()
    entropy = new.entropy.mean()
    loss = policy_loss + c.value_coef * value_loss - c.entropy_coef * entropy
    outside = ((ratio - 1).abs() > c.clip_coef).float().mean()
    return loss, (policy_loss.detach(), value_loss.detach(), entropy.detach(), kl.detach(), outside.detach())


def doubly_robust(logged: Logged, reward: Tensor, value: Tensor, ratio: Tensor, truncation: float) -> Tensor:
    """(M,) doubly robust estimates of the policy's value, one per trajectory, with truncated ratios.

    The recursion of V-trace (Espeholt et al., 2018): ratios (N,) are truncated at 1 where they multiply up along a
    trajectory. It varies little, and is biased towards the values where the policy is far from the behaviour policy.
    """
    lengths = logged.lengths
    longest = int(lengths.max())
    step = torch.arange(len(logged), device=value.device) - (lengths.cumsum(0) - lengths)[logged.trajectory]
    V, rho = (x.new_zeros((len(lengths), longest + 1)) for x in (value, ratio))  # (M, longest + 1)
    V[logged.trajectory, step], rho[logged.trajectory, step] = value, ratio.clamp(max=truncation)
    beyond = torch.zeros_like(reward)  # correction of the value of what follows
    for t in range(longest - 1, -1, -1):
        error = reward * (lengths == t + 1) + V[:, t + 1] - V[:, t]
        beyond = rho[:, t] * error + rho[:, t].clamp(max=1) * beyond
    return V[:, 0] + beyond
