"""Practice: a policy learns by PPO from its own actions in a world."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from annotated_types import Gt, Le
from torch import Tensor

from etude.contracts.errors import ConfigError
from etude.learning.checkpoint import under
from etude.learning.collect import Batch, Collector
from etude.learning.compute import choose_threads, resolve_device
from etude.learning.evaluate import evaluate, greedy
from etude.learning.health import HealthConfig
from etude.learning.ppo import PPO, PPOConfig
from etude.learning.run import About, Evaluated, PolicyParts, Run, RunConfig, StopReason, Update
from etude.learning.run_folder import RunFolder
from etude.problems.base import Problem


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a curriculum over problem size."""

    size: Mapping[str, int]
    """Sizes that differ from the full problem, such as `agents: 4`."""
    share: Annotated[float, Gt(0), Le(1)]
    """Share of the budget for this stage."""


@dataclass(frozen=True, kw_only=True)
class PracticeConfig:
    ppo: PPOConfig = field(default_factory=PPOConfig)
    run: RunConfig = field(default_factory=RunConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    curriculum: tuple[Stage, ...] = ()


def practise(
    about: About,
    problem: Problem,
    config: PracticeConfig,
    folder: RunFolder,
    *,
    validation: Problem | None = None,
    parts: PolicyParts | None = None,
) -> Run:
    """A run of practice in `folder`; its artefacts hold `parts` besides the weights."""
    learner, run = Practice(about, problem, config, validation=validation, parts=parts), config.run
    return Run(learner, folder, trackers=run.trackers, keep_checkpoints=run.keep_checkpoints, health=config.health)


class Practice:
    """Collects batches, learns from each by PPO, and evaluates the policy regularly."""

    def __init__(
        self,
        about: About,
        problem: Problem,
        config: PracticeConfig,
        *,
        validation: Problem | None = None,
        parts: PolicyParts | None = None,
    ) -> None:
        """With a `validation` problem, evaluations use it, and the first evaluates the initial policy."""
        self.about, self.problem, self.config, self.validation = about, problem, config, validation or problem
        self.starts_trained = validation is not None
        self.parts = parts or PolicyParts(tensors={})
        self.device = resolve_device(config.run.device)
        torch.manual_seed(config.run.seed)
        policy: Any = problem.policy()
        self.net = policy.to(self.device).train(False)
        self.ppo = PPO(self.net, config.ppo, device=self.device, seed=config.run.seed)
        self.stages = _stages(problem, config.curriculum)
        self.step, self.episodes, self.stage, self.evaluated_at = 0, 0, -1, 0
        self.scores: list[float] = []
        self.completion_rate, self.checkpoint_every = 0.0, config.run.checkpoint_every
        self.threads = config.run.threads or choose_threads(self.net, config.ppo.minibatch)
        self.collector: Collector
        self._enter_stage()

    @property
    def used(self) -> float:
        run = self.config.run
        return max(self.step / run.max_steps, self.episodes / run.max_episodes if run.max_episodes else 0.0)

    def begin(self) -> Evaluated | None:
        return self.evaluate(force=True) if self.starts_trained else None

    def advance(self, report: Callable[[float], None]) -> dict[str, float]:
        if self.step >= self.config.run.max_steps * self.stages[self.stage][0]:
            self._enter_stage()
        began = time.perf_counter()
        batch = self.collector.collect(self.net)
        first = self.step == 0
        self._count(batch)
        if first:  # the first batch only shows the scale of observations: learning starts with the second
            self.net.observed({name: value.flatten(0, 1) for name, value in batch.obs.items()})
            batch = self.collector.collect(self.net)
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

    def evaluate(self, *, force: bool = False) -> Evaluated | None:
        run = self.config.run
        if not force and self.step - self.evaluated_at < run.eval_every and self.used < 1:
            return None
        score = evaluate(self.validation, greedy(self.net), episodes=run.eval_episodes, device=self.device)
        self.evaluated_at = self.step
        self.completion_rate = score.metrics.get("completion_rate", 0.0)
        named = getattr(self.problem, "metric_names", {})
        metrics = {f"eval_{name}": value for name, value in score.metrics.items()}
        metrics |= {named[name]: value for name, value in score.metrics.items() if name in named}
        spread = {"eval_return": score.mean, "eval_return_std": score.std}
        return Evaluated(score=score.mean, margin=(score.high - score.low) / 2, metrics={**spread, **metrics})

    def reason_to_stop(self) -> StopReason | None:
        run, scores = self.config.run, self.scores
        if scores and run.target_return is not None and scores[-1] >= run.target_return:
            return StopReason.TARGET
        if run.target_completion_rate is not None and self.completion_rate >= run.target_completion_rate:
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

    def _enter_stage(self) -> None:
        """Continue in the world of the next stage; the weights stay."""
        self.stage += 1
        c, problem = self.config, self.stages[self.stage][1]
        world = problem.world(c.ppo.envs, device=self.device, phases=c.run.phases)
        self.collector = Collector(world, steps=c.ppo.steps, seed=c.run.seed + 7919 * self.stage)
        self.ppo.reward_scale.forget_episodes()

    def policy(self) -> PolicyParts:
        return self.parts.with_weights(self.net.state_dict())

    def tensors(self) -> dict[str, Tensor]:
        parts = (("policy", self.net), ("ppo", self.ppo), ("collector", self.collector))
        return {f"{prefix}.{name}": value for prefix, part in parts for name, value in part.state_dict().items()}

    def values(self) -> dict[str, Any]:
        names = ("episodes", "stage", "evaluated_at", "completion_rate")
        return {name: getattr(self, name) for name in names}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        while self.stage < values["stage"]:
            self._enter_stage()
        for name, value in values.items():
            setattr(self, name, value)
        for prefix, part in (("policy", self.net), ("ppo", self.ppo), ("collector", self.collector)):
            part.load_state_dict(under(f"{prefix}.", tensors))

    def summary(self) -> dict[str, Any]:
        return {"episodes": self.episodes, "best_return": max(self.scores)}

    def introduction(self) -> str:
        run = self.config.run
        budget = f"{run.max_episodes:,} episodes" if run.max_episodes else f"{run.max_steps:,} steps"
        return f"training for up to {budget} on {self.device}"

    def line(self, update: Update) -> str:
        m = update.metrics
        return f"entropy {m['entropy']:.2f}  KL {m['approx_kl']:.4f}  {m['steps_per_s']:,.0f} steps/s"


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
