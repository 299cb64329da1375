"""Collects experience: steps a world with a policy and returns batches of T steps of every environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from etude.learning.checkpoint import prefixed, under
from etude.learning.gae import match
from etude.problems.base import Action, Obs, Policy, World


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """T steps of n environments; every tensor (T, n, …)."""

    obs: Obs
    action: Action
    log_prob: Tensor
    value: Tensor
    next_value: Tensor  # of the state after each step, before any reset; meaningless after a termination
    reward: Tensor
    terminated: Tensor
    ended: Tensor  # terminated or truncated
    last_obs: Obs  # (n, …) after the last step
    episodes: Mapping[str, Tensor] = field(default_factory=dict)  # metrics of the episodes that ended, (episodes, …)

    def next_obs(self) -> Obs:
        """The observation after each step, after any reset."""
        return {name: torch.cat([value[1:], self.last_obs[name][None]]) for name, value in self.obs.items()}


class Collector:
    """Steps a world with a policy; each batch continues where the last one stopped. Buffers are reused."""

    def __init__(self, world: World, *, steps: int, seed: int) -> None:
        self.world, self.steps = world, steps
        # Different random numbers than the world's.
        self.generator = Generator(world.device).manual_seed(seed + 500_009)
        self.obs = world.reset(seed)
        self._buffer: dict[str, dict[str, Tensor]] = {"obs": {}, "action": {}, "scalars": {}}

    @torch.no_grad()
    def collect(self, policy: Policy) -> Batch:
        """The next batch. It overwrites the batch returned before."""
        policy.train(False)
        ended_at: list[tuple[int, Obs]] = []
        episodes: list[Mapping[str, Tensor]] = []
        for t in range(self.steps):
            decision = policy.act(self.obs, generator=self.generator)
            self._write("obs", t, self.obs)
            self._write("action", t, decision.action)
            step = self.world.step(decision.action)
            ended = step.terminated | step.truncated
            scalars = {"log_prob": decision.log_prob, "value": decision.value, "reward": step.reward}
            self._write("scalars", t, {**scalars, "terminated": step.terminated, "ended": ended})
            if step.final_obs is not None:
                if step.truncated.any():  # nothing follows a termination
                    ended_at.append((t, step.final_obs))
                episodes.append({name: value[ended] for name, value in step.metrics.items()})
            self.obs = step.obs

        filled = self._buffer["scalars"]
        value, ended = filled["value"], filled["ended"]
        next_value = torch.cat([value[1:], policy.value(self.obs)[None]])
        for t, final_obs in ended_at:
            next_value[t] = torch.where(match(ended, value)[t], policy.value(final_obs), next_value[t])
        return Batch(
            obs=dict(self._buffer["obs"]),
            action=dict(self._buffer["action"]),
            next_value=next_value,
            last_obs=self.obs,
            episodes={name: torch.cat([e[name] for e in episodes]) for name in episodes[0]} if episodes else {},
            **filled,
        )

    def state_dict(self) -> dict[str, Tensor]:
        return {**prefixed("world.", self.world.state_dict()), "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.world.load_state_dict(under("world.", state))
        self.generator.set_state(state["generator"].cpu())
        self.obs = self.world.observe()

    def _write(self, group: str, t: int, values: Mapping[str, Tensor]) -> None:
        buffer = self._buffer[group]
        for name, value in values.items():
            if name not in buffer:
                buffer[name] = value.new_empty((self.steps, *value.shape))
            buffer[name][t].copy_(value)
