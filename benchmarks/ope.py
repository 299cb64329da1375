"""Off-policy estimates where the truth is known: handwritten digits as bandit feedback.

python benchmarks/ope.py digits.csv.gz      scikit-learn's file: sklearn/datasets/data/digits.csv.gz in its wheel

The behaviour policy is half uniform and half a logistic regression trained on the first 15 % of the digits, the
candidate .1 uniform and .9 one trained on the next 15 %; the rest is logged, with reward 1 for the right digit. The
reward model of DM and DR is a logistic regression per action, cross-fitted over three folds. The file is read as it is,
so scikit-learn need not be installed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from results import save
from scipy.optimize import minimize

from etude.evidence import ope
from etude.evidence.intervals import Estimate
from etude.evidence.overlap import effective_sample_size

Array = NDArray[np.float64]
DRAWS = 20
WANTED = 0.02


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("digits", type=Path, help="digits.csv.gz: 64 pixels and the digit per row")
    data = np.loadtxt(arguments.parse_args().digits, delimiter=",")
    x, y = np.c_[data[:, :-1] / 16, np.ones(len(data))], data[:, -1].astype(int)
    errors: dict[str, list[float]] = {}
    covered: dict[str, list[bool]] = {}
    for seed in range(DRAWS):
        truth, found = draw(x, y, seed)
        for name, e in found.items():
            errors.setdefault(name, []).append(abs(e.mean / truth - 1))
            covered.setdefault(name, []).append(e.low <= truth <= e.high)
    values = {
        name: {"relative_error": float(np.mean(errors[name])), "coverage": float(np.mean(covered[name]))}
        for name in errors
    }
    for name, value in values.items():
        wanted = f"  (wanted <= {WANTED})" if name == "DR" else ""
        print(f"{name:10} relative error {value['relative_error']:.4f}, coverage {value['coverage']:.0%}{wanted}")
    save("ope", {"draws": DRAWS, "digits": values})


def draw(x: Array, y: NDArray[np.int_], seed: int) -> tuple[float, dict[str, Estimate]]:
    """The candidate's true value on the logged digits, and its estimates."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    first, second, rest = np.split(order, [int(0.15 * len(y)), int(0.3 * len(y))])
    mu = 0.05 + 0.5 * softmax(x[rest] @ logistic(x[first], np.eye(10)[y[first]]))
    pi = 0.01 + 0.9 * softmax(x[rest] @ logistic(x[second], np.eye(10)[y[second]]))
    row = np.arange(len(rest))
    action = (rng.random(len(rest))[:, None] > mu.cumsum(1)).sum(1).clip(max=9)
    reward = (action == y[rest]).astype(float)
    fold = ope.folds(row, 3, rng)
    q = np.zeros_like(mu)
    for number in range(3):
        out = fold == number
        q[out] = reward_model(x[rest][~out], action[~out], reward[~out], x[rest][out])
    weight, logged = pi[row, action] / mu[row, action], q[row, action]
    value = (pi * q).sum(1)
    print(f"seed {seed}: effective sample size {effective_sample_size(weight):.0f} of {len(rest)}")
    return float(pi[row, y[rest]].mean()), {
        "IPS": ope.ips(weight, reward),
        "SNIPS": ope.snips(weight, reward),
        "DM": ope.dm(value),
        "DR": ope.dr(weight, reward, logged, value),
        "Switch-DR": ope.switch_dr(weight, reward, logged, value, threshold=5.0),
    }


def reward_model(x: Array, action: NDArray[np.int_], reward: Array, new: Array) -> Array:
    """(rows, actions) probability that each action is right, by one logistic regression per action."""
    columns = []
    for a in range(10):
        own = action == a
        chances = logistic(x[own], np.c_[1 - reward[own], reward[own]])
        columns.append(softmax(new @ chances)[:, 1])
    return np.stack(columns, 1)


def logistic(x: Array, target: Array, penalty: float = 1.0) -> Array:
    """(features, classes) weights of a multinomial logistic regression with a ridge penalty, as scikit-learn's."""
    shape = (x.shape[1], target.shape[1])

    def loss(flat: Array) -> tuple[float, Array]:
        w = flat.reshape(shape)
        p = softmax(x @ w)
        value = -float((target * np.log(p.clip(min=1e-12))).sum()) + penalty / 2 * float((w**2).sum())
        return value, (x.T @ (p - target) + penalty * w).ravel()

    found: Array = minimize(loss, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B").x.reshape(shape)
    return found


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(1, keepdims=True))
    found: Array = e / e.sum(1, keepdims=True)
    return found


if __name__ == "__main__":
    main()
