"""Values of the whole installation, for metrics: read from the stores, the queue of jobs, the registry and the bus."""

from __future__ import annotations

import logging
import shutil
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from time import monotonic

from etude.contracts.bus import EventBus
from etude.contracts.errors import BusError, EtudeError
from etude.contracts.jobs import Job, JobQueue, JobState, Leader
from etude.contracts.query import Where
from etude.contracts.release import Action, Entry, Mode, Serving
from etude.contracts.serving import ServingState
from etude.contracts.store import REWARD_BOUNDS, Collected, ExperienceStore, Group
from etude.contracts.subjects import TRAJECTORIES
from etude.experience.forward import GROUP as FORWARD
from etude.experience.ingest import GROUP as INGEST
from etude.release.registry import Registry
from etude.serving.metrics import JOB_SECONDS, OTHER, Sample

log = logging.getLogger("etude")

FRESH_S = 5.0
"""Seconds for which values are given again without reading them."""
BUS_TIMEOUT_S = 1.0
"""Seconds in which the bus has to answer."""
ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
WAITING = (JobState.QUEUED, JobState.RUNNING)
VERDICTS: Mapping[Action, str] = {
    Action.GATES_PASSED: "passed",
    Action.GATES_FAILED: "failed",
    Action.GATES_UNDECIDED: "undecided",
}
COUNTED: Mapping[Action, str] = {
    Action.PROMOTED: "agent_rl_model_promotions_total",
    Action.ROLLED_BACK: "agent_rl_model_rollbacks_total",
    Action.ALARMED: "agent_rl_model_alarms_total",
}


