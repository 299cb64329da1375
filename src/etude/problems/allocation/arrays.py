"""A trained MLP policy in NumPy: for a few observations, calls of torch take longer than what they compute.

Its answers are torch's within rounding, which is checked when it is made (docs/decisions/0033).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from etude.problems.allocation.network import BatchNorm, MLPPolicy
from etude.problems.allocation.world import COLUMNS
from etude.problems.distributions import Beta, Distribution, Gaussian, Levels, Threshold

log = logging.getLogger("etude")

FLAT = ("agents", "tasks", "matrix")
"""The parts of an observation in the order of the vector that the network reads."""
Floats = NDArray[np.float32]
Step = Callable[[Floats], Floats]
CHECKED = 64
"""Observations on which it is compared with torch."""
TOLERANCE = 1e-3
"""Largest difference of an output, relative to 1 or to the output if that is larger."""


class ArrayPolicy:
    """The most probable actions for observations as vectors."""

    def __init__(self, steps: Sequence[Step], agents: int, columns: Sequence[Distribution]) -> None:
        self._steps, self._agents, self._columns = steps, agents, columns
        self._ends = list(accumulate(column.size for column in columns))

    def outputs(self, x: Floats) -> Floats:
        """(n, width) to (n, agents, Σ sizes)."""
        for step in self._steps:
            x = step(x)
        return x.reshape(len(x), self._agents, -1)

    def choose(self, x: Floats) -> dict[str, Floats]:
        """By name of the column, (n, agents)."""
        parts = np.split(self.outputs(x), self._ends[:-1], -1)
        return {name: _mode(column, part) for name, column, part in zip(COLUMNS, self._columns, parts, strict=True)}


def as_arrays(policy: nn.Module) -> ArrayPolicy | None:
    """The policy in NumPy; None if it is of another kind, or if its answers would not be the same."""
    if not isinstance(policy, MLPPolicy) or policy.is_half:
        return None
    steps = [] if policy.scale is None else [_scaled(_array(policy.scale.mean), _array(policy.scale.var))]
    for layer in (*policy.actor, policy.policy_head):
        step = _step(layer)
        if step is None:
            return None
        steps.append(step)
    made = ArrayPolicy(steps, policy.agents, policy.columns)
    return made if _is_same(made, policy) else None


@torch.inference_mode()
def _is_same(made: ArrayPolicy, policy: MLPPolicy) -> bool:
    """Whether outputs and actions are those of torch, on observations like those that it learned from."""
    first = policy.actor[0]
    assert isinstance(first, nn.Linear)
    x = np.random.default_rng(0).standard_normal((CHECKED, first.in_features)).astype(np.float32)
    if policy.scale is not None:
        x = x * np.sqrt(_array(policy.scale.var)) + _array(policy.scale.mean)
    features = torch.from_numpy(x) if policy.scale is None else policy.scale(torch.from_numpy(x))
    raw = policy.policy_head(policy.actor(features)).view(CHECKED, policy.agents, -1)
    found, ends = made.outputs(x), list(accumulate(policy.sizes))
    off = float((np.abs(found - raw.numpy()) / np.maximum(1, np.abs(raw.numpy()))).max())
    modes = zip(policy.columns, raw.split(policy.sizes, -1), np.split(raw.numpy(), ends[:-1], -1), strict=True)
    between = max(float(np.abs(column.mode(part).numpy() - _mode(column, own)).max()) for column, part, own in modes)
    if max(off, between) <= TOLERANCE:
        return True
    log.warning("allocation: NumPy differs from torch by %.3g in outputs, %.3g in actions: torch decides", off, between)
    return False


def _array(tensor: torch.Tensor) -> Floats:
    return tensor.detach().cpu().numpy().astype(np.float32)


def _step(layer: nn.Module) -> Step | None:
    if isinstance(layer, nn.Linear):
        weight, bias = np.ascontiguousarray(_array(layer.weight).T), _array(layer.bias)
        return lambda x: x @ weight + bias
    if isinstance(layer, nn.Tanh):
        return np.tanh
    if isinstance(layer, nn.ReLU):
        return lambda x: np.maximum(x, 0)
    if isinstance(layer, nn.Dropout):
        return lambda x: x
    if isinstance(layer, BatchNorm) and layer.running_mean is not None and layer.running_var is not None:
        factor = _array(layer.weight) / np.sqrt(_array(layer.running_var) + layer.eps)
        offset = _array(layer.bias) - _array(layer.running_mean) * factor
        return lambda x: x * factor + offset
    if isinstance(layer, nn.LayerNorm):
        return _normed(_array(layer.weight), _array(layer.bias), layer.eps)
    return None


def _scaled(mean: Floats, var: Floats) -> Step:
    factor = 1 / np.sqrt(var + np.float32(1e-6))
    return lambda x: np.clip((x - mean) * factor, -10, 10)


def _normed(weight: Floats, bias: Floats, eps: float) -> Step:
    def step(x: Floats) -> Floats:
        centred = x - x.mean(-1, keepdims=True)
        made: Floats = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + np.float32(eps)) * weight + bias
        return made

    return step


def _mode(column: Distribution, raw: Floats) -> Floats:
    """As `column.mode` of a tensor (…, size)."""
    found: Any
    match column:
        case Threshold():
            found = raw[..., 0] > 0
        case Levels():
            found = raw.argmax(-1) / np.float32(column.size - 1)
        case Beta():
            excess = np.logaddexp(raw, 0)
            with np.errstate(invalid="ignore"):
                found = np.nan_to_num(excess[..., 0] / excess.sum(-1), nan=0.5).clip(1e-6, 1 - 1e-6)
        case Gaussian():
            found = 0.5 + raw[..., 0]
    return np.asarray(found, np.float32)
