"""Remarks on rows: what they do not say, or say wrongly; and none where nothing is wrong."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from etude.contracts.option import Option
from etude.problems.choice.remarks import Occurrence, on_changes, on_few_outcomes, on_new_kinds, on_rows
from etude.problems.choice.rows import Row

SCORE = {"score": 1.0}


def sampled(count: int, p: dict[str, float], *, stated: dict[str, float] | None = None, **more: Any) -> list[Row]:
    """Options sampled with these probabilities, and the propensities that are stated."""
    rng, rows = random.Random(0), []
    for i in range(count):
        (name,) = rng.choices(list(p), list(p.values()))
        rows.append(Row(context={}, outcomes={name: SCORE}, propensity=(stated or p)[name], group=str(i), **more))
    return rows


def remarks(rows: list[Row], names: str = "ab") -> list[str]:
    return on_rows(rows, list(names), np.ones(len(names)))


# Partial outcomes


@pytest.mark.parametrize("p", [{"a": 0.5, "b": 0.5}, {"a": 0.98, "b": 0.02}, {"a": 0.99, "b": 0.01}])
@pytest.mark.parametrize("count", [30, 300, 3000])
def test_right_propensities_need_no_remark(p: dict[str, float], count: int) -> None:
    assert remarks(sampled(count, p)) == []


def test_wrong_propensities_are_named_with_the_option() -> None:
    (remark,) = remarks(sampled(300, {"a": 0.5, "b": 0.5}, stated={"a": 0.5, "b": 0.1}))
    assert remark.startswith(
        "The propensities do not fit: for a policy that always chooses b, the mean importance weight"
    )
    (remark,) = remarks(sampled(300, {"a": 0.5, "b": 0.5}, stated={"a": 0.2, "b": 0.1}))
    assert remark.endswith("Nor do those of a.")


def test_an_option_is_judged_where_it_was_offered() -> None:
    only_a = [
        Row(context={}, outcomes={"a": SCORE}, propensity=1.0, options=(Option(name="a"),), group=str(i))
        for i in range(300)
    ]
    both = sampled(300, {"a": 0.5, "b": 0.5}, options=(Option(name="a"), Option(name="b")))
    assert remarks(only_a + both) == []


def test_logs_that_explore_nothing() -> None:
    (remark,) = remarks(sampled(30, {"a": 0.5, "b": 0.5}, stated={"a": 1.0, "b": 1.0}))
    assert remark.startswith("All propensities are 1: nothing was explored")


def test_outcomes_without_propensities() -> None:
    rows = [Row(context={}, outcomes={"a": SCORE}), Row(context={}, outcomes={"a": SCORE, "b": SCORE})]
    (remark,) = on_rows(rows, ["a", "b"], np.array([1.0, 0.5]))
    assert "(b: 50.0%), and the rows have no propensities" in remark
    assert on_rows(rows[1:], ["a", "b"], np.ones(2)) == []


# Options


def test_few_outcomes_are_counted() -> None:
    assert on_few_outcomes("ab", np.array([10.0, 300.0]), 300) == []
    (remark,) = on_few_outcomes("abcdefg", np.array([10.0, 9, 8, 7, 6, 5, 4]), 300)
    assert "Fewer than 10 outcomes are known of b (9), c (8), d (7), e (6), f (5) and 1 more:" in remark
    assert on_few_outcomes("ab", np.array([2.0, 2.0]), 2) == []  # that there are two rows is said elsewhere


def occurrences(*places: range | list[int]) -> dict[str, Occurrence]:
    found = {}
    for name, rows in zip("abc", places, strict=False):
        found[name] = Occurrence(option=Option(name=name))
        for row in rows:
            found[name].add(row, f"line {row + 1}")
    return found


def test_options_that_come_and_go() -> None:
    assert on_changes(occurrences(range(100), range(0, 100, 3)), 100) == []
    (remark,) = on_changes(occurrences(range(100), range(40), range(40, 100)), 100)
    assert remark == "The options change within the rows. These occur: b not after line 40; c not before line 41."
    (remark,) = on_changes(occurrences(range(200), range(60, 140), range(60, 140)), 200)
    assert remark.endswith("b, c not before line 61; b, c not after line 140.")


def test_an_option_that_is_rare_may_be_missing_by_chance() -> None:
    rng = random.Random(0)
    for _ in range(50):
        assert on_changes(occurrences(range(1000), sorted(rng.sample(range(1000), 15))), 1000) == []
    assert on_changes(occurrences(range(100), [99]), 100) == []
    assert on_changes(occurrences(range(100), range(5, 100)), 100) == []  # a few rows


def test_kinds_of_outcome_that_are_new() -> None:
    rows = [Row(context={}, outcomes={"a": {"score": 1.0, "cost_usd": 1.0}, "b": {"score": 1.0, "latency_ms": 1.0}})]
    assert on_new_kinds(rows, ("score", "cost_usd", "latency_ms")) == []
    (remark,) = on_new_kinds(rows, ("score",))
    assert remark.startswith("The earlier policy has not learned cost_usd and latency_ms, and does not learn it")
