"""PPO from logged decisions and their propensities: a policy and parts of logs in, a better policy out.

One clip around the policy that logged would end after a step of ±20 %. So the policy is anchored anew every some
thousand decisions: trajectories count by their importance ratio to who logged them, truncated, a value fitted under the
same weights is the baseline of what they earned, and the clipped surrogate keeps the policy near its anchor. Learning
ends when what is left of the logs under the new policy is thin, when the policy is too far from who logged, or when its
doubly robust estimate on held-out logs stops rising. Read top to bottom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Generator, Tensor, nn

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
    trajectory_ratio,
)
from etude.problems.base import Evaluation, Policy


@dataclass(frozen=True, kw_only=True)
class LoggedPPOConfig:
    """How PPO learns from logs."""

    epochs: Annotated[int, Ge(1)] = 6
    """At most this many passes over the logs."""
    warm_up: Annotated[int, Ge(0)] = 1
    """Passes at the start in which the value is fitted and the policy is held where it is."""
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
    target_kl: Annotated[float, Gt(0)] | None = 0.1
    """What is left of an anchor's decisions waits for the next pass once the policy moved so far, nats; null never."""
    value_coef: Annotated[float, Ge(0)] = 0.5
    """Weight of the value loss."""
    hold_coef: Annotated[float, Ge(0)] = 10.0
    """Weight of the distance from the anchor while warming up."""
    entropy_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: Annotated[float, Gt(0)] = 0.5
    """Gradients are scaled down to this norm."""
    min_ess: Annotated[float, Ge(0), Le(1)] = 0.02
    """Stop where the effective share of the logged decisions under the policy falls below this."""
    max_kl: Annotated[float, Gt(0)] | None = 3.0
    """Stop where the policy is so far from who logged, nats a decision; null never stops."""
    patience: Annotated[int, Ge(1)] = 2
    """Passes without a better estimate on held-out logs before it stops."""


