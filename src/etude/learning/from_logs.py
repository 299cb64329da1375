"""Learns from logged decisions: checks the overlap, then makes passes, each evaluated on held-out logs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Any, Protocol

import torch
from torch import Tensor

from etude.contracts.errors import DatasetError
from etude.contracts.ports import Example, LoggedDataset
from etude.evidence.intervals import Estimate, estimate_mean
from etude.learning.checkpoint import under
from etude.learning.logged import Shards, held_out_value, held_out_values
from etude.learning.overlap import check_overlap
from etude.learning.passes import FromLogsConfig, Passes, make_algorithm
from etude.learning.run import About, Evaluated, PolicyParts, StopReason, Update
from etude.problems.base import Policy

Examples = Callable[[], Iterator[Sequence[Example]]]
"""Starts a pass over a split of a dataset."""


class Keep(StrEnum):
    """Which policy a run from logs ends with."""

    BETTER = "better"  # the new one if it is better on held-out logs, else the one it started from
    ALWAYS = "always"  # the new one


KEPT_OLD = "The run keeps the policy it started from; `--keep always` takes the new one all the same."


class LogReader(Protocol):
    """A policy, and logged decisions as its observations and actions."""

    @property
    def policy(self) -> Policy: ...

    @property
    def parts(self) -> PolicyParts:
        """What the policy's artefact holds besides its weights."""

    def shards(self, examples: Examples, *, seed: int = 0, sample: Callable[[], int] = lambda: 0) -> Shards:
        """Examples as tensors, in parts. For weighted examples `sample` returns the number of the weighted sample."""


def check_dataset(dataset: LoggedDataset, problem: str, *splits: str) -> None:
    """DatasetError if a dataset is of another problem, or a split is empty."""
    if dataset.problem.partition(":")[0] != problem:  # such as choice:model of the problem `choice`
        raise DatasetError(f"the dataset is about {dataset.problem!r}: expected one of the problem {problem!r}")
    for split in splits:
        if not dataset.splits.get(split):
            raise DatasetError(
                f"the dataset has no trajectories in its {split} split: create it with more of them, or other shares"
            )


