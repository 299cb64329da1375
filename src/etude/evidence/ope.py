"""Off-policy evaluation: importance weights, rewards and model values in, the value of another policy out.

`weight` is π(a|x)/μ(a|x) of the candidate π and the behaviour policy μ, known because every decision is logged with
its propensity. Samples of the same group (answers to one request) may depend on each other.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from etude.evidence.intervals import Array, Estimate, estimate_mean, estimate_ratio

BETS: Array = np.geomspace(0.002, 0.9, 16)
"""Stakes of the betting bounds, averaged: no single one must be right for every size of effect."""


def ips(weight: ArrayLike, reward: ArrayLike, groups: ArrayLike | None = None) -> Estimate:
    """Inverse propensity scoring (Horvitz & Thompson, 1952): unbiased, of large variance."""
    return estimate_mean(np.multiply(weight, reward), groups)


def snips(weight: ArrayLike, reward: ArrayLike, groups: ArrayLike | None = None) -> Estimate:
    """Self-normalised IPS (Swaminathan & Joachims, 2015): a weighted mean, so it stays within the rewards' range."""
    return estimate_ratio(np.multiply(weight, reward), weight, groups)


def dm(policy_value: ArrayLike, groups: ArrayLike | None = None) -> Estimate:
    """Direct method: the mean of E_π[q(x, a)]. Its interval does not include the error of the model."""
    return estimate_mean(policy_value, groups)


def dr(
    weight: ArrayLike,
    reward: ArrayLike,
    model_value: ArrayLike,
    policy_value: ArrayLike,
    groups: ArrayLike | None = None,
) -> Estimate:
    """Doubly robust (Dudík et al., 2011): the direct method, corrected by weighted errors of the model.

    `model_value` is q(x, a) of the logged action, `policy_value` E_π[q(x, a)]. Both are cross-fitted: a sample is
    predicted by a model that did not see its group (`folds`).
    """
    return estimate_mean(dr_samples(weight, reward, model_value, policy_value), groups)


def dr_samples(weight: ArrayLike, reward: ArrayLike, model_value: ArrayLike, policy_value: ArrayLike) -> Array:
    w, r, q, v = _arrays(weight, reward, model_value, policy_value)
    return v + w * (r - q)


def _arrays(*several: ArrayLike) -> list[Array]:
    return [np.asarray(x, float) for x in several]


def switch_dr(
    weight: ArrayLike,
    reward: ArrayLike,
    model_value: ArrayLike,
    policy_value: ArrayLike,
    *,
    threshold: float,
    groups: ArrayLike | None = None,
) -> Estimate:
    """Switch-DR (Wang et al., 2017): where the weight is above the threshold, the model alone."""
    kept = np.where(np.asarray(weight) <= threshold, weight, 0.0)
    return dr(kept, reward, model_value, policy_value, groups)


def folds(groups: ArrayLike, count: int, rng: np.random.Generator) -> np.ndarray:
    """The fold 0 … count − 1 of each sample, for cross-fitting: whole groups, at random, of nearly equal number."""
    _, place = np.unique(np.asarray(groups), return_inverse=True)
    number = int(place.max(initial=-1)) + 1
    return rng.permutation(np.arange(number) % count)[place]


# Several steps. Arrays are (trajectories, steps), padded with ratio 1, reward 0 and value 0.


def per_decision_is(ratio: ArrayLike, reward: ArrayLike, groups: ArrayLike | None = None) -> Estimate:
    """Per-decision importance sampling (Precup et al., 2000): a reward is weighted by the decisions up to it."""
    rho, r = _arrays(ratio, reward)
    return estimate_mean((rho.cumprod(1) * r).sum(1), groups)


def weighted_is(ratio: ArrayLike, reward: ArrayLike, groups: ArrayLike | None = None) -> Estimate:
    """Weighted importance sampling of whole trajectories: SNIPS with the product of their ratios."""
    rho, r = _arrays(ratio, reward)
    return snips(rho.prod(1), r.sum(1), groups)


