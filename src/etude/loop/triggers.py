"""Which slot is to be trained now: from counts, times and the settings to what is due, or what it waits for.

Everything here is a pure function; the coordinator gathers the facts. A time of day that jumps is tolerated: a
schedule fires once per occurrence whatever the clock does, since the occurrence names the job; and a last job that
lies more than MAX_AHEAD in the future is ignored, so that a clock that was wrong once does not stop the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from etude.contracts.errors import ConfigError, MissingExtraError
from etude.loop.config import LoopConfig

MAX_AHEAD = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known about a slot."""

    slot: str
    new: int  # rewarded trajectories that are not in the last job's dataset
    jobs: int = 0  # jobs of the slot so far
    last: datetime | None = None  # when its last job was queued
    since: datetime  # since when the schedule applies: the first start of the loop, or the last job
    active: str = ""  # id of a job that is queued or runs
    drift: str = ""  # how inputs or rewards drifted since training


@dataclass(frozen=True, kw_only=True)
class Due:
    """A job to start."""

    trigger: Literal["threshold", "schedule", "drift"]
    reason: str
    key: str  # names the cause: the same cause starts one job


@dataclass(frozen=True, kw_only=True)
class Waiting:
    reason: str
    """What the slot waits for, in a sentence."""


def decide(facts: Facts, config: LoopConfig, now: datetime) -> Due | Waiting:
    """Whether a job is due for a slot; drift comes before the threshold, and that before the schedule."""
    occurrence = last_occurrence(config, now)
    if facts.active:
        return Waiting(reason=f"job {facts.active} is queued or runs")
    due = _due(facts, config, occurrence, now)
    if due is None:
        return Waiting(reason=_missing(facts, config, now))
    if not facts.new:
        return Waiting(reason=f"{due.reason}, but there is no new rewarded trajectory to learn from")
    if (left := _hours_left(facts, config, now)) > 0:
        return Waiting(reason=f"{due.reason}; the next job may start in {left:.1f} hours (loop.min_hours_between)")
    return due


def _due(facts: Facts, config: LoopConfig, occurrence: datetime | None, now: datetime) -> Due | None:
    if config.drift and facts.drift:
        return Due(trigger="drift", reason=facts.drift, key=f"{facts.slot}:drift:{facts.jobs}")
    if facts.new >= config.threshold:
        reason = f"{facts.new:,} new rewarded trajectories"
        return Due(trigger="threshold", reason=reason, key=f"{facts.slot}:threshold:{facts.jobs}")
    if occurrence is not None and (occurrence > facts.since or facts.since > now + MAX_AHEAD):
        # Without its offset: an hour that occurs twice when summer time ends is one occurrence.
        local = f"{occurrence:%Y-%m-%d %H:%M}"
        return Due(trigger="schedule", reason=f"scheduled for {local}", key=f"{facts.slot}:schedule:{local}")
    return None


def _hours_left(facts: Facts, config: LoopConfig, now: datetime) -> float:
    """Hours until the next job may start."""
    if facts.last is None or facts.last > now + MAX_AHEAD:
        return 0.0
    return config.min_hours_between - (now - facts.last) / timedelta(hours=1)


def _missing(facts: Facts, config: LoopConfig, now: datetime) -> str:
    parts = [f"{config.threshold - facts.new:,} more rewarded trajectories ({facts.new:,} of {config.threshold:,})"]
    if (then := next_occurrence(config, now)) is not None:
        parts.append(f"the schedule on {then:%a %Y-%m-%d %H:%M %Z}")
    if config.drift:
        parts.append("drift")
    return f"waits for {', or '.join(parts)}"


def last_occurrence(config: LoopConfig, now: datetime) -> datetime | None:
    """The last time of the schedule, up to now; None without one."""
    return _occurrence(config, now, forward=False)


def next_occurrence(config: LoopConfig, now: datetime) -> datetime | None:
    return _occurrence(config, now, forward=True)


def check_schedule(config: LoopConfig) -> None:
    """ConfigError if the schedule cannot be parsed, never occurs, or its time zone is unknown."""
    last_occurrence(config, datetime.fromisoformat("2026-01-01T00:00:00+00:00"))


def _occurrence(config: LoopConfig, now: datetime, *, forward: bool) -> datetime | None:
    if config.schedule is None:
        return None
    try:
        from croniter import CroniterError, croniter
    except ModuleNotFoundError as error:
        raise MissingExtraError(needs="croniter", extra="release") from error
    if len(config.schedule.split()) != 5:
        raise _unreadable(config, "it has not five fields")
    # One microsecond later, since the previous time of croniter is before its start.
    start = now.astimezone(_zone(config)) + timedelta(microseconds=0 if forward else 1)
    try:
        times = croniter(config.schedule, start, ret_type=datetime)
        found: datetime = times.get_next() if forward else times.get_prev()
    except (CroniterError, ValueError, KeyError, OverflowError) as error:
        raise _unreadable(config, str(error)) from error
    return found


def _unreadable(config: LoopConfig, why: str) -> ConfigError:
    return ConfigError(
        f"loop.schedule is {config.schedule!r}: {why}; expected cron fields (minute hour day month weekday) such as "
        "'0 3 * * 1', or null"
    )


def _zone(config: LoopConfig) -> ZoneInfo:
    try:
        return ZoneInfo(config.timezone)
    except (ValueError, OSError, LookupError) as error:
        raise ConfigError(
            f"loop.timezone is {config.timezone!r}, an unknown time zone: expected one such as UTC or Europe/Berlin"
        ) from error
