"""Exploration health of a slot is read from the store: its own decisions of the last days that list their options."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from etude.adapters.sqlite import SqliteStore
from etude.contracts.decision import LoggedDecision
from etude.contracts.jobs import Cost, DaySummary
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Outcome, Trajectory
from etude.evidence.exploration import Concern
from etude.loop.exploration import explored
from etude.loop.summary import summarise_day
from etude.reports.jobs import loop_page
from tests.unit.loop.small_loop import NOW, SLOT

OPTIONS = [{"name": "a", "description": "first"}, "b", 3]


def log(store: SqliteStore, number: int, time: datetime, *decisions: LoggedDecision) -> None:
    task = Trajectory(
        id=f"t{number}", time=time, task="x", problem=SLOT, policy="p", decisions=decisions, outcome=Outcome()
    )
    store.append([(task, encode(task))])


def choice(action: str = "a", propensity: float | None = 0.999_9, problem: str = SLOT) -> LoggedDecision:
    return LoggedDecision(problem=problem, action=action, propensity=propensity, policy="p", eligible=OPTIONS)


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    """Nine days of certain decisions, the option 3 never taken; and decisions that say nothing of exploration."""
    store = SqliteStore(tmp_path / "experience.sqlite")
    for hour in range(9 * 24):
        other = choice(propensity=0.001, problem="choice:other"), choice(propensity=None)
        parts = {"nodes": 2, "workers": [1]}
        unlisted = LoggedDecision(problem=SLOT, action={"node": 1}, propensity=0.001, policy="p", eligible=parts)
        time = NOW - timedelta(hours=hour, minutes=1)
        log(store, hour, time, choice("b" if hour == 30 else "a"), *other, unlisted)
    return store


def test_the_last_days_of_a_slot(store: SqliteStore) -> None:
    found = explored(store, SLOT, until=NOW, version=1)
    assert found.count == 8 * 24
    assert (found.certain_share, found.least_propensity, found.untried) == (1.0, 0.999_9, ("3",))
    assert set(found.warnings) == {Concern.CERTAIN, Concern.UNTRIED}
    assert explored(store, "choice:other", until=NOW, version=1).count == 0
    store.close()


def test_the_summary_of_a_day_has_it(store: SqliteStore, tmp_path: Path) -> None:
    day = NOW.replace(hour=0) - timedelta(days=1)
    summary = summarise_day(day, jobs=[], store=store, version=1, histories={}, now=NOW)
    assert summary.slots[SLOT].exploration["untried"] == ["3"]
    page = loop_page(summary, tmp_path / "day.html").read_text("utf-8")
    assert "100% of 192 decisions have an entropy below 0.01" in page
    empty = DaySummary(day="2026-11-17", jobs=(), slots={}, cost=Cost(), start_s=None, steps=())
    assert "entropy" not in loop_page(empty, tmp_path / "empty.html").read_text("utf-8")
    store.close()
