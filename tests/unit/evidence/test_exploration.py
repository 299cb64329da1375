"""Too little exploration is named with its threshold."""

from __future__ import annotations

import json

import numpy as np
import pytest

from etude.contracts.errors import DataError
from etude.evidence.exploration import Concern, Exploration, ExplorationThresholds, check_exploration

THRESHOLDS = ExplorationThresholds()


def decisions(probabilities: list[float], n: int = 2000, untried: dict[str, float] | None = None) -> Exploration:
    """Of a policy with these probabilities in every state."""
    p = np.array(probabilities)
    action = np.random.default_rng(0).choice(len(p), n, p=p)
    entropy = -float((p[p > 0] * np.log(p[p > 0])).sum())
    return check_exploration(p[action], np.full(n, entropy), np.full(n, len(p)), untried or {}, THRESHOLDS)


def test_a_uniform_policy_explores() -> None:
    found = decisions([0.25] * 4, untried={"a": 1.0, "b": 7.0})
    assert found.warnings == {}
    assert (found.certain_share, found.least_propensity) == (0.0, 0.25)
    assert found.uniform_ess == pytest.approx(1000)


def test_a_certain_policy_does_not() -> None:
    found = decisions([0.9995, 0.0005])
    assert set(found.warnings) == {Concern.CERTAIN, Concern.PROPENSITY, Concern.SAMPLE_SIZE}
    assert found.certain_share == 1.0
    assert found.least_propensity == 0.0005
    assert "0.0005, below 0.001: one decision weighs as much as 2,000" in found.warnings[Concern.PROPENSITY]
    assert json.loads(json.dumps(found.to_json()))["warnings"]["small propensity"]


def test_the_effective_sample_size_is_that_of_the_uniform_policy() -> None:
    found = check_exploration([0.9, 0.1], [0.3, 0.3], [2, 2], {}, THRESHOLDS)
    w = np.array([0.5 / 0.9, 0.5 / 0.1])
    assert found.uniform_ess == pytest.approx(1000 * w.sum() ** 2 / (w**2).sum() / 2)


def test_decisions_without_a_choice_are_left_out() -> None:
    found = check_exploration([1.0, 1.0, 0.5], [0.0, 0.0, 0.69], [1, 1, 2], {}, THRESHOLDS)
    assert (found.count, found.certain_share, found.warnings) == (1, 0.0, {})
    empty = check_exploration([1.0], [0.0], [1], {}, THRESHOLDS)
    assert (empty.count, empty.uniform_ess, empty.warnings) == (0, 0.0, {})


def test_options_not_tried_for_a_week_are_named() -> None:
    found = decisions([0.5, 0.5], untried={"new": 8.0, "old": 6.9, "gone": 30.0})
    assert found.untried == ("gone", "new")
    assert "2 options were not tried for more than 7 days: gone, new" in found.warnings[Concern.UNTRIED]


def test_a_propensity_of_zero_is_an_error() -> None:
    with pytest.raises(DataError, match="propensities are 0 … 1"):
        check_exploration([0.0, 1.0], [0.1, 0.1], [2, 2], {}, THRESHOLDS)
