"""What people read about the loop: a summary per day and a report per job, as JSON and as a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from etude.contracts.jobs import Cost, DaySummary, Job, SlotDay
from etude.contracts.query import Where
from etude.contracts.release import Entry
from etude.contracts.store import ExperienceStore, Group
from etude.files.durable import make_folder, replace_file
from etude.loop.exploration import explored

Render = Callable[[DaySummary | Job, Path], object]
"""Function that writes the page of a summary or a job."""


def summarise_day(
    day: datetime,
    *,
    jobs: Sequence[Job],
    store: ExperienceStore,
    version: int,
    histories: Mapping[str, Sequence[Entry]],
    now: datetime,
) -> DaySummary:
    """The summary of the day that begins at `day`, written now."""
    end = day + timedelta(days=1)

    def on_that_day(time: datetime | None) -> bool:
        return time is not None and day <= time < end

    own = [job for job in jobs if on_that_day(job.created) or on_that_day(job.ended)]
    starts = [(job.started - job.created).total_seconds() for job in own if job.started is not None]
    stats = store.stats(Where(since=day, until=end), version=version)
    slots = sorted({group.problem for group in stats.groups})
    return DaySummary(
        day=f"{day:%Y-%m-%d}",
        jobs=tuple(own),
        slots={slot: _slot_day(slot, day, end, store, version) for slot in slots},
        cost=total_cost([job.cost for job in own]),
        start_s=max(starts, default=None),
        steps=tuple(
            f"{entry.time:%H:%M} {slot}: {entry.action.replace('_', ' ')}"
            + (f" {entry.version}" if entry.version else "")
            + (f" ({entry.reason})" if entry.reason else "")
            for slot, entries in histories.items()
            for entry in entries
            if on_that_day(entry.time)
        ),
        written=now,
    )


def _slot_day(slot: str, day: datetime, end: datetime, store: ExperienceStore, version: int) -> SlotDay:
    stats = store.stats(Where(problem=slot, since=day, until=end), version=version)
    known = [group for group in stats.groups if group.success is not None]
    decided = sum(group.count for group in known)
    exploration = explored(store, slot, until=end, version=version)
    return SlotDay(
        trajectories=stats.trajectories,
        mean_reward=stats.mean_reward,
        success=sum(group.count for group in known if group.success) / decided if decided else None,
        turns=stats.turns / stats.trajectories if stats.trajectories else None,
        mean_cost_usd=_mean_cost(stats.groups),
        exploration=exploration.to_json() if exploration.count else {},
    )


def _mean_cost(groups: Sequence[Group]) -> float | None:
    known = [(group.count, group.mean_cost_usd) for group in groups if group.mean_cost_usd is not None]
    return sum(count * cost for count, cost in known) / sum(count for count, _ in known) if known else None


def total_cost(costs: Sequence[Cost]) -> Cost:
    return Cost(**{name: sum(getattr(cost, name) for cost in costs) for name in Cost.__struct_fields__})


def yesterday(now: datetime) -> datetime:
    """The beginning of the day before, UTC."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return today - timedelta(days=1)


def day_file(folder: Path, day: datetime) -> Path:
    return folder / f"{day:%Y-%m-%d}.json"


def is_written(path: Path, now: datetime) -> bool:
    """Whether a summary is there. One that a clock ahead of this one wrote may be of a day that had not ended."""
    if not path.exists():
        return False
    try:
        written = msgspec.json.decode(path.read_bytes(), type=DaySummary).written
    except msgspec.DecodeError:  # of a file that somebody edited
        return False
    return written is None or written <= now


def job_file(folder: Path, job: Job) -> Path:
    return folder / "jobs" / f"{job.id}.json"


def write_report(path: Path, content: DaySummary | Job, render: Render | None) -> None:
    """Write a page, and then its JSON: where that is, the report is complete."""
    make_folder(path.parent)
    if render is not None:
        render(content, path.with_suffix(".html"))
    replace_file(path, msgspec.json.format(msgspec.json.encode(content), indent=1))
