"""The two sockets between a problem and a learning algorithm: World and Policy.

A world takes actions and gives transitions; a policy takes observations and gives decisions. Both work on named
tensors with a leading batch axis, on any device, so each algorithm is written once for every problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

Obs = dict[str, Tensor]
"""Named tensors (n, …); boolean ones are masks of what is legal."""
Action = dict[str, Tensor]
"""Named tensors (n, …)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """What one step of every environment gave."""

    obs: Obs  # after the step, and after the reset where an episode ended
    reward: Tensor  # (n,), or (n, parts) where the world knows which part of a decision earned what
    terminated: Tensor  # (n,) bool: the task is over, nothing follows
    truncated: Tensor  # (n,) bool: the clock ran out, the future still has a value
    final_obs: Obs | None = None  # before the reset; None when no episode ended at this step
    metrics: Mapping[str, Tensor] = field(default_factory=dict)  # (n, …) of the episodes that ended; valid there


class World(Protocol):
    """A batched simulator. Environments reset themselves when their episode ends."""

    n: int
    device: torch.device

    def reset(self, seed: int) -> Obs:
        """Reset every environment; the same seed gives the same episodes on the same device."""

    def step(self, action: Action) -> Transition:
        """Advance every environment by one step."""

    def observe(self) -> Obs:
        """The observation now, without advancing."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything the next step depends on, the random state included."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue exactly where `state_dict` was taken."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """What was chosen. A decision with parts, such as one per agent, may have (n, parts) for credit by part."""

    action: Action
    log_prob: Tensor  # (n,) or (n, parts)
    value: Tensor  # (n,) or (n, parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """How probable a past decision is now."""

    log_prob: Tensor  # (n,) or (n, parts)
    entropy: Tensor  # (n,) or (n, parts)
    value: Tensor  # (n,) or (n, parts)
    advantage: Tensor | None = None  # (n,) what the action is expected to earn beyond the policy's mean, where known


class Policy(Protocol):
    """A torch module that decides. `observed` updates what it knows of the scale of observations."""

    def act(self, obs: Obs, *, greedy: bool = False, generator: torch.Generator | None = None) -> Sampled: ...

    def choose(self, obs: Obs, *, greedy: bool = False, generator: torch.Generator | None = None) -> Action:
        """The action of `act` alone: quicker where neither its probability nor the value is needed."""

    def evaluate(self, obs: Obs, action: Action) -> Evaluation: ...

    def value(self, obs: Obs) -> Tensor: ...

    def observed(self, obs: Obs) -> None: ...

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> object: ...

    def train(self, mode: bool = True) -> object: ...


class Actor(Protocol):
    """Anything that chooses actions: a policy, a baseline."""

    def __call__(self, obs: Obs, generator: torch.Generator) -> Action: ...


class Problem(Protocol):
    """A kind of decision: how to make its worlds, its policies and the baselines to compare them with."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> Mapping[str, int]:
        """What a curriculum may change."""

    def world(self, n: int, *, device: torch.device | str, phases: int = 1) -> World: ...

    def policy(self) -> torch.nn.Module:
        """A fresh Policy; its weights come from torch's global random state."""

    def baselines(self) -> Mapping[str, Actor]: ...

    def resized(self, size: Mapping[str, int]) -> Problem:
        """The same problem at another size, for the same weights; ConfigError where its network cannot do that."""
