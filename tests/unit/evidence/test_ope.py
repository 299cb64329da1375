"""Estimators meet known values: public logs, a problem whose truth is computed, and bounds that hold."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from etude.evidence import ope
from etude.evidence.intervals import Array, Estimate
from etude.evidence.overlap import effective_sample_size

OPEN_BANDIT = Path(__file__).parents[4] / "shared" / "data" / "ope" / "obd"
here = pytest.mark.skipif(not OPEN_BANDIT.exists(), reason="the Open Bandit data is not next to this repository")


class Logs(NamedTuple):
    item: np.ndarray
    position: np.ndarray
    click: Array
    propensity: Array


def read_logs(policy: str) -> Logs:
    with (OPEN_BANDIT / policy / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = ("item_id", "position", "click", "propensity_score")
    item, position, click, propensity = (np.array([float(row[name]) for row in rows]) for name in names)
    return Logs(item.astype(int), position.astype(int), click, propensity)


@here
def test_the_uniform_policy_from_the_logs_of_thompson_sampling() -> None:
    logs = read_logs("bts")
    weight = (1 / 80) / logs.propensity
    assert ope.ips(weight, logs.click).mean == pytest.approx(0.0023596, abs=5e-8)
    assert ope.snips(weight, logs.click).mean == pytest.approx(0.0023337, abs=5e-8)
    assert effective_sample_size(weight) == pytest.approx(340.4, abs=0.05)


@here
def test_thompson_sampling_from_the_logs_of_the_uniform_policy() -> None:
    target, logs = read_logs("bts"), read_logs("random")
    share = np.zeros((4, 80))
    np.add.at(share, (target.position, target.item), 1)
    share /= share.sum(1, keepdims=True).clip(min=1)
    weight = share[logs.position, logs.item] / logs.propensity
    assert ope.ips(weight, logs.click).mean == pytest.approx(0.0050354, abs=5e-8)
    assert ope.lower_bound(weight * logs.click) == pytest.approx(0.0019057, abs=5e-8)


class Bandit(NamedTuple):
    """Logs over five actions in contexts of three numbers, and the true value of the candidate."""

    weight: Array
    reward: Array
    model_value: Array
    policy_value: Array
    truth: float


def bandit(seed: int, *, n: int = 6000, model: str = "cross-fitted") -> Bandit:
    rng = np.random.default_rng(seed)
    x, row = np.c_[np.ones(n), rng.normal(size=(n, 3))], np.arange(n)
    taste, behaviour, candidate = np.random.default_rng(99).normal(size=(3, 4, 5))
    mean = 1 / (1 + np.exp(-x @ taste))  # (n, actions) expected rewards
    mu, pi = (0.1 + 0.5 * softmax(x @ w) for w in (behaviour, candidate))
    action = (rng.random(n)[:, None] > mu.cumsum(1)).sum(1).clip(max=4)
    reward = (rng.random(n) < mean[row, action]).astype(float)
    fold = ope.folds(row, 3, rng)
    q = np.full((n, 5), 0.9)
    if model == "cross-fitted":
        for number in range(3):
            for a in range(5):
                seen = (fold != number) & (action == a)
                q[np.ix_(fold == number, [a])] = (x[fold == number] @ np.linalg.lstsq(x[seen], reward[seen])[0])[
                    :, None
                ]
    weight = pi[row, action] / mu[row, action]
    return Bandit(weight, reward, q[row, action], (pi * q).sum(1), float((pi * mean).sum(1).mean()))


def softmax(x: Array) -> Array:
    e: Array = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def one_step(b: Bandit) -> dict[str, Estimate]:
    model = (b.model_value, b.policy_value)
    return {
        "ips": ope.ips(b.weight, b.reward),
        "snips": ope.snips(b.weight, b.reward),
        "dm": ope.dm(b.policy_value),
        "dr": ope.dr(b.weight, b.reward, *model),
        "switch": ope.switch_dr(b.weight, b.reward, *model, threshold=3.0),
    }


def test_estimates_are_near_the_truth_and_their_intervals_hold_it() -> None:
    draws = [bandit(seed) for seed in range(100)]
    found = [one_step(b) for b in draws]
    for name, error in {"ips": 0.05, "snips": 0.05, "dm": 0.02, "dr": 0.02, "switch": 0.02}.items():
        relative = [abs(e[name].mean / b.truth - 1) for e, b in zip(found, draws, strict=True)]
        assert np.mean(relative[:20]) <= error, name
        if name in ("ips", "snips", "dr"):
            assert np.mean([e[name].low <= b.truth <= e[name].high for e, b in zip(found, draws, strict=True)]) >= 0.9
    assert np.mean([e["dr"].error for e in found]) < np.mean([e["snips"].error for e in found])


def test_doubly_robust_estimates_correct_a_wrong_model() -> None:
    draws = [bandit(seed, model="wrong") for seed in range(20)]
    dm, dr = (np.array([one_step(b)[name].mean - b.truth for b in draws]) for name in ("dm", "dr"))
    assert abs(dm.mean()) > 0.2
    assert abs(dr.mean()) < 0.01


def test_switching_leaves_heavy_weights_to_the_model() -> None:
    weight, reward, model = [1.0, 50.0], [1.0, 1.0], [0.5, 0.5]
    assert ope.switch_dr(weight, reward, model, model, threshold=20.0).mean == pytest.approx((1.0 + 0.5) / 2)
    assert ope.switch_dr(weight, reward, model, model, threshold=99.0).mean == ope.dr(weight, reward, model, model).mean


def test_folds_keep_groups_whole_and_are_of_equal_size() -> None:
    groups = np.repeat(np.arange(10), 4)
    fold = ope.folds(groups, 3, np.random.default_rng(0))
    assert all(len(set(fold[groups == g].tolist())) == 1 for g in range(10))
    assert sorted(np.bincount(fold[::4]).tolist()) == [3, 3, 4]


# A walk of three steps over two states, from state 0; action 1 moves to the other state and earns 1 in state 1.
MOVE, STAY = 0.7, 0.4  # how often the candidate and the behaviour policy choose action 1
STEPS = 3


def walk(seed: int, n: int = 2000) -> tuple[Array, Array, Array]:
    """Ratios, rewards and states, (n, steps) each."""
    rng = np.random.default_rng(seed)
    state, ratio, reward, states = (
        np.zeros(n, int),
        np.ones((n, STEPS)),
        np.zeros((n, STEPS)),
        np.zeros((n, STEPS)),
    )
    for t in range(STEPS):
        action = rng.random(n) < STAY
        ratio[:, t] = np.where(action, MOVE / STAY, (1 - MOVE) / (1 - STAY))
        reward[:, t], states[:, t] = action * state, state
        state = np.where(action, 1 - state, state)
    return ratio, reward, states


def true_values() -> Array:
    """(steps + 1, states) of the candidate, by backward induction."""
    value = np.zeros((STEPS + 1, 2))
    for t in range(STEPS - 1, -1, -1):
        value[t] = [MOVE * (s + value[t + 1, 1 - s]) + (1 - MOVE) * value[t + 1, s] for s in (0, 1)]
    return value


def test_estimates_over_several_decisions_are_near_the_truth() -> None:
    value = true_values()
    truth, hits = float(value[0, 0]), dict.fromkeys(("is", "wis", "dr"), 0)
    errors: dict[str, list[float]] = {name: [] for name in hits}
    for seed in range(100):
        ratio, reward, states = walk(seed)
        v = value[np.arange(STEPS), states.astype(int)] + 0.1  # a model that is wrong by a little
        found = {
            "is": ope.per_decision_is(ratio, reward),
            "wis": ope.weighted_is(ratio, reward),
            "dr": ope.sequential_dr(ratio, reward, v, v),
        }
        for name, e in found.items():
            hits[name] += e.low <= truth <= e.high
            errors[name].append(e.mean - truth)
    for name, differences in errors.items():
        assert abs(np.mean(differences)) < 0.01, name
        assert hits[name] >= 89, name
    assert np.std(errors["dr"]) < np.std(errors["is"])


def test_a_reward_is_not_weighted_by_later_decisions() -> None:
    ratio, reward = np.array([[2.0, 5.0]]), np.array([[1.0, 0.0]])
    assert ope.per_decision_is(ratio, reward).mean == 2
    assert ope.weighted_is(ratio, reward).mean == 1


def test_sequential_doubly_robust_of_one_decision_is_doubly_robust() -> None:
    b = bandit(0, n=200)
    columns = [x[:, None] for x in (b.weight, b.reward, b.model_value, b.policy_value)]
    assert ope.sequential_dr(*columns) == ope.dr(b.weight, b.reward, b.model_value, b.policy_value)


def one_hot(states: Array, chance_of_moving: Array) -> Array:
    """(n, steps, 4) features of state and action, the action with its probability."""
    stay_or_move = np.stack([1 - chance_of_moving, chance_of_moving], -1)  # (n, steps, 2)
    found: Array = (np.eye(2)[states.astype(int)][..., None] * stay_or_move[..., None, :]).reshape(*states.shape, 4)
    return found


def test_fitted_q_evaluation_finds_the_value_and_the_model_of_sequential_doubly_robust() -> None:
    value, truth = true_values(), float(true_values()[0, 0])
    errors: dict[str, list[float]] = {"fqe": [], "dr": [], "is": []}
    for seed in range(30):
        ratio, reward, states = walk(seed)
        moved = (ratio == MOVE / STAY).astype(float)
        features, policy_features = one_hot(states, moved), one_hot(states, np.full(states.shape, MOVE))
        fold = ope.folds(np.arange(len(ratio)), 3, np.random.default_rng(seed))
        q, v = ope.fitted_q(features, policy_features, reward, fold=fold)
        errors["fqe"].append(ope.fqe(features, policy_features, reward).mean - truth)
        errors["dr"].append(ope.sequential_dr(ratio, reward, q, v).mean - truth)
        errors["is"].append(ope.per_decision_is(ratio, reward).mean - truth)
        assert v == pytest.approx(value[np.arange(STEPS), states.astype(int)], abs=0.2)
    assert abs(np.mean(errors["fqe"])) < 0.01
    assert abs(np.mean(errors["dr"])) < 0.01
    assert np.std(errors["fqe"]) < np.std(errors["is"])
    assert np.std(errors["dr"]) < np.std(errors["is"])


def test_a_trajectory_is_not_predicted_by_a_model_that_saw_its_fold() -> None:
    features = np.ones((4, 1, 1))
    q, v = ope.fitted_q(features, features, [[1.0], [1.0], [0.0], [0.0]], fold=[0, 0, 1, 1], ridge=1e-12)
    assert q[:, 0] == pytest.approx([0, 0, 1, 1])
    assert v == pytest.approx(q)


def test_the_lower_bound_is_above_the_truth_in_at_most_5_of_100_cases() -> None:
    """Skewed weights, where Student's lower end fails more often than it says."""
    rng = np.random.default_rng(0)
    bounds = [ope.lower_bound(np.where(rng.random(300) < 0.02, 25.0, 0.5)) for _ in range(400)]
    truth = 0.02 * 25 + 0.98 * 0.5
    assert np.mean([bound > truth for bound in bounds]) <= 0.05
    assert np.mean(bounds) > 0.4
    assert ope.lower_bound([0.0, 0.0]) == 0


def test_the_gate_passes_the_better_and_hardly_ever_the_worse() -> None:
    def passed(seed: int, *, better: bool) -> bool:
        rng = np.random.default_rng(seed)
        action = rng.random(2000) < 0.5
        reward = rng.random(2000) < np.where(action == better, 0.7, 0.5)
        weight = np.where(action, 1.8, 0.2)  # the candidate chooses it in 90 % of cases
        return ope.gate_evidence(weight, reward, margin=0.02) >= 1 / 0.05

    assert np.mean([passed(seed, better=True) for seed in range(100)]) >= 0.9
    assert np.mean([passed(seed, better=False) for seed in range(100)]) <= 0.05
    assert math.isfinite(ope.gate_evidence(np.full(10_000, 1e6), np.ones(10_000), margin=0.0))
