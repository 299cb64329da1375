"""Groups that are worse off are found, off-policy and in a canary, and small ones are not judged."""

from __future__ import annotations

import json

import numpy as np
import pytest

from etude.contracts.errors import DataError
from etude.evidence.fairness import MAX_GROUPS, Fairness, FairnessThresholds, check_fairness
from etude.evidence.overlap import Verdict

THRESHOLDS = FairnessThresholds()


def by_group(found: Fairness) -> dict[str, Verdict]:
    return {group.group: group.verdict for group in found.groups}


def scores(means: dict[str, float], n: int, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    groups = rng.choice(list(means), n)
    return (rng.random(n) < np.vectorize(means.get)(groups)).astype(float), groups.tolist()


def test_a_disadvantaged_group_fails() -> None:
    found = check_fairness(*scores({"a": 0.7, "b": 0.7, "c": 0.45}, 6000), THRESHOLDS)
    assert by_group(found) == {"a": Verdict.PASS, "b": Verdict.PASS, "c": Verdict.FAIL}
    assert found.verdict is Verdict.FAIL
    worst = found.groups[2]
    assert worst.difference.low < -0.25 < worst.difference.high < -0.05
    assert "less than the rest; allowed is 0.05" in worst.reason
    assert json.loads(json.dumps(found.to_json()))["verdict"] == "fail"


def test_equal_groups_pass_and_a_small_difference_is_allowed() -> None:
    found = check_fairness(*scores({"a": 0.7, "b": 0.665}, 80_000), THRESHOLDS)
    assert found.groups[1].difference.high < 0
    assert found.verdict is Verdict.PASS


def test_a_small_group_cannot_be_judged() -> None:
    score, groups = scores({"a": 0.7, "b": 0.7}, 1000)
    score, groups = np.r_[score, np.zeros(199)], [*groups, *["few"] * 199]
    found = check_fairness(score, groups, THRESHOLDS)
    assert by_group(found)["few"] is Verdict.CANNOT_TELL
    assert found.verdict is Verdict.CANNOT_TELL
    enough = check_fairness(np.r_[score, 0.0], [*groups, "few"], THRESHOLDS)
    assert by_group(enough)["few"] is Verdict.FAIL
    assert check_fairness([], [], THRESHOLDS).verdict is Verdict.CANNOT_TELL
    assert check_fairness(np.ones(900), ["only"] * 900, THRESHOLDS).verdict is Verdict.CANNOT_TELL


def test_units_of_no_group_are_in_the_rest() -> None:
    score, groups = scores({"a": 0.3, "": 0.7}, 2000)
    found = check_fairness(score, [group or None for group in groups], THRESHOLDS)
    assert by_group(found) == {"a": Verdict.FAIL}


def test_only_the_largest_groups_are_judged() -> None:
    """Where every user is a group of its own, the check stays fast."""
    groups = [*(f"user {i}" for i in range(2000)), *["large"] * 2]
    found = check_fairness(np.ones(len(groups)), groups, THRESHOLDS)
    assert len(found.groups) == MAX_GROUPS
    assert "large" in by_group(found)


def test_groups_at_the_allowed_difference_seldom_fail() -> None:
    means = {"a": 0.7, "b": 0.65}
    failed = sum(check_fairness(*scores(means, 2000, seed), THRESHOLDS).verdict is Verdict.FAIL for seed in range(100))
    assert failed <= 5


def test_off_policy_the_candidate_is_judged_and_not_the_behaviour_policy() -> None:
    """Two actions at random; the candidate takes the second nine times in ten, which fails for group b."""
    rng = np.random.default_rng(0)
    n = 8000
    groups, action = rng.choice(["a", "b"], n), rng.integers(2, size=n)
    mean = np.where((groups == "b") & (action == 1), 0.2, 0.7)
    score = (rng.random(n) < mean).astype(float)
    weight = np.where(action == 1, 0.9, 0.1) / 0.5
    found = check_fairness(score, groups.tolist(), THRESHOLDS, weight=weight)
    assert by_group(found) == {"a": Verdict.PASS, "b": Verdict.FAIL}
    truth = (0.9 * 0.2 + 0.1 * 0.7) - 0.7
    difference = found.groups[1].difference
    assert difference.low < truth < difference.high
    assert difference.mean == pytest.approx(truth, abs=0.03)
    mirrored = check_fairness(score, groups.tolist(), THRESHOLDS, weight=2 - weight)
    assert mirrored.verdict is Verdict.PASS


def test_scores_outside_their_bounds_are_named() -> None:
    with pytest.raises(DataError, match=r"scores are 0 … 1\.5"):
        check_fairness([0.0, 1.5], ["a", "b"], THRESHOLDS)
