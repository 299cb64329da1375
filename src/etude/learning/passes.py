"""An algorithm over logs, pass by pass: it learns, is judged on held-out logs and stops; the best weights are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from etude.contracts.errors import ConfigError
from etude.learning.checkpoint import load_optimizer, optimizer_tensors, prefixed, under
from etude.learning.dpo import DPO, DPOConfig
from etude.learning.logged import Shards
from etude.learning.logged_ppo import LoggedPPO, LoggedPPOConfig
from etude.learning.overlap import OverlapConfig
from etude.learning.rloo import RLOO, RLOOConfig
from etude.learning.run import StopReason

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
        self.stopped: StopReason | None = None
        self.best_score, self.stale = -torch.inf, 0  # the best estimate on held-out logs, and the passes since
        self.best_weights: dict[str, Tensor] = {}

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
                self._judge(metrics["estimate"])
        self.stopped = self._why(metrics)
        if self.stopped is not None and self.best_weights:
            algorithm.policy.load_state_dict(self.best_weights)
        return metrics

    def _judge(self, score: float) -> None:
        """Keep the weights if they are the best so far."""
        self.stale = 0 if score > self.best_score else self.stale + 1
        if not self.stale:
            self.best_score, weights = score, self.algorithm.policy.state_dict()
            self.best_weights = {name: value.detach().clone() for name, value in weights.items()}

    def _why(self, metrics: Mapping[str, float]) -> StopReason | None:
        c = self.algorithm.config
        if metrics["ess"] < c.min_ess:
            return StopReason.OVERLAP
        if isinstance(c, LoggedPPOConfig) and c.max_kl is not None and metrics["kl_logged"] > c.max_kl:
            return StopReason.DISTANCE
        if self.stale >= c.patience:
            return StopReason.PLATEAU
        return StopReason.BUDGET if self.algorithm.epoch >= c.epochs else None

    def state_dict(self) -> dict[str, Tensor]:
        """Everything the next pass depends on except the policy's weights and why it stopped."""
        algorithm = self.algorithm
        state = {"generator": algorithm.generator.get_state(), "epoch": torch.tensor(algorithm.epoch)}
        if isinstance(algorithm, LoggedPPO):
            state["moments"] = algorithm.moments
        state |= {
            "best.score": torch.tensor(self.best_score, dtype=torch.float64),
            "best.stale": torch.tensor(self.stale),
        }
        state |= prefixed("optimizer.", optimizer_tensors(algorithm.optimizer))
        return state | prefixed("best.weights.", self.best_weights)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        algorithm = self.algorithm
        algorithm.generator.set_state(state["generator"].cpu())
        algorithm.epoch = int(state["epoch"])
        if isinstance(algorithm, LoggedPPO):
            algorithm.moments = state["moments"].to(algorithm.device)
        load_optimizer(algorithm.optimizer, under("optimizer.", state))
        self.best_score, self.stale = float(state["best.score"]), int(state["best.stale"])
        self.best_weights = under("best.weights.", state)
