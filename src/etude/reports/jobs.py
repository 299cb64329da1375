"""Pages of the loop: one per day, one per job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etude.contracts.formats import Format, duration, percent, plain, usd, whole
from etude.contracts.jobs import DaySummary, Job, JobState
from etude.reports.blocks import Section, Tile, View, table
from etude.reports.page import Page

NONE = "–"
EXPLORATION = (
    "Decisions of the last 8 days that list their options. The effective sample size is that of the uniform policy per "
    "1,000 decisions: how much they say about other policies."
)


def loop_page(content: DaySummary | Job, path: Path) -> Path:
    """Write the page of a day or of a job."""
    return (_day(content) if isinstance(content, DaySummary) else _job(content)).write(path)


def _day(day: DaySummary) -> Page:
    completed, failed = (sum(job.state == state for job in day.jobs) for state in (JobState.COMPLETED, JobState.FAILED))
    heads = ("trajectories", "reward", "success", "turns", "cost per task")
    traffic = [
        [
            slot,
            whole(found.trajectories),
            _or_dash(found.mean_reward, plain),
            _or_dash(found.success, percent),
            _or_dash(found.turns, plain),
            _or_dash(found.mean_cost_usd, usd),
        ]
        for slot, found in day.slots.items()
    ]
    explored = {slot: found.exploration for slot, found in day.slots.items() if found.exploration}
    sections = [
        Section(title="Traffic", body=[table(heads, traffic)] if traffic else [], note="" if traffic else "none"),
        Section(
            title="Exploration",
            body=[_exploration(explored)] if explored else [],
            note=EXPLORATION if explored else "none",
        ),
        Section(title="Jobs", body=[_jobs(day.jobs)] if day.jobs else [], note="" if day.jobs else "none"),
        Section(
            title="Releases",
            body=[table(("what happened",), [[step[:5], step[6:]] for step in day.steps])] if day.steps else [],
            note="" if day.steps else "none",
        ),
    ]
    return Page(
        title=f"Etude · {day.day}",
        heading=f"The loop on {day.day}",
        facts=["UTC"],
        tiles=[
            Tile("trajectories", whole(sum(slot.trajectories for slot in day.slots.values())), "collected"),
            Tile("jobs", whole(len(day.jobs)), f"{completed} completed, {failed} failed"),
            Tile("cost of jobs", usd(day.cost.usd), f"{day.cost.cpu_hours:.2f} CPU-hours"),
            Tile("longest wait", _or_dash(day.start_s, duration), "from trigger to start"),
        ],
        sections=sections,
    )


def _exploration(slots: Mapping[str, Mapping[str, Any]]) -> View:
    heads = ("decisions", "without exploration", "smallest propensity", "effective sample size", "warnings")
    rows = [
        [
            slot,
            whole(found["count"]),
            percent(found["certain_share"]),
            plain(found["least_propensity"]),
            whole(found["uniform_ess"]),
            "; ".join(found["warnings"].values()) or NONE,
        ]
        for slot, found in slots.items()
    ]
    return table(heads, rows)


def _jobs(jobs: Sequence[Job]) -> View:
    heads = ("slot", "method", "trigger", "state", "policy", "cost", "outcome")
    rows = [
        [
            job.id,
            job.slot,
            job.method,
            job.request.trigger,
            job.state.value,
            job.version or NONE,
            usd(job.cost.usd),
            _outcome(job),
        ]
        for job in jobs
    ]
    return table(heads, rows)


def _job(job: Job) -> Page:
    waited = (job.started - job.created).total_seconds() if job.started is not None else None
    rows = [
        ["slot", job.slot],
        ["method", job.method],
        ["trigger", job.request.trigger],
        ["queued", f"{job.created:%Y-%m-%d %H:%M:%S %Z}"],
        ["started", f"{job.started:%Y-%m-%d %H:%M:%S %Z}" if job.started else NONE],
        ["ended", f"{job.ended:%Y-%m-%d %H:%M:%S %Z}" if job.ended else NONE],
        ["attempts", str(job.attempts)],
        ["dataset", f"{job.dataset_id} {job.dataset}".strip() or NONE],
        ["run", job.run or NONE],
        ["policy", job.version or NONE],
        ["outcome", _outcome(job)],
    ]
    return Page(
        title=f"Etude · {job.id}",
        heading=f"Job {job.id}",
        state=job.state.value,
        facts=[job.slot, job.method, job.request.trigger],
        tiles=[
            Tile("cost", usd(job.cost.usd), "all attempts"),
            Tile("CPU-hours", f"{job.cost.cpu_hours:.3f}", "all attempts"),
            Tile("GPU-hours", f"{job.cost.gpu_hours:.3f}", "all attempts"),
            Tile("wait", _or_dash(waited, duration), "from trigger to start"),
        ],
        lead=job.error.message if job.error is not None else "",
        sections=[Section(title="Facts", body=[table(("",), rows)])],
    )


def _outcome(job: Job) -> str:
    if job.error is not None:
        return job.error.message
    return " ".join(part for part in (job.stage or "", job.stage_note and f"({job.stage_note})") if part) or NONE


def _or_dash(value: float | None, form: Format) -> str:
    return NONE if value is None else form(value)
