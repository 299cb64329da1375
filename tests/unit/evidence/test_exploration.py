"""Too little exploration is named with its threshold."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from etude.contracts.errors import DataError
from etude.evidence.exploration import (
    Concern,
    Exploration,
    ExplorationThresholds,
    TakenOption,
    check_exploration,
    largest_entropy,
)

THRESHOLDS = ExplorationThresholds()
START = datetime(2026, 11, 1, tzinfo=UTC)


def decisions(probabilities: list[float], n: int = 2000) -> Exploration:
    """Of a policy with these probabilities in every state."""
    names = [f"option {i}" for i in range(len(probabilities))]
    actions = np.random.default_rng(0).choice(len(names), n, p=probabilities)
    taken = (TakenOption(START, names[a], names, probabilities[a]) for a in actions)
    return check_exploration(taken, THRESHOLDS)


def daily(offers: dict[str, range], taken: str, days: int) -> Iterator[TakenOption]:
    """One decision per day; options are offered on their days."""
    for day in range(days):
        names = [name for name, own in offers.items() if day in own]
        yield TakenOption(START + timedelta(days=day), taken, names, 0.9)


def test_a_uniform_policy_explores() -> None:
    found = decisions([0.25] * 4)
    assert found.warnings == {}
    assert (found.certain_share, found.least_propensity) == (0.0, 0.25)
    assert found.uniform_ess == pytest.approx(1000)
    assert str(found) == (
        "2,000 decisions, 0% without exploration, smallest propensity 0.25, effective sample size of the uniform "
        "policy 1000 per 1,000"
    )


def test_a_certain_policy_does_not() -> None:
    found = decisions([0.9995, 0.0005])
    assert set(found.warnings) == {Concern.CERTAIN, Concern.PROPENSITY, Concern.SAMPLE_SIZE}
    assert found.certain_share == 1.0
    assert found.least_propensity == 0.0005
    assert "0.0005, below 0.001: one decision weighs as much as 2,000" in found.warnings[Concern.PROPENSITY]
    assert json.loads(json.dumps(found.to_json()))["warnings"]["small propensity"]


@pytest.mark.parametrize("probabilities", [[0.3, 0.7], [0.25] * 4, [0.9, 0.05, 0.05], [1.0]])
def test_the_largest_entropy_is_that_of_equal_others(probabilities: list[float]) -> None:
    first, options = probabilities[0], max(2, len(probabilities))
    assert largest_entropy(first, options) == pytest.approx(-sum(p * math.log(p) for p in probabilities))


def test_many_equal_options_are_not_certain() -> None:
    assert decisions([1 / 500] * 500).certain_share == 0


def test_the_effective_sample_size_is_that_of_the_uniform_policy() -> None:
    names = ["a", "b"]
    found = check_exploration([TakenOption(START, "a", names, 0.9), TakenOption(START, "b", names, 0.1)], THRESHOLDS)
    w = np.array([0.5 / 0.9, 0.5 / 0.1])
    assert found.uniform_ess == pytest.approx(1000 * w.sum() ** 2 / (w**2).sum() / 2)


def test_decisions_without_a_choice_are_left_out() -> None:
    alone = TakenOption(START, "a", ["a"], 1.0)
    found = check_exploration([alone, alone, TakenOption(START, "a", ["a", "b"], 0.5)], THRESHOLDS)
    assert (found.count, found.certain_share, found.warnings) == (1, 0.0, {})
    empty = check_exploration([alone], THRESHOLDS)
    assert (empty.count, empty.uniform_ess, empty.warnings) == (0, 0.0, {})


def test_options_not_tried_for_a_week_are_named() -> None:
    always, late, gone = range(9), range(2, 9), range(7)
    offers = {"taken": always, "never": always, "new": late, "gone": gone}
    found = check_exploration(daily(offers, "taken", 9), THRESHOLDS)
    assert found.untried == ("never",)
    assert "1 options were not tried for more than 7 days: never" in found.warnings[Concern.UNTRIED]
    assert check_exploration(daily(offers, "taken", 8), THRESHOLDS).untried == ()
    assert check_exploration(daily(offers, "not offered", 9), THRESHOLDS).untried == ("never", "taken")


@pytest.mark.parametrize("propensity", [0.0, 1.1, math.nan])
def test_a_propensity_that_is_no_probability_is_an_error(propensity: float) -> None:
    with pytest.raises(DataError, match=f"the propensity of 'a' is {propensity:g}"):
        check_exploration([TakenOption(START, "a", ["a", "b"], propensity)], THRESHOLDS)