@dataclass(kw_only=True)
class _Steps:
    """What happened in a slot, up to an entry of its ledger."""

    last: int = 0
    actions: Counter[Action] = field(default_factory=Counter)
    times: dict[Action, datetime] = field(default_factory=dict)
    serving: Serving = field(default_factory=Serving)

    def add(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.last = entry.number
            self.actions[entry.action] += 1
            self.times[entry.action] = entry.time
            self.serving = entry.serving


@dataclass(kw_only=True)
class Installation:
    """Reads at most once in FRESH_S; while something cannot be read, its last values are given."""

    store: ExperienceStore
    state: ServingState
    bus: EventBus
    """The bus that events are consumed from: the broker, or the outbox."""
    outbox: EventBus
    jobs: JobQueue
    leader: Leader
    registry: Registry | None
    """None where releases cannot be verified: the extra `release` is missing."""
    problems: frozenset[str]
    """Names of problems: what a label may say."""
    named: frozenset[str]
    """Slots that the settings name."""
    reward_version: int
    folder: Path
    clock: Callable[[], datetime]
    _kept: dict[str, list[Sample]] = field(default_factory=dict)
    _read_at: float = float("-inf")
    _steps: dict[str, _Steps] = field(default_factory=dict)
    _turn: Lock = field(default_factory=Lock)
    _asker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "etude-bus"))
    _asked: Future[list[Sample]] | None = None
    _letters: int = 0
    """Number of the last dead letter."""

    def samples(self) -> list[Sample]:
        """Every value; from any thread."""
        with self._turn:
            if monotonic() - self._read_at > FRESH_S:
                self._read()
                self._read_at = monotonic()
            return [sample for some in self._kept.values() for sample in some]

    def loop_runs(self) -> bool:
        """Whether a process runs the loop: its lease has not ended. JobError if that cannot be read."""
        return self.leader.leader() is not None

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.folder).free

    def close(self) -> None:
        self._asker.shutdown(wait=False, cancel_futures=True)

    def _read(self) -> None:
        begun, fine = monotonic(), True
        servings: dict[str, Serving] = {}
        parts: tuple[tuple[str, Callable[[], Iterator[Sample]]], ...] = (
            ("releases", lambda: self._of_releases(servings)),
            ("collected", lambda: self._of_collected(self.store.collected(version=self.reward_version))),
            ("models", lambda: self._of_models(servings)),
            ("jobs", lambda: self._of_jobs(self.jobs.jobs(), servings)),
            ("own", self._of_this),
        )
        for name, read in parts:
            try:
                self._kept[name] = list(read())
            except (EtudeError, OSError) as error:
                fine = False
                log.warning("metrics: %s cannot be read, their last values are given: %s", name, error)
        self._kept["bus"] = self._of_bus()
        self._kept["read"] = [
            Sample("etude_store_up", (), int(fine)),
            Sample("etude_scrape_seconds", (), monotonic() - begun),
        ]

    def _of_releases(self, servings: dict[str, Serving]) -> Iterator[Sample]:
        if self.registry is None:
            return
        for slot in self.registry.slots():
            steps = self._steps.setdefault(slot, _Steps())
            steps.add(self.registry.slot_ledger(slot).entries(after=steps.last))
            serving = servings[slot] = steps.serving
            yield from _of_slot(slot, steps)
            yield from _of_serving(slot, serving)

    def _of_collected(self, collected: Sequence[Collected]) -> Iterator[Sample]:
        """By problem: the name after the colon is what a caller wrote."""
        counts, ratings = Counter[str](), Counter[str]()
        rewards, sums = dict[str, list[int]](), dict[str, float]()
        for one in collected:
            problem = self._problem(one.problem)
            counts[problem] += one.trajectories
            ratings[problem] += one.ratings
            sums[problem] = sums.get(problem, 0.0) + one.reward
            before = rewards.setdefault(problem, [0] * (len(REWARD_BOUNDS) + 1))
            rewards[problem] = [a + b for a, b in zip(before, one.rewards, strict=True)]
        for problem in sorted(counts.keys() | self.problems):
            yield Sample("agent_rl_trajectories_collected_total", (problem,), counts[problem])
            yield Sample("agent_rl_feedback_total", (problem,), ratings[problem])
            ranges = tuple(rewards.get(problem, [0] * (len(REWARD_BOUNDS) + 1)))
            yield Sample("agent_rl_trajectory_reward", (problem,), sums.get(problem, 0.0), counts=ranges)

    def _of_models(self, servings: Mapping[str, Serving]) -> Iterator[Sample]:
        """Of policies that serve, may serve, or served last."""
        today = self.clock().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        since = Where(since=today - timedelta(days=1))
        found: dict[tuple[str, str], list[Group]] = {}
        for group in self.store.groups(since, version=self.reward_version) if servings else ():
            for version in {version for version, _, _ in _shares(servings.get(group.problem, Serving()))}:
                if group.policy is not None and group.policy.partition("+")[0] == version:
                    found.setdefault((group.problem, version), []).append(group)
        for place, groups in sorted(found.items()):
            known = sum(group.count for group in groups if group.success is not None)
            yield Sample("agent_rl_model_trajectories", place, sum(group.count for group in groups))
            if known:
                failed = sum(group.count for group in groups if group.success is False)
                yield Sample("agent_rl_model_error_rate", place, failed / known)
            for name, field_ in (
                ("agent_rl_model_reward_mean", "mean_reward"),
                ("agent_rl_model_cost_usd_mean", "mean_cost_usd"),
            ):
                parts = [(group.count, mean) for group in groups if (mean := getattr(group, field_)) is not None]
                if parts:
                    total = sum(count * mean for count, mean in parts)
                    yield Sample(name, place, total / sum(count for count, _ in parts))

    def _of_jobs(self, jobs: Sequence[Job], servings: Mapping[str, Serving]) -> Iterator[Sample]:
        """`jobs` are the last queued first."""
        states, rows = Counter[tuple[str, str]](), dict[str, int]()
        for slot in servings.keys() | self.named:
            rows[slot] = 0
        known = frozenset(rows)
        counts, seconds = [0] * (len(JOB_SECONDS) + 1), 0.0
        by_slot: dict[str, list[Job]] = {}
        for job in jobs:
            label = self._slot(job.slot, known)
            states[label, job.state] += 1
            by_slot.setdefault(job.slot, []).append(job)
            if job.state == JobState.COMPLETED:
                ran_s = job.cost.wall_hours * 3600
                counts[bisect_left(JOB_SECONDS, ran_s)] += 1
                seconds += ran_s
        for slot, some in by_slot.items():
            label = self._slot(slot, known)
            rows[label] = max(rows.get(label, 0), failures_in_a_row(some))
        for slot in sorted(rows):
            for state in ENDED:
                yield Sample("agent_rl_training_jobs_total", (slot, state), states[slot, state])
            for state in WAITING:
                yield Sample("agent_rl_training_jobs", (slot, state), states[slot, state])
            yield Sample("agent_rl_training_failures_in_a_row", (slot,), rows[slot])
        yield Sample("agent_rl_training_duration_seconds", (), seconds, counts=tuple(counts))
        yield Sample("agent_rl_training_cost_usd_total", (), sum(job.cost.usd for job in jobs))
        yield Sample("agent_rl_training_cpu_seconds_total", (), 3600 * sum(job.cost.cpu_hours for job in jobs))
        yield Sample("agent_rl_training_gpu_seconds_total", (), 3600 * sum(job.cost.gpu_hours for job in jobs))
        yield Sample("agent_rl_loop_running", (), int(self.loop_runs()))

    def _of_this(self) -> Iterator[Sample]:
        yield Sample("etude_open_tasks", (), self.state.count())
        yield Sample("etude_disk_free_bytes", (), self.free_bytes())
        own = INGEST if self.bus is self.outbox else FORWARD
        yield Sample("agent_rl_events_waiting", ("outbox",), self.outbox.pending(TRAJECTORIES, own))

    def _of_bus(self) -> list[Sample]:
        """Asked in a thread of its own, since a broker that is away does not answer."""
        if self._asked is None:
            self._asked = self._asker.submit(self._ask_bus)
        try:
            found = self._asked.result(timeout=BUS_TIMEOUT_S)
            self._asked = None
            return found
        except Late:  # asked already: the answer is taken next time
            return [Sample("agent_rl_bus_connected", (), 0)]
        except BusError:
            self._asked = None
            return [Sample("agent_rl_bus_connected", (), 0)]

    def _ask_bus(self) -> list[Sample]:
        self.bus.publish([])
        found = [Sample("agent_rl_bus_connected", (), 1)]
        if self.bus is not self.outbox:
            found.append(Sample("agent_rl_events_waiting", ("broker",), self.bus.pending(TRAJECTORIES, INGEST)))
        while letters := self.bus.dead_letters(after=self._letters, limit=1000):
            self._letters = letters[-1].number  # numbers are given once
        return [*found, Sample("agent_rl_dead_letters_total", (), self._letters)]

    def _problem(self, problem: str) -> str:
        name = problem.partition(":")[0]
        return name if name in self.problems else OTHER

    def _slot(self, slot: str, known: frozenset[str]) -> str:
        """A slot that was registered or is in the settings by its name; others by their problem alone."""
        return slot if slot in known else self._problem(slot)


