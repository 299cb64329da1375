"""Choices measured on recorded outcomes: baselines, curves, and estimates where not all outcomes are known."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from etude.contracts.errors import DataError
from etude.contracts.option import Option
from etude.problems.choice.evaluate import Curve, Recorded, read_recorded
from etude.problems.choice.fit import fit_choice
from etude.problems.choice.model import ChoiceModel
from etude.problems.choice.rows import Row
from etude.problems.choice.settings import ChoiceConfig
from etude.text.ngrams import NGramEncoder


def make_rows(count: int, *, seed: int = 0) -> list[Row]:
    """`a` is right about gold, `b` about the others; `a` costs 3, `b` 1."""
    rng, rows = random.Random(seed), []
    for i in range(count):
        tier = rng.choice(("gold", "basic"))
        outcomes = {
            name: {"score": float(rng.random() < (0.9 if (name == "a") == (tier == "gold") else 0.2)), "cost_usd": cost}
            for name, cost in (("a", 3.0), ("b", 1.0))
        }
        rows.append(Row(context={"tier": tier}, outcomes=outcomes, group=str(i)))
    return rows


@pytest.fixture(scope="module")
def model() -> ChoiceModel:
    return fit_choice(lambda: iter([make_rows(300)]), NGramEncoder(), ChoiceConfig()).model


def recorded(model: ChoiceModel, rows: list[Row]) -> tuple[Recorded, Any]:
    expected = model.expect([row.context for row in rows])
    return read_recorded(model, rows, expected), expected


def test_recorded_outcomes_are_as_they_are(model: ChoiceModel) -> None:
    rows = make_rows(50, seed=1)
    found, _ = recorded(model, rows)
    assert found.complete
    assert found.score.tolist() == [[row.outcomes[name]["score"] for name in "ab"] for row in rows]
    assert found.cost_usd.tolist() == [[3.0, 1.0]] * 50
    assert found.allowed.all()


def test_picks_and_baselines(model: ChoiceModel) -> None:
    rows = make_rows(200, seed=1)
    found, expected = recorded(model, rows)
    gold = np.array([row.context["tier"] == "gold" for row in rows])
    assert (found.picks(model, expected, 1.0) == np.where(gold, 0, 1)).all()
    assert (found.picks(model, expected, 0.0) == 1).all()
    others = found.baselines(0)
    assert (others["best_single"] == 0).all()
    assert (others["cheapest"] == 1).all()
    assert set(others["random"].tolist()) == {0, 1}
    rows_ = np.arange(200)
    assert (found.score[rows_, others["oracle"]] == found.score.max(1)).all()
    tied = found.score[:, 0] == found.score[:, 1]
    assert (others["oracle"][tied] == 1).all()  # between equals the cheaper
    picked = found.picked(np.where(gold, 0, 1), others["best_single"])
    assert picked.score == pytest.approx(found.score[rows_, np.where(gold, 0, 1)].mean())
    assert picked.cost_usd == pytest.approx(3 * gold.mean() + (1 - gold.mean()))
    assert picked.cost_share == pytest.approx(picked.cost_usd / 3)
    low, high = picked.to_best_single_ci95
    assert low < picked.score - found.score[:, 0].mean() < high


def test_only_what_was_offered_is_picked(model: ChoiceModel) -> None:
    rows = [
        Row(context=row.context, outcomes={"b": row.outcomes["b"]}, options=(Option(name="b"), Option(name="new")))
        for row in make_rows(30)
    ]
    found, expected = recorded(model, rows)
    assert found.allowed.tolist() == [[False, True]] * 30
    assert (found.picks(model, expected, 1.0) == 1).all()
    assert all((pick == 1).all() for pick in found.baselines(0).values())


def test_a_policy_is_judged_without_bias_on_what_was_tried(model: ChoiceModel) -> None:
    """Gold rows mostly try `a`, so that the mean of what `a` did is too high."""
    rng, rows, whole = random.Random(5), [], make_rows(4000, seed=2)
    for row in whole:
        p = 0.8 if row.context["tier"] == "gold" else 0.2
        name, propensity = ("a", p) if rng.random() < p else ("b", 1 - p)
        rows.append(Row(context=row.context, outcomes={name: row.outcomes[name]}, propensity=propensity))
    found, expected = recorded(model, rows)
    assert not found.complete
    assert found.baselines(0).keys() == {"best_single", "cheapest", "random"}  # an oracle would know all outcomes
    picks = found.picks(model, expected, 1.0)
    truth, _ = recorded(model, whole)
    at = np.arange(4000)
    assert found.score[at, picks].mean() == pytest.approx(truth.score[at, picks].mean(), abs=0.04)
    assert found.score[:, 0].mean() == pytest.approx(truth.score[:, 0].mean(), abs=0.05)
    tried = [row.outcomes["a"]["score"] for row in rows if "a" in row.outcomes]
    assert np.mean(tried) > truth.score[:, 0].mean() + 0.15


def test_costs_that_are_not_recorded_are_expected(model: ChoiceModel) -> None:
    rows = [
        Row(context=row.context, outcomes={name: {"score": o["score"]} for name, o in row.outcomes.items()})
        for row in make_rows(20)
    ]
    found, expected = recorded(model, rows)
    assert found.cost_usd == pytest.approx(expected.cost())
    assert found.cost_usd == pytest.approx(np.tile([3.0, 1.0], (20, 1)), rel=0.05)


def test_rows_about_other_options_are_refused(model: ChoiceModel) -> None:
    rows = [Row(context={"tier": "gold"}, outcomes={"x": {"score": 1.0}})]
    with pytest.raises(DataError, match="no row has an outcome of an option that the policy knows"):
        recorded(model, rows)


def test_the_area_under_a_curve_is_the_mean_best_score_within_budgets() -> None:
    curve = Curve(score=np.array([0.9, 0.6, 0.2]), cost_usd=np.array([3.0, 2.0, 1.0]))
    assert curve.area(1, 3) == pytest.approx((0.2 + 0.6) / 2, abs=0.002)
    assert curve.area(0, 1) == pytest.approx(0.2, abs=0.002)
    assert curve.area(3, 5) == pytest.approx(0.9)
    assert curve.area(2, 2) == pytest.approx(0.6)
    worse = Curve(score=np.array([0.5, 0.6, 0.2]), cost_usd=np.array([3.0, 2.0, 1.0]))
    assert worse.area(2, 3) == pytest.approx(0.6)  # a higher budget need not be spent
    assert curve.area(3, 1) == pytest.approx(0.9)  # no range: at the lower end


def test_a_curve_runs_from_score_alone_to_cost_alone(model: ChoiceModel) -> None:
    found, expected = recorded(model, make_rows(200, seed=1))
    curve = found.curve(model, expected)
    assert curve.cost_usd[0] == pytest.approx(found.cost_usd[np.arange(200), found.picks(model, expected, 1.0)].mean())
    assert curve.cost_usd[-1] == 1.0
    assert (np.diff(curve.cost_usd) <= 1e-12).all()
    assert curve.score[0] == curve.score.max()
