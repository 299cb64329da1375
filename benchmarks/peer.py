"""The peer: Stable-Baselines3's PPO at the source document's settings, on a plain Python `document` environment.

The environment is scalar Python, which for one environment at a time is faster than a tensor program of size 1.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from etude.problems.base import Action, Actor, Obs

AGENTS, SLOTS, HORIZON, TYPES = 4, 10, 200, 4


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
        left, luck = [], self.np_random.random(len(self.active) + 1).tolist()
        for (i, task), u in zip(self.active, luck, strict=False):
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
        if luck[-1] < 0.3 and len(self.queue) < SLOTS:
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


def make_peer(seed: int) -> PPO:
    """SB3's PPO as the source document sets it up."""
    return PPO(
        "MlpPolicy",
        DummyVecEnv([PlainDocument for _ in range(4)]),
        learning_rate=3e-4,
        n_steps=2048,
        batch_size=64,
        n_epochs=10,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        policy_kwargs={"net_arch": {"pi": [256, 256, 128], "vf": [256, 256, 128]}, "activation_fn": torch.nn.ReLU},
        seed=seed,
        device="cpu",
    )


def peer_actor(model: PPO) -> Actor:
    """The peer's deterministic policy on our batched world, so that evaluating it costs the peer nothing."""

    def act(obs: Obs, generator: torch.Generator) -> Action:
        flat = torch.cat([obs["agents"].flatten(1), obs["tasks"].flatten(1), obs["matrix"].flatten(1)], 1)
        action, _ = model.predict(flat.numpy(), deterministic=True)
        columns = torch.as_tensor(action).view(-1, AGENTS, 3).unbind(2)
        return dict(zip(("accept", "allocate", "collaborate"), columns, strict=True))

    return act
