"""A small loop for tests: real queue, store and bus in files; releases and jobs that a kill of the process survives."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from etude.adapters.jobs import SqliteJobs
from etude.adapters.objects import open_blobs
from etude.adapters.outbox import Outbox
from etude.adapters.sqlite import SqliteStore
from etude.contracts.decision import LoggedDecision
from etude.contracts.jobs import Cost, Ended, Job, RunningJob
from etude.contracts.release import Action, Entry, Exposure, Mode, Serving, State
from etude.contracts.reward import Reward
from etude.contracts.subjects import encode
from etude.contracts.training import Progress
from etude.contracts.trajectory import Outcome, Trajectory
from etude.evidence.overlap import Verdict
from etude.files.durable import replace_file
from etude.learning.run_folder import RunFolder
from etude.loop.config import LoopConfig
from etude.loop.coordinator import Coordinator, Tick
from etude.loop.notify import Notices, Post

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)  # a Wednesday
SLOT = "choice:model"
CONFIG = LoopConfig(threshold=10, poll_s=0.005, backoff_s=60.0)


@dataclass
class Clock:
    time: datetime = NOW
    steady: float = 1000.0

    def __call__(self) -> datetime:
        return self.time

    def pass_by(self, **how: float) -> None:
        step = timedelta(**how)
        self.time, self.steady = self.time + step, self.steady + step.total_seconds()


def log_tasks(store: SqliteStore, many: int, *, slot: str = SLOT, first: int = 0, time: datetime = NOW) -> None:
    """Trajectories of a slot with their rewards."""
    for i in range(first, first + many):
        began = time - timedelta(hours=1) + timedelta(seconds=i)
        decision = LoggedDecision(problem=slot, action="a", propensity=0.5, policy="p")
        task = Trajectory(
            id=f"{slot.replace(':', '.')}-{i}",
            time=began,
            task=f"task {i}",
            problem=slot,
            policy="p",
            decisions=(decision,),
            outcome=Outcome(success=i % 2 == 0, cost_usd=0.01),
        )
        reward = Reward(
            id=f"r-{task.id}",
            time=began,
            trajectory_id=task.id,
            version=1,
            total=0.5,
            definition="abc",
            confidence=1.0,
        )
        store.append([(task, encode(task)), (reward, encode(reward))])


@dataclass
class StepJob:
    """A job of a few steps, each a line in its folder: a job that is started again continues after the last line."""

    folder: Path
    steps: int
    outcome: Callable[[], Ended | None]
    stopped: bool = False

    def poll(self) -> Ended | None:
        if (failed := self.outcome()) is not None:
            return failed
        if self._done() < self.steps:
            with (self.folder / "steps").open("a") as file:
                file.write("step\n")
            return None
        if not (self.folder / "summary.json").exists():
            write_run(self.folder)
        return Ended(version=RunFolder(self.folder).policy().version)

    def progress(self) -> Progress:
        done = self._done()
        return Progress(step=done, steps=self.steps, share=done / self.steps, eta_s=float(self.steps - done))

    def cost(self) -> Cost:
        return Cost(usd=1.0, cpu_hours=0.5)

    def stop(self) -> None:
        self.stopped = True

    def _done(self) -> int:
        path = self.folder / "steps"
        return len(path.read_text().splitlines()) if path.exists() else 0


def write_run(folder: Path, *, code: str = "") -> None:
    """A finished run; its policy has a version of its own, by its folder's name or by `code`."""
    best = folder / "best" / "step-000000000001"
    best.mkdir(parents=True, exist_ok=True)
    about = {"problem": "choice", "method": "from-logs", "step": 1, "code": code or folder.name, "files": {}}
    replace_file(best / "manifest.json", json.dumps({"format": 2, **about}).encode())
    replace_file(folder / "config.json", json.dumps({"method": "from-logs", "budget": ""}).encode())
    replace_file(folder / "summary.json", b"{}")


@dataclass
class StepRunner:
    """A JobRunner in this process."""

    steps: int = 2
    outcome: Callable[[], Ended | None] = lambda: None
    started: list[tuple[Job, Path | None]] = field(default_factory=list)
    jobs: list[StepJob] = field(default_factory=list)
    is_free: bool = True

    def start(self, job: Job, *, checkpoint: Path | None) -> RunningJob | None:
        if not self.is_free:
            return None
        self.started.append((job, checkpoint))
        folder = Path(job.run)
        folder.mkdir(parents=True, exist_ok=True)
        made = StepJob(folder, self.steps, self.outcome)
        self.jobs.append(made)
        return made


AFTER = {Action.STARTED: State.EXPOSED, Action.PROMOTED: State.SERVING, Action.ROLLED_BACK: State.ROLLED_BACK}


