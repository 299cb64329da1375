"""Curiosity by random network distillation (Burda et al., 2018): states that a small network cannot predict are new."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from etude.learning.checkpoint import load_optimizer, optimizer_tensors, prefixed, under
from etude.problems.base import Obs

FEATURES, LR = 32, 1e-3


class Curiosity:
    """Predicts a fixed random network's features of an observation; the error is the bonus."""

    def __init__(self, *, device: torch.device | str = "cpu", seed: int = 0) -> None:
        self.device, self.seed = torch.device(device), seed
        self.target: nn.Module | None = None  # built when the width of the first observation is known
        self.predictor: nn.Module
        self.optimizer: torch.optim.Adam
        self.center: Tensor
        self.spread: Tensor
        self.familiar: Tensor  # the first batch's mean error: a bonus of 1

    @torch.no_grad()
    def bonus(self, obs: Obs) -> Tensor:
        """Observations (T, n, …) to bonuses (T, n): 1 on the first batch's average, less as states get familiar."""
        return (self._error(self._read(obs)) / self.familiar).view(next(iter(obs.values())).shape[:2])

    def learn(self, obs: Obs, *, minibatch: int = 1024) -> float:
        """One pass over the batch; returns the mean error."""
        x, total = self._read(obs), 0.0
        for part in x.split(minibatch):
            loss = self._error(part).mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            total += float(loss.detach()) * len(part)
        return total / len(x)

    def state_dict(self) -> dict[str, Tensor]:
        if self.target is None:
            return {}
        state = {"center": self.center, "spread": self.spread, "familiar": self.familiar}
        parts = {"target.": self.target.state_dict(), "predictor.": self.predictor.state_dict()}
        for prefix, part in (parts | {"optimizer.": optimizer_tensors(self.optimizer)}).items():
            state |= prefixed(prefix, part)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if not state:
            self.target = None
            return
        self._build(len(state["center"]))
        assert self.target is not None
        self.center, self.spread, self.familiar = (
            state[name].to(self.device) for name in ("center", "spread", "familiar")
        )
        for name, module in (("target.", self.target), ("predictor.", self.predictor)):
            module.load_state_dict(under(name, state))
        load_optimizer(self.optimizer, under("optimizer.", state))

    def _read(self, obs: Obs) -> Tensor:
        """Numbers (T·n, width), scaled by the first batch."""
        x = torch.cat([v.flatten(0, 1).flatten(1).float() for v in obs.values() if v.is_floating_point()], 1)
        if self.target is None or x.shape[1] != len(self.center):  # another size of the problem starts again
            self._build(x.shape[1])
            self.center, self.spread = x.mean(0), x.std(0).clamp(min=1e-3)
            with torch.no_grad():
                self.familiar = self._error(self._scaled(x)).mean().clamp(min=1e-8)
        return self._scaled(x)

    def _scaled(self, x: Tensor) -> Tensor:
        return ((x - self.center) / self.spread).clamp(-5, 5)

    def _build(self, width: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.target = _network(width).to(self.device).requires_grad_(False)
            self.predictor = _network(width).to(self.device)
        self.optimizer = torch.optim.Adam(self.predictor.parameters(), lr=LR)

    def _error(self, x: Tensor) -> Tensor:
        assert self.target is not None
        error: Tensor = self.predictor(x) - self.target(x)
        return error.square().mean(1)


def _network(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, FEATURES))
