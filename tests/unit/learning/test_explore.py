"""Exploring: the probabilities are what they are said to be, and what is sampled has them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from etude.contracts.errors import ConfigError
from etude.learning.explore import Floats, probabilities
from etude.problems.choice.policy import _draw

WAYS = ["none", "epsilon", "softmax", "thompson", "priced"]
UTILITY = np.array([0.2, 0.5, 0.45, -0.1])
ERROR = np.array([0.1, 0.05, 0.2, 0.01])
numbers = st.integers(1, 8).flatmap(
    lambda n: st.tuples(
        arrays(np.float64, n, elements=st.floats(-100, 100)), arrays(np.float64, n, elements=st.floats(0, 10))
    )
)


@pytest.mark.parametrize("explore", WAYS)
@settings(deadline=None)
@given(given_=numbers)
def test_probabilities_are_probabilities(explore: str, given_: tuple[Floats, Floats]) -> None:
    found = probabilities(*given_, explore=explore)
    assert found.shape == given_[0].shape
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("explore", WAYS)
def test_one_option_is_chosen(explore: str) -> None:
    assert probabilities(np.array([-3.0]), np.array([1.0]), explore=explore).tolist() == [1.0]


def test_without_exploring_the_best_is_chosen() -> None:
    assert probabilities(UTILITY, ERROR).tolist() == [0, 1, 0, 0]


def test_epsilon_is_the_probability_of_any_option() -> None:
    found = probabilities(UTILITY, ERROR, explore="epsilon", epsilon=0.2)
    assert found == pytest.approx([0.05, 0.85, 0.05, 0.05])


def test_softmax_is_in_proportion_to_exponentials() -> None:
    found = probabilities(UTILITY, ERROR, explore="softmax", temperature=0.25)
    assert found == pytest.approx(np.exp(UTILITY / 0.25) / np.exp(UTILITY / 0.25).sum())
    assert found[1] / found[2] == pytest.approx(np.exp(0.05 / 0.25))
    assert probabilities(1e6 * UTILITY, ERROR, explore="softmax").tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("utility", "error"),
    [
        (UTILITY, ERROR),
        (np.array([0.0, 0.0, 0.0]), np.array([1.0, 1.0, 1.0])),
        (np.array([0.0, 1.0]), np.array([2.0, 0.0])),
        (np.array([0.0, 0.01, 3.0, 2.99, 2.0]), np.array([5.0, 1e-3, 1e-4, 0.02, 0.5])),
        (np.array([0.5, 0.52, 0.4, 0.1, 0.5]), np.array([0.02, 0.3, 0.1, 0.5, 0.02])),
    ],
)
def test_thompson_is_the_probability_of_being_best(utility: Floats, error: Floats) -> None:
    found = probabilities(utility, error, explore="thompson")
    drawn = np.random.default_rng(0).normal(utility, error, (200_000, len(utility))).argmax(1)
    assert found == pytest.approx(np.bincount(drawn, minlength=len(utility)) / len(drawn), abs=0.005)


def test_thompson_among_many_options() -> None:
    rng = np.random.default_rng(1)
    utility, error = rng.normal(size=300), rng.random(300)
    found = probabilities(utility, error, explore="thompson")
    drawn = rng.normal(utility, error, (20_000, 300)).argmax(1)
    assert found == pytest.approx(np.bincount(drawn, minlength=300) / 20_000, abs=0.01)


def test_thompson_of_certain_utilities_takes_the_best_or_shares() -> None:
    none = np.zeros(3)
    assert probabilities(np.array([0.1, 0.9, 0.3]), none, explore="thompson") == pytest.approx([0, 1, 0])
    assert probabilities(np.array([0.9, 0.9, 0.3]), none, explore="thompson") == pytest.approx([0.5, 0.5, 0])


@pytest.mark.parametrize("price", [0.001, 0.02, 0.3])
@settings(deadline=None)
@given(given_=numbers)
def test_exploring_costs_at_most_its_price(price: float, given_: tuple[Floats, Floats]) -> None:
    utility, error = given_
    found = probabilities(utility, error, explore="priced", price=price)
    best = utility.max()
    assert best - float(found @ utility) <= price * abs(best) + 1e-9 * max(1, np.abs(utility).max())
    assert found[utility.argmax()] == pytest.approx(found.max())
    order = np.argsort(utility)
    order = order[order != utility.argmax()]
    assert (np.diff(found[order]) >= -1e-12).all()  # the better, the more probable


def test_the_price_is_paid_where_there_is_something_to_learn() -> None:
    found = probabilities(UTILITY, ERROR, explore="priced", price=0.02)
    assert 0.5 - float(found @ UTILITY) == pytest.approx(0.02 * 0.5, rel=1e-6)
    assert found[2] > found[0] > found[3] > 0
    equal = probabilities(np.full(4, 0.7), ERROR, explore="priced")
    assert equal == pytest.approx(np.full(4, 0.25))  # it costs nothing
    assert probabilities(UTILITY, ERROR, explore="priced", price=0.9) == pytest.approx(np.full(4, 0.25))


def test_another_way_to_explore_is_refused() -> None:
    with pytest.raises(ConfigError, match="explore is 'often': expected none, epsilon, softmax, thompson or priced"):
        probabilities(UTILITY, ERROR, explore="often")


@pytest.mark.parametrize("explore", WAYS)
def test_options_are_drawn_with_their_probabilities(explore: str) -> None:
    found = probabilities(UTILITY, ERROR, explore=explore)
    drawn = [_draw(found, seed) for seed in range(8000)]
    assert np.bincount(drawn, minlength=4) / 8000 == pytest.approx(found, abs=0.02)
    assert all(found[at] > 0 for at in drawn)
    assert drawn[:50] == [_draw(found, seed) for seed in range(50)]
