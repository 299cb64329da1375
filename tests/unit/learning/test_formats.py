"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from etude.learning.formats import fixed, signed, usd, whole


@pytest.mark.parametrize(
    ("value", "told"),
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
def test_prices_keep_the_digits_that_count(value: float, told: str) -> None:
    assert usd(value) == told


def test_digits_and_signs() -> None:
    assert [fixed(x, 2) for x in (3.14159, -1234.5, -0.001, math.inf)] == ["3.14", "−1,234.50", "0.00", "–"]
    assert [signed(x, 1) for x in (0.26, -0.26)] == ["+0.3", "−0.3"]
    assert [signed(x) for x in (7.4, -7.4)] == ["+7", "−7"]
    assert [whole(x) for x in (-0.4, 1e6)] == ["0", "1,000,000"]