class FromLogs:
    """Runs one algorithm over logs. Logs that the policy cannot learn from are refused with a DataError."""

    checkpoint_every = 1

    def __init__(
        self,
        about: About,
        reader: LogReader,
        config: FromLogsConfig,
        train: Examples,
        held_out: Examples,
        *,
        algorithm: str,
        device: torch.device,
        seed: int,
        threads: int = 0,
        keep: Keep = Keep.ALWAYS,
    ) -> None:
        torch.manual_seed(seed)
        self.keep = keep
        self.gain: Estimate | None = None
        self.start = {name: value.detach().clone() for name, value in reader.policy.state_dict().items()}
        self.about, self.net, self.overlap, self.parts = about, reader.policy, config.overlap, reader.parts
        self.train: Shards = reader.shards(train, seed=seed, sample=lambda: self.algorithm.epoch)
        self.held_out: Shards = reader.shards(held_out, seed=seed)  # the same sample in every pass: estimates compare
        self.held_out_examples = held_out
        self.algorithm = make_algorithm(algorithm, self.net, config, device=device, seed=seed)
        self.passes = Passes(self.algorithm, self.train, self.held_out)
        self.device, self.threads = device, threads or os.cpu_count() or 1
        self.step, self.before = 0, float("nan")
        self.scores: list[float] = []
        self.metrics: Mapping[str, float] = {}

    @property
    def used(self) -> float:
        return self.step / self.algorithm.config.epochs

    def begin(self) -> Evaluated:
        """Check that the policy can learn from the logs, and estimate its value before training."""
        found = check_overlap(self.net, self.train, self.overlap)
        truncation, minibatch = self.algorithm.config.truncation, self.overlap.minibatch
        estimate = held_out_value(self.net, self.held_out, truncation=truncation, minibatch=minibatch)
        self.before = estimate["estimate"]
        return Evaluated(
            score=None, metrics=estimate | {f"overlap_{name}": float(value) for name, value in asdict(found).items()}
        )

    def advance(self, report: Callable[[float], None]) -> dict[str, float]:
        metrics = self.passes.advance()
        self.step, self.metrics = self.algorithm.epoch, metrics
        if self.step == self.passes.warm_up:
            self.before = metrics["estimate"]  # by the value function that has been fitted while the policy stayed
        return metrics

    def evaluate(self, *, force: bool = False) -> Evaluated | None:
        """The evaluation of a pass; None while PPO warms up, since the policy does not change."""
        passes = self.passes
        if not passes.best_weights:
            return Evaluated(score=None, keep=True) if force else None
        keep = passes.stale == 0 or force
        if passes.stopped is not None:
            self.gain, keep = self._compare(), True
        return Evaluated(score=passes.best_score if keep else self.metrics.get("estimate"), keep=keep)

    def _compare(self) -> Estimate:
        """How much better the best policy is than the one it started from, paired by held-out trajectory."""
        truncation, minibatch = self.algorithm.config.truncation, self.overlap.minibatch
        best, values = self.net.state_dict(), []
        for weights in (self.passes.best_weights, self.start):
            self.net.load_state_dict(weights)
            values.append(held_out_values(self.net, self.held_out, truncation=truncation, minibatch=minibatch)[0])
        self.net.load_state_dict(best)
        return estimate_mean((values[0] - values[1]).double().cpu().numpy())

    @property
    def is_kept(self) -> bool:
        """Whether the run ends with the new policy."""
        return self.keep is Keep.ALWAYS or self.gain is None or self.gain.low > 0

    def reason_to_stop(self) -> StopReason | None:
        return self.passes.stopped

    def policy(self) -> PolicyParts:
        weights = self.passes.best_weights if self.is_kept else self.start
        return self.parts.with_weights(weights or self.net.state_dict())

    def tensors(self) -> dict[str, Tensor]:
        parts = (("policy", self.net), ("algorithm", self.passes))
        return {f"{prefix}.{name}": value for prefix, part in parts for name, value in part.state_dict().items()}

    def values(self) -> dict[str, Any]:
        return {"before": self.before, "stopped": self.passes.stopped}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        self.net.load_state_dict(under("policy.", tensors))
        self.passes.load_state_dict(under("algorithm.", tensors))
        self.before = values["before"]
        self.passes.stopped = StopReason(values["stopped"]) if values["stopped"] else None

    def summary(self) -> dict[str, Any]:
        found = {"epochs": self.step, "estimate_before": self.before, "best_estimate": self.passes.best_score}
        if self.gain is None:
            return found
        return found | {"verdict": {"answer": self._answer(self.gain), "gain": self.gain.to_json()}, "kept": self._kept}

    @property
    def _kept(self) -> str:
        return "new" if self.is_kept else "old"

    @staticmethod
    def _answer(gain: Estimate) -> str:
        return "better" if gain.low > 0 else "worse" if gain.high < 0 else "not distinguishable"

    def introduction(self) -> str:
        return f"learning by {self.about.extra['algorithm']} from logged decisions on {self.device}"

    def line(self, update: Update) -> str:
        m = update.metrics
        estimate = f"estimate {m['estimate']:.3f}  " if "estimate" in m and update.score is None else ""
        line = f"{estimate}effective {m['ess']:.1%} of the logs  KL to them {max(0.0, m['kl_logged']):.3f}"
        if self.gain is None:
            return line
        verdict = (
            f"Verdict: {self._answer(self.gain)}, compared with the policy it started from on requests that were held "
            f"out: {self.gain.mean:+.3g} [{self.gain.low:+.3g}, {self.gain.high:+.3g}] of reward."
        )
        if not self.is_kept:
            verdict += f" {KEPT_OLD}"
        return f"{line}\n{verdict}"
