"""Confidence sequences agree with an independent implementation, and hold the truth at every sample size at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammainc

from etude.evidence.intervals import Array
from etude.evidence.sequences import (
    average_effect,
    empirical_bernstein,
    gamma_exponential_bound,
    gamma_exponential_log_mixture,
    log_lower_gamma,
    predictable_bets,
)

# Values of confseq 0.0.11 (MIT), https://github.com/gostevehoward/confseq, after samples 10, 100, 500 and 1,000.
AFTER = [9, 99, 499, 999]
GOLDEN = (np.arange(1, 1001) * (math.sqrt(5) - 1) / 2) % 1
CONFSEQ = {
    "uniform": (
        GOLDEN,
        [0.0, 0.39140162878823, 0.4540434416739828, 0.46663141532852936],
        [1.0, 0.6088236824582973, 0.5450237395512848, 0.533089094013248],
        [0.5, 0.40009131388228886, 0.15288878047272725, 0.10231033755372636],
    ),
    "bernoulli": (
        (GOLDEN < 0.3).astype(float),
        [0.0, 0.1385836010623477, 0.2232747224511565, 0.2427062397832745],
        [1.0, 0.4642564942488506, 0.3778909609447869, 0.35807175000464],
        [0.5, 0.2527430910606747, 0.09645627330943, 0.06450168248361801],
    ),
}


@pytest.mark.parametrize("name", CONFSEQ)
def test_empirical_bernstein_agrees_with_confseq(name: str) -> None:
    x, lower, upper, bets = CONFSEQ[name]
    low, high = empirical_bernstein(x, alpha=0.05)
    assert low[AFTER] == pytest.approx(lower, abs=1e-12)
    assert high[AFTER] == pytest.approx(upper, abs=1e-12)
    assert predictable_bets(x, 0.05)[AFTER] == pytest.approx(bets, abs=1e-12)


def test_the_gamma_exponential_boundary_agrees_with_confseq() -> None:
    odds = 2 * math.log(10)
    r = 100 / (odds + math.log1p(odds))
    assert gamma_exponential_log_mixture(10, 100, c=2, r=r) == pytest.approx(-0.24901647897554824, abs=1e-12)
    assert gamma_exponential_bound(100, c=2, alpha=0.05, v_opt=100) == pytest.approx(33.020170220174805, rel=1e-9)
    assert gamma_exponential_bound(25, c=1, alpha=0.025, v_opt=25) == pytest.approx(18.435985462031113, rel=1e-9)


@given(st.floats(0.01, 1e5), st.floats(0.5, 20.0))
@settings(deadline=None)
def test_the_incomplete_gamma_function_is_that_of_scipy(a: float, ratio: float) -> None:
    expected = float(gammainc(a, a * ratio))
    if expected > 1e-200:
        assert log_lower_gamma(a, a * ratio) == pytest.approx(math.log(expected), rel=1e-8, abs=1e-9)


def held_always(low: Array, high: Array, truth: float) -> bool:
    return bool(((low <= truth) & (truth <= high)).all())


@pytest.mark.parametrize("mean", [0.02, 0.5, 0.9])
def test_sequences_hold_the_mean_at_all_times(mean: float) -> None:
    rng = np.random.default_rng(0)
    held = [held_always(*empirical_bernstein((rng.random(800) < mean).astype(float)), mean) for _ in range(200)]
    assert sum(held) >= 190
    low, high = empirical_bernstein((rng.random(20_000) < mean).astype(float))
    assert high[-1] - low[-1] < 0.04


def test_a_sequence_starts_without_knowledge_and_mirrors() -> None:
    x = np.array([1.0, 0.0, 1.0, 1.0])
    low, high = empirical_bernstein(x)
    assert (low[0], high[0]) == (0.0, 1.0)
    mirrored_low, mirrored_high = empirical_bernstein(1 - x)
    assert mirrored_low == pytest.approx(1 - high)
    assert mirrored_high == pytest.approx(1 - low)
    assert [len(end) for end in empirical_bernstein([])] == [0, 0]


def test_the_average_effect_is_held_at_all_times_and_narrows() -> None:
    rng, missed, widths = np.random.default_rng(0), 0, []
    for _ in range(60):
        x = np.where(rng.random(400) < 0.5, 1.0, -1.0) + 0.2
        before = np.concatenate([[0.0], np.cumsum(x)[:-1] / np.arange(1, 400)])
        total, variance = np.cumsum(x), np.cumsum((x - before) ** 2)
        found = [average_effect(t, total[t - 1], variance[t - 1], scale=4.0, v_opt=200.0) for t in range(20, 401, 20)]
        missed += not all(e.low <= 0.2 <= e.high for e in found)
        widths.append([e.high - e.low for e in found])
    assert missed <= 3
    assert np.mean(widths, 0)[-1] < np.mean(widths, 0)[0] / 3
    assert math.isnan(average_effect(0, 0.0, 0.0, scale=1.0).mean)


def test_the_average_effect_is_symmetric_around_the_mean() -> None:
    e = average_effect(100, 30.0, 100.0, scale=2.0, alpha=0.1, v_opt=100.0)
    half = 33.020170220174805 / 100  # α/2 = .05 per side
    assert e.interval == pytest.approx((0.3 - half, 0.3 + half))
    assert (e.count, e.error) == (100, pytest.approx(0.1))
