"""The coordinator: looks at what is stored, does what is due, and does nothing twice.

A tick is the list `STEPS`, in order: ingest → requests → triggers → jobs → register → gates → start → reconcile →
publish → notify → summarise. Each step is a small function over stored state. It can be killed anywhere: what it did
is found by the next tick, since jobs, datasets, events and notices are named by their cause. One coordinator leads at
a time; another one waits, and takes over when the leader's lease has expired.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from etude.contracts.blobs import BlobStore
from etude.contracts.bus import EventBus, message_of
from etude.contracts.errors import ConfigError, DatasetError, EtudeError, EventError, StoreError
from etude.contracts.jobs import (
    OPEN_STAGES,
    Cost,
    Ended,
    Job,
    JobQueue,
    JobRunner,
    JobState,
    Leader,
    RunningJob,
    Stage,
    job_id,
)
from etude.contracts.query import Where
from etude.contracts.release import Action, Entry, Serving, State
from etude.contracts.store import ExperienceStore
from etude.contracts.subjects import TRAINING, decode
from etude.contracts.training import JobError as Failure
from etude.contracts.training import TrainingRequest
from etude.evidence.overlap import Verdict
from etude.experience.datasets import DatasetConfig, create, read_manifest, verify
from etude.loop.config import LoopConfig
from etude.loop.events import deployed_of, job_of, refusal_of, status_of
from etude.loop.notify import Notices, notice_of_failure, notice_of_refusal, notice_of_release
from etude.loop.summary import (
    Render,
    day_file,
    is_written,
    job_file,
    summarise_day,
    total_cost,
    write_report,
    yesterday,
)
from etude.loop.triggers import MAX_AHEAD, Due, Facts, Waiting, decide
from etude.problems.spec import FROM_LOGS
from etude.problems.table import find_spec, names

GROUP = "loop"
"""The consumer of training requests."""
DOCUMENT, BEGAN, CURSOR = "loop", "began", "cursor:"
"""The kind of document of the coordinator; when the loop first ran; the last step of a slot that was looked at."""
JUDGED = frozenset({State.REGISTERED, State.PASSED, State.REFUSED})
"""States in which gates judge a version; in the others it was exposed before."""
BATCH = 100
MICROSECOND = timedelta(microseconds=1)
BUSY_POLL_S = 0.25
"""Seconds between ticks while a job or gates run."""

log = logging.getLogger("etude")

T = TypeVar("T")


class Releases(Protocol):
    """What the coordinator asks of releases. Every call can be repeated; ReleaseError if it cannot be done now."""

    def slots(self) -> Sequence[str]:
        """Slots with a registered policy."""

    def register(self, run_folder: Path, slot: str, lineage: Mapping[str, Any]) -> str:
        """Register the policy of a run as a candidate; returns its version. A registered one stays as it is."""

    def gate(self, version: str, slot: str) -> Verdict:
        """Judge a registered version by every gate, and store the report with it. It may take minutes."""

    def start(self, version: str, slot: str) -> str:
        """Expose a version that passed its gates; returns how, in a sentence."""

    def reconcile(self, slot: str) -> Sequence[Entry]:
        """Do what the release of a slot has due: advance, promote, roll back, hold; returns these steps."""

    def serving(self, slot: str) -> Serving: ...

    def history(self, slot: str, *, after: int = 0) -> Sequence[Entry]:
        """The steps of a slot with higher numbers."""

    def folder(self, version: str) -> Path | None:
        """The artefact of a registered version, to continue from; None if its files were deleted."""


@dataclass(kw_only=True)
class Claimed:
    """A job that this coordinator runs; without a process while its dataset is made, or an earlier process ends."""

    job: Job
    process: RunningJob | None = None
    before: Cost = field(default_factory=Cost)  # of earlier attempts


@dataclass(kw_only=True)
class Gating:
    """Gates that run in a thread, since canaries must not wait for them."""

    thread: threading.Thread
    results: list[Verdict | EtudeError]


@dataclass(frozen=True, kw_only=True)
class Tick:
    """What one look at everything brought."""

    happened: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    is_busy: bool = False
    """Whether jobs or gates are running."""
    leads: bool = True


@dataclass(kw_only=True)
class Coordinator:
    """The loop of this machine."""

    config: LoopConfig
    reward_version: int
    bus: EventBus
    store: ExperienceStore
    queue: JobQueue
    leader: Leader
    runner: JobRunner
    releases: Releases | None
    """None only trains."""
    notices: Notices
    datasets: Callable[[str], BlobStore]
    """Opens the place of a dataset."""
    ingest: Callable[[], int]
    """Ingests pending events, with their rewards; returns how many."""
    reports: Path
    """Folder of daily summaries and job reports."""
    render: Render | None
    """Writes their pages; None writes JSON only."""
    owner: str
    clock: Callable[[], datetime]
    drift: Callable[[str, datetime | None], str] = lambda slot, learned: ""
    """How a slot drifted since its newest training data, in words; empty if it did not."""
    claimed: dict[str, Claimed] = field(default_factory=dict)
    gating: dict[str, Gating] = field(default_factory=dict)
    term: int = 0
    """Fencing number of this leader."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held to change `claimed`, which `renew` reads from another thread."""
    problems: list[str] = field(default_factory=list)
    """What could not be done in this tick."""

    def tick(self) -> Tick:
        """Do everything that is due. A step that fails does not stop the others: the next tick tries it again."""
        term = self.leader.lead(self.owner, lease_s=self.config.lease_s)
        if term is None:
            self.stop()
            return Tick(leads=False)
        self.term, self.problems = term, []
        happened = self.each(STEPS, lambda step: step(self), lambda step: step.__name__.replace("_", " "))
        is_busy = bool(self.claimed) or bool(self.gating)
        return Tick(happened=tuple(happened), problems=tuple(self.problems), is_busy=is_busy)

    def each(self, items: Iterable[T], do: Callable[[T], list[str]], name: Callable[[T], str]) -> list[str]:
        """What happened to each of them. The error of one is a problem of this tick, and does not stop the others."""
        happened = list[str]()
        for item in items:
            try:
                happened += do(item)
            except (EtudeError, OSError) as error:
                self.problems.append(f"{name(item)}: {error}")
        return happened

    def renew(self) -> None:
        """Renew the leases of the leader and of its jobs; called from another thread while a step takes long."""
        with self.lock:
            if self.term and self.leader.lead(self.owner, lease_s=self.config.lease_s) is not None:
                for claimed in self.claimed.values():
                    self.queue.heartbeat(claimed.job, lease_s=self.config.lease_s)

    def stop(self) -> None:
        """End the processes of jobs; they are queued again and resume where they stopped."""
        for claimed in list(self.claimed.values()):
            _stop(self, claimed)

    def resign(self) -> None:
        """Stop, and let another coordinator lead at once."""
        self.stop()
        with self.lock:
            self.term = 0
            self.leader.resign(self.owner)

    def slots(self) -> dict[str, str]:
        """Slots to train, with the method of each, from the settings or from what was collected."""
        groups = self.store.stats(Where(), version=self.reward_version).groups
        found = self.config.slots or sorted({group.problem for group in groups})
        methods = {slot: self.config.methods.get(slot.partition(":")[0], FROM_LOGS) for slot in found}
        return {slot: method for slot, method in methods.items() if _learns(slot, method)}

    def facts(self, slot: str) -> Facts:
        jobs = self.queue.jobs(slot=slot)  # the last first
        active = next((job.id for job in jobs if job.state in (JobState.QUEUED, JobState.RUNNING)), "")
        latest = self.clock() + MAX_AHEAD  # what lies behind it is of a clock that was wrong
        known = (job.data_until for job in jobs if job.state == JobState.COMPLETED and job.data_until)
        learned = next((until for until in known if until <= latest), None)
        last = jobs[0].created if jobs else None
        new = Where(problem=slot, since=learned and learned + MICROSECOND, min_confidence=0.0)
        return Facts(
            slot=slot,
            new=self.store.stats(new, version=self.reward_version).trajectories,
            jobs=len(jobs),
            last=last,
            since=last or self.began(),
            active=active,
            drift=self.drift(slot, learned) if self.config.drift else "",
        )

    def waits(self) -> dict[str, str]:
        """What each slot waits for, in a sentence."""
        found = {slot: decide(self.facts(slot), self.config, self.clock()) for slot in self.slots()}
        return {slot: one.reason if isinstance(one, Waiting) else f"due: {one.reason}" for slot, one in found.items()}

    def began(self) -> datetime:
        """When the loop first ran here: the schedule applies from then on."""
        stored = self.store.documents(DOCUMENT).get(BEGAN)
        if stored is None:
            stored = self.clock().isoformat().encode()
            self.store.put(DOCUMENT, BEGAN, stored)
        return datetime.fromisoformat(stored.decode())


