"""Logs that cannot judge a policy are found out, each for its reason."""

from __future__ import annotations

import numpy as np
import pytest

from etude.evidence.intervals import Estimate
from etude.evidence.overlap import (
    Cause,
    Thresholds,
    Verdict,
    check_overlap,
    disagreement,
    effective_sample_size,
    heavy_share,
)


def estimate(low: float, high: float) -> Estimate:
    return Estimate(count=100, mean=(low + high) / 2, error=(high - low) / 4, low=low, high=high)


AGREE = {"DM": estimate(0, 2), "SNIPS": estimate(1, 3), "DR": estimate(1.5, 4)}
EVEN = np.random.default_rng(0).choice([0.5, 1.5], 400)


def test_the_effective_sample_size_is_that_of_equal_weights() -> None:
    assert effective_sample_size(np.ones(10)) == 10
    assert effective_sample_size([1.0] * 5 + [0.0] * 5) == 5
    assert effective_sample_size([1e300] * 4) == pytest.approx(4)
    assert effective_sample_size([0.0] * 4) == effective_sample_size([]) == 0


def test_even_weights_and_estimates_that_agree_pass() -> None:
    found = check_overlap(EVEN, AGREE, Thresholds())
    assert (found.verdict, dict(found.reasons), found.count) == (Verdict.PASS, {}, 400)
    assert found.to_json()["reasons"] == {}


def test_the_behaviour_policy_itself_passes_in_spite_of_rounding() -> None:
    assert check_overlap(np.full(200, 1 + 1e-5), AGREE, Thresholds()).verdict is Verdict.PASS


@pytest.mark.parametrize("count", [60, 300, 700])
def test_propensities_of_99_percent_are_not_called_wrong_where_nothing_else_was_sampled(count: int) -> None:
    thresholds = Thresholds(min_ess=1)
    assert check_overlap(np.full(count, 1 / 0.99), {}, thresholds).verdict is Verdict.PASS
    assert Cause.MEAN_WEIGHT in check_overlap(np.full(count, 1 / 0.8), {}, thresholds).reasons


def test_with_enough_samples_a_small_difference_is_found() -> None:
    assert Cause.MEAN_WEIGHT in check_overlap(np.full(5000, 1 / 0.99), {}, Thresholds()).reasons


CANNOT_TELL = {
    Cause.SAMPLE_SIZE: (EVEN[:90], AGREE, "the effective sample size is 7"),
    Cause.MEAN_WEIGHT: (EVEN + 0.5, AGREE, "the mean importance weight is 1.5"),
    Cause.DISAGREEMENT: (EVEN, AGREE | {"DR": estimate(2.5, 4)}, "intervals of DM and DR do not overlap"),
    Cause.HEAVY_TAIL: (np.r_[np.full(9930, 0.8), np.full(70, 29.0)], AGREE, "weights above 20 carry 20% of the total"),
}


@pytest.mark.parametrize("cause", CANNOT_TELL)
def test_each_reason_is_named(cause: Cause) -> None:
    weight, estimates, sentence = CANNOT_TELL[cause]
    found = check_overlap(weight, estimates, Thresholds())
    assert found.verdict is Verdict.CANNOT_TELL
    assert list(found.reasons) == [cause]
    assert sentence in found.reasons[cause]
    assert cause in found.to_json()["reasons"]


def test_a_policy_without_overlap_cannot_be_judged() -> None:
    found = check_overlap(np.zeros(500), {}, Thresholds())
    assert {Cause.SAMPLE_SIZE, Cause.MEAN_WEIGHT} <= found.reasons.keys()


def test_ratios_of_single_decisions_show_wrong_propensities_sooner() -> None:
    """Products vary so much that their own mean says nothing."""
    rng = np.random.default_rng(1)
    ratio = rng.choice([0.2, 2.0], (400, 6))  # of mean 1.1
    weight = ratio.prod(1)
    thresholds = Thresholds(min_ess=1, max_heavy_share=1)
    assert not check_overlap(weight, {}, thresholds).reasons
    found = check_overlap(weight, {}, thresholds, ratios=(ratio.ravel(), np.repeat(np.arange(400), 6)))
    assert "the mean ratio per decision is 1.1" in found.reasons[Cause.MEAN_WEIGHT]


def test_every_two_of_the_intervals_must_overlap() -> None:
    assert disagreement(AGREE) == ()
    assert disagreement({"a": estimate(0, 1), "b": estimate(0, 5), "c": estimate(2, 3)}) == ("a", "c")
    assert disagreement({}) == ()


def test_the_share_of_heavy_weights() -> None:
    assert heavy_share([1.0, 3.0, 6.0], 2.5) == pytest.approx(0.9)
    assert heavy_share([0.0], 1.0) == 0