class FileReleases:
    """Releases as a list of steps per slot in one file."""

    def __init__(self, path: Path, *, clock: Callable[[], datetime], verdict: Verdict = Verdict.PASS) -> None:
        self.path, self.clock, self.verdict = path, clock, verdict
        self.next: list[Action] = []

    def read(self) -> dict[str, list[Entry]]:
        data = self.path.read_bytes() if self.path.exists() else b"{}"
        return msgspec.json.decode(data, type=dict[str, list[Entry]])

    def add(self, slot: str, action: Action, version: str, serving: Serving | None = None) -> Entry:
        found = self.read()
        entries = found.setdefault(slot, [])
        entry = Entry(
            number=len(entries) + 1,
            time=self.clock(),
            actor="controller",
            action=action,
            version=version,
            serving=serving or self.serving(slot),
            states=(entries[-1].states if entries else {}) | {version: AFTER.get(action, State.REGISTERED)},
        )
        entries.append(entry)
        replace_file(self.path, msgspec.json.encode(found))
        return entry

    def slots(self) -> Sequence[str]:
        return sorted(self.read())

    def register(self, run_folder: Path, slot: str, lineage: Mapping[str, Any]) -> str:
        version = RunFolder(run_folder).policy().version
        if not any(entry.version == version for entry in self.history(slot)):
            self.add(slot, Action.REGISTERED, version)
        return version

    def gate(self, version: str, slot: str) -> Verdict:
        return self.verdict

    def start(self, version: str, slot: str) -> str:
        exposure = Exposure(release=f"r{version}", candidate=version, mode=Mode.CANARY, share=0.1)
        self.add(slot, Action.STARTED, version, Serving(exposure=exposure))
        return f"canary of {version} started"

    def reconcile(self, slot: str) -> Sequence[Entry]:
        exposure = self.serving(slot).exposure
        if exposure is None or not self.next:
            return []
        serving = Serving(incumbent=exposure.candidate if self.next[0] == Action.PROMOTED else None)
        return [self.add(slot, self.next.pop(0), exposure.candidate, serving)]

    def serving(self, slot: str) -> Serving:
        history = self.history(slot)
        return history[-1].serving if history else Serving()

    def history(self, slot: str, *, after: int = 0) -> Sequence[Entry]:
        return self.read().get(slot, [])[after:]

    def folder(self, version: str) -> Path | None:
        return self.path.parent / "artefacts" / version


@dataclass(kw_only=True)
class SmallLoop:
    coordinator: Coordinator
    store: SqliteStore
    bus: Outbox
    queue: SqliteJobs
    runner: StepRunner
    releases: FileReleases
    clock: Clock

    def settle(self, *, ticks: int = 200) -> list[str]:
        """Tick until nothing happens; returns everything that happened."""
        happened = list[str]()
        for _ in range(ticks):
            tick: Tick = self.coordinator.tick()
            assert tick.problems == ()
            for gating in list(self.coordinator.gating.values()):
                gating.thread.join()
            happened += tick.happened
            if not tick.is_busy and not tick.happened:
                return happened
        raise AssertionError(f"it does not settle: {happened[-10:]}")

    def close(self) -> None:
        self.queue.close()
        self.bus.close()
        self.store.close()


def make_loop(
    folder: Path,
    *,
    config: LoopConfig = CONFIG,
    clock: Clock | None = None,
    owner: str = "one",
    runner: StepRunner | None = None,
    post: Post | None = None,
    monotonic: Callable[[], float] | None = None,
    **changes: Any,
) -> SmallLoop:
    clock = clock or Clock()
    store, bus = SqliteStore(folder / "experience.sqlite"), Outbox(folder / "outbox.sqlite")
    queue = SqliteJobs(
        folder / "jobs.sqlite",
        retries=config.retries,
        backoff_s=config.backoff_s,
        clock=clock,
        monotonic=monotonic or (lambda: clock.steady),
    )
    releases, jobs = FileReleases(folder / "releases.json", clock=clock), runner or StepRunner()
    coordinator = Coordinator(
        **{
            "config": config,
            "reward_version": 1,
            "bus": bus,
            "store": store,
            "queue": queue,
            "leader": queue,
            "runner": jobs,
            "releases": releases,
            "notices": Notices(store, config.webhooks, post=post),
            "datasets": lambda place: open_blobs(str(folder / place)),
            "ingest": lambda: 0,
            "reports": folder / "reports",
            "render": None,
            "owner": owner,
            "clock": clock,
            **changes,
        }
    )
    return SmallLoop(
        coordinator=coordinator, store=store, bus=bus, queue=queue, runner=jobs, releases=releases, clock=clock
    )


def version_of_run(folder: Path) -> str:
    return sha256((RunFolder(folder).policy().path / "manifest.json").read_bytes()).hexdigest()[:16]
