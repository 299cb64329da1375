"""Gymnasium and PettingZoo environments for allocation: NumPy in, NumPy out, a tensor world inside.

`document` observes one vector and acts with a box (agents, 3). `matched` observes and acts with named arrays;
its `legal` is int8, the mask that `action_space["accept"].sample(mask=tuple(obs["legal"]))` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import Space, spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray
from pettingzoo import ParallelEnv
from pydantic import TypeAdapter, ValidationError

from etude.contracts.errors import ConfigError, ObservationError
from etude.problems.allocation.network import flatten
from etude.problems.allocation.world import COLUMNS, AllocationConfig, make_world
from etude.problems.base import Action, Obs, Transition

Array = NDArray[Any]
Info = dict[str, Any]


class AllocationEnv(gymnasium.Env[Any, Any]):
    """One environment with a joint action for all agents. The last info has the episode's metrics."""

    def __init__(self, **config: Any) -> None:
        """Takes the fields of AllocationConfig."""
        self.config = _checked_config(config)
        self.world = make_world(self.config, n=1)
        self.obs = self.world.reset(seed=0)  # as tensors, with a leading axis of 1
        self.under_way = False
        self.observation_space = _observation_space(self.obs, self.config)
        self.action_space = _action_space(self.config, (self.config.agents,))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.obs = self.world.reset(_sample_seed(self.np_random) if seed is None else seed)
        self.under_way = True
        return _row(_to_numpy(self.obs), 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        if not self.under_way:
            raise ResetNeeded("no episode is under way: call reset() first, and again after each episode")
        action = _checked_action(action, self.action_space, self.config)
        moved = self.world.step(_to_tensors(action, self.world.device, n=1))
        self.under_way = moved.final_obs is None  # the world resets itself, but Gymnasium expects a call of reset()
        self.obs = moved.final_obs or moved.obs
        info = {} if self.under_way else {"metrics": _row(_metrics(moved), 0)}
        terminated, truncated = bool(moved.terminated), bool(moved.truncated)
        return _row(_to_numpy(self.obs), 0), float(_team(moved.reward)), terminated, truncated, info


class AllocationVectorEnv(VectorEnv[Any, Any, Array]):
    """All environments in one tensor world; each resets itself in the step that ends it."""

    def __init__(self, num_envs: int = 1, *, device: str = "cpu", **config: Any) -> None:
        """Takes the fields of AllocationConfig."""
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs!r}: give 1 or more")
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.config, self.num_envs = _checked_config(config), num_envs
        self.world = make_world(self.config, n=num_envs, device=device)
        self.single_observation_space = _observation_space(self.world.reset(seed=0), self.config)
        self.single_action_space = _action_space(self.config, (self.config.agents,))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        return _to_numpy(self.world.reset(_sample_seed(self.np_random) if seed is None else seed)), {}

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, Info]:
        actions = _checked_action(actions, self.action_space, self.config)
        moved = self.world.step(_to_tensors(actions, self.world.device, n=self.num_envs))
        terminated, truncated = moved.terminated.cpu().numpy(), moved.truncated.cpu().numpy()
        info: Info = {}
        if moved.final_obs is not None:
            final_obs = np.full(self.num_envs, None, dtype=object)
            for i, obs in enumerate(iterate(self.observation_space, _to_numpy(moved.final_obs))):
                final_obs[i] = obs if truncated[i] else None
            final_info = _masked({"metrics": _masked(_metrics(moved), truncated)}, truncated)
            info = _masked({"final_obs": final_obs, "final_info": final_info}, truncated)
        return _to_numpy(moved.obs), _team(moved.reward).double().cpu().numpy(), terminated, truncated, info


class AllocationParallelEnv(ParallelEnv):  # type: ignore[misc]  # pettingzoo has no type information
    """Every agent acts separately, observes everything with itself first, and gets the reward of the team."""

    metadata: ClassVar[Info] = {"name": "allocation_v0", "render_modes": [], "is_parallelizable": True}

    def __init__(self, **config: Any) -> None:
        """Takes the fields of AllocationConfig."""
        self.env = AllocationEnv(**config)
        self.possible_agents = [f"agent_{i}" for i in range(self.env.config.agents)]
        self.agents: list[str] = []
        seen = _seen_by_each(self.env.obs)
        self.observation_spaces = {a: _observation_space(seen, self.env.config) for a in self.possible_agents}
        self.action_spaces = {a: _action_space(self.env.config, ()) for a in self.possible_agents}

    def observation_space(self, agent: str) -> Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Info | None = None) -> tuple[Info, Info]:
        self.env.reset(seed=seed)
        self.agents = self.possible_agents[:]
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Info, Info, Info, Info, Info]:
        each = self.possible_agents
        if set(actions) != set(each):
            raise ObservationError(f"actions are for {sorted(actions)}, expected one for each of {each}")
        one = [_checked_action(actions[a], self.action_spaces[a], self.env.config, a) for a in each]
        _, reward, terminated, truncated, info = self.env.step(_map(lambda *of: np.stack(of), *one))
        self.agents = each[:] if self.env.under_way else []
        ends = dict.fromkeys(each, terminated), dict.fromkeys(each, truncated)
        return self._observations(), dict.fromkeys(each, reward), *ends, {a: dict(info) for a in each}

    def state(self) -> Array:
        """The global state as one vector."""
        return torch.cat([part.flatten().float() for part in self.env.obs.values()]).numpy()

    def _observations(self) -> Info:
        seen = _to_numpy(_seen_by_each(self.env.obs))
        return {agent: _row(seen, i) for i, agent in enumerate(self.possible_agents)}


