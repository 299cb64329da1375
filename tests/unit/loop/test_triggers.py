"""When a slot is trained, and what it waits for in words; a schedule over summer time, month ends and clock jumps."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from etude.contracts.errors import ConfigError
from etude.loop.config import LoopConfig
from etude.loop.triggers import Due, Facts, Waiting, check_schedule, decide, last_occurrence, next_occurrence

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)  # a Wednesday
CONFIG = LoopConfig()
BERLIN = ZoneInfo("Europe/Berlin")


def facts(**changes: Any) -> Facts:
    return replace(Facts(slot="choice:model", new=10, since=NOW - timedelta(hours=2)), **changes)


def due(found: Due | Waiting) -> Due:
    assert isinstance(found, Due), found
    return found


def waiting(found: Due | Waiting) -> str:
    assert isinstance(found, Waiting), found
    return found.reason


def test_what_a_slot_waits_for() -> None:
    assert waiting(decide(facts(), CONFIG, NOW)) == (
        "waits for 990 more rewarded trajectories (10 of 1,000), or the schedule on Mon 2026-11-23 03:00 UTC, or drift"
    )
    bare = LoopConfig(schedule=None, drift=False)
    assert waiting(decide(facts(), bare, NOW)) == "waits for 990 more rewarded trajectories (10 of 1,000)"


def test_threshold() -> None:
    assert isinstance(decide(facts(new=999), CONFIG, NOW), Waiting)
    found = due(decide(facts(new=1000), CONFIG, NOW))
    assert (found.trigger, found.reason) == ("threshold", "1,000 new rewarded trajectories")
    assert due(decide(facts(new=2000), CONFIG, NOW)).key == found.key, "the same cause has the same key"
    assert due(decide(facts(new=2000, jobs=1), CONFIG, NOW)).key != found.key


def test_at_most_one_job_per_day() -> None:
    recent = facts(new=5000, last=NOW - timedelta(hours=23), jobs=1)
    assert "may start in 1.0 hours" in waiting(decide(recent, CONFIG, NOW))
    assert due(decide(replace(recent, last=NOW - timedelta(hours=24)), CONFIG, NOW)).trigger == "threshold"
    assert due(decide(recent, replace(CONFIG, min_hours_between=0.0), NOW)).trigger == "threshold"


def test_no_second_job_while_one_is_active() -> None:
    assert waiting(decide(facts(new=5000, active="job-1"), CONFIG, NOW)) == "job job-1 is queued or runs"


def test_drift_comes_first_and_can_be_switched_off() -> None:
    drifted = facts(new=5000, drift="the inputs drifted (PSI 0.31)")
    assert due(decide(drifted, CONFIG, NOW)).trigger == "drift"
    assert due(decide(drifted, replace(CONFIG, drift=False), NOW)).trigger == "threshold"


def test_schedule_fires_once_per_occurrence() -> None:
    monday = datetime(2026, 11, 23, 3, tzinfo=UTC)
    assert isinstance(decide(facts(since=NOW), CONFIG, monday - timedelta(seconds=1)), Waiting)
    found = due(decide(facts(since=NOW), CONFIG, monday))
    assert (found.trigger, found.key) == ("schedule", "choice:model:schedule:2026-11-23 03:00")
    assert due(decide(facts(since=NOW), CONFIG, monday + timedelta(days=6))).key == found.key
    assert isinstance(decide(facts(since=monday, last=monday), CONFIG, monday + timedelta(days=6)), Waiting)


def test_schedule_does_not_fire_for_a_time_before_the_loop_began() -> None:
    assert isinstance(decide(facts(since=NOW), CONFIG, NOW + timedelta(minutes=1)), Waiting)


def test_schedule_without_anything_new_waits() -> None:
    monday = datetime(2026, 11, 23, 4, tzinfo=UTC)
    assert "no new rewarded trajectory" in waiting(decide(facts(new=0, since=NOW), CONFIG, monday))


@pytest.mark.parametrize("jump_h", [-1, 1])
def test_clock_that_jumps_an_hour_starts_no_second_job(jump_h: int) -> None:
    monday = datetime(2026, 11, 23, 3, 30, tzinfo=UTC)
    first = due(decide(facts(since=NOW), CONFIG, monday))
    jumped = decide(facts(since=monday, last=monday, jobs=1), CONFIG, monday + timedelta(hours=jump_h))
    assert isinstance(jumped, Waiting), jumped
    again = decide(facts(since=NOW), CONFIG, monday + timedelta(hours=max(jump_h, 0)))
    assert due(again).key == first.key


def test_clock_that_was_far_ahead_does_not_stop_the_loop() -> None:
    ahead = facts(new=5000, last=NOW + timedelta(days=400), since=NOW + timedelta(days=400), jobs=3)
    assert due(decide(ahead, CONFIG, NOW)).trigger == "threshold"


def occurrences(schedule: str, start: datetime, many: int) -> list[str]:
    config, found = LoopConfig(schedule=schedule, timezone="Europe/Berlin"), []
    for _ in range(many):
        then = next_occurrence(config, start)
        assert then is not None
        assert last_occurrence(config, then) == then, "an occurrence is due at its own time"
        found.append(then.isoformat())
        start = then
    return found


def test_schedule_when_summer_time_begins() -> None:
    """2:30 does not exist on 29 March: the job starts when the clocks have changed."""
    assert occurrences("30 2 * * *", datetime(2026, 3, 28, 12, tzinfo=BERLIN), 2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


def test_schedule_when_summer_time_ends_starts_one_job() -> None:
    """2:30 occurs twice on 25 October: both are the same cause."""
    config = LoopConfig(schedule="30 2 * * *", timezone="Europe/Berlin", min_hours_between=0.0)
    first, second = (datetime(2026, 10, 25, 2, 40, tzinfo=BERLIN, fold=fold).astimezone(UTC) for fold in (0, 1))
    assert second - first == timedelta(hours=1)
    since = datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert due(decide(facts(since=since), config, first)).key == due(decide(facts(since=since), config, second)).key


def test_schedule_at_the_end_of_months() -> None:
    assert occurrences("0 3 31 * *", datetime(2026, 1, 31, 12, tzinfo=BERLIN), 2) == [
        "2026-03-31T03:00:00+02:00",
        "2026-05-31T03:00:00+02:00",
    ]
    assert occurrences("0 3 l * *", datetime(2026, 2, 1, tzinfo=BERLIN), 2) == [
        "2026-02-28T03:00:00+01:00",
        "2026-03-31T03:00:00+02:00",
    ]


@pytest.mark.parametrize("wrong", ["", "weekly", "0 3 * *", "0 3 * * 9", "61 * * * *", "0 3 31 2 *", "* * * * * *"])
def test_schedule_that_cannot_be_parsed_is_named(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"loop\.schedule is") as found:
        check_schedule(LoopConfig(schedule=wrong))
    assert repr(wrong) in str(found.value)


@pytest.mark.parametrize("wrong", ["Europe/Berln", "../etc", "UTC\0"])
def test_unknown_time_zone_is_named(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"loop\.timezone is"):
        check_schedule(LoopConfig(timezone=wrong))
