"""The events of training jobs on the bus: requests become jobs, changes of jobs become status events."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from datetime import datetime
from pathlib import Path

from etude.contracts.errors import ConfigError, EtudeError
from etude.contracts.jobs import Change, Job, JobState, job_id
from etude.contracts.training import Artifact, TrainingRequest, TrainingStatus
from etude.contracts.training import JobError as Failure
from etude.learning.checkpoint import MANIFEST
from etude.learning.run_folder import RunFolder
from etude.loop.runner import read_metrics_row
from etude.problems.table import find_spec

NOT_METRICS = frozenset({"step", "wall_s", "time"})


def job_of(request: TrainingRequest, slots: Collection[str], now: datetime, *, id: str | None = None) -> Job:
    """The job of a request, the same one for the same request; ConfigError if it cannot be learned.

    `slots` are those with experience: a problem with one slot needs no name of it.
    """
    slot = find_slot(request, slots)
    find_spec(slot.partition(":")[0]).check_method(request.method)
    return Job(id=id or job_id(f"request:{request.id}"), slot=slot, request=request, created=now)


def find_slot(request: TrainingRequest, slots: Collection[str]) -> str:
    """The slot that a request is about: named by its problem, by its dataset, or the only one of its problem."""
    problem, asked = request.problem, request.dataset.problem
    if asked is not None and asked.partition(":")[0] != problem.partition(":")[0]:
        raise ConfigError(f"the request is about {problem!r}, and its dataset about {asked!r}: leave one of them out")
    if asked is not None or ":" in problem:
        return asked if asked is not None and ":" not in problem else problem
    own = sorted(slot for slot in slots if slot.partition(":")[0] == problem)
    if len(own) > 1:
        raise ConfigError(f"the problem {problem!r} has the slots {', '.join(own)}: name one of them")
    return own[0] if own else problem


def status_of(change: Change) -> TrainingStatus:
    """The event of a change; its id is always the same, so a repeated one is dropped."""
    job = change.job
    return TrainingStatus(
        id=f"{job.id}.{change.revision}",
        time=change.time,
        job_id=job.id,
        request_id=job.request.id,
        problem=job.slot,
        status=job.state.value,
        progress=job.progress,
        metrics=_metrics(job) if job.state in (JobState.RUNNING, JobState.COMPLETED) else {},
        artifacts=_artifacts(job),
        error=job.error if job.state == JobState.FAILED else None,
    )


def refusal_of(request: TrainingRequest, error: EtudeError, now: datetime) -> TrainingStatus:
    """The status of a request that cannot become a job."""
    name = job_id(f"request:{request.id}")
    return TrainingStatus(
        id=f"{name}.refused",
        time=now,
        job_id=name,
        request_id=request.id,
        problem=request.problem,
        status="failed",
        error=Failure(kind=type(error).__name__, message=str(error)),
    )


def _metrics(job: Job) -> dict[str, float]:
    row = read_metrics_row(Path(job.run)) if job.run else {}
    return {
        name: float(value)
        for name, value in row.items()
        if name not in NOT_METRICS and isinstance(value, int | float) and math.isfinite(value)
    }


def _artifacts(job: Job) -> tuple[Artifact, ...]:
    if job.version is None:
        return ()
    try:
        data = (RunFolder(Path(job.run)).policy().path / MANIFEST).read_bytes()
    except (EtudeError, OSError):  # its run was deleted: the registry has the policy
        return ()
    return (Artifact(name="policy", version=job.version, sha256=hashlib.sha256(data).hexdigest()),)
