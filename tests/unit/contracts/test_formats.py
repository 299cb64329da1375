"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from etude.cli import display
from etude.contracts.formats import change, duration, fixed, plural, points, signed, usd, whole


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "$0.00"),
        (1234.5, "$1,234.50"),
        (1, "$1.00"),
        (0.25, "$0.25"),
        (0.0123456, "$0.0123"),
        (0.0000458, "$0.0000458"),
        (1e-7, "$0.0000001"),
        (-0.002, "−$0.002"),
        (math.nan, "–"),
    ],
)
def test_prices_keep_the_digits_that_count(value: float, expected: str) -> None:
    assert usd(value) == expected


def test_digits_and_signs() -> None:
    assert [fixed(x, 2) for x in (3.14159, -1234.5, -0.001, math.inf)] == ["3.14", "−1,234.50", "0.00", "–"]
    assert [signed(x, 1) for x in (0.26, -0.26)] == ["+0.3", "−0.3"]
    assert [signed(x) for x in (7.4, -7.4)] == ["+7", "−7"]
    assert [whole(x) for x in (-0.4, 1e6)] == ["0", "1,000,000"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0.0s"), (8.46, "8.5s"), (59.97, "1m 00s"), (125, "2m 05s"), (3599.6, "1h 00m"), (4830, "1h 20m")],
)
def test_durations_have_two_units_at_most(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
    assert duration(math.nan) == "–"


def test_the_terminal_and_the_page_write_durations_alike() -> None:
    assert display.duration is duration


def test_changes_say_their_unit() -> None:
    assert [points(x) for x in (0.174, -0.03)] == ["+17", "−3"]
    assert [change(x) for x in (0.12, -0.67, math.nan)] == [
        "12\N{NO-BREAK SPACE}% more",
        "67\N{NO-BREAK SPACE}% less",
        "–",
    ]
    assert [plural(n, "attempt") for n in (1, 1200)] == ["1 attempt", "1,200 attempts"]
