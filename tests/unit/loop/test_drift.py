"""Requests that drift since the last training start a job; those that do not, and few ones, do not."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from etude.adapters.sqlite import SqliteStore
from etude.contracts.decision import LoggedDecision
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Outcome, Trajectory
from etude.evidence.drift import DriftThresholds
from etude.loop.drift import AGAIN, DriftWatch
from tests.unit.loop.small_loop import NOW, SLOT


def ask(store: SqliteStore, first: int, count: int, *, words: int) -> None:
    for i in range(first, first + count):
        text = " ".join(["word"] * (words + i % 7))
        decision = LoggedDecision(problem=SLOT, action="a", propensity=1.0, policy="p", context={"text": text})
        task = Trajectory(
            id=f"t{i:05d}", time=NOW + timedelta(seconds=i), task=text, problem=SLOT, policy="p",
            decisions=(decision,), outcome=Outcome(success=True),
        )  # fmt: skip
        store.append([(task, encode(task))])


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