class LoggedPPO:
    """The learner: a policy, its optimiser, and how far it has come."""

    def __init__(
        self, policy: Policy, config: LoggedPPOConfig, *, device: torch.device | str = "cpu", seed: int = 0
    ) -> None:
        self.policy, self.config, self.device = policy, config, torch.device(device)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=config.lr, eps=1e-5, fused=True)
        self.generator = Generator(self.device).manual_seed(seed)
        self.best, self.epoch = Best(policy), 0
        self.moments = torch.tensor([0.0, 0.0], device=self.device)  # mean and deviation of rewards, of the first part
        self.stopped: StopReason | None = None

    def run(self, shards: Shards, held_out: Shards | None = None) -> Iterator[dict[str, float]]:
        """Pass after pass, with its metrics, until it stops; with held-out logs the best weights stay."""
        c = self.config
        while self.stopped is None and self.epoch < c.epochs:
            metrics = self.learn(shards)
            if held_out is not None:
                metrics |= self._judge(held_out)
                if self.epoch > c.warm_up or self._why(metrics):  # what ends while warming up is all there is
                    self.best.see(metrics["estimate"])
            self.stopped = self._why(metrics)
            if self.stopped is not None:
                self.best.restore()
            yield metrics

    def _why(self, metrics: Mapping[str, float]) -> StopReason | None:
        c = self.config
        if metrics["ess"] < c.min_ess:
            return StopReason.OVERLAP
        if c.max_kl is not None and metrics["kl_logged"] > c.max_kl:
            return StopReason.DISTANCE
        if self.best.stale >= c.patience:
            return StopReason.STALE
        return StopReason.EPOCHS if self.epoch >= c.epochs else None

    def learn(self, shards: Shards) -> dict[str, float]:
        """One pass; its metrics."""
        c = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = c.lr * (c.lr_final + (1 - c.lr_final) * (1 - self.epoch / c.epochs))
        rows: list[Tensor] = []
        for logged in shards():
            logged.check()
            if not self.moments[1]:
                self.moments = moments(logged.reward).to(self.device)
            for part in batches(logged, c.anchor, self.generator):
                rows += self._improve(logged.only(part))
        self.policy.train(False)
        self.epoch += 1
        return dict(zip(METRICS, torch.stack(rows).mean(0).tolist(), strict=True))

    def _improve(self, logged: Logged) -> list[Tensor]:
        """From the policy as it is now, over these trajectories once; METRICS of each step."""
        c = self.config
        anchor = evaluated(self.policy, logged, minibatch=c.minibatch)
        log_ratio = anchor.log_prob - logged.log_propensity
        weight = trajectory_ratio(log_ratio, logged).clamp(max=c.truncation)
        returns = self._scaled(logged)[logged.trajectory]
        advantage = returns - anchor.value
        mean = (weight * advantage).sum() / weight.sum()
        deviation = ((weight * (advantage - mean) ** 2).sum() / weight.sum()).sqrt()
        advantage = (advantage - mean) / (deviation + 1e-8)
        told = [effective_share(log_ratio.exp()), distance(log_ratio)]
        rows = []
        self.policy.train()
        for some in batches(logged, c.minibatch, self.generator):
            i = logged.rows(some)
            new = self.policy.evaluate(*logged.at(i))
            loss, metrics = logged_ppo_loss(
                new, anchor.log_prob[i], returns[i], advantage[i], weight[i], c, warm=self.epoch < c.warm_up
            )
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.policy.parameters(), c.max_grad_norm)
            self.optimizer.step()
            rows.append(torch.stack([*metrics, norm, *told]))
            if c.target_kl is not None and float(metrics[3]) > c.target_kl:
                break
        return rows

    def _scaled(self, logged: Logged) -> Tensor:
        """(M,) rewards near 0, of deviation 1."""
        return (logged.reward - self.moments[0]) / self.moments[1]

    @torch.no_grad()
    def _judge(self, held_out: Shards) -> dict[str, float]:
        """A doubly robust estimate of what the policy would earn, and how much of the held-out logs it rests on."""
        c, values, log_ratios = self.config, [], []
        for logged in held_out():
            logged.check()
            now = evaluated(self.policy, logged, minibatch=c.minibatch)
            log_ratios.append(now.log_prob - logged.log_propensity)
            values.append(doubly_robust(logged, self._scaled(logged), now.value, log_ratios[-1].exp(), c.truncation))
        log_ratio = torch.cat(log_ratios)
        return {
            "estimate": float(torch.cat(values).mean() * self.moments[1] + self.moments[0]),
            "held_out_ess": float(effective_share(log_ratio.exp())),
            "held_out_kl": float(distance(log_ratio)),
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Everything the next pass depends on, the policy's weights apart."""
        state = {"generator": self.generator.get_state(), "moments": self.moments, "epoch": torch.tensor(self.epoch)}
        state |= {f"optimizer.{name}": value for name, value in optimizer_tensors(self.optimizer).items()}
        return state | {f"best.{name}": value for name, value in self.best.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.generator.set_state(state["generator"].cpu())
        self.moments, self.epoch = state["moments"].to(self.device), int(state["epoch"])
        load_optimizer(self.optimizer, under("optimizer.", state))
        self.best.load_state_dict(under("best.", state))


def moments(reward: Tensor) -> Tensor:
    """(2,) mean and deviation, which is 1 where rewards do not differ: there is no scale in them."""
    deviation = reward.std() if len(reward) > 1 else torch.zeros_like(reward[0])
    return torch.stack([reward.mean(), deviation if deviation > 1e-6 else torch.ones_like(deviation)])


METRICS = (
    "policy_loss",
    "value_loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "grad_norm",
    "ess",
    "kl_logged",
)
"""What a gradient step reports; the last two are of its anchor and who logged."""


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
    """(M,) what each trajectory says the policy earns: values, corrected by what they got wrong where it would be met.

    The recursion of V-trace (Espeholt et al., 2018). Ratios (N,) are truncated, and at 1 where they multiply up along a
    trajectory: it varies little, and leans towards the values where the policy is far from who logged.
    """
    lengths = logged.lengths
    longest = int(lengths.max())
    step = torch.arange(len(logged), device=value.device) - (lengths.cumsum(0) - lengths)[logged.trajectory]
    V, rho = (x.new_zeros((len(lengths), longest + 1)) for x in (value, ratio))  # (M, longest + 1)
    V[logged.trajectory, step], rho[logged.trajectory, step] = value, ratio.clamp(max=truncation)
    beyond = torch.zeros_like(reward)  # what follows has beyond its value
    for t in range(longest - 1, -1, -1):
        error = reward * (lengths == t + 1) + V[:, t + 1] - V[:, t]
        beyond = rho[:, t] * error + rho[:, t].clamp(max=1) * beyond
    return V[:, 0] + beyond
