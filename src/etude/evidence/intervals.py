"""95 % intervals, the one place for them: samples in, estimates with their standard error and interval out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An estimated number with its 95 % interval; NaN where there is no sample."""

    count: int  # samples
    mean: float
    error: float  # standard error of the mean
    low: float
    high: float

    @property
    def interval(self) -> tuple[float, float]:
        return self.low, self.high

    def to_json(self) -> dict[str, Any]:
        known = self.count > 0 and math.isfinite(self.mean)
        return {
            "count": self.count,
            "mean": self.mean if known else None,
            "ci95": [self.low, self.high] if known else None,
        }


def interval(x: ArrayLike) -> tuple[float, float]:
    """Student's interval of a mean."""
    return estimate_mean(x).interval


def estimate_mean(x: ArrayLike, groups: ArrayLike | None = None) -> Estimate:
    """Student's interval of a mean; a single sample gives itself.

    Samples of the same group may depend on each other (several answers to one request): the standard error is then
    the cluster-robust one (Liang & Zeger, 1986), with one degree of freedom less than there are groups. Samples of a
    single group count as independent.
    """
    x = np.asarray(x, float)
    if not len(x):
        return estimate_moments(0, math.nan, math.nan)
    mean = float(x.mean())
    count, squares = _clusters(x - mean, groups)
    error = math.sqrt(squares * count / (count - 1)) / len(x) if count > 1 else 0.0
    return _symmetric(len(x), mean, error, count - 1)


def _clusters(residuals: Array, groups: ArrayLike | None) -> tuple[int, float]:
    """The number of groups, and the sum over them of their squared sums."""
    if groups is not None:
        sums = np.bincount(np.unique(np.asarray(groups), return_inverse=True)[1], residuals).astype(float)
        residuals = sums if len(sums) > 1 else residuals
    return len(residuals), float(np.square(residuals).sum())


def _symmetric(count: int, mean: float, error: float, freedom: float) -> Estimate:
    half = t_quantile(0.975, freedom) * error if error else 0.0
    return Estimate(count=count, mean=mean, error=error, low=mean - half, high=mean + half)


def estimate_moments(count: int, mean: float, squares: float) -> Estimate:
    """As `estimate_mean`, from running sums: `squares` is the sum of squared distances from the mean."""
    if count == 0:
        return Estimate(count=0, mean=math.nan, error=math.nan, low=math.nan, high=math.nan)
    error = math.sqrt(squares / (count - 1) / count) if count > 1 else 0.0
    return _symmetric(count, mean, error, count - 1)


def estimate_difference(a: ArrayLike, b: ArrayLike, *, paired: bool) -> Estimate:
    """Mean of `a` less mean of `b`: Student's interval of paired differences, else Welch's (1947)."""
    if paired:
        return estimate_mean(np.subtract(a, b))
    one, other = estimate_mean(a), estimate_mean(b)
    squares = [(e.error**2, e.count) for e in (one, other)]
    variance = sum(square for square, _ in squares)
    below = sum(square**2 / (count - 1) for square, count in squares if square)
    freedom = variance**2 / below if below else math.inf
    return _symmetric(one.count + other.count, one.mean - other.mean, math.sqrt(variance), freedom)


def estimate_share(hits: int, count: int) -> Estimate:
    """Wilson's interval (1927) of a share: within [0, 1], and of some width even where all or none are hits."""
    if count == 0:
        return estimate_moments(0, math.nan, math.nan)
    p, z2 = hits / count, Z * Z / count
    middle, half = p + z2 / 2, Z * math.sqrt(p * (1 - p) / count + z2 / (4 * count))
    low = 0.0 if hits == 0 else (middle - half) / (1 + z2)
    high = 1.0 if hits == count else (middle + half) / (1 + z2)
    return Estimate(count=count, mean=p, error=math.sqrt(p * (1 - p) / count), low=low, high=high)


def paired_share_difference(before: Sequence[bool], after: Sequence[bool]) -> Estimate:
    """The share of `after` less that of `before`, both of the same cases in the same order (Newcombe 1998, method 10).

    Wilson's intervals of both shares, less what the pairs have in common.
    """
    p, q = (estimate_share(sum(side), len(side)) for side in (after, before))
    spread = math.sqrt(p.mean * (1 - p.mean) * q.mean * (1 - q.mean))
    both = sum(a and b for a, b in zip(before, after, strict=True)) / len(after)
    phi = (both - p.mean * q.mean) / spread if spread > 0 else 0.0

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(a**2 - 2 * phi * a * b + b**2, 0.0))

    mean = p.mean - q.mean
    low = mean - reach(p.mean - p.low, q.high - q.mean)
    high = mean + reach(p.high - p.mean, q.mean - q.low)
    return Estimate(count=len(after), mean=mean, error=(high - low) / (2 * Z), low=low, high=high)


def estimate_ratio(numerator: ArrayLike, denominator: ArrayLike, groups: ArrayLike | None = None) -> Estimate:
    """Mean of `numerator` over mean of `denominator`, sample by sample, by the delta method; groups as for a mean."""
    a, b = np.asarray(numerator, float), np.asarray(denominator, float)
    if not len(a) or b.mean() == 0:
        return estimate_moments(0, math.nan, math.nan)
    ratio = float(a.mean() / b.mean())
    spread = estimate_mean((a - ratio * b) / b.mean(), groups)  # of mean 0
    half = (spread.high - spread.low) / 2
    return Estimate(count=len(a), mean=ratio, error=spread.error, low=ratio - half, high=ratio + half)


@cache
def t_quantile(p: float, freedom: float) -> float:
    """Quantile of Student's t to 1e-8, for ½ < p ≤ .99, or more where ν ≥ 4; the base install has no SciPy.

    With t = √ν tan θ the distribution function is c ∫ cos^(ν−1) θ: smooth, so Gauss–Legendre is exact to rounding, and
    concave, so Newton's steps from below never overshoot.
    """
    z = NormalDist().inv_cdf(p)
    if freedom > 1000:  # the gamma functions below would cancel; Abramowitz & Stegun 26.7.5
        first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        return z + first / freedom + second / freedom**2 + third / freedom**3
    nodes, weights = np.polynomial.legendre.leggauss(64)
    c = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    theta = math.atan(z / math.sqrt(freedom))
    for _ in range(100):
        below = c * theta / 2 * float(weights @ np.cos(theta / 2 * (nodes + 1)) ** (freedom - 1))
        step = (p - 0.5 - below) / (c * math.cos(theta) ** (freedom - 1))
        theta += step
        if abs(step) < 1e-13 * theta:
            break
    return math.sqrt(freedom) * math.tan(theta)
