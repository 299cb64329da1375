"""Intervals agree with their definitions, and hold the truth as often as they say."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit

from etude.evidence.intervals import (
    Estimate,
    estimate_difference,
    estimate_mean,
    estimate_moments,
    estimate_ratio,
    estimate_share,
    interval,
    t_quantile,
)


@given(st.floats(1, 1e8), st.floats(0.6, 0.99999))
@settings(deadline=None)
def test_the_quantile_is_that_of_students_distribution(freedom: float, p: float) -> None:
    p = p if freedom >= 4 else min(p, 0.99)
    assert t_quantile(p, freedom) == pytest.approx(stdtrit(freedom, p), rel=1e-8)


@pytest.mark.parametrize(
    ("share", "freedom", "t"), [(0.05, 9, 1.833), (0.01, 19, 2.539), (0.001, 19, 3.579), (0.005, 38, 2.712)]
)
def test_quantiles_are_those_of_the_tables(share: float, freedom: float, t: float) -> None:
    assert t_quantile(1 - share, freedom) == pytest.approx(t, abs=6e-4)


def test_the_quantile_of_many_degrees_of_freedom_is_the_normal_one() -> None:
    assert t_quantile(0.975, math.inf) == pytest.approx(1.959963984540054, abs=1e-12)


def test_the_interval_of_a_mean_is_students() -> None:
    # t(.975, 4) = 2.776445 from a table; mean 3, deviation √2.5, half width 2.776445·√2.5/√5
    found = estimate_mean([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.count, found.mean, found.error) == (5, 3.0, pytest.approx(0.5**0.5))
    assert found.interval == pytest.approx((3 - 1.963243, 3 + 1.963243), abs=1e-5)
    assert interval([1.0, 2.0, 3.0, 4.0, 5.0]) == found.interval
    assert interval([2.0]) == interval([2.0, 2.0]) == (2.0, 2.0)


def test_no_sample_has_no_mean_and_says_so_in_json() -> None:
    for nothing in (estimate_mean([]), estimate_share(0, 0), estimate_ratio([], []), estimate_ratio([1.0], [0.0])):
        assert math.isnan(nothing.mean)
        assert nothing.to_json() == {"count": 0, "mean": None, "ci95": None}
    assert estimate_mean([1.0, 3.0]).to_json()["mean"] == 2


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=30))
@settings(deadline=None)
def test_running_sums_give_the_same(values: list[int]) -> None:
    mean = Fraction(sum(values), len(values))
    squares = float(sum((x - mean) ** 2 for x in values))
    one, other = estimate_mean(values), estimate_moments(len(values), float(mean), squares)
    assert vars(one) == pytest.approx(vars(other), abs=1e-9)


def test_groups_of_one_change_nothing_and_copies_add_no_evidence() -> None:
    x = np.random.default_rng(0).normal(size=40)
    assert vars(estimate_mean(x, np.arange(40))) == pytest.approx(vars(estimate_mean(x)))
    copied = estimate_mean(np.repeat(x, 5), np.repeat(np.arange(40), 5))
    assert copied.interval == pytest.approx(estimate_mean(x).interval)
    assert copied.count == 200
    assert estimate_mean(x, np.zeros(40)) == estimate_mean(x)


def test_paired_differences_leave_out_what_the_pairs_share() -> None:
    rng = np.random.default_rng(0)
    shared, noise = rng.normal(0, 300, 40), rng.normal(0, 1, 40)
    paired = estimate_difference(shared + 5 + noise, shared, paired=True)
    assert paired.mean == pytest.approx(5 + noise.mean())
    assert 4 < paired.low < paired.mean < paired.high < 6
    assert estimate_difference(shared + 5 + noise, shared, paired=False).high > 50


def test_a_difference_of_independent_samples_is_welchs() -> None:
    a, b = np.array([1.0, 3.0] * 8), np.array([0.0, 1.0] * 4)
    found = estimate_difference(a, b, paired=False)
    square, other = a.var(ddof=1) / 16, b.var(ddof=1) / 8
    freedom = (square + other) ** 2 / (square**2 / 15 + other**2 / 7)
    assert found.mean == 1.5
    assert found.high - found.mean == pytest.approx(stdtrit(freedom, 0.975) * math.sqrt(square + other))
    same = estimate_difference([2.0, 2.0], [1.0, 1.0], paired=False)
    assert same.interval == (1.0, 1.0)


@given(st.integers(1, 10_000), st.data())
def test_the_interval_of_a_share_is_wilsons(count: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, count))
    found = estimate_share(hits, count)
    assert 0 <= found.low <= found.mean <= found.high <= 1
    assert found.low < found.high
    for edge in found.interval:  # where the normal test of that share just does not reject
        if 0 < edge < 1:
            assert abs(found.mean - edge) == pytest.approx(1.959964 * math.sqrt(edge * (1 - edge) / count), rel=1e-5)
    mirrored = estimate_share(count - hits, count)
    assert mirrored.interval == pytest.approx((1 - found.high, 1 - found.low), abs=1e-12)


def test_a_ratio_of_proportional_numbers_is_certain() -> None:
    x = np.array([1.0, 2.0, 5.0])
    found = estimate_ratio(3 * x, x)
    assert (found.mean, found.low, found.high) == pytest.approx((3, 3, 3))


def covered(estimates: list[Estimate], truth: float) -> float:
    return float(np.mean([e.low <= truth <= e.high for e in estimates]))


def test_intervals_hold_the_truth_in_95_of_100_cases() -> None:
    rng = np.random.default_rng(0)
    means, groups, ratios = [], [], []
    for _ in range(1000):
        shared = rng.normal(size=25)
        means.append(estimate_mean(rng.normal(1, 1, 8)))
        groups.append(estimate_mean((shared[:, None] + rng.normal(0, 0.3, (25, 4))).ravel(), np.repeat(range(25), 4)))
        a, b = (shared + rng.normal(mean, 1, 25) for mean in (6, 12))
        ratios.append(estimate_ratio(a, b))
    for estimates, truth in ((means, 1), (groups, 0), (ratios, 0.5)):
        assert 0.93 <= covered(estimates, truth) <= 0.97
