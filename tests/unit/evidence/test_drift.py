"""Drift is found where it is, and seldom where it is not."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.contracts.errors import DataError
from etude.evidence.drift import DriftDetector, DriftThresholds, Level, bin_shares, check_drift, jensen_shannon, psi
from etude.evidence.eprocess import BETS

THRESHOLDS = DriftThresholds()
share_vectors = st.lists(st.floats(0.01, 1), min_size=3, max_size=3).map(lambda x: np.array(x) / sum(x))


def test_distances_by_hand() -> None:
    p, q = [0.5, 0.5], [0.25, 0.75]
    assert psi(p, q) == pytest.approx(-0.25 * math.log(0.5) + 0.25 * math.log(1.5))
    middle = [0.375, 0.625]
    by_hand = sum(a / 2 * math.log2(a / m) + b / 2 * math.log2(b / m) for a, b, m in zip(p, q, middle, strict=True))
    assert jensen_shannon(p, q) == pytest.approx(by_hand)
    assert jensen_shannon([1, 0], [0, 1]) == 1


@given(share_vectors, share_vectors)
def test_distances_are_symmetric_and_not_negative(p: np.ndarray, q: np.ndarray) -> None:
    for distance in (psi, jensen_shannon):
        assert distance(p, q) == pytest.approx(distance(q, p), abs=1e-12)
        assert distance(p, q) >= -1e-12
        assert distance(p, p) == pytest.approx(0, abs=1e-12)
    assert jensen_shannon(p, q) <= 1


def test_bins_are_quantiles_of_the_reference_or_its_few_values() -> None:
    expected, actual = bin_shares(np.arange(1000), np.arange(500))
    assert expected[:10] == pytest.approx(0.1, abs=2e-3)
    assert actual[:5] == pytest.approx(0.2, abs=2e-3)
    assert actual[5:].max() < 2e-3
    expected, actual = bin_shares([0.0] * 500 + [1.0] * 500, [1.0] * 400 + [0.5] * 100)
    assert expected[:2] == pytest.approx(0.5, abs=2e-3)
    assert actual[1:3] == pytest.approx([0.8, 0.2], abs=5e-3)  # a value between known ones is a new one
    _, actual = bin_shares([1.0, 2.0] * 100, [1.0] * 50 + [math.nan] * 50)
    assert actual[-1] == pytest.approx(0.5, abs=0.01)


def test_each_feature_has_its_level_and_the_largest_comes_first() -> None:
    rng = np.random.default_rng(0)
    reference = {name: rng.normal(size=4000) for name in ("same", "moved", "far", "few")}
    current = {"same": rng.normal(size=1000), "moved": rng.normal(0.38, 1, 1000), "far": rng.normal(1, 1, 1000)}
    found = check_drift(reference, current | {"few": rng.normal(3, 1, 30)}, THRESHOLDS)
    assert [(d.name, d.level) for d in found] == [
        ("few", Level.CANNOT_TELL), ("far", Level.FAIL), ("moved", Level.WARN), ("same", Level.OK)
    ]  # fmt: skip
    assert json.loads(json.dumps(found[1].to_json()))["level"] == "fail"
    assert found[1].js > found[2].js > found[3].js
    with pytest.raises(DataError, match=r"\['far'"):
        check_drift({"same": [1.0]}, {"same": [1.0], "far": [2.0]}, THRESHOLDS)


def test_samples_of_one_distribution_do_not_drift() -> None:
    rng = np.random.default_rng(0)
    least = THRESHOLDS.min_count
    found = [psi(*bin_shares(rng.normal(size=5000), rng.normal(size=least))) for _ in range(200)]
    assert np.mean(np.array(found) >= THRESHOLDS.warn_psi) <= 0.02


CHANGES = {"up": (0.8, 1.0), "down": (-0.8, 1.0), "wider": (0.0, 2.5), "narrower": (0.0, 0.3)}


@pytest.mark.parametrize("change", CHANGES)
def test_the_detector_finds_a_change_of_mean_or_spread(change: str) -> None:
    rng = np.random.default_rng(0)
    detector = DriftDetector(rng.normal(size=2000))
    for x in rng.normal(size=1500):
        detector.update(float(x))
        assert not detector.alarmed
    for x in rng.normal(*CHANGES[change], 300):
        detector.update(float(x))
        if detector.alarmed:
            break
    assert detector.alarmed
    assert 1500 < detector.count <= 1650
    assert detector.crossing.threshold == pytest.approx(math.log(100_000))


@pytest.mark.parametrize("kind", ["normal", "ties", "small reference"])
def test_the_detector_is_silent_without_a_change(kind: str) -> None:
    rng = np.random.default_rng(1)

    def draw(n: int) -> np.ndarray:
        x = rng.normal(size=n)
        return np.round(x) if kind == "ties" else x

    detectors = [DriftDetector(draw(200 if kind == "small reference" else 1000)) for _ in range(5)]
    for detector in detectors:
        for x in draw(1500):
            detector.update(float(x))
    assert sum(detector.alarmed for detector in detectors) == 0


@given(st.lists(st.integers(0, 20), min_size=2, max_size=60))
def test_the_detector_expects_no_gain_over_its_own_reference(reference: list[int]) -> None:
    detector = DriftDetector(reference)
    total = np.zeros((4, len(BETS)))
    for value in reference:
        again = DriftDetector(reference)
        again.update(value)
        assert (again._detector >= 0).all()
        total += again._detector
    assert (total / len(reference) <= 1 + 1e-9).all()
    assert detector.count == 0


def test_the_detector_continues_from_its_state() -> None:
    rng = np.random.default_rng(0)
    reference = rng.normal(size=100)
    one, other = DriftDetector(reference), DriftDetector(reference)
    for x in rng.normal(size=20):
        one.update(float(x))
    other.restore(json.loads(json.dumps(one.to_json())))
    for detector in (one, other):
        detector.update(1.0)
    assert other.to_json() == one.to_json()
    with pytest.raises(DataError, match="value is nan"):
        one.update(math.nan)
    with pytest.raises(DataError, match="1 reference values"):
        DriftDetector([1.0])