def _learns(slot: str, method: str) -> bool:
    problem = slot.partition(":")[0]
    return problem in names() and method in find_spec(problem).learners


def ingest(loop: Coordinator) -> list[str]:
    """Store and reward what agents published."""
    count = loop.ingest()
    return [f"{count:,} events ingested"] if count else []


def take_requests(loop: Coordinator) -> list[str]:
    """Training requests on the bus become jobs; one that cannot be learned is buried, and its sender is answered."""
    happened = []
    while deliveries := loop.bus.pull(TRAINING, GROUP, limit=BATCH, timeout_s=0.0):
        done = []
        for delivery in deliveries:
            try:
                event = decode(delivery.message.body, subject=delivery.message.subject)
            except EventError as error:
                loop.bus.bury(delivery, reason=str(error))
                continue
            if isinstance(event, TrainingRequest):
                try:
                    job = job_of(event, loop.slots(), loop.clock())
                except ConfigError as error:
                    loop.bus.publish([message_of(refusal_of(event, error, loop.clock()))])
                    loop.bus.bury(delivery, reason=str(error))
                    happened.append(f"request {event.id} refused: {error}")
                    continue
                if loop.queue.submit(job):
                    happened.append(f"job {job.id} of {job.slot} queued: requested by {event.requested_by or event.id}")
            done.append(delivery)  # status events are for others
        loop.bus.ack(done)
    return happened


