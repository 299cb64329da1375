"""Requests or rewards that drift since the last training start a job; those that do not, and few ones, do not."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pytest

from etude.adapters.sqlite import SqliteStore
from etude.contracts.decision import LoggedDecision
from etude.contracts.reward import Reward
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Outcome, Trajectory
from etude.evidence.drift import DriftThresholds
from etude.loop.drift import AGAIN, DriftWatch
from tests.unit.loop.small_loop import NOW, SLOT


def ask(
    store: SqliteStore,
    first: int,
    count: int,
    *,
    words: int = 10,
    success: float | None = None,
    scale: float = 1.0,
    policy: str = "p",
    version: int = 1,
) -> None:
    """Requests of about so many words; with `success`, rewards of `scale` with this probability, else 0."""
    rng = random.Random(first)
    for i in range(first, first + count):
        text = " ".join(["word"] * (words + i % 7))
        decision = LoggedDecision(problem=SLOT, action="a", propensity=1.0, policy=policy, context={"text": text})
        task = Trajectory(
            id=f"t{i:05d}", time=NOW + timedelta(seconds=i), task=text, problem=SLOT, policy=policy,
            decisions=(decision,), outcome=Outcome(success=True),
        )  # fmt: skip
        store.append([(task, encode(task))])
        if success is not None:
            reward = Reward(
                id=f"r{i}", time=task.time, trajectory_id=task.id, version=version, definition="d", confidence=1.0,
                total=scale * (rng.random() < success),
            )  # fmt: skip
            store.append([(reward, encode(reward))])


@pytest.mark.parametrize(("words", "drifts"), [(10, False), (14, True)])
def test_longer_requests_are_drift(tmp_path: Path, words: int, drifts: bool) -> None:
    store = SqliteStore(tmp_path / "experience.sqlite")
    watch = DriftWatch(store=store, reward_version=1, thresholds=DriftThresholds())
    ask(store, 0, 400, words=10)
    learned = NOW + timedelta(seconds=399)
    assert watch(SLOT, None) == ""
    ask(store, 400, 299, words=words)
    assert watch(SLOT, learned) == "", "too few to tell"
    ask(store, 699, 1, words=words)
    assert ("requests have drifted since training" in watch(SLOT, learned)) == drifts
    ask(store, 700, AGAIN - 1, words=50)
    assert bool(watch(SLOT, learned)) == drifts, "it is not compared again so soon"
    ask(store, 700 + AGAIN, 1, words=50)
    assert watch(SLOT, learned)
    store.close()


@pytest.mark.parametrize(
    ("success", "policy", "drifts"),
    [
        (0.8, "p", False),
        (0.74, "p", False),  # as by chance
        (0.5, "p", True),
        (1.0, "p", True),
        (0.5, "another", False),
        (None, "p", False),
    ],
)
def test_rewards_of_the_same_policy_are_drift(tmp_path: Path, success: float | None, policy: str, drifts: bool) -> None:
    store = SqliteStore(tmp_path / "experience.sqlite")
    watch = DriftWatch(store=store, reward_version=1, thresholds=DriftThresholds())
    ask(store, 0, 400, success=0.8)
    ask(store, 400, 300, success=success, policy=policy)
    said = watch(SLOT, NOW + timedelta(seconds=399))
    assert ("rewards of policy p have drifted since training" in said) == drifts
    assert ("before (drift " in said) == drifts
    store.close()


def test_rewards_of_other_policies_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.loop.drift.MAX_STREAM", 300)
    store = SqliteStore(tmp_path / "experience.sqlite")
    watch = DriftWatch(store=store, reward_version=1, thresholds=DriftThresholds())
    learned = NOW + timedelta(seconds=499)
    ask(store, 0, 200, success=0.0, policy="another")
    ask(store, 200, 300, success=0.8)
    ask(store, 500, 300, success=0.8)
    assert watch(SLOT, learned) == ""
    ask(store, 800, 300, success=0.2)
    ask(store, 1100, 300, success=0.8, policy="another")
    assert "0.203 on average over the last 300, 0.823 before" in watch(SLOT, learned)
    store.close()


def test_few_rewards_before_the_training_are_no_reference(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "experience.sqlite")
    watch = DriftWatch(store=store, reward_version=1, thresholds=DriftThresholds())
    ask(store, 0, 101, policy="another")
    ask(store, 101, 299, success=0.8)
    ask(store, 400, 300, success=0.2)
    assert watch(SLOT, NOW + timedelta(seconds=399)) == ""
    store.close()


@pytest.mark.parametrize(("change", "drifts"), [(0.049, False), (0.051, True)])
def test_a_small_change_of_all_rewards_does_not_matter(tmp_path: Path, change: float, drifts: bool) -> None:
    """It is real, so the detector raises its alarm: rewards compared with a rolling baseline move like this."""
    store = SqliteStore(tmp_path / "experience.sqlite")
    watch = DriftWatch(store=store, reward_version=1, thresholds=DriftThresholds())
    ask(store, 0, 400, success=1.0, scale=0.5)
    ask(store, 400, 300, success=1.0, scale=0.5 + change)
    assert bool(watch(SLOT, NOW + timedelta(seconds=399))) == drifts
    store.close()


def test_rewards_that_recovered_start_no_job(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "experience.sqlite")
    watch = DriftWatch(store=store, reward_version=1, thresholds=DriftThresholds())
    learned = NOW + timedelta(seconds=399)
    ask(store, 0, 400, success=0.8)
    ask(store, 400, 300, success=0.2)
    assert watch(SLOT, learned)
    ask(store, 700, 600, success=0.8)
    assert watch(SLOT, learned) == ""
    store.close()


def test_a_reward_without_bounds_is_not_judged(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "experience.sqlite")
    watch = DriftWatch(store=store, reward_version=2, thresholds=DriftThresholds())
    ask(store, 0, 400, success=0.8, version=2)
    ask(store, 400, 300, success=0.2, version=2)
    assert watch(SLOT, NOW + timedelta(seconds=399)) == ""
    store.close()
