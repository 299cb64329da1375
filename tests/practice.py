"""Practice small enough for a test: in a small allocation, or in a world whose evaluations follow a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn

from etude.learning.checkpoint import checkpoints, read_checkpoint
from etude.learning.ppo import PPOConfig
from etude.learning.practise import Practice, PracticeConfig, practise
from etude.learning.run import About, Run, RunConfig
from etude.learning.run_folder import RunFolder
from etude.problems.allocation.network import NetworkConfig
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.allocation.world import AllocationConfig
from etude.problems.base import Action, Actor, Evaluation, Obs, Sampled, Transition

ABOUT = About(
    problem="test",
    method="practise",
    title="a test",
    unit="steps",
    budget="480",
    score="return",
    settings={"test": {"size": 1}},
    policy_sections=("test",),
)
SMALL = AllocationProblem(config=AllocationConfig(horizon=10), network=NetworkConfig(hidden=(8,)))
PPO = PPOConfig(envs=8, steps=10, minibatch=40, epochs=1)  # updates of 80 steps, the first of 160
RUN = RunConfig(max_steps=480, eval_every=160, eval_episodes=5, checkpoint_every=160, phases=2, device="cpu")
CONFIG = PracticeConfig(ppo=PPO, run=RUN)


def configured(**run: Any) -> PracticeConfig:
    return replace(CONFIG, run=replace(RUN, **run))


def start(path: Path, config: PracticeConfig = CONFIG, problem: Any = SMALL, validation: Any = None) -> Run:
    return practise(ABOUT, problem, config, RunFolder(path), validation=validation)


def finish(path: Path, config: PracticeConfig = CONFIG, problem: Any = SMALL) -> Run:
    run = start(path, config, problem)
    for _ in run.updates():
        pass
    return run


def practice(run: Run) -> Practice:
    assert isinstance(run.learner, Practice)
    return run.learner


def leave_after(run: Run, step: int) -> None:
    """Stop looking, as an interrupted program does."""
    updates: Iterator[Any] = run.updates()
    while run.step < step:
        next(updates)


def final_state(path: Path) -> dict[str, Tensor]:
    return read_checkpoint(checkpoints(path / "checkpoints")[-1])[0]


def assert_equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


class Coin(nn.Module):
    """A policy with one weight: how often it says yes."""

    def __init__(self) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.zeros(1))
        self.worth = nn.Parameter(torch.zeros(1))

    def choose(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Action:
        return self.act(obs, greedy=greedy, generator=generator).action

    def act(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Sampled:
        yes = (torch.rand(len(obs["x"]), generator=generator) < self.logit.sigmoid()).float()
        evaluation = self.evaluate(obs, {"yes": yes})
        return Sampled(action={"yes": yes}, log_prob=evaluation.log_prob, value=evaluation.value)

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        coin = torch.distributions.Bernoulli(logits=self.logit.expand(len(obs["x"])))
        return Evaluation(log_prob=coin.log_prob(action["yes"]), entropy=coin.entropy(), value=self.value(obs))

    def value(self, obs: Obs) -> Tensor:
        return self.worth.expand(len(obs["x"]))

    def observed(self, obs: Obs) -> None: ...


class ScriptedWorld:
    """Episodes of one step; yes pays one. `score`, else that, is their return, a tenth of it their completion rate."""

    def __init__(self, n: int, score: float | None) -> None:
        self.n, self.device, self.score = n, torch.device("cpu"), score

    def reset(self, seed: int) -> Obs:
        return self.observe()

    def observe(self) -> Obs:
        return {"x": torch.zeros(self.n, 1)}

    def step(self, action: Action) -> Transition:
        over = torch.ones(self.n, dtype=torch.bool)
        score = action["yes"] if self.score is None else torch.full((self.n,), self.score)
        return Transition(
            obs=self.observe(),
            reward=action["yes"],
            terminated=over,
            truncated=torch.zeros_like(over),
            final_obs=self.observe(),
            metrics={
                "return": score,
                "completion_rate": score / 10,
                "whole": over,
            },
        )

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class ScriptedProblem:
    """Its evaluations give the scores of the script, one after the other; without a script, what is earned."""

    script: list[float] | None
    name: str = "scripted"
    size: Mapping[str, int] = field(default_factory=dict)

    metric_names: ClassVar = {"completion_rate": "done_rate"}

    def world(self, n: int, *, device: torch.device | str, phases: int = 1) -> ScriptedWorld:
        if self.script is None:
            return ScriptedWorld(n, None)
        return ScriptedWorld(n, self.script.pop(0) if n == RUN.eval_episodes else 0.0)

    def policy(self) -> Coin:
        return Coin()

    def baselines(self) -> Mapping[str, Actor]:
        return {}

    def resized(self, size: Mapping[str, int]) -> ScriptedProblem:
        return self