def trigger(loop: Coordinator) -> list[str]:
    """Queue a job for each slot that is due."""
    happened, now = [], loop.clock()
    for slot, method in loop.slots().items():
        due = decide(loop.facts(slot), loop.config, now)
        if not isinstance(due, Due):
            continue
        key = job_id(due.key)
        request = TrainingRequest(
            id=key,
            time=now,
            problem=slot,
            method=method,
            dataset=Where(since=_window_start(loop.config, now)),
            reward_version=loop.reward_version,
            trigger=due.trigger,
            priority=loop.config.priority,
            requested_by=GROUP,
        )
        if loop.queue.submit(Job(id=key, slot=slot, request=request, created=now)):
            happened.append(f"job {key} of {slot} queued: {due.reason}")
    return happened


def _window_start(config: LoopConfig, now: datetime) -> datetime | None:
    return None if config.window_days is None else now - timedelta(days=config.window_days)


def run_jobs(loop: Coordinator) -> list[str]:
    """Look after the jobs of this coordinator, and claim others up to loop.parallel."""
    happened = []
    for claimed in list(loop.claimed.values()):
        happened += _look_after(loop, claimed)
    while len(loop.claimed) < loop.config.parallel:
        with loop.lock:
            job = loop.queue.claim(loop.owner, lease_s=loop.config.lease_s, fence=loop.term)
            if job is None:
                break
            claimed = loop.claimed[job.id] = Claimed(job=job, before=job.cost)
        again = f", attempt {job.attempts}" if job.attempts > 1 else ""
        happened += [f"job {job.id} of {job.slot} started{again}", *_look_after(loop, claimed)]
    return happened


def _look_after(loop: Coordinator, claimed: Claimed) -> list[str]:
    """Start a job, renew its lease with its progress, or settle how it ended."""
    if claimed.process is None:
        try:
            if not _prepare(loop, claimed):
                return _lose(loop, claimed)
            claimed.process = loop.runner.start(claimed.job, checkpoint=_checkpoint(loop, claimed.job))
        except (EtudeError, OSError) as error:
            passing = isinstance(error, StoreError | OSError)
            failure = Failure(kind=type(error).__name__, message=str(error), retryable=passing)
            return _settle(loop, claimed, Ended(error=failure))
    ended = claimed.process.poll() if claimed.process is not None else None
    if ended is not None:
        return _settle(loop, claimed, ended)
    progress = claimed.process.progress() if claimed.process is not None else claimed.job.progress
    with loop.lock:
        claimed.job = replace(_with_cost(claimed), progress=progress)
        stored = loop.queue.heartbeat(claimed.job, lease_s=loop.config.lease_s)
    if stored is not None and not stored.cancel_requested:
        return []
    if stored is None:
        return _lose(loop, claimed)
    _stop(loop, claimed)
    return [f"job {claimed.job.id} of {claimed.job.slot} cancelled"]


def _lose(loop: Coordinator, claimed: Claimed) -> list[str]:
    _stop(loop, claimed)
    return [f"job {claimed.job.id} of {claimed.job.slot} lost to another coordinator"]