def parallel_env(**config: Any) -> AllocationParallelEnv:
    """PettingZoo's name for its constructors; takes the fields of AllocationConfig."""
    return AllocationParallelEnv(**config)


def _checked_config(fields: Info) -> AllocationConfig:
    try:
        return TypeAdapter(AllocationConfig).validate_python(asdict(AllocationConfig(**fields)))
    except ValidationError as error:
        wrong = [f"{e['loc'][0]} is {e['input']!r}: {e['msg']}" for e in error.errors()]
        raise ConfigError("; ".join(wrong)) from None


def _observation_space(obs: Obs, config: AllocationConfig) -> Space[Any]:
    """The space of one row of `obs`. Bounds are loose but finite: deadlines and loads grow with the horizon."""

    def space(part: Array) -> Space[Any]:
        if part.dtype == np.int8:
            return spaces.MultiBinary(part.shape[1:])
        return spaces.Box(-1.0, config.horizon + 100.0, part.shape[1:], np.float32)

    parts = _map(space, _to_numpy(obs))
    return spaces.Dict(parts) if isinstance(parts, dict) else parts


def _action_space(config: AllocationConfig, agents: tuple[int, ...]) -> Space[Any]:
    """The action space of a group of agents (one axis) or of a single one (no axis)."""
    if config.variant == "document":
        return spaces.Box(0.0, 1.0, (*agents, len(COLUMNS)), np.float32)
    choices = config.slots + 1  # the last is to wait
    accept = spaces.MultiDiscrete(np.full(agents, choices)) if agents else spaces.Discrete(choices)
    shares = {name: spaces.Box(0.0, 1.0, agents, np.float32) for name in COLUMNS[1:]}
    return spaces.Dict({"accept": accept, **shares})


def _checked_action(action: Any, space: Space[Any], config: AllocationConfig, name: str = "action") -> Any:
    """The action as arrays of the space's shape and type; unlike `space.contains`, it accepts lists and float64."""
    if isinstance(space, spaces.Dict):
        if not isinstance(action, Mapping) or set(action) != set(space):
            raise ObservationError(f"{name} is {action!r}, expected a dict of exactly {list(space)}")
        return {k: _checked_action(action[k], part, config, f"{name}[{k!r}]") for k, part in space.items()}
    whole = np.issubdtype(space.dtype, np.integer)
    high = config.slots if whole else 1
    expected = f"expected {'integers' if whole else 'numbers'} from 0 to {high} in shape {space.shape}"
    try:
        array = np.asarray(action).astype(space.dtype, casting="same_kind")
    except (TypeError, ValueError):
        raise ObservationError(f"{name} is {action!r}, {expected}") from None
    if array.shape != space.shape:
        raise ObservationError(f"{name} has shape {array.shape}, {expected}")
    outside = ~((array >= 0) & (array <= high))  # NaN is outside too
    if outside.any():
        raise ObservationError(f"{name} holds {array[outside][0]:g}, {expected}: clip or squash it first")
    return array


def _to_tensors(action: Any, device: torch.device, *, n: int) -> Action:
    columns = action if isinstance(action, dict) else {name: action[..., i] for i, name in enumerate(COLUMNS)}
    return {name: torch.as_tensor(column, device=device).view(n, -1) for name, column in columns.items()}


def _team(reward: torch.Tensor) -> torch.Tensor:
    """The team's reward (n,), summed where the world credits it by agent."""
    return reward.view(len(reward), -1).sum(1)


def _to_numpy(obs: Obs) -> Any:
    """The document's vector (n, …), or the named arrays of `matched`."""
    if "legal" not in obs:
        return flatten(obs).cpu().numpy()
    return {k: (v.to(torch.int8) if v.dtype == torch.bool else v).cpu().numpy() for k, v in obs.items()}


def _metrics(moved: Transition) -> dict[str, Array]:
    """The metrics without `whole`: no episode is shortened here."""
    return {name: value.cpu().numpy() for name, value in moved.metrics.items() if name != "whole"}


def _seen_by_each(obs: Obs) -> Obs:
    """One environment as its agents observe it: one row per agent, with itself first and the others in cyclic order."""
    agents = obs["agents"].shape[1]
    order = (torch.arange(agents)[:, None] + torch.arange(agents)) % agents
    seen = {
        "agents": obs["agents"][0][order],  # (agents, agents, features)
        "tasks": obs["tasks"].repeat(agents, 1, 1),
        "matrix": obs["matrix"][0][order[:, :, None], order[:, None, :]],
    }
    return {**seen, "legal": obs["legal"][0]} if "legal" in obs else seen


def _row(batch: Any, i: int) -> Any:
    return _map(lambda part: part[i], batch)


def _map(f: Callable[..., Any], *of: Any) -> Any:
    """`f` over plain arrays, or over the arrays of the same name in dicts."""
    return {k: f(*(one[k] for one in of)) for k in of[0]} if isinstance(of[0], dict) else f(*of)


def _masked(info: Info, of: Array) -> Info:
    """Gymnasium's convention: `_name` is the mask of the environments that an entry belongs to."""
    return info | {f"_{name}": of.copy() for name in info}


def _sample_seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63 - 1))
