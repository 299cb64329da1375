"""PPO learns small problems whose answer is known, and the same seed gives the same weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from etude.learning.collect import Batch, Collector
from etude.learning.ppo import PPO, PPOConfig
from etude.problems.allocation.document import DocumentWorld
from etude.problems.allocation.network import MLPPolicy, NetworkConfig
from etude.problems.allocation.world import AllocationConfig
from etude.problems.base import Action, Evaluation, Obs, Sampled, Transition
from etude.problems.distributions import sample_categorical

CONFIG = PPOConfig(envs=32, steps=16, epochs=4, minibatch=128, lr=0.01)


class Places:
    """Environments that are in one of a few places and see which. A subclass says where an action leads."""

    places, actions, horizon = 1, 2, 10
    device = torch.device("cpu")

    def __init__(self, n: int) -> None:
        self.n, self.generator = n, Generator()

    def reset(self, seed: int) -> Obs:
        self.generator.manual_seed(seed)
        self.place, self.clock = self.start(), torch.zeros(self.n, dtype=torch.long)
        return self.observe()

    def observe(self) -> Obs:
        return {"place": F.one_hot(self.place, self.places).float()}

    def step(self, action: Action) -> Transition:
        self.place, reward, terminated = self.move(action["choice"])
        self.clock = self.clock + 1
        truncated, final = self.clock == self.horizon, self.observe()
        ended = terminated | truncated
        self.place, self.clock = torch.where(ended, self.start(), self.place), torch.where(ended, 0, self.clock)
        return Transition(
            obs=self.observe(),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            final_obs=final if bool(ended.any()) else None,
        )

    def start(self) -> Tensor:
        return torch.zeros(self.n, dtype=torch.long)

    def move(self, choice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """To the next places, the rewards, and whether the task is over."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Tensor]:
        return {"place": self.place, "clock": self.clock, "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.place, self.clock = state["place"].clone(), state["clock"].clone()
        self.generator.set_state(state["generator"])


class Identity(Places):
    """Name the place you are in: one step per episode."""

    places, actions = 4, 4

    def start(self) -> Tensor:
        return torch.randint(self.places, (self.n,), generator=self.generator)

    def move(self, choice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.place, (choice == self.place).float(), torch.ones(self.n, dtype=torch.bool)


class Corridor(Places):
    """Six steps on pay 1 at the end; leaving the path pays 0.1 at once, and ends the episode too."""

    places, horizon = 6, 20

    def move(self, choice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        arrived, leaves = (choice == 1) & (self.place == self.places - 1), choice == 0
        return (self.place + choice).clamp(max=self.places - 1), arrived + 0.1 * leaves, arrived | leaves


class Salary(Places):
    """A reward of one per step for ever, whatever you do; the clock cuts it into episodes."""

    def move(self, choice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.place, torch.ones(self.n), torch.zeros(self.n, dtype=torch.bool)


class Contract(Salary):
    """The same, but over after every step."""

    def move(self, choice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.place, torch.ones(self.n), torch.ones(self.n, dtype=torch.bool)


class Lock(Places):
    """The right one of four actions leads on, a wrong one back to the start; only the end pays."""

    places, actions, horizon = 9, 4, 40

    def move(self, choice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        right = choice == self.place % self.actions
        opened = right & (self.place == self.places - 1)
        return torch.where(right, self.place + 1, 0).clamp(max=self.places - 1), opened.float(), opened


class Door(Places):
    """Leaving pays 1 and ends; staying pays nothing."""

    horizon = 100

    def move(self, choice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left = choice == 1
        return self.place, left.float(), left


class Table(nn.Module):
    """A policy with a number for every place and action, and a value for every place."""

    def __init__(self, world: Places) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(world.places, world.actions))
        self.values = nn.Parameter(torch.zeros(world.places))

    def act(self, obs: Obs, *, greedy: bool = False, generator: Generator | None = None) -> Sampled:
        logits = obs["place"] @ self.logits
        choice = logits.argmax(-1) if greedy else sample_categorical(logits, generator)
        log_prob = logits.log_softmax(-1).gather(-1, choice[:, None])[:, 0]
        return Sampled(action={"choice": choice}, log_prob=log_prob, value=self.value(obs))

    def evaluate(self, obs: Obs, action: Action) -> Evaluation:
        log_p = (obs["place"] @ self.logits).log_softmax(-1)
        log_prob = log_p.gather(-1, action["choice"][:, None])[:, 0]
        return Evaluation(log_prob=log_prob, entropy=-(log_p.exp() * log_p).sum(-1), value=self.value(obs))

    def value(self, obs: Obs) -> Tensor:
        return obs["place"] @ self.values

    def observed(self, obs: Obs) -> None: ...


def learn(kind: type[Places], config: PPOConfig, *, updates: int, seed: int = 0) -> tuple[Table, Batch]:
    """The policy after so many updates, and a last batch collected with it."""
    world = kind(config.envs)
    policy, collector = Table(world), Collector(world, steps=config.steps, seed=seed)
    learner = PPO(policy, config, seed=seed)
    for update in range(updates):
        learner.update(collector.collect(policy), progress=update / updates)
    return policy, collector.collect(policy)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clip_coef": None, "kl_coef": 1.0},
        {"kl_coef": 1.0},
        {"value_clip": 0.2, "target_kl": 0.02},
        {"priority_alpha": 0.6},
        {"normalise_advantages": False},
    ],
    ids=str,
)
def test_identity(options: dict[str, object]) -> None:
    policy, batch = learn(Identity, replace(CONFIG, **options), updates=25)
    assert torch.equal(policy.logits.argmax(1), torch.arange(4))
    assert batch.reward.mean() > 0.9


@pytest.mark.parametrize("seed", range(3))
def test_a_reward_at_the_end_of_a_corridor(seed: int) -> None:
    _, batch = learn(Corridor, CONFIG, updates=40, seed=seed)
    assert batch.reward[batch.ended].mean() > 0.8


@pytest.mark.parametrize("gae_lambda", [0.0, 0.95, 1.0])
def test_truncation_bootstraps(gae_lambda: float) -> None:
    """An endless salary is worth 1 + γ + γ² + … = 1 / (1 − γ), however short its episodes are cut."""
    config = replace(CONFIG, gamma=0.9, gae_lambda=gae_lambda, lr=0.1, normalise_returns=False, max_grad_norm=None)
    policy, _ = learn(Salary, config, updates=60)
    assert float(policy.values.detach()) == pytest.approx(10, rel=0.03)


def test_termination_does_not_bootstrap() -> None:
    config = replace(CONFIG, gamma=0.9, lr=0.1, normalise_returns=False)
    policy, _ = learn(Contract, config, updates=30)
    assert float(policy.values.detach()) == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("seed", range(2))
def test_curiosity_finds_what_chance_does_not(seed: int) -> None:
    config, best = replace(CONFIG, entropy_coef=0.0), 1 / Lock.places
    _, plain = learn(Lock, config, updates=100, seed=seed)
    _, curious = learn(Lock, replace(config, curiosity_coef=0.02), updates=100, seed=seed)
    assert plain.reward.mean() < 0.1 * best
    assert curious.reward.mean() > 0.5 * best


def test_curiosity_does_not_keep_a_policy_from_leaving() -> None:
    _, batch = learn(Door, replace(CONFIG, curiosity_coef=0.05), updates=60)
    assert batch.reward.mean() > 0.9


# The real thing, small.


PROBLEM = AllocationConfig(agents=3, slots=5, horizon=50)


def allocate(network: NetworkConfig, *, updates: int, seed: int = 0, **options: object) -> tuple[MLPPolicy, Batch]:
    config = replace(CONFIG, envs=64, steps=25, minibatch=400, gamma=0.9, **options)
    torch.manual_seed(seed)
    policy = MLPPolicy(PROBLEM, network).train(False)
    learner = PPO(policy, config, seed=seed)
    collector = Collector(DocumentWorld(PROBLEM, n=config.envs, phases=4), steps=config.steps, seed=seed)
    for update in range(updates):
        learner.update(collector.collect(policy), progress=update / updates)
    return policy, collector.collect(policy)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_allocation(precision: str) -> None:
    """Doing everything always earns about 5 a step; chance, 3."""
    network = NetworkConfig(hidden=(32,), precision=precision)
    _, before = allocate(network, updates=0)
    _, after = allocate(network, updates=25)
    assert before.reward.mean() < 3.5
    assert after.reward.mean() > 4


@pytest.mark.parametrize(
    ("options", "network"),
    [
        ({}, {}),
        ({"priority_alpha": 0.5, "curiosity_coef": 0.1}, {"dropout": 0.2, "norm": "layer"}),
        ({"kl_coef": 1.0}, {"distribution": "beta", "norm": "batch"}),
    ],
    ids=str,
)
def test_the_same_seed_gives_the_same_weights(options: dict[str, object], network: dict[str, object]) -> None:
    def weights(seed: int) -> dict[str, Tensor]:
        policy, _ = allocate(NetworkConfig(hidden=(16,), **network), updates=3, seed=seed, **options)
        return policy.state_dict()

    first, again, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["actor.0.weight"], other["actor.0.weight"])