def _stop(loop: Coordinator, claimed: Claimed) -> None:
    if claimed.process is not None:
        claimed.process.stop()
    with loop.lock:
        loop.claimed.pop(claimed.job.id)
        loop.queue.stop(_with_cost(claimed))


def _prepare(loop: Coordinator, claimed: Claimed) -> bool:
    """Freeze the dataset of a job that learns from logs, once; and name its run folder. False if the lease was lost.

    Each attempt has names of its own: a coordinator that was frozen may still write what its successor makes again.
    """
    job, config = claimed.job, loop.config
    name = job.id if job.attempts == 1 else f"{job.id}-{job.attempts}"
    if is_damaged(loop, job):  # what it has is left as it is: a run belongs to one dataset
        job = replace(job, run="", dataset="")
    prepared = replace(job, run=job.run or str(Path(config.runs) / name))
    if job.method == FROM_LOGS and not job.dataset:
        place, held_out = f"{config.datasets}/{name}", job.request.evaluation.holdout
        blobs = loop.datasets(place)
        manifest = read_manifest(blobs) or create(
            loop.store,
            blobs,
            problem=job.slot,
            where=replace(job.request.dataset, problem=job.slot),
            version=job.request.reward_version,
            config=DatasetConfig(shares=(1 - held_out, held_out / 2, held_out / 2)),
            time=loop.clock(),
            source=GROUP,
        )
        prepared = replace(prepared, dataset=place, dataset_id=manifest.id, data_until=manifest.last)
    with loop.lock:
        claimed.job = prepared
        return loop.queue.heartbeat(prepared, lease_s=config.lease_s) is not None


def is_damaged(loop: Coordinator, job: Job) -> bool:
    """Whether the dataset of a job was altered or lost since it was made; it is then made again from the store."""
    if not job.dataset:
        return False
    try:
        verify(loop.datasets(job.dataset))
    except DatasetError:
        return True
    return False


def _checkpoint(loop: Coordinator, job: Job) -> Path | None:
    """The policy to continue from: the requested one, or the incumbent where learning from logs continues it."""
    version = job.request.policy
    if version is None and job.method == FROM_LOGS and find_spec(job.problem).continues and loop.releases is not None:
        version = loop.releases.serving(job.slot).incumbent
    if version is None:
        return None
    found = loop.releases.folder(version) if loop.releases is not None else None
    if found is None:
        raise ConfigError(f"policy {version!r} is not registered, or its files were deleted: name another one")
    return found


def _with_cost(claimed: Claimed) -> Job:
    used = claimed.process.cost() if claimed.process is not None else Cost()
    return replace(claimed.job, cost=total_cost([claimed.before, used]))


def _settle(loop: Coordinator, claimed: Claimed, ended: Ended) -> list[str]:
    with loop.lock:
        job = loop.claimed.pop(claimed.job.id).job
        final = _with_cost(claimed)
        if ended.version is not None:
            stored = loop.queue.finish(final, version=ended.version)
        else:
            error = ended.error or Failure(kind="Stopped", message="it was stopped", retryable=True)
            stored = loop.queue.fail(final, error if error.retryable else _with_cause(loop, final, error))
    if stored is None:
        return [f"job {job.id} of {job.slot} lost to another coordinator"]
    if stored.state == JobState.COMPLETED:
        return [f"job {job.id} of {job.slot} completed: policy {stored.version}"]
    assert stored.error is not None
    then = f"; tried again at {stored.not_before:%H:%M:%S}" if stored.not_before else ""
    return [f"job {job.id} of {job.slot} failed: {stored.error.message}{then}"]


def _with_cause(loop: Coordinator, job: Job, error: Failure) -> Failure:
    """A failure that comes from a damaged dataset may pass, since the next attempt has another one."""
    try:
        return replace(error, retryable=is_damaged(loop, job))
    except StoreError:
        return error


def register(loop: Coordinator) -> list[str]:
    """Register the policies of completed jobs as candidates."""
    if loop.releases is None:
        return []
    jobs = reversed(loop.queue.jobs(stages=[Stage.TRAINED]))
    return loop.each(jobs, lambda job: _register(loop, job), lambda job: f"register {job.id}")


