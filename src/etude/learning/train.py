"""One run of training, from a problem to its best policy: collect, learn, evaluate, checkpoint, stop.

`Training.updates()` yields after every update, so its caller shows progress by looping and interrupts by leaving. A run
killed at any moment and started again continues from its newest checkpoint and ends with the same weights.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from etude.contracts.errors import CheckpointError, ConfigError
from etude.learning.checkpoint import checkpoints, under, write_checkpoint
from etude.learning.collect import Batch, Collector
from etude.learning.evaluate import Score, evaluate, greedy
from etude.learning.health import Health, HealthConfig, HealthWarning
from etude.learning.ppo import PPO, PPOConfig
from etude.learning.runs import RunFolder
from etude.learning.tracking import check_installed, make_trackers
from etude.problems.base import Problem


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How long a run lasts, how it is watched and where it computes."""

    seed: Annotated[int, Ge(0)] = 0
    """The same seed on the same machine gives the same weights."""
    max_steps: Annotated[int, Gt(0)] = 400_000
    """Budget of environment steps."""
    max_episodes: Annotated[int, Gt(0)] | None = None
    """Budget of episodes; null counts steps alone."""
    target_return: float | None = None
    """Stop once an evaluation reaches this; null never stops for it."""
    plateau_patience: Annotated[int, Gt(0)] | None = None
    """Stop after this many evaluations without a better one; null never stops for it."""
    decline_patience: Annotated[int, Gt(0)] | None = 5
    """Stop after this many evaluations in a row that fell below half of what was gained; null never stops for it."""
    eval_every: Annotated[int, Gt(0)] = 40_000
    """Steps between evaluations."""
    eval_episodes: Annotated[int, Gt(0)] = 64
    """Episodes of each evaluation, on seeds of their own."""
    checkpoint_every: Annotated[int, Gt(0)] = 100_000
    """Steps between checkpoints."""
    keep_checkpoints: Annotated[int, Gt(0)] = 3
    """How many of them stay."""
    phases: Annotated[int, Gt(0)] = 8
    """Groups of environments that start their episodes at different times."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where worlds and networks live; `auto` takes the GPU when there is one."""
    threads: Annotated[int, Ge(0)] = 0
    """CPU threads; 0 chooses by the size of a minibatch, since small ones run slower on many."""
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    """Where metrics go beside metrics.jsonl."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a curriculum over problem size."""

    size: Mapping[str, int]
    """What differs from the full problem, such as `agents: 4`."""
    share: Annotated[float, Gt(0), Le(1)]
    """The share of the budget it lasts."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    ppo: PPOConfig = field(default_factory=PPOConfig)
    run: RunConfig = field(default_factory=RunConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    curriculum: tuple[Stage, ...] = ()


class StopReason(StrEnum):
    BUDGET = "budget"  # the steps or episodes are used up
    TARGET = "target"  # an evaluation reached the target return
    PLATEAU = "plateau"  # evaluations stopped improving
    DECLINE = "decline"  # evaluations fell and stayed down


@dataclass(frozen=True, kw_only=True)
class Update:
    """What one update did."""

    step: int
    wall_s: float
    metrics: Mapping[str, float]
    score: Score | None = None  # when it ended with an evaluation
    is_best: bool = False
    warnings: tuple[HealthWarning, ...] = ()
    stopped: StopReason | None = None  # set on the last one


class Training:
    """A run in a folder, new or resumed."""

    def __init__(
        self,
        problem: Problem,
        config: TrainConfig,
        folder: RunFolder,
        settings: Mapping[str, Any],
        *,
        exam: Problem | None = None,
    ) -> None:
        """`settings` is what config.json keeps: all that is needed to make `problem` and `config` again.

        With an `exam`, evaluations play that problem instead, and the first is of the policy as it is: what a
        trained one learns has to be better than what it could.
        """
        self.problem, self.config, self.folder, self.exam = problem, config, folder, exam or problem
        self.examined_first = exam is not None
        self.device = resolve_device(config.run.device)
        run = config.run
        torch.manual_seed(run.seed)
        policy: Any = problem.policy()
        self.policy = policy.to(self.device).train(False)
        self.ppo = PPO(self.policy, config.ppo, device=self.device, seed=run.seed)
        self.health = Health(config.health)
        self.stages = _stages(problem, config.curriculum)
        self.step, self.episodes, self.wall_s, self.stage = 0, 0, 0.0, -1
        self.scores: list[float] = []  # the mean return of every evaluation
        self.evaluated_at = self.saved_at = 0
        self.collector: Collector
        self._enter_stage()
        check_installed(run.trackers)
        folder.open(settings)  # last: settings that cannot be built leave no folder behind
        self.resumed = self._restore()

    def updates(self) -> Iterator[Update]:
        """Train until a reason to stop; one item an update."""
        run = self.config.run
        trackers = make_trackers(self.folder.path, run.trackers, resume_step=self.step or -1)
        threads = torch.get_num_threads()
        torch.set_num_threads(run.threads or choose_threads(self.policy, self.config.ppo.minibatch))
        self.folder.reopen()
        stopped: StopReason | None = self.reason_to_stop()
        try:
            if self.examined_first and self.step == 0:
                metrics = self._evaluate()[2]
                for tracker in trackers:
                    tracker.log(0, metrics)
            while stopped is None:
                began = time.perf_counter()
                metrics = self._update()
                score, is_best = None, False
                if self.step - self.evaluated_at >= run.eval_every or self.used >= 1:
                    score, is_best, told = self._evaluate()
                    metrics |= told
                warnings = tuple(self.health.check(self.step, metrics))
                stopped = self.reason_to_stop()
                self.wall_s += time.perf_counter() - began
                logged = metrics | {f"warning_{w.name}": w.value for w in warnings}
                for tracker in trackers:
                    tracker.log(self.step, logged)
                if stopped or self.step - self.saved_at >= run.checkpoint_every:
                    self._save()
                yield Update(
                    step=self.step,
                    wall_s=self.wall_s,
                    metrics=metrics,
                    score=score,
                    is_best=is_best,
                    warnings=warnings,
                    stopped=stopped,
                )
            if not self.scores:  # the budget was lowered to what a run had used before its first evaluation
                self._evaluate()
            self.folder.finish(
                {"stopped": stopped, "step": self.step, "wall_s": self.wall_s, "best_return": max(self.scores)}
            )
        finally:
            torch.set_num_threads(threads)
            for tracker in trackers:
                tracker.close()

    def _update(self) -> dict[str, float]:
        if self.step >= self._stage_end():
            self._enter_stage()
        began = time.perf_counter()
        batch = self.collector.collect(self.policy)
        first = self.step == 0
        self._count(batch)
        if first:  # the first batch only shows the scale of observations: learning starts with the second
            self.policy.observed({name: value.flatten(0, 1) for name, value in batch.obs.items()})
            batch = self.collector.collect(self.policy)
            self._count(batch)
        collected = time.perf_counter()
        metrics = self.ppo.update(batch, progress=min(1.0, self.used))
        done = time.perf_counter()
        timing = {
            "steps_per_s": batch.ended.numel() / (done - began) * (2 if first else 1),
            "collect_share": (collected - began) / (done - began),
        }
        return {**metrics, **_episode_metrics(batch), **timing, "stage": float(self.stage)}

    def _count(self, batch: Batch) -> None:
        self.step += batch.ended.numel()
        self.episodes += int(batch.ended.sum())

    @property
    def used(self) -> float:
        """The share of the budget that is used up."""
        run = self.config.run
        return max(self.step / run.max_steps, self.episodes / run.max_episodes if run.max_episodes else 0.0)

    def _evaluate(self) -> tuple[Score, bool, dict[str, float]]:
        """The score, whether it is the best so far, and what of it is logged."""
        run = self.config.run
        score = evaluate(self.exam, greedy(self.policy), episodes=run.eval_episodes, device=self.device)
        is_best = not self.scores or score.mean > max(self.scores)
        self.scores.append(score.mean)
        self.evaluated_at = self.step
        if is_best:
            weights = {f"policy.{name}": value for name, value in self.policy.state_dict().items()}
            meta = {"problem": self.problem.name, "return": score.mean}
            # The one before stays until a checkpoint knows of this one: a run resumed from the last goes on with it.
            write_checkpoint(self.folder.best, step=self.step, tensors=weights, meta=meta, keep=len(self.scores) + 1)
        told = {f"eval_{name}": value for name, value in score.metrics.items()}
        return score, is_best, {"eval_return": score.mean, "eval_return_std": score.std, **told}

    def reason_to_stop(self) -> StopReason | None:
        """Why the run is over at this step; None while it is not."""
        run, scores = self.config.run, self.scores
        if scores and run.target_return is not None and scores[-1] >= run.target_return:
            return StopReason.TARGET
        if self.used >= 1:
            return StopReason.BUDGET
        if scores and run.plateau_patience and len(scores) - 1 - scores.index(max(scores)) >= run.plateau_patience:
            return StopReason.PLATEAU
        if run.decline_patience and len(scores) > run.decline_patience:
            halfway = (scores[0] + max(scores)) / 2
            if max(scores) > scores[0] and all(score < halfway for score in scores[-run.decline_patience :]):
                return StopReason.DECLINE
        return None

    def _stage_end(self) -> float:
        return self.config.run.max_steps * self.stages[self.stage][0]

    def _enter_stage(self) -> None:
        """Collect in the next stage's world from here on; the weights stay."""
        self.stage += 1
        c, problem = self.config, self.stages[self.stage][1]
        world = problem.world(c.ppo.envs, device=self.device, phases=c.run.phases)
        self.collector = Collector(world, steps=c.ppo.steps, seed=c.run.seed + 7919 * self.stage)
        self.ppo.reward_scale.forget_episodes()
        self.health.restart()

    def _save(self) -> None:
        tensors = {"rng": torch.get_rng_state()}
        if self.device.type == "cuda":
            tensors["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        for prefix, part in (("policy", self.policy), ("ppo", self.ppo), ("collector", self.collector)):
            tensors |= {f"{prefix}.{name}": value for name, value in part.state_dict().items()}
        meta = {
            "problem": self.problem.name,
            "wall_s": self.wall_s,
            "episodes": self.episodes,
            "stage": self.stage,
            "scores": self.scores,
            "evaluated_at": self.evaluated_at,
            "health": self.health.state_dict(),
        }
        keep = self.config.run.keep_checkpoints
        write_checkpoint(self.folder.checkpoints, step=self.step, tensors=tensors, meta=meta, keep=keep)
        self.saved_at = self.step
        for surpassed in checkpoints(self.folder.best)[:-1]:
            shutil.rmtree(surpassed)

    def _restore(self) -> bool:
        saved = self.folder.latest(self.problem.name)
        if saved is not None:
            tensors, meta = saved
            while self.stage < meta["stage"]:
                self._enter_stage()
            self._load(tensors)
            self.step = self.saved_at = meta["step"]
            self.episodes = meta.get("episodes", 0)
            self.wall_s, self.scores, self.evaluated_at = meta["wall_s"], meta["scores"], meta["evaluated_at"]
            self.health.load_state_dict(meta["health"])
        # What was written after that checkpoint is made again.
        for later in [path for path in checkpoints(self.folder.best) if path.name > f"step-{self.step:012d}"]:
            shutil.rmtree(later)
        return saved is not None

    def _load(self, tensors: Mapping[str, Tensor]) -> None:
        try:
            for prefix, part in (("policy", self.policy), ("ppo", self.ppo), ("collector", self.collector)):
                part.load_state_dict(under(f"{prefix}.", tensors))
            torch.set_rng_state(tensors["rng"])
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(tensors["cuda_rng"], self.device)
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{self.folder.checkpoints}: the newest checkpoint is not of this run or device ({error!r:.200}); "
                "delete its folder to fall back to the one before it"
            ) from error


