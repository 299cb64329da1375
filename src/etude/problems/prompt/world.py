"""The world of practice: n prompts at a time, each mutated step by step until the policy stops.

All states were made before, so a step of all environments is a look-up in tensors.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Generator, Tensor

from etude.problems.base import Action, Obs, Transition
from etude.problems.prompt.growth import OVER
from etude.problems.prompt.states import STOPPING, States

ACTION = "mutation"
"""Name of the tensor of actions."""


class PromptWorld:
    """An episode is one prompt. `noise` is the standard deviation of each reward around its expectation."""

    def __init__(self, states: States, *, n: int, device: torch.device | str = "cpu", noise: float = 0.0) -> None:
        self.n, self.device, self.noise = n, torch.device(device), noise
        self.states = states.to(self.device)
        self.generator = Generator(self.device)
        self.row = torch.zeros(n, dtype=torch.long, device=self.device)
        self.begun = torch.zeros_like(self.row)
        self.earned = torch.zeros(n, device=self.device)

    def reset(self, seed: int) -> Obs:
        """Different prompts in all environments, as long as there are enough."""
        self.generator.manual_seed(seed)
        order = torch.randperm(len(self.states.start), generator=self.generator, device=self.device)
        prompts = order.repeat(-(-self.n // len(order)))[: self.n]
        self._begin(torch.ones(self.n, dtype=torch.bool, device=self.device), self.states.start[prompts])
        return self.observe()

    def step(self, action: Action) -> Transition:
        chosen = action[ACTION]
        expected, after = self.states.reward[self.row, chosen], self.states.next[self.row, chosen]
        noise = torch.randn(self.n, generator=self.generator, device=self.device) * self.noise
        self.earned += expected
        over = after == OVER
        final = self.states.observe(self.row)
        metrics = {
            "return": self.earned.clone(),
            "whole": over,
            "mutations": self.states.done[self.row].sum(1),
            "optimal": (self.earned > self.states.optimum[self.begun] - 1e-4).float(),
        }
        self.row = after.clamp(min=0)
        prompts = torch.randint(len(self.states.start), (self.n,), generator=self.generator, device=self.device)
        self._begin(over, self.states.start[prompts])
        return Transition(
            obs=self.observe(),
            reward=expected + noise * (chosen != STOPPING),
            terminated=over,
            truncated=torch.zeros_like(over),
            final_obs=final if bool(over.any()) else None,
            metrics=metrics,
        )

    def observe(self) -> Obs:
        return self.states.observe(self.row)

    def state_dict(self) -> dict[str, Tensor]:
        state = {"row": self.row, "begun": self.begun, "earned": self.earned.clone()}
        return state | {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.row, self.begun = (state[name].to(self.device) for name in ("row", "begun"))
        self.earned = state["earned"].to(self.device).clone()
        self.generator.set_state(state["generator"].cpu())

    def _begin(self, where: Tensor, rows: Tensor) -> None:
        self.row = torch.where(where, rows, self.row)
        self.begun = torch.where(where, rows, self.begun)
        self.earned = torch.where(where, 0.0, self.earned)
