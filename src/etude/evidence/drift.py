"""Drift since training: reference and current values of features or scores in, distances and alarms out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt
from numpy.typing import ArrayLike

from etude.contracts.errors import DataError
from etude.evidence.eprocess import BETS, MAX_DETECTOR, Crossing
from etude.evidence.intervals import Array


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, kw_only=True)
class DriftThresholds:
    """When a distribution counts as changed."""

    warn_psi: Annotated[float, Gt(0)] = 0.1
    """Population stability index from which a feature is worth a look."""
    fail_psi: Annotated[float, Gt(0)] = 0.25
    """Population stability index from which the model should be retrained."""
    bins: Annotated[int, Ge(2)] = 10
    """Quantile bins of the reference values."""
    min_count: Annotated[int, Ge(1)] = 300
    """Current values, at least: the index of n values without drift is about (bins − 1)/n by chance alone."""


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Distance of one feature's current values from its reference values."""

    name: str
    count: int  # current values
    psi: float  # population stability index
    js: float  # Jensen–Shannon divergence in bits, 0 … 1
    level: Level

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "count": self.count, "psi": self.psi, "js": self.js, "level": str(self.level)}


def check_drift(
    reference: Mapping[str, ArrayLike], current: Mapping[str, ArrayLike], thresholds: DriftThresholds
) -> list[Drift]:
    """Each feature's drift, the largest first. Values that are not a number have a bin of their own."""
    if set(reference) != set(current):
        missing = sorted(set(reference) ^ set(current))
        raise DataError(f"features {missing!r} are only in one of reference and current: expected the same names")
    found = [_drift(name, np.ravel(reference[name]), np.ravel(current[name]), thresholds) for name in reference]
    return sorted(found, key=lambda drift: -drift.psi)


def _drift(name: str, reference: ArrayLike, current: ArrayLike, thresholds: DriftThresholds) -> Drift:
    expected, actual = bin_shares(reference, current, bins=thresholds.bins)
    count, value = int(np.size(current)), psi(expected, actual)
    level = Level.FAIL if value >= thresholds.fail_psi else Level.WARN if value >= thresholds.warn_psi else Level.OK
    if min(count, np.size(reference)) < thresholds.min_count:
        level = Level.CANNOT_TELL
    return Drift(name=name, count=count, psi=value, js=jensen_shannon(expected, actual), level=level)


def bin_shares(reference: ArrayLike, current: ArrayLike, *, bins: int = 10) -> tuple[Array, Array]:
    """Shares of both samples in quantile bins of the reference, half a value added per bin so that none is empty.

    Features with at most `bins` distinct values have one bin per value and one for all other values.
    """
    a, b = np.asarray(reference, float).ravel(), np.asarray(current, float).ravel()
    known = a[np.isfinite(a)]
    distinct = np.unique(known)
    if len(distinct) <= bins:
        edges, categorical = distinct, True
    else:
        edges, categorical = np.unique(np.quantile(known, np.arange(1, bins) / bins)), False

    def shares(x: Array) -> Array:
        place = np.searchsorted(edges, x, side="left")  # 0 … len(edges)
        if categorical and len(edges):
            place[edges[place.clip(max=len(edges) - 1)] != x] = len(edges)
        place[np.isnan(x)] = len(edges) + 1
        counts = np.bincount(place, minlength=len(edges) + 2)
        used = counts + 0.5
        return np.asarray(used / used.sum(), float)

    return shares(a), shares(b)


def psi(expected: ArrayLike, actual: ArrayLike) -> float:
    """Population stability index Σ (q − p)·ln(q/p) of two vectors of positive shares."""
    p, q = np.asarray(expected, float), np.asarray(actual, float)
    return float(((q - p) * np.log(q / p)).sum())


def jensen_shannon(expected: ArrayLike, actual: ArrayLike) -> float:
    """Jensen–Shannon divergence in bits (Lin, 1991), from 0 for equal to 1 for disjoint shares."""
    p, q = np.asarray(expected, float), np.asarray(actual, float)
    middle = (p + q) / 2

    def divergence(x: Array) -> float:
        own = x > 0
        return float((x[own] * np.log2(x[own] / middle[own])).sum())

    return (divergence(p) + divergence(q)) / 2


class DriftDetector:
    """Shiryaev–Roberts detector on the rank of each new value among the reference values.

    Without drift ranks are uniform. It bets on a higher or lower mean and on a wider or narrower spread, and its
    average run until a false alarm is at least `units_between_alarms`. The reference is itself a sample: deviations
    within three standard errors of its own ranks are no drift, or else a small one would raise an alarm in the end.
    """

    def __init__(self, reference: ArrayLike, *, units_between_alarms: float = 100_000.0) -> None:
        values = np.sort(np.asarray(reference, float).ravel())
        if len(values) < 2 or not np.isfinite(values).all():
            raise DataError(f"{len(values)} reference values: expected at least 2, all of them finite")
        self._values, self._threshold, self.count = values, math.log(units_between_alarms), 0
        ranks = self._rank(values)
        self._spread = float(np.square(ranks).mean())  # 1/3, less where values are tied
        self._tolerance = 3 * float(ranks.std()) / math.sqrt(len(values))
        self._spread_tolerance = 3 * float(np.square(ranks).std()) / math.sqrt(len(values))
        self._detector = np.zeros((4, len(BETS)))

    def _rank(self, x: ArrayLike) -> Array:
        """Mid-rank in [−1, 1]: 0 on average over the reference, with or without ties."""
        below, upto = np.searchsorted(self._values, x, "left"), np.searchsorted(self._values, x, "right")
        return np.asarray((below + upto) / len(self._values) - 1, float)

    def update(self, value: float) -> None:
        """Adds the next value of the stream."""
        if not math.isfinite(value):
            raise DataError(f"value is {value!r}: expected a finite number")
        rank = float(self._rank(value))
        square, t, s = rank * rank, self._tolerance, self._spread_tolerance
        wide, narrow = self._spread + s, max(self._spread - s, 0.0)
        gains = np.array(  # each at least −1, and of mean at most 0 without drift
            [
                (rank - t) / (1 + t),
                (-rank - t) / (1 + t),
                (square - wide) / wide if wide > 0 else 0.0,
                (narrow - square) / (1 - narrow),
            ]
        )
        factors = 1 + gains[:, None] * BETS  # (mean up, mean down, wider, narrower; bets)
        self._detector = np.minimum((1 + self._detector) * factors, MAX_DETECTOR)
        self.count += 1

    @property
    def crossing(self) -> Crossing:
        return Crossing("drift", math.log(max(float(self._detector.mean()), 1e-300)), self._threshold)

    @property
    def alarmed(self) -> bool:
        return self.crossing.reached

    def to_json(self) -> dict[str, Any]:
        """The state of the stream; the reference values are the caller's to keep."""
        return {"count": self.count, "detector": self._detector.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from what `to_json` saved, with the same reference."""
        self.count, self._detector = state["count"], np.array(state["detector"])