def failures_in_a_row(jobs: Sequence[Job]) -> int:
    """Of one slot, the last queued first: how many failed for good since one completed."""
    ended = sorted(
        (job for job in jobs if job.state in (JobState.COMPLETED, JobState.FAILED)), key=_ended, reverse=True
    )
    return next((place for place, job in enumerate(ended) if job.state == JobState.COMPLETED), len(ended))


def _ended(job: Job) -> datetime:
    return job.ended or job.created


def _of_slot(slot: str, steps: _Steps) -> Iterator[Sample]:
    for action, name in COUNTED.items():
        yield Sample(name, (slot,), steps.actions[action])
    for action, verdict in VERDICTS.items():
        yield Sample("agent_rl_gate_verdicts_total", (slot, verdict), steps.actions[action])
    for action, name in (
        (Action.ROLLED_BACK, "agent_rl_model_last_rollback_timestamp_seconds"),
        (Action.GATES_FAILED, "agent_rl_gate_last_failure_timestamp_seconds"),
    ):
        if action in steps.times:
            yield Sample(name, (slot,), steps.times[action].timestamp())


def _of_serving(slot: str, serving: Serving) -> Iterator[Sample]:
    for version, share, role in _shares(serving):
        yield Sample("agent_rl_model_traffic_share", (slot, version, role), share)
    exposure = serving.exposure
    if exposure is not None:
        yield Sample("agent_rl_release_stage", (slot, exposure.mode, exposure.status), exposure.stage + 1)


def _shares(serving: Serving) -> Iterator[tuple[str, float, str]]:
    """Version, share of new units and role of the policies of a slot."""
    exposure = serving.exposure
    share = 0.0 if exposure is None else exposure.share
    after = exposure is not None and exposure.mode is Mode.HOLDBACK  # its candidate is the incumbent
    if serving.incumbent is not None:
        yield serving.incumbent, share if after else 1 - share, "incumbent"
    if exposure is not None and not after:
        yield exposure.candidate, share, "candidate"
    if serving.previous is not None:
        yield serving.previous, 1 - share if after else 0.0, "previous"
