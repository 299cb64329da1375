"""Chooses the trajectories of a dataset, their weights, and their splits and shards.

It works on arrays of numbers about a million trajectories at once, not on their content.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from etude.contracts.errors import ConfigError

SPLITS = ("train", "validation", "test")
SHARD_BYTES = 32 << 20
"""Maximum size of a shard, so that it fits into memory."""
CLOSE = 0.01
"""Added to the distance of a reward from its context's mean, so that no weight is 0."""

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    split: Literal["context", "time"] = "context"
    """context: trajectories of the same request are in one split (of a choice: the same task and context); time: the
    newest are the test split."""
    shares: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Shares of train, validation and test."""
    seed: int = 0
    """Seed of the splits and of the sample that `limit` takes."""
    shard_size: int = 4096
    """Approximate number of trajectories per shard."""
    balance: Literal["none", "outcome", "policy", "task_type"] = "none"
    """Weight trajectories so that every outcome, policy or set of task types has the same total weight."""
    prioritise: float = 0.0
    """Weight trajectories by the distance of their reward from the mean of their context, to this power; 0 is off."""
    deduplicate: bool = False
    """Keep the oldest trajectory of those with equal request, actions and ending, with the weight of all of them."""
    limit: int | None = None
    """Maximum number of trajectories; whole contexts are sampled by the seed."""
    min_confidence: float = 0.0
    """Leave out rewards with a lower confidence."""
    require_propensity: bool = False
    """Leave out trajectories with a decision without a logged propensity."""
    cap: float | None = None
    """Largest weight, as a multiple of the mean weight."""

    def __post_init__(self) -> None:
        expected = {
            "shares": (
                min(self.shares) >= 0 and math.isclose(sum(self.shares), 1.0),
                "three shares that sum to 1, as (0.8, 0.1, 0.1)",
            ),
            "shard_size": (self.shard_size >= 1, "1 or more"),
            "prioritise": (0 <= self.prioritise < math.inf, "0 or more"),
            "limit": (self.limit is None or self.limit >= 1, "1 or more"),
            "min_confidence": (0 <= self.min_confidence <= 1, "0 to 1"),
            "cap": (self.cap is None or self.cap >= 1, "1 or more"),
        }
        for name, (is_right, words) in expected.items():
            if not is_right:
                raise ConfigError(f"{name} is {getattr(self, name)!r}: expected {words}")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns of numbers about the trajectories, (N,) each, oldest first."""

    context: Hashes
    time: Ints  # µs since 1970
    reward: Floats
    outcome: Ints  # 0 … 2
    policy: Ints
    size: Ints  # bytes
    decisions: Ints
    logged: Ints  # 1 where every decision has a propensity
    task_types: Hashes  # equal for equal sets of task types; empty if not needed
    likeness: Hashes  # equal for equal request, actions and ending; empty if not needed

    def __len__(self) -> int:
        return len(self.context)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The trajectories of a dataset, (M,) each."""

    rows: Ints  # row numbers of the columns, ascending
    weight: Floats
    split: Ints  # index into SPLITS
    shard: Ints  # within its split
    cuts: tuple[int, ...]  # µs since 1970; split by time only
    duplicates: int
    over_limit: int


def draw(columns: Columns, config: DatasetConfig) -> Sample:
    rows, weight = np.arange(len(columns)), np.ones(len(columns))
    if config.deduplicate:
        _, rows, stands_for = np.unique(columns.likeness, return_index=True, return_counts=True)
        order = rows.argsort()
        rows, weight = rows[order], stands_for[order].astype(np.float64)
    duplicates = len(columns) - len(rows)
    over_limit = max(0, len(rows) - (config.limit or len(rows)))
    if over_limit:
        drawn = np.argsort(_mixed(columns.context[rows], config.seed, "limit"), kind="stable")[: config.limit]
        drawn.sort()
        rows, weight = rows[drawn], weight[drawn]
    if config.prioritise:
        weight = weight * _priorities(columns.context[rows], columns.reward[rows], config.prioritise)
    if config.balance != "none":
        kind = {"outcome": columns.outcome, "policy": columns.policy, "task_type": columns.task_types}[config.balance]
        weight = weight * _balance(kind[rows], weight)
    if config.cap is not None and len(weight):
        weight = np.minimum(weight, config.cap * weight.mean())
    split, cuts = _split(columns, rows, config)
    shard = _shards(columns, rows, split, config)
    return Sample(
        rows=rows, weight=weight, split=split, shard=shard, cuts=cuts, duplicates=duplicates, over_limit=over_limit
    )


def _priorities(context: Hashes, reward: Floats, alpha: float) -> Floats:
    """(|reward − mean of its context| + ε)^α, of mean 1 (Schaul et al. 2016, with the context's mean for a value)."""
    _, place = np.unique(context, return_inverse=True)
    mean = np.bincount(place, weights=reward) / np.maximum(np.bincount(place), 1)
    priority = (np.abs(reward - mean[place]) + CLOSE) ** alpha
    return np.asarray(priority / priority.mean() if len(priority) else priority)


def _balance(kind: NDArray[np.integer[Any]], weight: Floats) -> Floats:
    """Factors that make the weights of every kind sum to the same and keep the total."""
    _, place = np.unique(kind, return_inverse=True)
    mass = np.bincount(place, weights=weight)
    return np.asarray((weight.sum() / (len(mass) * mass))[place]) if len(mass) else weight


def _split(columns: Columns, rows: Ints, config: DatasetConfig) -> tuple[Ints, tuple[int, ...]]:
    ends = np.cumsum(config.shares)[:-1]
    if config.split == "context":
        place = _mixed(columns.context[rows], config.seed, "split") / 2.0**64  # [0, 1)
        return np.searchsorted(ends, place, side="right"), ()
    time = columns.time[rows]
    marks = np.round(ends * len(time)).astype(np.int64)
    # After the newest if a share is 0: trajectories of the same time stay in one split.
    cuts = np.array([time[mark] if mark < len(time) else time[-1] + 1 for mark in marks]) if len(time) else marks
    return np.searchsorted(cuts, time, side="right"), tuple(cuts.tolist())


def _shards(columns: Columns, rows: Ints, split: Ints, config: DatasetConfig) -> Ints:
    many = np.bincount(split, minlength=len(SPLITS))
    size = np.bincount(split, weights=columns.size[rows], minlength=len(SPLITS))
    shards = np.maximum(np.ceil(many / config.shard_size), np.ceil(size / SHARD_BYTES)).clip(min=1).astype(np.uint64)
    return np.asarray(_mixed(columns.context[rows], 0, "shard") % shards[split]).astype(np.int64)


def _mixed(context: Hashes, seed: int, purpose: str) -> Hashes:
    """Hashes independent for each seed and purpose: the last steps of SplitMix64 (Steele et al. 2014)."""
    salt = int.from_bytes(purpose.encode().ljust(8, b"\0")[:8], "little") ^ (seed * 0x9E3779B97F4A7C15)
    x = context ^ np.uint64(salt % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
