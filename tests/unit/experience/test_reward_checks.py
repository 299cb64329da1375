"""Detectors of gamed and silent rewards: noise does not alarm, planted hacks do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from etude.experience.reward_checks import ADVICE, RewardChecksConfig, Sample, Sign, check

Array = NDArray[np.float64]
SIMULATIONS = 200
GAMED = (Sign.SATURATED_COMPONENT, Sign.REWARD_AGAINST_AUDIT)


def noise(rng: np.random.Generator, n: int, correlation: float) -> Array:
    """(n,) of mean 0 and deviation 1, each like the one before it."""
    kernel = correlation ** np.arange(10.0)  # an autoregression, but for its far past
    return np.convolve(rng.standard_normal(n + 9), kernel / np.linalg.norm(kernel), "valid")


def history(
    rng: np.random.Generator, n: int, *, correlation: float = 0.0, gain: Array | float = 0.0, harm: float = 0.0
) -> list[Sample]:
    """Of n rewards: `gain` is how far each quality is brought to its maximum, `harm` what the last third loses.

    Harm is in deviations of the audit, and takes 20 points of 100 off success for each.
    """
    late = np.arange(n) >= n - n // 3
    quality = np.clip(0.6 + 0.15 * noise(rng, n, correlation), 0, 1)
    quality += gain * (0.99 - quality)
    efficiency = -3.0 + 0.5 * noise(rng, n, correlation)
    audit = 7.0 + 2.0 * noise(rng, n, correlation) - 2.0 * harm * late
    success = rng.random(n) < 0.8 - 0.2 * harm * late
    liked = np.where(rng.random(n) < 0.2, rng.random(n) < 0.7, math.nan)
    squashed = 1 / (1 + np.exp(-2 * (efficiency + 3)))
    totals = 0.3 * success + 0.2 * squashed + 0.5 * quality
    samples = []
    for i in range(n):
        learned = {"completion": float(success[i]), "quality": float(quality[i])}
        audits = {"execution": float(audit[i]), "success": float(success[i])}
        said = {} if math.isnan(liked[i]) else {"feedback": float(liked[i])}
        raws, values = learned | {"efficiency": float(efficiency[i])}, learned | {"efficiency": float(squashed[i])}
        samples.append(Sample(f"t{i}", float(totals[i]), 1.0, raws, values, audits | said))
    return samples


def suddenly(n: int, gain: float) -> Array:
    return np.where(np.arange(n) >= n - n // 3, gain, 0.0)


def alarms(make: Callable[[np.random.Generator], list[Sample]], simulations: int = SIMULATIONS) -> Counter[Sign]:
    """In how many simulations each sign was seen."""
    seen: Counter[Sign] = Counter()
    for seed in range(simulations):
        seen.update({warning.name for warning in check(make(np.random.default_rng(seed)))})
    return seen


@pytest.mark.parametrize(("n", "correlation"), [(200, 0.0), (200, 0.5), (600, 0.5), (1500, 0.0)])
def test_noise_does_not_alarm(n: int, correlation: float) -> None:
    seen = alarms(lambda rng: history(rng, n, correlation=correlation))
    assert seen.total() <= 0.05 * SIMULATIONS, seen


def test_learning_that_helps_does_not_alarm() -> None:
    """The reward rises slowly and no audit falls: only chance can make one seem to."""
    seen = alarms(lambda rng: history(rng, 450, gain=np.linspace(0, 0.6, 450)))
    assert seen.total() <= 0.05 * SIMULATIONS, seen


@pytest.mark.parametrize(("n", "correlation", "harm"), [(300, 0.0, 1.0), (600, 0.5, 1.0), (1500, 0.5, 0.5)])
def test_a_hack_is_found(n: int, correlation: float, harm: float) -> None:
    seen = alarms(lambda rng: history(rng, n, correlation=correlation, gain=suddenly(n, 0.95), harm=harm), 100)
    assert all(seen[sign] >= 95 for sign in GAMED), seen


def test_a_hack_that_does_not_saturate_is_found() -> None:
    seen = alarms(lambda rng: history(rng, 900, gain=suddenly(900, 0.5), harm=0.7), 100)
    assert seen[Sign.REWARD_AGAINST_AUDIT] >= 95
    assert seen[Sign.SATURATED_COMPONENT] == 0


def test_what_only_gets_worse_is_not_called_gamed() -> None:
    seen = alarms(lambda rng: history(rng, 600, harm=1.0), 100)
    assert not any(seen[sign] for sign in GAMED), seen


def test_what_always_was_near_its_maximum_is_not_called_saturated() -> None:
    """It varies as it did: whatever fell, this did not take its place."""
    rng = np.random.default_rng(0)
    polite = 0.96 + 0.02 * rng.random(1500)
    samples = [
        sample._replace(values={"polite": float(value)})
        for sample, value in zip(history(rng, 1500, harm=1.0), polite, strict=True)
    ]
    assert Sign.SATURATED_COMPONENT not in {warning.name for warning in check(samples)}


@pytest.mark.parametrize(("shift", "found"), [(0.1, False), (0.3, True)])
def test_what_hardly_moved_does_not_matter_however_certain(shift: float, found: bool) -> None:
    wave = [(-1.0) ** i for i in range(600)]
    moved = [shift * (i >= 400) for i in range(600)]
    samples = [Sample(f"t{i}", wave[i] + moved[i], 1.0, {}, {}, {"audit": wave[i] - moved[i]}) for i in range(600)]
    assert [warning.name for warning in check(samples)] == [Sign.REWARD_AGAINST_AUDIT] * found


def test_a_jump_is_found_where_it_is() -> None:
    n = 900
    seen = alarms(lambda rng: history(rng, n, correlation=0.3, gain=suddenly(n, 0.6)), 50)
    assert seen[Sign.COMPONENT_JUMP] >= 0.95 * 50
    found = [w for w in check(history(np.random.default_rng(0), n, gain=suddenly(n, 0.6))) if w.of == "quality"]
    assert [w.name for w in found] == [Sign.COMPONENT_JUMP]
    place = int(found[0].message.rpartition("near t")[2])
    assert abs(place - 600) <= 30
    assert found[0].numbers["after"] - found[0].numbers["before"] == pytest.approx(0.234, abs=0.04)


def test_warnings_carry_numbers_and_what_to_do() -> None:
    rng = np.random.default_rng(1)
    found = {w.name: w for w in check(history(rng, 1500, gain=suddenly(1500, 0.95), harm=1.0))}
    saturated = found[Sign.SATURATED_COMPONENT]
    assert saturated.of == "quality"
    assert saturated.numbers["mean"] > 0.95 > saturated.numbers["mean_before"]
    assert saturated.numbers["execution_t"] < -3
    assert "execution 6.965 → 5.022" in saturated.message
    assert all(w.advice == ADVICE[w.name] for w in found.values())
    assert set(ADVICE) == set(Sign)


@pytest.mark.parametrize(("total", "confidence"), [(0.0, 0.0), (0.5, 1.0), (11.3, 1.0)])
def test_rewards_that_are_all_the_same_teach_nothing(total: float, confidence: float) -> None:
    silent = [Sample(f"t{i}", total, confidence, {}, {}, {}) for i in range(100)]
    (warning,) = check(silent)
    assert warning.name == Sign.CONSTANT_REWARD
    assert ("nothing is known" in warning.message) == (confidence == 0)
    assert warning.numbers["count"] == 100


def test_one_success_in_many_is_something_to_learn_from() -> None:
    rare = [Sample(f"t{i}", float(i % 50 == 0), 1.0, {}, {}, {}) for i in range(100)]
    assert check(rare) == []


def test_few_rewards_say_nothing() -> None:
    silent = [Sample(f"t{i}", 0.0, 1.0, {}, {}, {}) for i in range(59)]
    assert check(silent) == []
    few = history(np.random.default_rng(0), RewardChecksConfig().min_samples - 1, gain=suddenly(179, 0.95), harm=3.0)
    assert check(few) == []
    assert check([]) == []


def test_a_component_without_noise_can_jump() -> None:
    stepped = [Sample(f"t{i}", i / 300, 1.0, {"flag": float(i >= 200)}, {}, {}) for i in range(300)]
    (warning,) = check(stepped)
    assert (warning.name, warning.of) == (Sign.COMPONENT_JUMP, "flag")
    still = [Sample(f"t{i}", i / 300, 1.0, {"flag": 0.1}, {}, {}) for i in range(300)]
    assert check(still) == []
