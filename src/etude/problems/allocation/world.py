"""The common part of both variants of the allocation world: configuration, episode clock, seeding, resumable state.

Actions come in as three tensors (n, agents): accept, allocate, collaborate. Transitions go out. A variant implements
how an environment starts (`_restart`), advances (`_advance`) and is observed (`observe`); the source of a step's random
numbers is an argument (`apply`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor

from etude.problems.allocation.metrics import summarise
from etude.problems.base import Action, Obs, Transition

TASK_TYPES = ("research", "analysis", "coding", "writing")
COLUMNS = ("accept", "allocate", "collaborate")

State = dict[str, Tensor]
Uniform = Callable[..., Tensor]
"""From a shape to uniform random numbers in [0, 1)."""


@dataclass(frozen=True, kw_only=True)
class AllocationConfig:
    """The problem: its variant and its size."""

    variant: Literal["document", "matched"] = "document"
    """`document` follows the source document exactly; in `matched` agents choose among the queued tasks."""
    agents: Annotated[int, Ge(2), Le(64)] = 4
    """Number of agents that share the queue."""
    slots: Annotated[int, Ge(3), Le(256)] = 10
    """Maximum number of tasks in the queue."""
    horizon: Annotated[int, Ge(1), Le(100_000)] = 200
    """Steps per episode, after which it is truncated."""


class AllocationWorld:
    """A World; see `DocumentWorld` and `MatchedWorld` for what happens in a step."""

    def __init__(
        self,
        config: AllocationConfig,
        *,
        n: int,
        device: torch.device | str = "cpu",
        phases: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`phases` > 1 shortens the first episodes, group by group, so that a batch has all parts of an episode."""
        self.config, self.n, self.device, self.dtype = config, n, torch.device(device), dtype
        self.generator = torch.Generator(self.device)
        self.state: State = {}
        # Every episode lasts `horizon` steps, so the host knows when each group ends without reading from the device.
        self.phases = max(1, min(phases, n, config.horizon))
        self._rows = [slice(n * p // self.phases, n * (p + 1) // self.phases) for p in range(self.phases)]
        self._left: list[int] = []

    def reset(self, seed: int) -> Obs:
        self.generator.manual_seed(seed)
        self.state = self._allocate()
        self._restart(slice(0, self.n))
        horizon = self.config.horizon
        self._left = [horizon - horizon * p // self.phases for p in range(self.phases)]
        return self.observe()

    def step(self, action: Action) -> Transition:
        return self.apply(action, self._uniform)

    def apply(self, action: Action, uniform: Uniform) -> Transition:
        """One step with random numbers from `uniform`."""
        reward = self._advance(action, uniform)
        self.state["return"] += reward if reward.dim() == 1 else reward.sum(1)
        self._left = [left - 1 for left in self._left]
        over = [rows for rows, left in zip(self._rows, self._left, strict=True) if left == 0]
        truncated = torch.zeros(self.n, dtype=torch.bool, device=self.device)
        never = torch.zeros_like(truncated)
        if not over:
            return Transition(obs=self.observe(), reward=reward, terminated=never, truncated=truncated)
        final_obs, metrics = self.observe(), summarise(self.state, horizon=self.config.horizon)
        for rows in over:
            truncated[rows] = True
            self._restart(rows)
        self._left = [left or self.config.horizon for left in self._left]
        return Transition(
            obs=self.observe(),
            reward=reward,
            terminated=never,
            truncated=truncated,
            final_obs=final_obs,
            metrics=metrics,
        )

    def state_dict(self) -> dict[str, Tensor]:
        state = {name: value.clone() for name, value in self.state.items()}
        return {**state, "clock": torch.tensor(self._left), "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._left = state["clock"].tolist()
        self.generator.set_state(state["generator"].cpu())
        self.state = {
            name: value.to(self.device).clone() for name, value in state.items() if name not in ("clock", "generator")
        }

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device, dtype=self.dtype)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, device=self.device, dtype=self.dtype)

    @abstractmethod
    def observe(self) -> Obs: ...

    @abstractmethod
    def _allocate(self) -> State:
        """The tensors of all environments, not yet initialised."""

    @abstractmethod
    def _restart(self, rows: slice) -> None:
        """Begin new episodes in these environments."""

    @abstractmethod
    def _advance(self, action: Action, uniform: Uniform) -> Tensor:
        """Advance the state by one step; returns the reward (n,), or (n, agents) where it is credited by agent."""


def make_world(
    config: AllocationConfig, *, n: int, device: torch.device | str = "cpu", phases: int = 1
) -> AllocationWorld:
    from etude.problems.allocation.document import DocumentWorld
    from etude.problems.allocation.matched import MatchedWorld

    variant = {"document": DocumentWorld, "matched": MatchedWorld}[config.variant]
    return variant(config, n=n, device=device, phases=phases)
