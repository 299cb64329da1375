"""An algorithm over logs, pass by pass: it learns, is judged on held-out logs and stops; the best weights are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from etude.contracts.errors import ConfigError
from etude.learning.checkpoint import load_optimizer, optimizer_tensors, under
from etude.learning.dpo import DPO, DPOConfig
from etude.learning.logged import Shards
from etude.learning.logged_ppo import LoggedPPO, LoggedPPOConfig
from etude.learning.overlap import OverlapConfig
from etude.learning.rloo import RLOO, RLOOConfig
from etude.learning.run import StopReason
from etude.problems.base import Policy

Algorithm = LoggedPPO | RLOO | DPO
ALGORITHMS: dict[str, type[LoggedPPO] | type[RLOO] | type[DPO]] = {"ppo": LoggedPPO, "rloo": RLOO, "dpo": DPO}


@dataclass(frozen=True, kw_only=True)
class FromLogsConfig:
    """Learning from logged decisions, by algorithm."""

    ppo: LoggedPPOConfig = field(default_factory=LoggedPPOConfig)
    rloo: RLOOConfig = field(default_factory=RLOOConfig)
    dpo: DPOConfig = field(default_factory=DPOConfig)
    overlap: OverlapConfig = field(default_factory=OverlapConfig)


def make_algorithm(name: str, policy: Any, config: FromLogsConfig, *, device: torch.device, seed: int) -> Algorithm:
    check_algorithm(name)
    return ALGORITHMS[name](policy, getattr(config, name), device=device, seed=seed)


def check_algorithm(name: str) -> None:
    if name not in ALGORITHMS:
        raise ConfigError(f"the algorithm is {name!r}: expected one of {', '.join(ALGORITHMS)}")


class Passes:
    """Iterating makes one pass after another until there is a reason to stop; yields the metrics of each.

    With held-out logs the best weights are restored in the end.
    """

    def __init__(self, algorithm: Algorithm, train: Shards, held_out: Shards | None = None) -> None:
        self.algorithm, self.train, self.held_out = algorithm, train, held_out
        self.best = Best(algorithm.policy)
        self.stopped: StopReason | None = None

    @property
    def warm_up(self) -> int:
        """Passes at the start in which the policy stays as it is."""
        config = self.algorithm.config
        return config.warm_up if isinstance(config, LoggedPPOConfig) else 0

    def __iter__(self) -> Iterator[dict[str, float]]:
        while self.stopped is None and self.algorithm.epoch < self.algorithm.config.epochs:
            yield self.advance()

    def advance(self) -> dict[str, float]:
        """One pass; its metrics."""
        algorithm, c = self.algorithm, self.algorithm.config
        for group in algorithm.optimizer.param_groups:
            group["lr"] = c.lr * (c.lr_final + (1 - c.lr_final) * (1 - algorithm.epoch / c.epochs))
        metrics = algorithm.learn(self.train)
        algorithm.epoch += 1
        if self.held_out is not None:
            metrics |= algorithm.estimate(self.held_out)
            if algorithm.epoch > self.warm_up or self._why(metrics):  # a run may end while it warms up
                self.best.see(metrics["estimate"])
        self.stopped = self._why(metrics)
        if self.stopped is not None:
            self.best.restore()
        return metrics

    def _why(self, metrics: Mapping[str, float]) -> StopReason | None:
        c = self.algorithm.config
        if metrics["ess"] < c.min_ess:
            return StopReason.OVERLAP
        if isinstance(c, LoggedPPOConfig) and c.max_kl is not None and metrics["kl_logged"] > c.max_kl:
            return StopReason.DISTANCE
        if self.best.stale >= c.patience:
            return StopReason.PLATEAU
        return StopReason.BUDGET if self.algorithm.epoch >= c.epochs else None

    def state_dict(self) -> dict[str, Tensor]:
        """Everything the next pass depends on except the policy's weights and why it stopped."""
        algorithm = self.algorithm
        state = {"generator": algorithm.generator.get_state(), "epoch": torch.tensor(algorithm.epoch)}
        if isinstance(algorithm, LoggedPPO):
            state["moments"] = algorithm.moments
        state |= {f"optimizer.{name}": value for name, value in optimizer_tensors(algorithm.optimizer).items()}
        return state | {f"best.{name}": value for name, value in self.best.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        algorithm = self.algorithm
        algorithm.generator.set_state(state["generator"].cpu())
        algorithm.epoch = int(state["epoch"])
        if isinstance(algorithm, LoggedPPO):
            algorithm.moments = state["moments"].to(algorithm.device)
        load_optimizer(algorithm.optimizer, under("optimizer.", state))
        self.best.load_state_dict(under("best.", state))


class Best:
    """The weights with the best estimate on held-out logs, and the number of passes since."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.score, self.stale = policy, -torch.inf, 0
        self.weights: dict[str, Tensor] = {}

    def see(self, score: float) -> None:
        self.stale = 0 if score > self.score else self.stale + 1
        if not self.stale:
            self.score = score
            self.weights = {name: value.detach().clone() for name, value in self.policy.state_dict().items()}

    def restore(self) -> None:
        if self.weights:
            self.policy.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Tensor]:
        state = {"score": torch.tensor(self.score, dtype=torch.float64), "stale": torch.tensor(self.stale)}
        return state | {f"weights.{name}": value for name, value in self.weights.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.score, self.stale = float(state["score"]), int(state["stale"])
        self.weights = under("weights.", state)
