"""Training jobs: what one is, its states, and the ports to the queue, to the leader's lease and to what runs a job."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol

from msgspec import Meta, Struct, field

from etude.contracts.decision import Amount, Name
from etude.contracts.errors import JobError
from etude.contracts.release import Slot
from etude.contracts.training import JobError as Failure
from etude.contracts.training import Progress, TrainingRequest
from etude.contracts.trajectory import Id, PolicyVersion, Time

ID_DIGITS = 10


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    # Back to queued: its owner ended and released it; nothing failed.
    JobState.RUNNING: frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.QUEUED}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset({JobState.QUEUED}),
    JobState.CANCELLED: frozenset(),
}
"""State → next states; whatever is not here is refused."""


class Stage(StrEnum):
    """How far the policy of a completed job came; the registry has the rest."""

    TRAINED = "trained"
    REGISTERED = "registered"
    UNDECIDED = "undecided"  # the gates cannot tell: they run again later
    PASSED = "passed"  # the gates; it waits until the slot has no other candidate
    REFUSED = "refused"  # by a gate
    STARTED = "started"  # shadow, canary or direct: the release takes over
    SUPERSEDED = "superseded"  # a newer candidate of the slot came first


STAGES: Mapping[Stage | None, frozenset[Stage]] = {
    None: frozenset({Stage.TRAINED}),
    Stage.TRAINED: frozenset({Stage.REGISTERED, Stage.SUPERSEDED}),
    Stage.REGISTERED: frozenset({Stage.PASSED, Stage.REFUSED, Stage.UNDECIDED, Stage.SUPERSEDED}),
    Stage.UNDECIDED: frozenset({Stage.PASSED, Stage.REFUSED, Stage.UNDECIDED, Stage.SUPERSEDED}),
    Stage.PASSED: frozenset({Stage.STARTED, Stage.SUPERSEDED}),
    Stage.REFUSED: frozenset(),
    Stage.STARTED: frozenset(),
    Stage.SUPERSEDED: frozenset(),
}
"""Stage → next stages."""
OPEN_STAGES = tuple(stage for stage, then in STAGES.items() if stage is not None and then)
"""Stages after which the loop still has something to do."""


class Lease(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who runs a job."""

    owner: Name
    left_s: float
    """Seconds until another owner may claim the job, when it was read; at most 0 once it has expired."""