def sequential_dr(
    ratio: ArrayLike,
    reward: ArrayLike,
    model_value: ArrayLike,
    policy_value: ArrayLike,
    groups: ArrayLike | None = None,
) -> Estimate:
    """Doubly robust over several decisions (Jiang & Li, 2016), with cross-fitted q(s, a) and E_π[q(s, a)].

    With a value of states alone as both, it is per-decision importance sampling with a baseline: still unbiased.
    """
    return estimate_mean(sequential_dr_samples(ratio, reward, model_value, policy_value), groups)


def sequential_dr_samples(
    ratio: ArrayLike, reward: ArrayLike, model_value: ArrayLike, policy_value: ArrayLike
) -> Array:
    """(trajectories,) V_t = E_π[q] + ρ_t (r_t + V_{t+1} − q), from the last decision to the first."""
    rho, r, q, v = _arrays(ratio, reward, model_value, policy_value)
    value = np.zeros(len(rho))
    for t in range(rho.shape[1] - 1, -1, -1):
        value = v[:, t] + rho[:, t] * (r[:, t] + value - q[:, t])
    return value


def fqe(
    features: ArrayLike,
    policy_features: ArrayLike,
    reward: ArrayLike,
    *,
    fold: ArrayLike | None = None,
    ridge: float = 1e-3,
    groups: ArrayLike | None = None,
) -> Estimate:
    """Fitted Q evaluation (Le et al., 2019): the mean value of first states. Its interval leaves out model errors."""
    return dm(fitted_q(features, policy_features, reward, fold=fold, ridge=ridge)[1][:, 0], groups)


def fitted_q(
    features: ArrayLike,
    policy_features: ArrayLike,
    reward: ArrayLike,
    *,
    fold: ArrayLike | None = None,
    ridge: float = 1e-3,
) -> tuple[Array, Array]:
    """(trajectories, steps) q(s, a) of logged actions and E_π[q(s, a)], linear in features, as `sequential_dr` takes.

    `features` are φ(s, a), `policy_features` E_π[φ(s, a)], both (trajectories, steps, features) and 0 in padding;
    one-hot features make it tabular. One ridge regression per step, from the last to the first, because the same state
    is worth less near the end. With folds, a trajectory is predicted by a model that did not see its fold.
    """
    phi, policy_phi, r = _arrays(features, policy_features, reward)
    fold = np.zeros(len(r), int) if fold is None else np.asarray(fold)
    several = len(np.unique(fold)) > 1
    q, v = np.zeros_like(r), np.zeros_like(r)
    penalty = ridge * np.eye(phi.shape[2])
    for number in np.unique(fold):
        out = fold == number
        x, target = (phi[~out], r[~out]) if several else (phi, r)
        policy_x = policy_phi[~out] if several else policy_phi
        value = np.zeros(len(x))  # of the next state
        for t in range(r.shape[1] - 1, -1, -1):
            weights = np.linalg.solve(x[:, t].T @ x[:, t] + penalty, x[:, t].T @ (target[:, t] + value))
            value = policy_x[:, t] @ weights
            q[out, t], v[out, t] = phi[out, t] @ weights, policy_phi[out, t] @ weights
    return q, v


# Bounds by betting: valid for any number of samples and any weights, without a normal approximation.


def lower_bound(x: ArrayLike, *, delta: float = 0.05) -> float:
    """A bound that the mean of x ≥ 0 is below with probability at most δ: the largest v with E(v) ≥ 1/δ.

    x is weight times reward, with rewards in [0, 1].
    """
    x, wanted = np.asarray(x, float), -math.log(delta)
    low, high = 0.0, float(x.mean())
    if high <= 0:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _log_evidence(x / middle - 1) >= wanted else (low, middle)
    return low


def gate_evidence(weight: ArrayLike, reward: ArrayLike, *, margin: float) -> float:
    """E-value against V(π) − V(μ) ≤ −margin, for rewards in [0, 1]; the gate passes where it is at least 1/δ."""
    w, r = _arrays(weight, reward)
    gain = (w - 1) * r  # ≥ −1
    return math.exp(min(700.0, _log_evidence((gain + margin) / (1 - margin))))


def _log_evidence(gains: Array) -> float:
    """log of the mean over bets f of ∏ (1 + f·gain), for gains ≥ −1."""
    logs = np.array([np.log1p(bet * gains).sum() for bet in BETS])
    return float(logs.max() + np.log(np.exp(logs - logs.max()).mean()))
