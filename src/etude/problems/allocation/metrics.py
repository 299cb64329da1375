"""Metrics of allocation episodes besides the return: one number per episode, from counts that the world keeps."""

from __future__ import annotations

import torch
from torch import Tensor


def summarise(state: dict[str, Tensor], *, horizon: int) -> dict[str, Tensor]:
    """Counts since the episode began in, the episode's metrics out; every value (n,) but `taken` (n, agents, types)."""
    taken, completed = state["taken"], state["completed"]
    agents, steps = completed.shape[1], state["step"].clamp(min=1)
    return {
        "return": state["return"].clone(),
        "whole": state["step"] == horizon,  # the first episodes may be shortened so that environments are out of phase
        "completion_rate": completed.sum(1) / state["arrived"].clamp(min=1),
        "utilisation": state["busy"].sum(1) / (agents * steps),
        "collaboration": state["collaborations"] / (agents * (agents - 1) * steps),
        "specialisation": specialisation(taken),
        "load_balance": jain(completed),
        "taken": taken.clone(),
    }


def jain(load: Tensor) -> Tensor:
    """Jain's fairness index of (n, agents): 1 when all have the same load, 1/agents when one has all of it."""
    return load.sum(1) ** 2 / (load.shape[1] * (load**2).sum(1)).clamp(min=1e-9)


def specialisation(taken: Tensor) -> Tensor:
    """Mutual information of agent and task type, divided by the entropy of types, in [0, 1].

    `taken` (n, agents, types) counts tasks. It is biased upwards for few tasks: compare it with the random baseline.
    """
    joint = taken / taken.sum((1, 2), keepdim=True).clamp(min=1)  # (n, agents, types)
    types = _entropy(joint.sum(1))
    mutual = types + _entropy(joint.sum(2)) - _entropy(joint.flatten(1))
    return torch.where(types > 1e-4, mutual / types, 0.0).clamp(0, 1)


def _entropy(p: Tensor) -> Tensor:
    return -torch.xlogy(p, p).sum(1)