def _register(loop: Coordinator, job: Job) -> list[str]:
    assert loop.releases is not None
    lineage = {"job": job.id, "trigger": job.request.trigger, "dataset": job.dataset_id, "run": job.run}
    _cursor(loop, job.slot)  # what happens from now on is reported
    version = loop.releases.register(Path(job.run), job.slot, lineage)
    state = loop.releases.history(job.slot)[-1].states[version]
    if state not in JUDGED:  # the job learned nothing new
        loop.queue.advance(job.id, Stage.SUPERSEDED, f"it is {state.replace('_', ' ')} already")
        return [f"policy {version} of {job.slot} is {state.replace('_', ' ')} already"]
    loop.queue.advance(job.id, Stage.REGISTERED)
    return [f"policy {version} registered as a candidate of {job.slot}"]


def gate(loop: Coordinator) -> list[str]:
    """Judge candidates by the gates, one at a time; those that could not decide run again later."""
    if loop.releases is None:
        return []
    happened = [line for id in list(loop.gating) for line in _gated(loop, id)]
    waiting = [] if loop.gating else reversed(loop.queue.jobs(stages=[Stage.REGISTERED, Stage.UNDECIDED]))
    for job in waiting:
        if job.stage == Stage.REGISTERED or _may_regate(job, loop):
            loop.gating[job.id] = _start_gates(loop.releases, job)
            happened.append(f"gates of {job.version} ({job.slot}) started")
            break
    return happened


def _may_regate(job: Job, loop: Coordinator) -> bool:
    age = loop.clock() - (job.stage_time or job.created)
    return not timedelta() <= age < timedelta(hours=loop.config.regate_hours)


def _start_gates(releases: Releases, job: Job) -> Gating:
    results = list[Verdict | EtudeError]()
    version = job.version
    assert version is not None

    def judge() -> None:
        try:
            results.append(releases.gate(version, job.slot))
        except EtudeError as error:
            results.append(error)

    thread = threading.Thread(target=judge, name=f"gates-{job.id}", daemon=True)
    thread.start()
    return Gating(thread=thread, results=results)


def _gated(loop: Coordinator, id: str) -> list[str]:
    if loop.gating[id].thread.is_alive():
        return []
    results = loop.gating.pop(id).results
    job, found = loop.queue.find(id), results[0] if results else ConfigError("the gates ended unexpectedly")
    if job.stage not in (Stage.REGISTERED, Stage.UNDECIDED):  # superseded meanwhile
        return []
    stages = {Verdict.PASS: Stage.PASSED, Verdict.FAIL: Stage.REFUSED, Verdict.CANNOT_TELL: Stage.UNDECIDED}
    stage = stages[found] if isinstance(found, Verdict) else Stage.UNDECIDED
    note = "" if isinstance(found, Verdict) else str(found)
    if stage == Stage.REFUSED:
        loop.notices.add([notice_of_refusal(job, loop.clock())])
    loop.queue.advance(id, stage, note)
    return [f"gates of {job.version} ({job.slot}): {stage}" + (f", {note}" if note else "")]


def start(loop: Coordinator) -> list[str]:
    """Start the release of the newest candidate that passed, where no other is exposed."""
    if loop.releases is None:
        return []
    passed = loop.queue.jobs(stages=[Stage.PASSED])
    slots = dict.fromkeys(job.slot for job in passed)
    own = {slot: [job for job in passed if job.slot == slot] for slot in slots}
    return loop.each(own, lambda slot: _start(loop, slot, own[slot]), lambda slot: f"start {slot}")


def _start(loop: Coordinator, slot: str, passed: Sequence[Job]) -> list[str]:
    assert loop.releases is not None
    happened = list[str]()
    newest, *older = passed
    for job in older:
        loop.queue.advance(job.id, Stage.SUPERSEDED, f"by {newest.version}")
    assert newest.version is not None
    if not _was_started(loop.releases, slot, newest.version):
        if loop.releases.serving(slot).exposure is not None:
            return []
        happened.append(f"{slot}: {loop.releases.start(newest.version, slot)}")
    loop.queue.advance(newest.id, Stage.STARTED)
    for job in loop.queue.jobs(slot=slot, stages=OPEN_STAGES):
        if job.created < newest.created:
            loop.queue.advance(job.id, Stage.SUPERSEDED, f"by {newest.version}")
    return happened


def _was_started(releases: Releases, slot: str, version: str) -> bool:
    """Whether the release began before this coordinator could record it."""
    began = (Action.STARTED, Action.PROMOTED)
    return any(entry.version == version and entry.action in began for entry in releases.history(slot))


