"""Proximal policy optimisation (Schulman et al., 2017): improves a policy by batches of experience.

Read top to bottom: the settings, one update, the loss of a minibatch, the scaling of rewards. It works with any policy
and any world that implement the protocols of `problems.base`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Generator, Tensor

from etude.contracts.errors import ConfigError
from etude.learning.checkpoint import load_optimizer, optimizer_tensors, prefixed, under
from etude.learning.collect import Batch
from etude.learning.compute import descend
from etude.learning.curiosity import Curiosity
from etude.learning.gae import gae, match
from etude.learning.samples import CapturedStep, Samples
from etude.problems.base import Evaluation, Policy


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Settings of PPO."""

    envs: Annotated[int, Ge(1)] = 256
    """Environments stepped together."""
    steps: Annotated[int, Ge(1)] = 32
    """Steps of each environment between two updates."""
    epochs: Annotated[int, Ge(1)] = 4
    """Passes over a batch."""
    minibatch: Annotated[int, Ge(2)] = 1024
    """Samples per gradient step."""
    lr: Annotated[float, Gt(0)] = 2e-3
    """Adam's step size at the start."""
    lr_final: Annotated[float, Ge(0), Le(1)] = 0.1
    """Share of `lr` left at the end of the budget; the decay is linear."""
    gamma: Annotated[float, Ge(0), Le(1)] = 0.99
    """Discount factor of future rewards."""
    gae_lambda: Annotated[float, Ge(0), Le(1)] = 0.95
    """Bias (0) against variance (1) of the advantages."""
    clip_coef: Annotated[float, Gt(0)] | None = 0.2
    """Clip range of the probability ratio; null turns clipping off."""
    value_clip: Annotated[float, Gt(0)] | None = None
    """Clip range of the value around its old estimate; null turns clipping off."""
    value_coef: Annotated[float, Ge(0)] = 0.5
    """Weight of the value loss."""
    entropy_coef: Annotated[float, Ge(0)] = 0.01
    """Weight of the entropy bonus, which keeps the policy exploring."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 0.5
    """Gradients are scaled down to this norm; null turns that off."""
    target_kl: Annotated[float, Gt(0)] | None = None
    """Stop an update's epochs once the policy moved 1.5 times this far; null never stops."""
    kl_coef: Annotated[float, Ge(0)] = 0.0
    """Starting weight of the KL penalty; 0 turns it off. It works with clipping or instead of it."""
    kl_target: Annotated[float, Gt(0)] = 0.01
    """Target KL of an update: the penalty's weight doubles above 1.5 times this and halves below 1/1.5."""
    together: bool = False
    """Keep the steps of an environment in one minibatch, so that a policy can encode once what they share."""
    reference_coef: Annotated[float, Ge(0)] = 0.0
    """Penalty per nat by which a decision is likelier than under the initial policy (KL penalty); 0 turns it off."""
    normalise_advantages: bool = True
    """Centre and scale the advantages of each minibatch."""
    normalise_returns: bool = True
    """Divide rewards by the running deviation of the discounted return."""
    priority_alpha: Annotated[float, Ge(0), Le(1)] = 0.0
    """Sample in proportion to |advantage| to this power; 0 is uniform."""
    priority_beta: Annotated[float, Ge(0), Le(1)] = 1.0
    """Share of that bias that importance weights correct; 1 is all."""
    curiosity_coef: Annotated[float, Ge(0)] = 0.0
    """Weight of the bonus for unfamiliar states (random network distillation); 0 turns it off."""
    compile: bool = False
    """Fuse the loss with torch.compile and, on a GPU, replay each step as one graph; on a CPU it costs seconds."""

    def __post_init__(self) -> None:
        if self.envs * self.steps < 2:
            raise ConfigError("ppo.envs · ppo.steps is 1: an update needs at least 2 samples, raise either")


