"""A problem of your own: which of three models answers a question, learned with the same PPO in a few seconds.

    python examples/routing.py

A question has a kind, a model has a price and may be busy. The reward is 1 for a right answer, minus the price. What a
problem needs is here: a World, a Policy, and a Problem that makes both; `problems/base.py` says what each must keep.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from etude.learning.comparison import contenders
from etude.learning.evaluate import evaluate
from etude.learning.ppo import PPOConfig
from etude.learning.runs import RunFolder
from etude.learning.train import RunConfig, TrainConfig, Training
from etude.problems.base import Action, Actor, Decision, Evaluation, Obs, Transition
from etude.problems.distributions import sample_categorical

KINDS, MODELS = ("chat", "code", "maths"), ("small", "large", "tool")
RIGHT = torch.tensor([[0.8, 0.9, 0.1], [0.4, 0.9, 0.2], [0.2, 0.5, 0.95]])  # (kinds, models): chance of a right answer
PRICE = torch.tensor([0.05, 0.3, 0.2])  # (models,)


class RoutingWorld:
    """An episode is one question."""

    def __init__(self, n: int, device: torch.device | str) -> None:
        self.n, self.device = n, torch.device(device)
        self.generator = Generator(self.device)
        self.kind, self.free = torch.empty(0), torch.empty(0)

    def reset(self, seed: int) -> Obs:
        self.generator.manual_seed(seed)
        return self._ask()

    def step(self, action: Action) -> Transition:
        before, over = self.observe(), torch.ones(self.n, dtype=torch.bool, device=self.device)
        chance = RIGHT.to(self.device)[self.kind, action["model"]]
        reward = (self._uniform(self.n) < chance).float() - PRICE.to(self.device)[action["model"]]
        return Transition(
            obs=self._ask(),
            reward=reward,
            terminated=over,
            truncated=~over,
            final_obs=before,
            metrics={"return": reward, "whole": over},
        )

    def observe(self) -> Obs:
        return {"kind": F.one_hot(self.kind, len(KINDS)).float(), "legal": self.free}

    def state_dict(self) -> dict[str, Tensor]:
        return {"kind": self.kind, "free": self.free, "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.kind, self.free = state["kind"].to(self.device), state["free"].to(self.device)
        self.generator.set_state(state["generator"].cpu())

    def _ask(self) -> Obs:
        self.kind = (self._uniform(self.n) * len(KINDS)).long()
        self.free = self._uniform(self.n, len(MODELS)) < 0.8
        self.free[:, 0] = True  # the small one always is
        return self.observe()

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)


class RoutingPolicy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logits, self.worth = nn.Linear(len(KINDS), len(MODELS)), nn.Linear(len(KINDS), 1)

    def choose(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Action:
        logits = self._masked(obs)
        return {"model": logits.argmax(1) if greedy else sample_categorical(logits, generator)}

    def act(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Decision:
        action = self.choose(obs, greedy=greedy, generator=generator)
        return Decision(action=action, log_prob=self.evaluate(obs, action).log_prob, value=self.value(obs))

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        log_p = self._masked(obs).log_softmax(1)  # (n, models)
        entropy = -(log_p.exp() * log_p.clamp(min=-1e9)).sum(1)
        return Evaluation(
            log_prob=log_p.gather(1, action["model"][:, None])[:, 0], entropy=entropy, value=self.value(obs)
        )

    def value(self, obs: Obs) -> Tensor:
        worth: Tensor = self.worth(obs["kind"])
        return worth[:, 0]

    def observed(self, obs: Obs) -> None:
        """Nothing to scale: the observation is zeros and ones."""

    def _masked(self, obs: Obs) -> Tensor:
        logits: Tensor = self.logits(obs["kind"])
        return logits.masked_fill(~obs["legal"], -torch.inf)  # a busy model cannot be chosen


@dataclass(frozen=True, kw_only=True)
class Routing:
    name: str = "routing"

    @property
    def size(self) -> Mapping[str, int]:
        return {}

    def world(self, n: int, *, device: torch.device | str, phases: int = 1) -> RoutingWorld:
        return RoutingWorld(n, device)

    def policy(self) -> RoutingPolicy:
        return RoutingPolicy()

    def baselines(self) -> Mapping[str, Actor]:
        return {"random": random_model, "best known": best_known}

    def resized(self, size: Mapping[str, int]) -> Routing:
        return self


def random_model(obs: Obs, generator: Generator) -> Action:
    return {
        "model": sample_categorical(torch.zeros(obs["legal"].shape).masked_fill(~obs["legal"], -torch.inf), generator)
    }


def best_known(obs: Obs, generator: Generator) -> Action:
    """What somebody would do who knew the table: the ceiling."""
    return {"model": (obs["kind"] @ RIGHT - PRICE).masked_fill(~obs["legal"], -torch.inf).argmax(1)}


def main() -> None:
    config = TrainConfig(
        ppo=PPOConfig(envs=256, steps=16, minibatch=512, lr=0.01),
        run=RunConfig(max_steps=60_000, eval_every=8_192, eval_episodes=1000, device="cpu"),
    )
    with tempfile.TemporaryDirectory() as folder:
        training = Training(Routing(), config, RunFolder(Path(folder)), settings={"problem": "routing"})
        for update in training.updates():
            if update.score is not None:
                print(f"{update.step:>7,} questions: {update.score.mean:.3f} each")
    actors = contenders(training.problem, training.policy)
    scores = {name: evaluate(training.problem, actor, episodes=20_000, seed=7) for name, actor in actors.items()}
    for name, score in scores.items():
        print(f"{name:10} {score.mean:.3f}  [{score.low:.3f}, {score.high:.3f}]")


if __name__ == "__main__":
    main()
