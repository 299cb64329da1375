"""The loop's events on the bus: requests become jobs, changes of jobs status events, steps of releases deployments."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from etude.contracts.deployment import CanaryStage, ModelDeployed
from etude.contracts.errors import ConfigError, EtudeError
from etude.contracts.jobs import Change, Job, JobState, job_id
from etude.contracts.release import Action, Entry, Mode, Slot
from etude.contracts.training import Artifact, TrainingRequest, TrainingStatus
from etude.contracts.training import JobError as Failure
from etude.learning.checkpoint import MANIFEST
from etude.learning.run_folder import RunFolder
from etude.loop.runner import read_metrics_row
from etude.problems.spec import FROM_LOGS
from etude.problems.table import find_spec

NOT_METRICS = frozenset({"step", "wall_s", "time"})


def job_of(request: TrainingRequest, slots: Collection[str], now: datetime, *, id: str | None = None) -> Job:
    """The job of a request, the same one for the same request; ConfigError if it cannot be learned.

    `slots` are those with experience: a problem with one slot needs no name of it.
    """
    slot = find_slot(request, slots)
    find_spec(slot.partition(":")[0]).check_method(request.method)
    return Job(id=id or job_id(f"request:{request.id}"), slot=slot, request=request, created=now)


def check_learnable(job: Job, slots: Collection[str]) -> None:
    """ConfigError if the job has no valid slot, or is to learn from logs and its slot has none."""
    try:
        msgspec.convert(job.slot, Slot)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"the slot is {job.slot!r}: expected PROBLEM or PROBLEM:NAME, such as choice:model"
        ) from error
    if job.method == FROM_LOGS and job.slot not in slots:
        there = f"there is experience of {', '.join(slots)}" if slots else "nothing was collected yet"
        raise ConfigError(f"there is no experience of {job.slot!r} to learn from: {there}")


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


EXPOSES = frozenset(
    {Action.STARTED, Action.ADVANCED, Action.PAUSED, Action.RESUMED, Action.HELD, Action.STOPPED, Action.PROMOTED,
     Action.ROLLED_BACK}
)  # fmt: skip
"""Steps that change which policies decide."""


def step_id(slot: str, entry: Entry) -> str:
    """The same for the same step, wherever it is published."""
    return f"{slot.partition(':')[0]}-{hashlib.sha256(slot.encode()).hexdigest()[:6]}.{entry.number}"


def deployed_of(slot: str, entry: Entry) -> ModelDeployed | None:
    """The event of a step that changes which policies decide; None for the others."""
    if entry.action not in EXPOSES or entry.version is None:
        return None
    serving, exposure = entry.serving, entry.serving.exposure
    is_after = exposure is not None and exposure.mode is Mode.HOLDBACK
    traffic = {} if serving.incumbent is None else {serving.incumbent: 1.0}
    if exposure is not None and exposure.share > 0:
        other = serving.previous if is_after else serving.incumbent
        traffic = {exposure.candidate: exposure.share, **({} if other is None else {other: 1 - exposure.share})}
    facts = entry.evidence
    return ModelDeployed(
        id=f"deployed-{step_id(slot, entry)}",
        time=entry.time,
        problem=slot,
        policy=entry.version,
        stage=_stage(entry),
        traffic=traffic,
        replaces=serving.previous if entry.version == serving.incumbent else serving.incumbent,
        canary=tuple(CanaryStage(share=share, minutes=facts["stage_minutes"]) for share in facts.get("stages", ())),
        canary_stage=exposure.stage if exposure is not None and exposure.mode is Mode.CANARY else None,
        reason=entry.reason,
    )


def _stage(entry: Entry) -> Literal["shadow", "canary", "hold", "experiment", "full", "rolled_back"]:
    exposure = entry.serving.exposure
    if entry.version == entry.serving.incumbent:
        return "full"
    if exposure is None or exposure.candidate != entry.version:
        return "rolled_back"
    if exposure.status != "running":
        return "hold"
    return {Mode.SHADOW: "shadow", Mode.CANARY: "canary", Mode.EXPERIMENT: "experiment", Mode.HOLDBACK: "full"}[
        exposure.mode
    ]  # type: ignore[return-value]


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