class PPO:
    """The learner: a policy, its optimiser, and the quantities that adapt during training."""

    def __init__(self, policy: Policy, config: PPOConfig, *, device: torch.device | str = "cpu", seed: int = 0) -> None:
        self.policy, self.config, self.device = policy, config, torch.device(device)
        captured = config.compile and self.device.type == "cuda"
        lr = torch.tensor(config.lr, device=self.device) if captured else config.lr
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=lr, eps=1e-5, fused=True, capturable=captured)
        self.generator = Generator(self.device).manual_seed(seed)
        self.kl_coef = torch.tensor(config.kl_coef, device=self.device)
        self.reference = deepcopy(policy) if config.reference_coef else None
        self.reward_scale = RewardScale(config.gamma)
        self.curiosity = Curiosity(device=self.device, seed=seed) if config.curiosity_coef else None
        self._loss = torch.compile(self._minibatch_loss) if config.compile else self._minibatch_loss
        self._captured = CapturedStep(self._step) if captured else None

    def update(self, batch: Batch, *, progress: float) -> dict[str, float]:
        """Learn from one batch; `progress` in [0, 1] is the share of the budget used. Returns metrics."""
        c = self.config
        lr = c.lr * (c.lr_final + (1 - c.lr_final) * (1 - progress))
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"].fill_(lr) if isinstance(group["lr"], Tensor) else lr
        samples = self._samples(batch)
        if self._captured is not None:
            samples = self._captured.load(samples)
        step = self._captured or self._step
        rows: list[Tensor] = []
        kl = self.kl_coef.new_zeros(())
        self.policy.train()
        for _ in range(c.epochs):
            epoch = [step(samples, *minibatch) for minibatch in self._minibatches(samples.advantage)]
            rows += epoch
            kl = torch.stack(epoch).mean(0)[METRICS.index("approx_kl")]
            if c.target_kl and float(kl) > 1.5 * c.target_kl:
                break
        self.policy.train(False)
        self.policy.observed({name: value.flatten(0, 1) for name, value in batch.obs.items()})

        mean = dict(zip(METRICS, torch.stack(rows).mean(0).tolist(), strict=True))
        if c.kl_coef:
            far, near = float(kl) > 1.5 * c.kl_target, float(kl) < c.kl_target / 1.5
            self.kl_coef.mul_(2.0 if far else 0.5 if near else 1.0).clamp_(1e-5, 1e5)
        unexplained = (samples.returns - samples.value).var() / samples.returns.var().clamp(min=1e-12)
        extra = {} if self.curiosity is None else {"curiosity_loss": self.curiosity.learn(batch.obs)}
        return {
            **mean,
            **extra,
            "explained_variance": 1 - float(unexplained),
            "lr": lr,
            "kl_coef": float(self.kl_coef),
            "gradient_steps": len(rows),
        }

    def _samples(self, batch: Batch) -> Samples:
        """Rewards to advantages, then (T, n, …) to (T·n, …)."""
        c, reward = self.config, batch.reward
        if self.curiosity is not None:
            reward = reward + c.curiosity_coef * match(self.curiosity.bonus(batch.next_obs()), reward)
        if self.reference is not None:
            reward = reward - c.reference_coef * self._log_ratio_to_reference(batch)
        if c.normalise_returns:
            reward = reward / self.reward_scale.update(reward, batch.ended)
        advantage = gae(
            reward=reward,
            value=batch.value,
            next_value=batch.next_value,
            terminated=batch.terminated,
            ended=batch.ended,
            gamma=c.gamma,
            lam=c.gae_lambda,
        )
        return Samples(
            obs={name: value.flatten(0, 1) for name, value in batch.obs.items()},
            action={name: value.flatten(0, 1) for name, value in batch.action.items()},
            log_prob=batch.log_prob.flatten(0, 1),
            value=batch.value.flatten(0, 1),
            advantage=advantage.flatten(0, 1),
            returns=(advantage + batch.value).flatten(0, 1),
            weight=torch.ones_like(advantage).flatten(0, 1),
        )

    @torch.no_grad()
    def _log_ratio_to_reference(self, batch: Batch) -> Tensor:
        """(T, n): its mean over the actions taken estimates the KL divergence from the reference policy."""
        assert self.reference is not None
        steps, envs = batch.ended.shape
        log_probs = []
        for some in torch.arange(envs, device=self.device).split(max(1, self.config.minibatch // steps)):
            obs, action = (
                {name: x[:, some].transpose(0, 1).flatten(0, 1) for name, x in part.items()}
                for part in (batch.obs, batch.action)
            )
            log_probs.append(self.reference.evaluate(obs, action).log_prob.unflatten(0, (len(some), steps)))
        return batch.log_prob - torch.cat(log_probs).transpose(0, 1)

    def _minibatches(self, advantage: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Sample indices and their weights for one pass over the batch. A last minibatch of one sample is left out."""
        c, total = self.config, len(advantage)
        if c.priority_alpha:
            p = (advantage.view(total, -1).abs().mean(1) + 1e-6) ** c.priority_alpha
            order = torch.multinomial(p, total, replacement=True, generator=self.generator)
            weight = match((p.mean() / p[order]) ** c.priority_beta, advantage)
        else:
            width = c.steps if c.together else 1
            order = torch.randperm(total // width, generator=self.generator, device=self.device)
            order = (order[:, None] + torch.arange(width, device=self.device) * (total // width)).flatten()
            weight = torch.ones_like(advantage)
        for start in range(0, total, c.minibatch):
            index = order[start : start + c.minibatch]
            if len(index) > 1:
                yield index, weight[start : start + c.minibatch]

    def _step(self, samples: Samples, index: Tensor, weight: Tensor) -> Tensor:
        """One gradient step; returns its METRICS."""
        loss, metrics = self._loss(samples.take(index, weight), self.kl_coef)
        limit = self.config.max_grad_norm or float("inf")
        return torch.stack([*metrics, descend(self.optimizer, self.policy, loss, max_norm=limit)])

    def _minibatch_loss(self, s: Samples, kl_coef: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return ppo_loss(self.policy.evaluate(s.obs, s.action), s, self.config, kl_coef)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything the next update depends on, except the policy's weights."""
        state = {"generator": self.generator.get_state(), "kl_coef": self.kl_coef}
        if self.reference is not None:
            state |= prefixed("reference.", self.reference.state_dict())
        state |= prefixed("optimizer.", optimizer_tensors(self.optimizer))
        state |= prefixed("reward_scale.", self.reward_scale.state_dict())
        if self.curiosity is not None:
            state |= prefixed("curiosity.", self.curiosity.state_dict())
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.generator.set_state(state["generator"].cpu())
        self.kl_coef.copy_(state["kl_coef"])
        if self.reference is not None:
            self.reference.load_state_dict(under("reference.", state))
        load_optimizer(self.optimizer, under("optimizer.", state))
        if self._captured is not None:
            self._captured = CapturedStep(self._step)  # a graph reads the tensors that were just replaced
        self.reward_scale.load_state_dict(under("reward_scale.", state))
        if self.curiosity is not None:
            self.curiosity.load_state_dict(under("curiosity.", state))


METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")
"""What a gradient step reports; all but the last come from the loss."""


def ppo_loss(new: Evaluation, s: Samples, c: PPOConfig, kl_coef: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loss of one minibatch, and its metrics."""
    advantage = s.advantage
    if c.normalise_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

    log_ratio = new.log_prob - s.log_prob
    ratio = log_ratio.exp()
    gain = ratio * advantage
    if c.clip_coef is not None:
        gain = torch.minimum(gain, ratio.clamp(1 - c.clip_coef, 1 + c.clip_coef) * advantage)
    policy_loss = -(s.weight * gain).mean()

    error = (new.value - s.returns) ** 2
    if c.value_clip is not None:
        clipped = s.value + (new.value - s.value).clamp(-c.value_clip, c.value_clip)
        error = torch.maximum(error, (clipped - s.returns) ** 2)
    value_loss = (s.weight * error).mean()

    entropy = (s.weight * new.entropy).mean()
    # Unbiased and never negative (Schulman, "Approximating KL divergence").
    kl = (s.weight * ((ratio - 1) - log_ratio)).mean()
    loss = policy_loss + c.value_coef * value_loss - c.entropy_coef * entropy + kl_coef * kl
    outside = ((ratio - 1).abs() > (c.clip_coef or float("inf"))).float().mean()
    return loss, (policy_loss.detach(), value_loss.detach(), entropy.detach(), kl.detach(), outside.detach())


class RewardScale:
    """The running deviation of the discounted return: dividing rewards by it keeps value targets near 1."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.carried = torch.zeros(())  # (n,) discounted return so far of each unfinished episode
        self.moments = torch.zeros(3, dtype=torch.float64)  # count, mean, variance

    def update(self, reward: Tensor, ended: Tensor) -> float:
        """Adds rewards (T, n); returns the updated deviation."""
        fits = self.carried.shape == reward[0].shape
        carried = self.carried.to(reward.device) if fits else torch.zeros_like(reward[0])
        returns = torch.empty_like(reward)
        for t in range(len(reward)):
            carried = torch.add(reward[t], carried, alpha=self.gamma, out=returns[t])
            carried = carried * ~match(ended, reward)[t]
        self.carried = carried
        var, mean = torch.var_mean(returns.double(), correction=0)
        count, old_mean, old_var = self.moments.tolist()
        total = count + returns.numel()
        share, delta = returns.numel() / total, float(mean) - old_mean
        new_var = old_var * (1 - share) + float(var) * share + delta**2 * share * (1 - share)
        self.moments = torch.tensor([total, old_mean + delta * share, new_var], dtype=torch.float64)
        return float(new_var**0.5) if new_var > 1e-12 else 1.0

    def forget_episodes(self) -> None:
        """The unfinished episodes will not be continued."""
        self.carried = torch.zeros(())

    def state_dict(self) -> dict[str, Tensor]:
        return {"carried": self.carried, "moments": self.moments}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.carried, self.moments = state["carried"].clone(), state["moments"].clone()
