"""How a policy explores: utilities with their uncertainty in, the probability of each option out.

The option is then sampled with exactly these probabilities, so every logged propensity is exact.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from etude.contracts.errors import ConfigError

Floats = NDArray[np.float64]
Explore = Literal["none", "epsilon", "softmax", "thompson", "priced"]
POINTS, AROUND, MAX_POINTS, MAX_CELLS = 129, 33, 2049, 1_000_000
"""Points at which Thompson sampling's integral is evaluated: in equal steps, around each mean, in all."""


def probabilities(
    utility: Floats,
    error: Floats,
    *,
    explore: str = "none",
    epsilon: float = 0.1,
    temperature: float = 0.1,
    price: float = 0.02,
) -> Floats:
    """(K,) from utilities (K,) and their standard errors.

    `epsilon`: the best, and with probability epsilon any option. `softmax`: in proportion to exp(utility /
    temperature). `thompson`: the probability that the option is best, given how uncertain the utilities are.
    `priced`: explores as much as costs at most the share `price` of the best option's utility, as estimated, with
    probabilities that fall with the distance to the best (inverse gap weighting: Foster & Rakhlin 2020).
    """
    K, best = len(utility), int(utility.argmax())
    found = np.zeros(K)
    found[best] = 1.0
    if explore == "none" or K == 1:
        return found
    if explore == "epsilon":
        return (1 - epsilon) * found + epsilon / K
    if explore == "softmax":
        spread: Floats = np.exp((utility - utility[best]) / temperature)
        return np.asarray(spread / spread.sum())
    if explore == "thompson":
        return _probability_of_best(utility, error)
    if explore == "priced":
        return _priced(utility, price)
    raise ConfigError(f"explore is {explore!r}: expected none, epsilon, softmax, thompson or priced")


def _probability_of_best(mean: Floats, error: Floats) -> Floats:
    """P(option is the largest) for independent normal utilities, by integration over the largest value.

    Points lie densely around each mean, so that narrow and wide distributions may stand side by side.
    """
    from scipy.special import log_ndtr

    error = np.maximum(error, 1e-6 * max(1.0, float(np.abs(mean).max())))
    low = float((mean - 6 * error).max())
    high = float((mean + 6 * error).max())
    possible = mean + 6 * error >= low
    if not possible.all():
        found = np.zeros(len(mean))
        found[possible] = _probability_of_best(mean[possible], error[possible])
        return found
    around = (mean[:, None] + error[:, None] * np.linspace(-4, 4, AROUND)).ravel()
    at = np.unique(np.concatenate([np.linspace(low, high, POINTS), around.clip(low, high)]))
    most = max(POINTS, min(MAX_POINTS, MAX_CELLS // len(mean)))  # thousands of options share fewer points
    at = at[np.linspace(0, len(at) - 1, min(len(at), most)).astype(np.int64)]
    log_below = log_ndtr((at[:, None] - mean) / error)  # (points, K)
    others = np.exp(log_below.sum(1, keepdims=True) - log_below)  # P(all others are below)
    each: Floats = (np.diff(np.exp(log_below), axis=0) * (others[1:] + others[:-1]) / 2).sum(0)
    return np.asarray(each / each.sum())


def _priced(utility: Floats, price: float) -> Floats:
    """Inverse gap weighting with the strength at which the expected loss is `price` of the best utility."""
    best = int(utility.argmax())
    gap = utility[best] - utility
    allowed = price * abs(float(utility[best]))

    def weigh(strength: float) -> Floats:
        found: Floats = 1 / (len(gap) + strength * gap)
        found[best] = 0
        found[best] = 1 - found.sum()
        return found

    if float(weigh(0.0) @ gap) <= allowed:
        return weigh(0.0)
    low, high = 0.0, 1.0
    while float(weigh(high) @ gap) > allowed and high < 1e15:
        high *= 4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float(weigh(middle) @ gap) > allowed else (low, middle)
    return weigh(high)