def resolve_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("run.device is 'cuda', but torch sees no GPU: use 'cpu' or 'auto'")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def choose_threads(policy: torch.nn.Module, minibatch: int) -> int:
    """All cores when a minibatch's matrix products are worth sharing out, else one: waking a thread costs too."""
    weights = sum(p.numel() for p in policy.parameters())
    return (os.cpu_count() or 1) if weights * minibatch > 50_000_000 else 1


def _stages(problem: Problem, curriculum: tuple[Stage, ...]) -> list[tuple[float, Problem]]:
    """(share of the budget at which it ends, problem) of each stage; the full problem comes last."""
    ends, stages = 0.0, []
    for stage in curriculum:
        unknown = set(stage.size) - set(problem.size)
        if unknown:
            raise ConfigError(f"curriculum size {sorted(unknown)} unknown: choose among {sorted(problem.size)}")
        ends += stage.share
        stages.append((ends, problem.resized({**problem.size, **stage.size})))
    if ends >= 1:
        raise ConfigError(f"the curriculum's shares add up to {ends:g}: leave some of the budget for the full problem")
    return [*stages, (float("inf"), problem)]


def _episode_metrics(batch: Batch) -> dict[str, float]:
    """Means over the whole episodes that ended."""
    whole = batch.episodes.get("whole")
    if whole is None or not whole.any():
        return {}
    episodes = {name: value[whole] for name, value in batch.episodes.items() if name != "whole"}
    returns = episodes.pop("return")
    return {
        "episode_return": float(returns.mean()),
        "episode_return_std": float(returns.std(correction=0)),
        **{name: float(value.mean()) for name, value in episodes.items() if value.dim() == 1},
    }
