"""Generalised advantage estimation (Schulman et al., 2016), which treats truncation and termination differently."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    *, reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, ended: Tensor, gamma: float, lam: float
) -> Tensor:
    """Advantages of the shape of `value`: (T, n), or (T, n, parts) with rewards (T, n) or (T, n, parts).

    `next_value` is the value of the state the step really led to, before any reset. It counts unless the step
    `terminated`. The recursion stops wherever an episode `ended`, by termination or by the clock.
    """
    reward, terminated, ended = (match(x, value) for x in (reward, terminated, ended))
    delta = reward + gamma * next_value * ~terminated - value
    carry = gamma * lam * ~ended
    advantage = torch.empty_like(delta)
    last = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        last = torch.addcmul(delta[t], carry[t], last, out=advantage[t])
    return advantage


def match(x: Tensor, value: Tensor) -> Tensor:
    """(T, n) with an axis added where values are (T, n, parts)."""
    return x if x.dim() == value.dim() else x[..., None]
