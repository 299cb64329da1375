"""Learning what each mutation earns: outcomes of mutations in, a network that scores mutations by them out.

The network's scores are expected rewards, in units of `TEMPERATURE`; *stop* earns nothing. So the best action is the
mutation that is expected to earn most, or to stop where none earns anything, and sampling explores where it is close.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from etude.learning.checkpoint import load_optimizer, optimizer_tensors, prefixed, under
from etude.learning.compute import descend
from etude.learning.run import About, Evaluated, PolicyParts, StopReason, Update
from etude.problems.prompt.mutations import MUTATIONS
from etude.problems.prompt.network import PromptPolicy
from etude.problems.prompt.settings import OutcomesConfig
from etude.problems.prompt.states import States

TEMPERATURE = 0.1
"""Difference in expected reward that makes an action e times as probable where actions are sampled."""


class OutcomeLearner:
    """Fits the network to the rewards of all mutations of the states, pass by pass."""

    checkpoint_every, threads, device = 1, 1, torch.device("cpu")

    def __init__(
        self,
        about: About,
        policy: PromptPolicy,
        train: States,
        held_out: States,
        config: OutcomesConfig,
        *,
        noise: float,
        seed: int,
        parts: PolicyParts,
    ) -> None:
        self.about, self.net, self.config, self.parts = about, policy.train(False), config, parts
        self.train, self.held_out = train, held_out
        self.generator = Generator().manual_seed(seed)
        observed = torch.randn(train.reward.shape, generator=self.generator) * noise
        self.target = (train.reward + observed * train.legal)[:, : len(MUTATIONS)]
        self.optimizer = torch.optim.AdamW(policy.parameters(), lr=config.lr, weight_decay=config.weight_decay)
        self.step, self.scores = 0, list[float]()

    @property
    def used(self) -> float:
        return self.step / self.config.epochs

    def begin(self) -> Evaluated | None:
        return None

    def advance(self, report: Callable[[float], None]) -> dict[str, float]:
        c = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = c.lr * (1 - 0.9 * self.used)
        order = torch.randperm(len(self.target), generator=self.generator)
        losses = []
        self.net.train()
        for start in range(0, len(order) - 1, c.minibatch):
            rows = order[start : start + c.minibatch]
            if len(rows) < 2:  # a norm over a batch of one is not defined
                continue
            loss = self._loss(rows)
            descend(self.optimizer, self.net, loss, max_norm=5.0)
            losses.append(loss.detach())
            report(start / len(order))
        self.net.train(False)
        self.step += 1
        return {"loss": float(torch.stack(losses).mean())}

    def _loss(self, rows: Tensor) -> Tensor:
        """Squared errors of the expected rewards of what is legal, of *stop*'s 0, and of the value."""
        many, legal = len(MUTATIONS), self.train.legal[rows, : len(MUTATIONS)]
        scores, value = self.net.scores_and_value(self.train.observe(rows))
        missed = torch.where(legal, scores[:, :many] * TEMPERATURE - self.target[rows], 0.0)
        worth = (self.target[rows].clamp(min=0) * legal).sum(1)
        error = missed.square().sum(1) + (scores[:, many] * TEMPERATURE).square() + 0.5 * (value - worth).square()
        return error.mean()

    @torch.no_grad()
    def evaluate(self, *, force: bool = False) -> Evaluated | None:
        """The mean reward, per held-out state, of the mutations that are expected to earn something."""
        many, states = len(MUTATIONS), self.held_out
        rows = torch.arange(len(states.done))
        scores = torch.cat([self.net.scores(states.observe(some)) for some in rows.split(512)])
        chosen = (scores[:, :many] > scores[:, many:]) & states.legal[:, :many]
        earned = (states.reward[:, :many] * chosen).sum(1).double()
        possible = (states.reward[:, :many].clamp(min=0) * states.legal[:, :many]).sum(1).double()
        share = float(earned.mean() / possible.mean().clamp(min=1e-9))
        margin = float(1.96 * earned.std() / len(earned) ** 0.5)
        return Evaluated(score=float(earned.mean()), margin=margin, metrics={"share_of_possible": share})

    def reason_to_stop(self) -> StopReason | None:
        return StopReason.BUDGET if self.step >= self.config.epochs else None

    def policy(self) -> PolicyParts:
        return self.parts.with_weights(self.net.state_dict())

    def tensors(self) -> dict[str, Tensor]:
        found = prefixed("policy.", self.net.state_dict()) | {"generator": self.generator.get_state()}
        return found | prefixed("optimizer.", optimizer_tensors(self.optimizer))

    def values(self) -> dict[str, Any]:
        return {}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        self.net.load_state_dict(under("policy.", tensors))
        self.generator.set_state(tensors["generator"])
        load_optimizer(self.optimizer, under("optimizer.", tensors))

    def summary(self) -> dict[str, Any]:
        return {"states": len(self.target), "best_gain": max(self.scores)}

    def introduction(self) -> str:
        return f"learning what mutations earn from {len(self.target):,} states of {len(self.train.start):,} prompts"

    def line(self, update: Update) -> str:
        return (
            f"loss {update.metrics['loss']:.3f}  {update.metrics.get('share_of_possible', 0):.1%} of what is possible"
        )