class Cost(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job used, all attempts together."""

    usd: Amount = 0.0
    cpu_hours: Amount = 0.0
    gpu_hours: Amount = 0.0
    wall_hours: Amount = 0.0
    """Hours for which a process ran."""


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One training: what was requested, and how far it is."""

    id: Id
    slot: Slot
    """The slot that its policy is a candidate for."""
    request: TrainingRequest
    """What is to be trained: problem, method, trigger, priority, settings, limits."""
    created: Time
    state: JobState = field(default_factory=lambda: JobState.QUEUED)  # a default of this kind is not omitted
    attempts: Annotated[int, Meta(ge=0)] = 0
    """Number of claims; the number of a claim fences off the owners of earlier ones."""
    failures: Annotated[int, Meta(ge=0)] = 0
    """Number of failures since it was queued by a person or a trigger; a claim that was lost is none."""
    lease: Lease | None = None
    not_before: Time | None = None
    """When a failed job is tried again."""
    cancel_requested: bool = False
    progress: Progress = Progress()
    dataset: str = ""
    """Folder or URL of its dataset."""
    dataset_id: str = ""
    data_until: Time | None = None
    """Start of the newest trajectory in its dataset: later ones are new."""
    run: str = ""
    """Its run folder."""
    version: PolicyVersion | None = None
    """The policy that it trained."""
    cost: Cost = Cost()
    error: Failure | None = None
    """Why its last attempt failed."""
    started: Time | None = None
    """When it was first claimed."""
    ended: Time | None = None
    stage: Stage | None = None
    stage_note: str = ""
    stage_time: Time | None = None

    @property
    def problem(self) -> str:
        return self.slot.partition(":")[0]

    @property
    def method(self) -> str:
        return self.request.method

    @property
    def priority(self) -> int:
        return self.request.priority


class Change(Struct, frozen=True, kw_only=True):
    """A job after a change of its state or progress, to be published."""

    number: int
    """Place among the changes of all jobs."""
    revision: int
    """Place among the changes of its job, from 1: with the job's id it names the change wherever it is published."""
    time: Time
    job: Job


class SlotDay(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The traffic of a slot on one day."""

    trajectories: int = 0
    mean_reward: float | None = None
    success: float | None = None
    """Share of the trajectories with a known outcome that succeeded."""
    turns: float | None = None
    """Turns per trajectory."""
    mean_cost_usd: float | None = None
    exploration: dict[str, Any] = {}
    """Exploration health of the last days, with named warnings; empty if no decision lists its options."""


class DaySummary(Struct, frozen=True, kw_only=True):
    """What happened on one day, UTC."""

    day: str
    """YYYY-MM-DD."""
    jobs: tuple[Job, ...]
    """Jobs that were queued or ended on that day."""
    slots: dict[str, SlotDay]
    cost: Cost
    """Of these jobs."""
    start_s: float | None
    """Longest time from the trigger of a job to its start, in seconds."""
    steps: tuple[str, ...]
    """Steps of releases, in words."""
    written: Time | None = None
    """When, by the clock of the loop."""


def job_id(key: str) -> str:
    """The id of the job with this cause: the same cause gives the same job."""
    return f"job-{hashlib.sha256(key.encode()).hexdigest()[:ID_DIGITS]}"


def check_transition(job: Job, state: JobState) -> None:
    if state not in TRANSITIONS[job.state]:
        allowed = ", ".join(sorted(TRANSITIONS[job.state])) or "nothing else"
        raise JobError(f"job {job.id} is {job.state}, so it cannot become {state}: expected {allowed}")


def check_stage(job: Job, stage: Stage) -> None:
    if job.state != JobState.COMPLETED or stage not in STAGES[job.stage]:
        allowed = ", ".join(sorted(STAGES[job.stage])) or "nothing else"
        raise JobError(
            f"the policy of job {job.id} ({job.state}) is {job.stage or 'not trained'}, so it cannot become {stage}: "
            f"expected {allowed}"
        )


class JobQueue(Protocol):
    """A durable queue of jobs for any number of processes.

    Each call is one transaction: it happened whole or not at all, and survives the death of the process and of the
    machine. Leases and back-offs are measured on a clock that setting the time of day does not touch. A claim is
    named by (id, owner, attempts): calls of an owner whose claim was lost change nothing and say so. Every change of
    state is recorded in the same transaction, until it is settled. JobError if the queue cannot be read or written.
    """

    def submit(self, job: Job) -> bool:
        """Queue a job; False if one with this id is there, which stays as it is."""

    def claim(self, owner: str, *, lease_s: float, fence: int = 0) -> Job | None:
        """The job to run next, leased to the owner: highest priority first, then the one that was queued first.

        A job whose lease expired can be claimed again, without a failure; if its cancellation was requested, it
        becomes cancelled instead. None if there is none. JobError if a leader with a higher `fence` leads by now.
        """

    def heartbeat(self, job: Job, *, lease_s: float) -> Job | None:
        """Renew the lease, and store progress, cost, dataset and run folder of `job`; None if the claim was lost.

        The returned job says whether its cancellation was requested. A change of the progress by a whole percent is
        recorded as a change.
        """

    def finish(self, job: Job, *, version: str) -> Job | None:
        """Complete a job with its policy; None if the claim was lost."""

    def fail(self, job: Job, error: Failure) -> Job | None:
        """Record a failure; None if the claim was lost.

        A retryable one queues the job again with exponential back-off, up to the queue's number of retries.
        """

    def stop(self, job: Job) -> Job | None:
        """Give a claim back: cancelled if that was requested, else queued, without a failure; None if it was lost."""

    def cancel(self, id: str) -> Job:
        """Cancel a queued job at once; the owner of a running one sees it at its next heartbeat.

        JobError if it ended.
        """

    def retry(self, id: str) -> Job:
        """Queue a failed job again, with all its retries. JobError if it did not fail."""

    def advance(self, id: str, stage: Stage, note: str = "") -> Job:
        """Record how far the policy of a completed job came. JobError if `STAGES` does not have the step."""

    def find(self, id: str) -> Job:
        """A job by id, or by a prefix that only one id has. JobError if there is none."""

    def jobs(
        self,
        *,
        slot: str | None = None,
        states: Sequence[JobState] = (),
        stages: Sequence[Stage] = (),
        after: str | None = None,
        limit: int | None = None,
    ) -> list[Job]:
        """Jobs, the last queued first; empty sequences are no condition. `after` is the id of a job: those that were
        queued before it; none for an unknown one."""

    def changes(self, *, limit: int = 100) -> list[Change]:
        """Changes that are not settled, in order."""

    def settle(self, numbers: Sequence[int]) -> None:
        """Remove changes that were published; a repeated call is harmless."""

    def close(self) -> None:
        """Close the queue; a second call does nothing."""


class Leader(Protocol):
    """At most one leader at a time, by a lease. Each term has a higher fencing number than those before."""

    def lead(self, owner: str, *, lease_s: float) -> int | None:
        """The number of the owner's term, new or renewed; None while another leads."""

    def leader(self) -> Lease | None:
        """Who leads now."""

    def resign(self, owner: str) -> None:
        """End the owner's term, so that another can lead at once; nothing if it does not lead."""


class Ended(Struct, frozen=True, kw_only=True):
    """How the process of a job ended."""

    version: PolicyVersion | None = None
    """The policy, if it trained one."""
    error: Failure | None = None
    """Why it failed; neither means that it was stopped."""


class RunningJob(Protocol):
    """A job that a runner has started."""

    def poll(self) -> Ended | None:
        """None while it runs. It enforces the limits of memory and time."""

    def progress(self) -> Progress: ...

    def cost(self) -> Cost:
        """What this attempt used so far."""

    def stop(self) -> None:
        """End it, and return when it has ended; its finished work stays in its run folder."""


class JobRunner(Protocol):
    """Starts jobs: as processes on this machine, or on a cluster."""

    def start(self, job: Job, *, checkpoint: Path | None) -> RunningJob | None:
        """Start or resume the run of a job with a dataset and a run folder; `checkpoint` is the policy it continues.

        A run that has ended is not repeated. None while a process of an earlier claim still runs: try again later.
        """
