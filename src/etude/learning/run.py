"""One learning job in a folder: update, evaluate, keep the best policy, write checkpoints, stop, resume.

A `Run` drives a `Learner`: practice in a world, imitation of examples, passes over logs. `Run.updates()` yields after
every update, so its caller shows progress in a loop and interrupts by leaving the loop. A run that was killed and is
started again continues from its newest checkpoint and, on a CPU, ends with the same weights.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from etude.contracts.errors import CheckpointError, EtudeError
from etude.learning.artefact import Artefact, write_artefact
from etude.learning.checkpoint import checkpoints, prefixed, under, write_checkpoint
from etude.learning.health import Health, HealthConfig, HealthWarning
from etude.learning.run_folder import POLICY, RunFolder
from etude.learning.tracking import Tracker, check_installed, make_trackers


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of a run: budget, evaluations, checkpoints and device."""

    seed: Annotated[int, Ge(0)] = 0
    """Seed; the same seed on the same machine gives the same weights."""
    max_steps: Annotated[int, Gt(0)] = 400_000
    """Budget of environment steps."""
    max_episodes: Annotated[int, Gt(0)] | None = None
    """Budget of episodes; null counts only steps."""
    target_return: float | None = None
    """Stop once an evaluation reaches this return; null never stops for it."""
    target_completion_rate: Annotated[float, Gt(0), Le(1)] | None = None
    """Stop once an evaluation reaches this completion rate; null never stops for it."""
    plateau_patience: Annotated[int, Gt(0)] | None = None
    """Stop after this many evaluations without a better one; null never stops for it."""
    decline_patience: Annotated[int, Gt(0)] | None = 5
    """Stop after this many evaluations in a row that fell below half of what was gained; null never stops for it."""
    eval_every: Annotated[int, Gt(0)] = 40_000
    """Steps between evaluations."""
    eval_episodes: Annotated[int, Gt(0)] = 64
    """Episodes per evaluation, on seeds of their own."""
    checkpoint_every: Annotated[int, Gt(0)] = 100_000
    """Steps between checkpoints."""
    keep_checkpoints: Annotated[int, Gt(0)] = 3
    """Number of checkpoints to keep."""
    phases: Annotated[int, Gt(0)] = 8
    """Groups of environments that start their episodes at different times."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of worlds and networks; `auto` uses the GPU if there is one."""
    threads: Annotated[int, Ge(0)] = 0
    """CPU threads; 0 chooses by the size of a minibatch, since small ones run slower on many."""
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Trackers that get the metrics, in addition to metrics.jsonl."""


class StopReason(StrEnum):
    BUDGET = "budget"
    TARGET = "target"
    PLATEAU = "plateau"
    DECLINE = "decline"
    OVERLAP = "overlap"
    DISTANCE = "distance"


STOPPED = {
    StopReason.BUDGET: "the budget is used up",
    StopReason.TARGET: "an evaluation reached the target",
    StopReason.PLATEAU: "evaluations stopped improving",
    StopReason.DECLINE: "evaluations fell and stayed down",
    StopReason.OVERLAP: "the logs say too little about what the policy does by now",
    StopReason.DISTANCE: "the policy is too far from the behaviour policy",
}
"""Each reason in words."""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Result of an evaluation."""

    score: float | None  # None if the policy is kept without a score
    margin: float | None = None  # half the width of its 95 % interval, if known
    metrics: Mapping[str, float] = field(default_factory=dict)
    keep: bool = False  # make it the run's policy even if its score is not the best


@dataclass(frozen=True, kw_only=True)
class PolicyParts:
    """The parts of a learner's policy, for its artefact."""

    tensors: Mapping[str, Tensor]
    files: Mapping[str, bytes] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    def with_weights(self, weights: Mapping[str, Tensor]) -> PolicyParts:
        return replace(self, tensors=prefixed("policy.", weights) | dict(self.tensors))


@dataclass(frozen=True, kw_only=True)
class About:
    """Facts about a run, for its config.json and its artefacts."""

    problem: str
    method: str
    title: str  # such as `document 4×10`, for lists of runs
    unit: str  # what a step counts: steps, epochs, passes
    budget: str  # in words, such as `400,000`
    score: str  # what an evaluation measures: return, validation score, estimate
    settings: Mapping[str, Any]  # the sections that reproduce the run
    policy_sections: tuple[str, ...]  # the sections that reproduce the policy
    encoder: str | None = None
    catalogue: str | None = None
    data: tuple[str, ...] = ()  # hashes of what it learns from
    parent: str | None = None  # the version it continues from
    extra: Mapping[str, Any] = field(default_factory=dict)  # facts about the run that its problem keeps
    remarks: tuple[str, ...] = ()  # notes to show before it starts, one per line

    def config(self) -> dict[str, Any]:
        names = ("problem", "method", "title", "unit", "budget", "score", "encoder", "catalogue", "parent")
        return {name: getattr(self, name) for name in names} | {"data": list(self.data), **self.extra, **self.settings}


