"""One run that learns from logs: is there overlap? Then pass after pass, judged on logs kept aside, saved, stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from etude.contracts.errors import CheckpointError
from etude.learning.checkpoint import under, write_checkpoint
from etude.learning.dpo import DPO, DPOConfig
from etude.learning.logged import Shards, StopReason, held_out_value
from etude.learning.logged_ppo import LoggedPPO, LoggedPPOConfig
from etude.learning.overlap import OverlapConfig, check_overlap
from etude.learning.rloo import RLOO, RLOOConfig
from etude.learning.runs import RunFolder
from etude.learning.tracking import Tracker, TrackerName, make_trackers

Learner = LoggedPPO | RLOO | DPO
LEARNERS: dict[str, type[LoggedPPO] | type[RLOO] | type[DPO]] = {"ppo": LoggedPPO, "rloo": RLOO, "dpo": DPO}


@dataclass(frozen=True, kw_only=True)
class FromLogsConfig:
    """Learning from logged decisions, by algorithm."""

    ppo: LoggedPPOConfig = field(default_factory=LoggedPPOConfig)
    rloo: RLOOConfig = field(default_factory=RLOOConfig)
    dpo: DPOConfig = field(default_factory=DPOConfig)
    overlap: OverlapConfig = field(default_factory=OverlapConfig)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What one pass did."""

    number: int  # from 1
    wall_s: float
    metrics: Mapping[str, float]
    is_best: bool = False
    stopped: StopReason | None = None  # set on the last


class LogsTraining:
    """A run in a folder, new or resumed at the start of a pass."""

    def __init__(
        self,
        learner: Learner,
        train: Shards,
        held_out: Shards,
        folder: RunFolder,
        settings: Mapping[str, Any],
        *,
        problem: str,
        overlap: OverlapConfig,
        trackers: Sequence[TrackerName] = (),
        threads: int = 0,
    ) -> None:
        """`settings` is what config.json keeps. `overlap` is what the logs are checked by before the first pass."""
        self.learner, self.train, self.held_out, self.folder, self.problem = learner, train, held_out, folder, problem
        self.policy: Any = learner.policy
        self.overlap, self.trackers, self.threads = overlap, trackers, threads or os.cpu_count() or 1
        self.wall_s, self.before = 0.0, float("nan")
        folder.open(settings)
        self.resumed = self._restore()

    @property
    def step(self) -> int:
        return self.learner.epoch

    @property
    def saved_at(self) -> int:
        """The last pass that need not be made again."""
        return self.learner.epoch

    def epochs(self) -> Iterator[Pass]:
        """Train to the end; one item a pass. DataError where the logs cannot teach this policy."""
        if self.folder.summary() is not None:
            return
        trackers = make_trackers(self.folder.path, self.trackers, resume_step=self.step or -1)
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            if self.step == 0:
                self._look(trackers)
            began = time.perf_counter()
            for metrics in self.learner.run(self.train, self.held_out):
                self.wall_s += time.perf_counter() - began
                yield self._done(metrics, trackers)
                began = time.perf_counter()
            self.folder.finish(
                {
                    "stopped": self.learner.stopped,
                    "epochs": self.step,
                    "wall_s": self.wall_s,
                    "estimate_before": self.before,
                    "best_estimate": self.learner.best.score,
                }
            )
        finally:
            torch.set_num_threads(threads)
            for tracker in trackers:
                tracker.close()

    def _look(self, trackers: Sequence[Tracker]) -> None:
        """Whether the logs can teach it, and what they say of the policy as it is."""
        began = time.perf_counter()
        found = check_overlap(self.policy, self.train, self.overlap)
        told = held_out_value(
            self.policy, self.held_out, truncation=self.learner.config.truncation, minibatch=self.overlap.minibatch
        )
        self.before = told["estimate"]
        self.wall_s += time.perf_counter() - began
        for tracker in trackers:
            tracker.log(0, told | {f"overlap_{name}": float(value) for name, value in asdict(found).items()})

    def _done(self, metrics: Mapping[str, float], trackers: Sequence[Tracker]) -> Pass:
        learner = self.learner
        if isinstance(learner, LoggedPPO) and self.step == learner.config.warm_up:
            self.before = metrics["estimate"]  # by the value that it has learned while its policy stayed
        is_best = learner.best.stale == 0 and bool(learner.best.weights)
        if is_best:
            weights = {f"policy.{name}": value for name, value in learner.best.weights.items()}
            meta = {"problem": self.problem, "estimate": learner.best.score}
            write_checkpoint(self.folder.best, step=self.step, tensors=weights, meta=meta, keep=1)
        tensors = {f"policy.{name}": value for name, value in self.policy.state_dict().items()}
        tensors |= {f"learner.{name}": value for name, value in learner.state_dict().items()}
        meta = {"problem": self.problem, "wall_s": self.wall_s, "before": self.before, "stopped": learner.stopped}
        write_checkpoint(self.folder.checkpoints, step=self.step, tensors=tensors, meta=meta, keep=2)
        for tracker in trackers:
            tracker.log(self.step, metrics)
        return Pass(number=self.step, wall_s=self.wall_s, metrics=metrics, is_best=is_best, stopped=learner.stopped)

    def _restore(self) -> bool:
        saved = self.folder.latest(self.problem)
        if saved is None:
            return False
        tensors, meta = saved
        try:
            self.policy.load_state_dict(under("policy.", tensors))
            self.learner.load_state_dict(under("learner.", tensors))
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{self.folder.checkpoints}: the newest checkpoint is not of this run ({error!r:.200}); "
                "delete its folder to fall back to the one before it"
            ) from error
        self.wall_s, self.before = meta["wall_s"], meta["before"]
        self.learner.stopped = StopReason(meta["stopped"]) if meta["stopped"] else None
        return True