def reconcile(loop: Coordinator) -> list[str]:
    """Let every release do what it has due."""
    slots = loop.releases.slots() if loop.releases is not None else ()
    return loop.each(slots, lambda slot: _reconcile(loop, slot), lambda slot: f"reconcile {slot}")


def _reconcile(loop: Coordinator, slot: str) -> list[str]:
    assert loop.releases is not None
    _cursor(loop, slot)  # before the first step, which is then reported
    entries = loop.releases.reconcile(slot)
    return [f"{slot}: {entry.version} {entry.action.replace('_', ' ')}" for entry in entries]


def publish(loop: Coordinator) -> list[str]:
    """Publish every change of a job as a status event, with its notice and its report; then settle the change."""
    while changes := loop.queue.changes(limit=BATCH):
        loop.bus.publish([message_of(status_of(change)) for change in changes])
        notices = [notice_of_failure(change, retries=loop.config.retries) for change in changes]
        loop.notices.add([notice for notice in notices if notice is not None])
        for change in changes:
            if change.job.ended is not None:
                write_report(job_file(loop.reports, change.job), change.job, loop.render)
        loop.queue.settle([change.number for change in changes])
    return []


def notify(loop: Coordinator) -> list[str]:
    """Publish which policies decide, post what people should know, and what no one acknowledged."""
    slots = loop.releases.slots() if loop.releases is not None else ()
    loop.each(slots, lambda slot: _notice(loop, slot), lambda slot: f"notify {slot}")
    return loop.notices.deliver(loop.clock())


def _notice(loop: Coordinator, slot: str) -> list[str]:
    assert loop.releases is not None
    cursor = _cursor(loop, slot)
    if entries := loop.releases.history(slot, after=cursor):
        events = [deployed_of(slot, entry) for entry in entries]
        loop.bus.publish([message_of(event) for event in events if event is not None])
        found = [notice_of_release(slot, entry) for entry in entries]
        loop.notices.add([notice for notice in found if notice is not None])
        loop.store.put(DOCUMENT, f"{CURSOR}{slot}", str(entries[-1].number).encode())
    return []


def _cursor(loop: Coordinator, slot: str) -> int:
    """The last step of a slot that was looked at; of a slot that is new here, all steps so far count as seen."""
    stored = loop.store.documents(DOCUMENT).get(f"{CURSOR}{slot}")
    if stored is None:
        history = loop.releases.history(slot) if loop.releases is not None else ()
        stored = str(history[-1].number if history else 0).encode()
        loop.store.put(DOCUMENT, f"{CURSOR}{slot}", stored)
    return int(stored)


def summarise(loop: Coordinator) -> list[str]:
    """Write the summary of yesterday, once, if there is anything to say."""
    now = loop.clock()
    day = yesterday(now)
    path = day_file(loop.reports, day)
    if is_written(path, now) or loop.began() >= day + timedelta(days=1):
        return []
    releases = loop.releases
    summary = summarise_day(
        day,
        jobs=loop.queue.jobs(),
        store=loop.store,
        version=loop.reward_version,
        histories={} if releases is None else {slot: releases.history(slot) for slot in releases.slots()},
        now=now,
    )
    write_report(path, summary, loop.render)
    return [f"summary of {summary.day} written to {path}"]


def run(
    loop: Coordinator, *, stop: threading.Event, report: Callable[[Tick], None] = lambda tick: None, once: bool = False
) -> None:
    """Tick until `stop` is set; with `once`, until nothing is left to do now. It leaves no process running."""
    ended = threading.Event()
    renewal = threading.Thread(target=_renew, args=(loop, ended), name="loop-renewal", daemon=True)
    renewal.start()
    try:
        while not stop.is_set():
            tick = loop.tick()
            report(tick)
            if once and tick.leads and not tick.is_busy and not tick.happened:
                break
            stop.wait(min(loop.config.poll_s, BUSY_POLL_S) if tick.is_busy or once else loop.config.poll_s)
    finally:
        ended.set()
        renewal.join()
        loop.resign()


def _renew(loop: Coordinator, ended: threading.Event) -> None:
    while not ended.wait(loop.config.lease_s / 3):
        try:
            loop.renew()
        except EtudeError as error:  # the next tick reports it, too
            log.warning("the lease was not renewed: %s", error)


Step = Callable[[Coordinator], list[str]]
STEPS: tuple[Step, ...] = (
    ingest,
    take_requests,
    trigger,
    run_jobs,
    register,
    gate,
    start,
    reconcile,
    publish,
    notify,
    summarise,
)
"""One tick, in order."""