class Learner(Protocol):
    """The learner of a Run. Its state is tensors and plain values; with both restored it continues bit for bit."""

    about: About
    device: torch.device
    step: int  # counts About.unit
    scores: list[float]  # of every evaluation, appended by the run

    @property
    def used(self) -> float:
        """The share of the budget that is used up."""

    @property
    def checkpoint_every(self) -> int:
        """Steps between checkpoints."""

    @property
    def threads(self) -> int:
        """CPU threads to compute with."""

    def begin(self) -> Evaluated | None:
        """Before the first update: check the data and evaluate the initial policy."""

    def advance(self, report: Callable[[float], None]) -> dict[str, float]:
        """Do one update and return its metrics. `report` is called with the share of the update that is done."""

    def evaluate(self, *, force: bool = False) -> Evaluated | None:
        """Evaluate the policy; None if no evaluation is due, unless forced."""

    def reason_to_stop(self) -> StopReason | None:
        """Why the run stops at this step; None if it continues."""

    def policy(self) -> PolicyParts:
        """The policy at its last evaluation."""

    def tensors(self) -> dict[str, Tensor]:
        """Tensors that, with `values`, are everything the next update depends on."""

    def values(self) -> dict[str, Any]: ...

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None: ...

    def summary(self) -> dict[str, Any]:
        """Entries of summary.json in addition to how the run ended."""

    def line(self, update: Update) -> str:
        """An update in one line, for people."""

    def introduction(self) -> str:
        """What the run is about to do, for people."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """Result of one update."""

    step: int
    wall_s: float
    metrics: Mapping[str, float]
    score: float | None = None  # when it ended with an evaluation
    margin: float | None = None
    is_best: bool = False
    warnings: tuple[HealthWarning, ...] = ()
    stopped: StopReason | None = None  # set on the last one


class Run:
    """A learning job in its folder, new or resumed."""

    def __init__(
        self,
        learner: Learner,
        folder: RunFolder,
        *,
        trackers: Sequence[Any] = (),
        keep_checkpoints: int = 3,
        health: HealthConfig | None = None,
    ) -> None:
        self.learner, self.folder, self.about = learner, folder, learner.about
        self.tracker_names, self.keep_checkpoints = trackers, keep_checkpoints
        self.health = Health(health) if health is not None else None
        self.wall_s, self.saved_at, self.stage = 0.0, 0, 0.0
        check_installed(trackers)
        self._is_new = folder.open(self.about.config())  # last: invalid settings leave no folder behind
        self.resumed = self._restore()

    @property
    def step(self) -> int:
        return self.learner.step

    @property
    def scores(self) -> list[float]:
        return self.learner.scores

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended and still has its policy."""
        return self.learner.reason_to_stop() is not None and bool(checkpoints(self.folder.best))

    def updates(self, report: Callable[[float], None] = lambda share: None) -> Iterator[Update]:
        """Learn until there is a reason to stop; one item per update. A new run that fails before it has a policy,
        because of its data for example, leaves nothing behind."""
        try:
            yield from self._updates(report)
        except EtudeError:
            if self._is_new and not checkpoints(self.folder.checkpoints) and not checkpoints(self.folder.best):
                self.folder.clear()
            raise

    def _updates(self, report: Callable[[float], None]) -> Iterator[Update]:
        if self.is_finished and self.folder.summary() is not None:
            return
        learner = self.learner
        trackers = make_trackers(self.folder.path, self.tracker_names, resume_step=self.step or -1)
        threads = torch.get_num_threads()
        torch.set_num_threads(learner.threads)
        self.folder.reopen()
        try:
            if self.step == 0 and not self.resumed:
                self._begin(trackers)
            stopped = learner.reason_to_stop()
            while stopped is None:
                update = self._update(trackers, report)
                stopped = update.stopped
                yield update
            if not checkpoints(self.folder.best):
                self._judge(learner.evaluate(force=True))
            self.folder.finish(
                {
                    "stopped": stopped,
                    "step": self.step,
                    "wall_s": self.wall_s,
                    "best_score": max(self.scores, default=None),
                    "policy": self.artefact().version,
                    **learner.summary(),
                }
            )
        finally:
            torch.set_num_threads(threads)
            for tracker in trackers:
                tracker.close()

    def artefact(self) -> Artefact:
        """The best policy so far."""
        return self.folder.policy()

    def _begin(self, trackers: Sequence[Tracker]) -> None:
        began = time.perf_counter()
        evaluated = self.learner.begin()
        if evaluated is not None:
            self._judge(evaluated)
            for tracker in trackers:
                tracker.log(0, evaluated.metrics)
        self.wall_s += time.perf_counter() - began

    def _update(self, trackers: Sequence[Tracker], report: Callable[[float], None]) -> Update:
        learner, began = self.learner, time.perf_counter()
        metrics = learner.advance(report)
        evaluated = learner.evaluate()
        score, is_best = self._judge(evaluated)
        metrics |= evaluated.metrics if evaluated is not None else {}
        warnings = self._warnings(metrics)
        stopped = learner.reason_to_stop()
        self.wall_s += time.perf_counter() - began
        logged = metrics | {f"warning_{warning.name}": warning.value for warning in warnings}
        for tracker in trackers:
            tracker.log(self.step, logged)
        if stopped or self.step - self.saved_at >= learner.checkpoint_every:
            self._save()
        return Update(
            step=self.step,
            wall_s=self.wall_s,
            metrics=metrics,
            score=score,
            margin=evaluated.margin if evaluated is not None else None,
            is_best=is_best,
            warnings=warnings,
            stopped=stopped,
        )

    def _warnings(self, metrics: Mapping[str, float]) -> tuple[HealthWarning, ...]:
        if self.health is None:
            return ()
        if metrics.get("stage", 0.0) != self.stage:  # another stage of a curriculum has other returns
            self.stage = metrics["stage"]
            self.health.restart()
        return tuple(self.health.check(self.step, metrics))

    def _judge(self, evaluated: Evaluated | None) -> tuple[float | None, bool]:
        """Keep the policy if it is the best so far; return its score, and whether it is the best."""
        if evaluated is None:
            return None, False
        score, kept = evaluated.score, checkpoints(self.folder.best)
        best = Artefact(kept[-1]).manifest.score if kept else None  # not that of a policy that was deleted
        is_best = score is not None and (best is None or score > best)
        if score is not None:
            self.scores.append(score)
        if is_best or evaluated.keep or not kept:
            # The previous policy stays until the next checkpoint, since a resumed run may need it.
            self._write_policy(self.folder.best / f"step-{self.step:012d}", score)
        return score, is_best

    def _write_policy(self, folder: Path, score: float | None) -> None:
        parts, about = self.learner.policy(), self.about
        write_artefact(
            folder,
            tensors=parts.tensors,
            files=parts.files,
            about={
                **{key: getattr(about, key) for key in ("problem", "method", "encoder", "catalogue", "data", "parent")},
                "step": self.step,
                "score": score,
                "settings": {name: about.settings[name] for name in about.policy_sections},
                "details": dict(parts.details),
                "code": version("etude"),
            },
        )

    def _save(self) -> None:
        tensors = {"rng": torch.get_rng_state(), **prefixed("learner.", self.learner.tensors())}
        if self.learner.device.type == "cuda":
            tensors["cuda_rng"] = torch.cuda.get_rng_state(self.learner.device)
        meta = {
            "problem": self.about.problem,
            "wall_s": self.wall_s,
            "scores": self.scores,
            "values": self.learner.values(),
            "stage": self.stage,
            "health": self.health.state_dict() if self.health is not None else None,
        }
        write_checkpoint(
            self.folder.checkpoints,
            step=self.step,
            tensors=tensors,
            meta=meta,
            keep=self.keep_checkpoints,
            add=lambda draft: self._write_policy(draft / POLICY, None),
        )
        self.saved_at = self.step
        for surpassed in checkpoints(self.folder.best)[:-1]:
            shutil.rmtree(surpassed)

    def _restore(self) -> bool:
        saved = self.folder.latest(self.about.problem)
        if saved is not None:
            tensors, meta = saved
            try:
                self.learner.scores[:] = meta["scores"]
                self.learner.step = self.saved_at = meta["step"]
                self.learner.restore(under("learner.", tensors), meta["values"])
                torch.set_rng_state(tensors["rng"])
                if self.learner.device.type == "cuda":
                    torch.cuda.set_rng_state(tensors["cuda_rng"], self.learner.device)
            except (KeyError, RuntimeError, ValueError, TypeError) as error:
                raise CheckpointError(
                    f"{self.folder.checkpoints}: the newest checkpoint is not of this run or device "
                    f"({error!r:.200}); delete its folder to fall back to the one before it"
                ) from error
            self.wall_s, self.stage = meta["wall_s"], meta["stage"]
            if self.health is not None and meta["health"] is not None:
                self.health.load_state_dict(meta["health"])
        # Anything written after that checkpoint is written again.
        for later in [path for path in checkpoints(self.folder.best) if path.name > f"step-{self.step:012d}"]:
            shutil.rmtree(later)
        return saved is not None
