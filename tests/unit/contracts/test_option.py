"""Options as they are offered, read; and which of them preferences rule out."""

from __future__ import annotations

from typing import Any

import pytest

from etude.contracts.decision import Preferences
from etude.contracts.errors import DataError
from etude.contracts.option import Option, option_name, read_options, why_not


def test_options_are_names_or_mappings() -> None:
    read = read_options(
        [
            "a",
            3,
            0.5,
            True,
            {"name": "b", "description": "good", "price": 2, "fast": True, "regions": ["eu"], "x": None},
        ]
    )
    assert [option.name for option in read] == ["a", "3", "0.5", "true", "b"]
    last = Option(name="b", description="good", numbers={"price": 2.0, "fast": 1.0}, words={"regions": ("eu",)})
    assert read[-1] == last
    assert (last.text, read[0].text) == ("b: good", "a")


@pytest.mark.parametrize(
    ("offered", "message"),
    [
        (None, "options is None: expected a list of names"),
        ("ab", "options is 'ab': expected a list"),
        ({"a"}, r"options is \{'a'\}: expected a list"),
        ([], "options is empty"),
        (["a", ""], r"options\[1\] is '': it has no name"),
        ([{"description": "x"}], r"options\[0\] is .*: it has no name"),
        ([float("nan")], r"options\[0\] is nan: it has no name"),
        (["1", 1], r"options\[1\] has the name '1', as options\[0\] has"),
        ([{"name": "a", "description": 3}], r"options\[0\]\.description is 3: expected a text"),
        ([{"name": "a", "price": float("inf")}], r"options\[0\]\.price is inf: expected a finite number"),
        ([{"name": "a", "price": 10**400}], r"options\[0\]\.price is 1000.*: expected a finite number"),
        ([{"name": "a", "more": {"b": 1}}], r"options\[0\]\.more is \{'b': 1\}: expected a number, a text or"),
        ([f"{i}" for i in range(10_001)], "options has 10,001 entries: expected at most 10,000"),
    ],
)
def test_what_is_no_option_is_named(offered: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_options(offered)


def test_names() -> None:
    offered: list[Any] = [" a ", 1, True, {"name": 2}, None, {}, []]
    assert [option_name(option) for option in offered] == ["a", "1", "true", "2", "", "", ""]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({}, None),
        ({"allowed": ("a", "b")}, None),
        ({"allowed": ("b",)}, "it is not among allowed"),
        ({"region": "eu"}, None),
        ({"region": "us"}, "its regions are eu, without 'us'"),
        ({"max_cost_usd": 0.5}, None),
        ({"max_cost_usd": 0.1}, "its cost_usd is 0.5, above max_cost_usd 0.1"),
        ({"max_cost_usd": 0.5 * (1 - 1e-9)}, None),  # but for rounding
        ({"max_latency_ms": 0.0}, None),  # it says nothing of its latency
        ({"max_latency_ms": -1.0}, None),
    ],
)
def test_preferences_rule_out_by_what_an_option_says(wanted: dict[str, Any], why: str | None) -> None:
    (option,) = read_options([{"name": "a", "cost_usd": 0.5, "regions": ["eu"]}])
    assert why_not(option, Preferences(**wanted)) == why


def test_a_price_per_call_is_a_cost() -> None:
    (option,) = read_options([{"name": "a", "usd_per_call": 2}])
    assert why_not(option, Preferences(max_cost_usd=1)) == "its usd_per_call is 2, above max_cost_usd 1"
    assert why_not(option, Preferences(max_cost_usd=2)) is None


def test_an_option_may_be_unavailable_or_in_one_region() -> None:
    here, gone = read_options([{"name": "a", "region": "eu", "available": True}, {"name": "b", "available": False}])
    assert why_not(here, Preferences(region="eu")) is None
    assert why_not(here, Preferences(region="us")) == "its regions are eu, without 'us'"
    assert why_not(gone, Preferences()) == "it is not available"
