"""The peer, Stable-Baselines3's PPO on `document`: at the source document's settings, tuned, and at our settings.

With a few environments it steps `PlainDocument`, scalar Python, which is faster there than a tensor program; with many
it steps `BatchedDocument`, our tensor world behind SB3's own interface. `faster_env` measures which one to use.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from etude.problems.allocation.problem import AllocationProblem
from etude.problems.base import Action, Actor, Obs

AGENTS, SLOTS, HORIZON, TYPES = 4, 10, 200, 4
LEVELS = 5
HEADS = gymnasium.spaces.MultiDiscrete([2, LEVELS, 2] * AGENTS)
"""Accept or not, a level of five, collaborate or not, per agent: the same choices as our `mixed` distribution."""
UNIT = np.array([1.0, 1.0 / (LEVELS - 1), 1.0] * AGENTS, dtype=np.float32)
"""What one step of each head is worth as a number in [0, 1]."""
COLUMNS = ("accept", "allocate", "collaborate")


class PlainDocument(gymnasium.Env[np.ndarray, np.ndarray]):
    """`document` for one environment; `tests/unit/problems/allocation` holds the tensor world to the same rules."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (7 * AGENTS + 5 * SLOTS + AGENTS**2,), np.float32)
    action_space = gymnasium.spaces.Box(0.0, 1.0, (AGENTS * 3,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = 0
        self.expertise = self.np_random.uniform(0.2, 1, (AGENTS, TYPES)).tolist()
        self.capacity = self.np_random.uniform(0.5, 1, AGENTS).tolist()
        self.load, self.completed, self.success = [0.0] * AGENTS, [0] * AGENTS, [1.0] * AGENTS
        self.matrix = [[0.5] * AGENTS for _ in range(AGENTS)]
        self.active: list[tuple[int, tuple[float, float, int, int]]] = []
        self.queue = [self._task() for _ in range(3)]
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        rows, reward = action.reshape(AGENTS, 3).tolist(), 0.0
        for i in range(AGENTS):
            if self.queue and rows[i][0] > 0.5:
                task = self.queue.pop(0)
                self.active.append((i, task))
                self.load[i] += task[0]
                reward += self.expertise[i][task[3]] * task[1]
        willing = [i for i in range(AGENTS) if rows[i][2] > 0.7]
        for i in willing:
            for j in willing:
                if i != j:
                    self.matrix[i][j] = min(1.0, 1.01 * self.matrix[i][j])
                    reward += 0.5
        left, rng = [], self.np_random.random(len(self.active) + 1).tolist()
        for (i, task), u in zip(self.active, rng, strict=False):
            complexity, priority, deadline, kind = task
            skill = self.expertise[i][kind]
            if u < skill * self.capacity[i] * rows[i][1]:
                self.load[i] -= complexity
                self.completed[i] += 1
                reward += 10 * skill * self.success[i] * priority * (1 + max(0.0, 1 - self.now / deadline))
                self.success[i] += 0.05 * ((self.now <= deadline) - self.success[i])
            else:
                left.append((i, task))
                reward -= 0.5 * (self.now > deadline)
        self.active = left
        reward -= 0.1 * len(self.queue)
        if rng[-1] < 0.3 and len(self.queue) < SLOTS:
            self.queue.append(self._task())
        self.now += 1
        return self._observe(), reward, False, self.now >= HORIZON, {}

    def _task(self) -> tuple[float, float, int, int]:
        complexity, priority, wait, kind = self.np_random.random(4).tolist()
        return 0.1 + 0.9 * complexity, 0.1 + 0.9 * priority, self.now + 20 + int(wait * 80), int(kind * TYPES)

    def _observe(self) -> np.ndarray:
        seen: list[float] = []
        for i in range(AGENTS):
            score = (sum(self.matrix[i]) - 0.5) / (AGENTS - 1)
            rate = self.completed[i] / max(1, self.now)
            seen += [self.capacity[i], self.load[i], rate, self.success[i], score, *self.expertise[i][:2]]
        for complexity, priority, deadline, _ in self.queue:
            seen += [complexity, priority, deadline, 1.0, 0.0]
        seen += [0.0] * (5 * (SLOTS - len(self.queue)))
        for row in self.matrix:
            seen += row
        return np.array(seen, dtype=np.float32)


class Heads(gymnasium.ActionWrapper[np.ndarray, np.ndarray, np.ndarray]):
    """Discrete heads on the document's box of numbers."""

    def __init__(self, env: gymnasium.Env[np.ndarray, np.ndarray]) -> None:
        super().__init__(env)
        self.action_space = HEADS

    def action(self, action: np.ndarray) -> np.ndarray:
        return action * UNIT


class BatchedDocument(VecEnv):
    """All environments in one tensor world, without a Python loop over them."""

    def __init__(self, envs: int) -> None:
        super().__init__(envs, PlainDocument.observation_space, HEADS)
        self.world = AllocationProblem().world(envs, device="cpu", phases=8)
        self.actions = np.zeros((envs, 3 * AGENTS))

    def reset(self) -> np.ndarray:
        given = self._seeds[0]
        self._reset_seeds()
        return flat(self.world.reset(int(np.random.randint(2**31)) if given is None else given)).numpy()

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        with torch.no_grad():
            step = self.world.step(to_columns(torch.as_tensor(self.actions * UNIT)))
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if step.final_obs is not None:
            final = flat(step.final_obs).numpy()
            for i in step.truncated.nonzero()[:, 0].tolist():
                infos[i] = {"terminal_observation": final[i], "TimeLimit.truncated": True}
        return flat(step.obs).numpy(), step.reward.numpy(), step.truncated.numpy(), infos

    def close(self) -> None: ...

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        return []

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def flat(obs: Obs) -> torch.Tensor:
    return torch.cat([obs["agents"].flatten(1), obs["tasks"].flatten(1), obs["matrix"].flatten(1)], 1)


def to_columns(action: torch.Tensor) -> Action:
    """(n, agents · 3) in [0, 1] to the world's three columns."""
    return dict(zip(COLUMNS, action.view(-1, AGENTS, 3).unbind(2), strict=True))


@dataclass(frozen=True, kw_only=True)
class PeerConfig:
    """One way to set up Stable-Baselines3's PPO."""

    envs: int
    steps: int
    minibatch: int
    epochs: int
    lr: float
    hidden: tuple[int, ...] = (64, 64)
    activation: type[torch.nn.Module] = torch.nn.Tanh
    heads: bool = True
    """Discrete heads and VecNormalize for observations and rewards; else a Gaussian over the document's box."""
    more: dict[str, float] = field(default_factory=dict)
    """Further arguments of PPO."""


PEERS = {
    "document": PeerConfig(
        envs=4,
        steps=2048,
        minibatch=64,
        epochs=10,
        lr=3e-4,
        hidden=(256, 256, 128),
        activation=torch.nn.ReLU,
        heads=False,
        more={"ent_coef": 0.01},
    ),
    "tuned": PeerConfig(envs=32, steps=64, minibatch=512, epochs=4, lr=2e-3, more={"ent_coef": 0.01}),
}
"""`document` is the source document's set-up; `tuned` is what an experienced user of SB3 would choose."""


def make_env(config: PeerConfig, kind: Callable[[int], VecEnv]) -> VecEnv:
    env = kind(config.envs)
    return VecNormalize(env, gamma=config.more.get("gamma", 0.99)) if config.heads else env


def plain_env(envs: int) -> VecEnv:
    return DummyVecEnv([lambda: Heads(PlainDocument())] * envs)


def plain_box(envs: int) -> VecEnv:
    return DummyVecEnv([PlainDocument] * envs)


def faster_env(config: PeerConfig, steps: int = 150) -> Callable[[int], VecEnv]:
    """The quicker of the environments the peer could step, measured now."""
    if not config.heads:
        return plain_box
    rates = {}
    for kind in (plain_env, BatchedDocument):
        env = make_env(config, kind)
        env.reset()
        actions = np.stack([HEADS.sample() for _ in range(config.envs)])
        began = time.perf_counter()
        for _ in range(steps):
            env.step(actions)
        rates[kind] = steps * config.envs / (time.perf_counter() - began)
    return max(rates, key=lambda kind: rates[kind])


def make_peer(config: PeerConfig, seed: int, kind: Callable[[int], VecEnv] | None = None) -> PPO:
    arch = list(config.hidden)
    return PPO(
        "MlpPolicy",
        make_env(config, kind or faster_env(config)),
        learning_rate=config.lr,
        n_steps=config.steps,
        batch_size=config.minibatch,
        n_epochs=config.epochs,
        policy_kwargs={"net_arch": {"pi": arch, "vf": arch}, "activation_fn": config.activation},
        seed=seed,
        device="cpu",
        **config.more,  # type: ignore[arg-type]
    )


def peer_actor(model: PPO, *, greedy: bool) -> Actor:
    """The peer's policy on our batched world, so that evaluating it costs the peer nothing."""
    env = model.get_vec_normalize_env()

    def act(obs: Obs, generator: torch.Generator) -> Action:
        seen = flat(obs).numpy()
        if env is None:
            action, _ = model.predict(seen, deterministic=greedy)
            return to_columns(torch.as_tensor(action))
        action, _ = model.predict(env.normalize_obs(seen), deterministic=greedy)
        return to_columns(torch.as_tensor(action * UNIT))

    return act
