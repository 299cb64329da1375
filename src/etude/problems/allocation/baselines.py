"""Baselines that a learned allocation policy is compared with: scripts, and strong schedulers for `matched`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Generator, Tensor

from etude.problems.allocation.matched import HANDS
from etude.problems.allocation.world import TASK_TYPES, AllocationConfig
from etude.problems.base import Action, Actor, Obs


def baselines(config: AllocationConfig) -> dict[str, Actor]:
    if config.variant == "document":
        return {"random": random_thirds, "scripted": script(1, 1, 1), "never collaborate": script(1, 1, 0)}
    return {
        "random": random_choice,
        "greedy": scheduler(greedy_match),
        "assignment": scheduler(optimal_match),
    }


def random_thirds(obs: Obs, generator: Generator) -> Action:
    """Uniform over the document's whole action box."""
    shape, device = obs["agents"].shape[:2], obs["agents"].device
    accept, allocate, collaborate = torch.rand((3, *shape), generator=generator, device=device)
    return {"accept": accept, "allocate": allocate, "collaborate": collaborate}


def script(accept: float, allocate: float, collaborate: float) -> Actor:
    """Always the same three numbers."""

    def act(obs: Obs, generator: Generator) -> Action:
        one = torch.ones(obs["agents"].shape[:2], device=obs["agents"].device)
        return {"accept": accept * one, "allocate": allocate * one, "collaborate": collaborate * one}

    return act


def random_choice(obs: Obs, generator: Generator) -> Action:
    """Uniform over the legal slots, or waiting."""
    legal = obs["legal"]
    u = torch.rand(legal.shape, generator=generator, device=legal.device)
    shape = (2, *legal.shape[:2])
    allocate, collaborate = torch.rand(shape, generator=generator, device=legal.device)
    return {"accept": (u * legal).argmax(2), "allocate": allocate, "collaborate": collaborate}


Match = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def scheduler(match: Match, *, held: int = 0) -> Actor:
    """Match agents that hold at most `held` tasks to waiting ones by expertise·priority, always collaborating.

    Each of the three is the best of its alternatives as measured in `benchmarks/matched.py`.
    """

    def act(obs: Obs, generator: Generator) -> Action:
        agents, tasks, legal = obs["agents"], obs["tasks"], obs["legal"]
        expertise, kinds = agents[..., -len(TASK_TYPES) :], tasks[..., -len(TASK_TYPES) :]
        value = (expertise @ kinds.mT) * tasks[..., 2][:, None]  # (n, agents, slots): expertise of the type · priority
        idle = agents[..., 1] * HANDS <= held + 0.5
        value = torch.where(legal[..., :-1] & idle[..., None], value, 0.0)
        one = torch.ones_like(agents[..., 0])
        return {"accept": match_all(value, match), "allocate": one, "collaborate": one}

    return act


def greedy_match(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best pair first, then the best of the remaining ones."""
    value, rows, columns = value.copy(), [], []
    while value.max(initial=0) > 0:
        row, column = np.unravel_index(value.argmax(), value.shape)
        rows.append(row)
        columns.append(column)
        value[row], value[:, column] = 0, 0
    return np.array(rows, dtype=int), np.array(columns, dtype=int)


def optimal_match(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The assignment with the largest total value."""
    from scipy.optimize import linear_sum_assignment  # most of a second, which no server needs to start

    rows, columns = linear_sum_assignment(value, maximize=True)
    worth = value[rows, columns] > 0
    return rows[worth], columns[worth]


def match_all(value: Tensor, match: Match) -> Tensor:
    """One matching per environment: (n, agents) slots, `slots` where an agent gets none."""
    accept = np.full(value.shape[:2], value.shape[2])
    for i, matrix in enumerate(value.double().cpu().numpy()):
        rows, columns = match(matrix)
        accept[i, rows] = columns
    return torch.as_tensor(accept, device=value.device)
