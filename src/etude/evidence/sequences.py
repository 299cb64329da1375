"""Confidence sequences: bounded samples or running sums in, intervals out that hold at every sample size at once.

An interval may be looked at after every sample, and sampling may stop because of it. NumPy alone: the incomplete gamma
function is computed here, because the base install has no SciPy.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from etude.evidence.intervals import Array, Estimate


def empirical_bernstein(x: ArrayLike, *, alpha: float = 0.05) -> tuple[Array, Array]:
    """(samples,) lower and upper ends for the mean of x in [0, 1] after each sample, at level 1 − α.

    The predictable mixture of Waudby-Smith & Ramdas (2024), α/2 per side, without a running intersection.
    """
    x = np.asarray(x, float)
    low, high = _lower_end(x, alpha / 2), 1 - _lower_end(1 - x, alpha / 2)
    return low, high


def _lower_end(x: Array, a: float) -> Array:
    t = np.arange(1, len(x) + 1)
    bet = predictable_bets(x, a)
    before = np.concatenate([[0.0], np.cumsum(x)[:-1] / t[:-1]]) if len(x) else x  # plain running mean
    psi = -np.log1p(-bet) - bet
    low: Array = (np.cumsum(bet * x) + math.log(a) - np.cumsum((x - before) ** 2 * psi)) / np.cumsum(bet)
    return low.clip(0.0, 1.0)


def predictable_bets(x: ArrayLike, a: float) -> Array:
    """(samples,) λ_t, each from the samples before it: near the best bet for the variance seen so far, at most ½."""
    x = np.asarray(x, float)
    t = np.arange(1, len(x) + 1)
    mean = (0.5 + np.cumsum(x)) / (t + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2)) / (t + 1)
    before = np.concatenate([[0.25], variance[:-1]])[: len(x)]
    return np.minimum(0.5, np.sqrt(-2 * math.log(a) / (before * t * np.log1p(t))))


def average_effect(
    count: int, total: float, variance: float, *, scale: float, alpha: float = 0.05, v_opt: float = 5_000.0
) -> Estimate:
    """Interval of the average of the conditional means of X_1 … X_t (Howard et al. 2021, Corollary 2).

    `total` is ΣX, `variance` Σ(X_i − X̂_i)² with X̂_i the mean of earlier ones, and `scale` an upper bound of
    |X_i − X̂_i|. The interval is narrowest where `variance` is near `v_opt`.
    """
    if count == 0:
        return Estimate(count=0, mean=math.nan, error=math.nan, low=math.nan, high=math.nan)
    mean = total / count
    half = gamma_exponential_bound(variance, c=scale, alpha=alpha / 2, v_opt=v_opt) / count
    return Estimate(count=count, mean=mean, error=math.sqrt(variance) / count, low=mean - half, high=mean + half)


def gamma_exponential_bound(v: float, *, c: float, alpha: float, v_opt: float) -> float:
    """The u where the mixture at (u, v) reaches 1/α: a sub-exponential sum of variance v stays below u."""
    r, wanted = _rho(v_opt, alpha), -math.log(alpha)
    low, high = 0.0, math.sqrt(v + r) + c
    while gamma_exponential_log_mixture(high, v, c=c, r=r) < wanted:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        reached = gamma_exponential_log_mixture(middle, v, c=c, r=r) >= wanted
        low, high = (low, middle) if reached else (middle, high)
        if high - low <= 1e-13 * high:
            break
    return high


def _rho(v_opt: float, alpha: float) -> float:
    odds = 2 * math.log(1 / (2 * alpha))
    return v_opt / (odds + math.log1p(odds))


def gamma_exponential_log_mixture(s: float, v: float, *, c: float, r: float) -> float:
    """log m(s, v) of the gamma-exponential mixture (Howard et al. 2021, Proposition 9)."""
    square = c * c
    prior, a, x = r / square, (v + r) / square, (c * s + v + r) / square
    start = prior * math.log(prior) - math.lgamma(prior) - log_lower_gamma(prior, prior)
    return start + math.lgamma(a) + log_lower_gamma(a, x) - a * math.log(x) + (c * s + v) / square


def log_lower_gamma(a: float, x: float) -> float:
    """ln P(a, x) of the regularised lower incomplete gamma function, for a, x > 0."""
    front = a * math.log(x) - x - math.lgamma(a)
    if x < a + 1:  # the series of Abramowitz & Stegun 6.5.29
        term = total = 1 / a
        n = a
        while term > 1e-17 * total:
            n += 1
            term *= x / n
            total += term
        return front + math.log(total)
    # 1 − P by Legendre's continued fraction, evaluated by Lentz's method
    b = x + 1 - a
    c, d = 1e300, 1 / b
    h, i = d, 0
    delta = 0.0
    while abs(delta - 1) > 1e-16 and i < 100_000:
        i += 1
        an = -i * (i - a)
        b += 2
        d = 1 / (an * d + b)
        c = b + an / c
        delta = d * c
        h *= delta
    return math.log1p(-math.exp(front) * h)
