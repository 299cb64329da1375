"""Settings of the loop: when jobs start, what they may use, who is notified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Gt, Le, MinLen


@dataclass(frozen=True, kw_only=True)
class WebhookConfig:
    """Who is notified of promotions, rollbacks and failures."""

    urls: tuple[str, ...] = ()
    """URLs that get a POST with JSON."""
    escalate_urls: tuple[str, ...] = ()
    """URLs that get it when no one acknowledged; empty posts it to the first ones again."""
    escalate_after_minutes: Annotated[float, Gt(0)] = 30.0
    """Minutes without `etude loop ack` after which a rollback or failure is posted again, up to three times."""
    timeout_s: Annotated[float, Gt(0), Le(60)] = 5.0
    """Seconds to wait for an answer."""


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """When a slot is trained, what its job may use, and who is notified."""

    threshold: Annotated[int, Ge(1)] = 1_000
    """Number of new rewarded trajectories that start a job."""
    min_hours_between: Annotated[float, Ge(0)] = 24.0
    """Hours between two jobs of a slot that the loop starts; 24 is at most one per day."""
    schedule: str | None = "0 3 * * 1"
    """Cron expression of regular jobs, such as weekly on Monday at 3:00; null has none."""
    timezone: Annotated[str, MinLen(1)] = "UTC"
    """Time zone of the schedule, such as Europe/Berlin."""
    window_days: Annotated[float, Gt(0)] | None = None
    """Days of experience that a job of the loop learns from; null is all of it. Where options, prices or users change,
    older experience is about another world."""
    drift: bool = True
    """Whether drifted inputs or rewards start a job."""
    slots: tuple[str, ...] = ()
    """Slots to train, such as choice:model; empty trains every slot with experience."""
    methods: Mapping[str, str] = field(default_factory=dict)
    """Learning method by problem; from-logs for those that are not named."""
    priority: Annotated[int, Ge(0), Le(9)] = 5
    """Priority of jobs that the loop starts; 9 runs first."""
    parallel: Annotated[int, Ge(1)] = 1
    """Number of jobs that run at the same time."""
    max_memory_mb: Annotated[float, Gt(0)] | None = 4096.0
    """Memory in MB above which a job is stopped; null is no limit."""
    max_hours: Annotated[float, Gt(0)] | None = 4.0
    """Hours after which a job is stopped; null is no limit."""
    nice: Annotated[int, Ge(0), Le(19)] = 10
    """How far a job steps back behind other processes, from 0 to 19."""
    retries: Annotated[int, Ge(0)] = 3
    """Number of retries of a job that failed for a reason that may pass."""
    backoff_s: Annotated[float, Gt(0)] = 60.0
    """Seconds before the first retry; each later one waits twice as long."""
    poll_s: Annotated[float, Gt(0)] = 5.0
    """Seconds between two looks at what is due."""
    lease_s: Annotated[float, Gt(0)] = 30.0
    """Seconds after which another process takes over from one that died."""
    regate_hours: Annotated[float, Gt(0)] = 1.0
    """Hours after which gates that could not decide run again."""
    usd_per_cpu_hour: Annotated[float, Ge(0)] = 0.05
    """Price of an hour of one CPU core in USD."""
    usd_per_gpu_hour: Annotated[float, Ge(0)] = 2.50
    """Price of an hour of one GPU in USD."""
    runs: Annotated[str, MinLen(1)] = "runs"
    """Folder of the run folders."""
    datasets: Annotated[str, MinLen(1)] = "datasets"
    """Folder of the datasets, below experience.blobs if that is set."""
    webhooks: WebhookConfig = field(default_factory=WebhookConfig)
    """Who is notified."""
