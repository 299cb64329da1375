"""Rolling windows: exact, drifting nowhere, the same after a restart."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.contracts.errors import StoreError
from etude.contracts.reward import Baseline
from etude.experience.baselines import MAX_MAGNITUDE, MIN_COUNT, Baselines, Method, Window, certainty, compared

numbers = (
    st.floats(-1e6, 1e6)
    | st.floats(-MAX_MAGNITUDE, MAX_MAGNITUDE)
    | st.sampled_from([0.0, -0.0, 5e-324, 1e150, -1e150])
)


@given(st.lists(numbers, min_size=1, max_size=60), st.integers(1, 20))
def test_a_window_is_what_its_last_numbers_are(values: list[float], size: int) -> None:
    window = Window(size)
    for i, value in enumerate(values):
        window.add(value)
        last = values[max(0, i + 1 - size) : i + 1]
        zscore, minmax = window.baseline("zscore"), window.baseline("minmax")
        assert list(window.values) == last
        assert (minmax.low, minmax.high, minmax.count) == (min(last), max(last), len(last))
        assert zscore.mean == pytest.approx(statistics.fmean(last), rel=1e-12, abs=1e-12 * max(map(abs, last)))
        assert zscore.std == pytest.approx(statistics.pstdev(last), rel=1e-9, abs=1e-150)  # squares below are no floats


def test_numbers_that_are_all_the_same_do_not_deviate() -> None:
    assert Window(100, [0.1] * 50).baseline("zscore").std == 0.0


def test_an_outlier_that_left_leaves_nothing_behind() -> None:
    calm = [math.sin(i) for i in range(50)]
    window = Window(50, [1e120, *calm])
    assert window.baseline("zscore") == Window(50, calm).baseline("zscore")


@given(st.lists(numbers, max_size=40), st.lists(numbers, min_size=1, max_size=10))
def test_read_back_it_continues_as_if_never_written(before: list[float], after: list[float]) -> None:
    straight = Baselines()
    methods: tuple[Method, ...] = ("zscore", "minmax")
    for value in before:
        for method in methods:
            straight.take((method, "", None), value, method=method, size=7)
    read = Baselines.from_state(straight.state())
    for value in after:
        for method in methods:
            one = straight.take((method, "", None), value, method=method, size=7)
            assert read.take((method, "", None), value, method=method, size=7) == one
    assert read.state() == straight.state()


def test_a_number_is_compared_with_what_came_before_it_under_its_own_key() -> None:
    baselines = Baselines()
    first = baselines.take(("a",), 3.0, method="zscore", size=10)
    assert first == Baseline(method="zscore")
    assert baselines.take(("a",), 5.0, method="zscore", size=10).mean == 3.0
    assert baselines.take(("b",), 5.0, method="zscore", size=10).count == 0
    assert baselines.take(("a",), 9.0, method="zscore", size=10).mean == 4.0


@pytest.mark.parametrize("method", ["zscore", "minmax"])
def test_short_and_flat_baselines_are_neutral(method: Method) -> None:
    short = Window(100, range(MIN_COUNT - 1)).baseline(method)
    assert compared(1e9, short) == 0.5
    assert certainty(short) == (MIN_COUNT - 1) / MIN_COUNT
    grown = Window(100, range(MIN_COUNT)).baseline(method)
    assert compared(1e9, grown) == 1.0
    assert compared(-1e9, grown) == 0.0
    assert certainty(grown) == 1.0
    assert compared(7.0, Window(100, [3.0] * 50).baseline(method)) == 0.5


def test_values() -> None:
    zscore = Baseline(method="zscore", count=50, mean=10.0, std=2.0)
    assert compared(10.0, zscore) == 0.5
    assert compared(12.0, zscore) == pytest.approx(1 / (1 + math.exp(-1)))
    minmax = Baseline(method="minmax", count=50, low=10.0, high=20.0)
    assert [compared(x, minmax) for x in (9.0, 10.0, 12.5, 20.0, 21.0)] == [0.0, 0.0, 0.25, 1.0, 1.0]
    assert compared(7.25, Baseline(method="none")) == 7.25
    assert certainty(None) == certainty(Baseline(method="none")) == 1.0


def test_differences_below_the_floor_hardly_count() -> None:
    zscore = Baseline(method="zscore", count=50, mean=10.0, std=0.001, floor=1.0)
    assert compared(10.01, zscore) == pytest.approx(0.5, abs=0.01)
    assert compared(11.0, zscore) == pytest.approx(1 / (1 + math.exp(-1)))
    minmax = Baseline(method="minmax", count=50, low=9.99, high=10.01, floor=1.0)
    assert [compared(x, minmax) for x in (8.5, 9.0, 10.0, 10.5, 11.0, 12.0)] == pytest.approx([0, 0, 0.5, 0.75, 1, 1])
    wide = Baseline(method="minmax", count=50, low=0.0, high=20.0, floor=1.0)
    assert compared(5.0, wide) == 0.25
    assert compared(3.0, Window(100, [3.0] * 50).baseline("minmax", 1.0)) == 0.5


@given(numbers, numbers, st.floats(0, MAX_MAGNITUDE), numbers, st.floats(0, MAX_MAGNITUDE))
def test_any_value_is_from_0_to_1(raw: float, mean: float, std: float, low: float, floor: float) -> None:
    for baseline in (
        Baseline(method="zscore", count=50, mean=mean, std=std, floor=floor),
        Baseline(method="minmax", count=50, low=min(low, mean), high=max(low, mean), floor=floor),
    ):
        assert 0 <= compared(raw, baseline) <= 1


def test_a_damaged_state_says_what_to_do() -> None:
    with pytest.raises(StoreError, match="start again"):
        Baselines.from_state(b"{")
