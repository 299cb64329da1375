"""Fifty jobs and their candidates with 10 % injected faults: how many train and deploy, how soon, and what they cost.

    python benchmarks/loop_jobs.py                      # about ten minutes on 2 busy cores
    python benchmarks/loop_jobs.py --jobs 10 --every-s 6

The loop is `etude.bootstrap.loop.open_loop` with its own poll, lease, back-off, limits and price, in a process of its
own, on real time. Every few seconds 600 trajectories of another slot are stored, which starts a job; a person approves
each policy that passed its gates, so that it is promoted; another process asks every slot what serves.

Of every ten jobs one has a fault, in turn:
killed        SIGKILL ends its process                                    healed by a retry, after a back-off of 60 s
dataset       a file of its dataset is cut off while it runs              healed: the dataset is made again
store         the store is locked for 12 s when its data is complete      healed: the loop tries again
memory        its process may use 50 MB                                   not healed: it fails for good, with a notice
gates         it learned to choose an option that the settings forbid     refused by the gates, as it should be

Trains: a job that completed. A healthy candidate is one whose data has no fault; it deploys if it serves in the end.
Start: from the last stored trajectory to the start of the process. Gates: from the registration to the verdict.
Deployment: from the approval to the first look of the serving process that sees it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch  # noqa: F401  (before the forks: it takes seconds)

import etude.problems.choice.policy
from etude.adapters.jobs import SqliteJobs
from etude.adapters.sqlite import SqliteStore
from etude.bootstrap import gates as _gates  # noqa: F401
from etude.bootstrap.experience import STORE
from etude.bootstrap.loop import JOBS, open_loop
from etude.bootstrap.release import open_registry
from etude.contracts.decision import LoggedDecision
from etude.contracts.jobs import Job, JobState, job_id
from etude.contracts.release import Action
from etude.contracts.reward import Reward
from etude.contracts.subjects import encode
from etude.contracts.training import Compute, TrainingRequest
from etude.contracts.trajectory import Outcome, Trajectory
from etude.loop.coordinator import Tick, run

DATA, TRAJECTORIES = "data", 600
FAULTS = ("killed", "dataset", "store", "memory", "gates")
OPTIONS = ("alpha", "beta", "gamma")
FORBIDDEN = "delete everything"
KINDS = {"prove": "alpha", "chat": "beta", "draw": "gamma"}
AWAY_S = 12.0
SETTLE_S = 900.0
"""Seconds after the last trigger in which everything has to be settled."""
SETTINGS = {
    "experience": {"folder": DATA},
    "choice": {"encoder": "ngrams"},
    "loop": {"threshold": TRAJECTORIES, "schedule": None, "drift": False},
    "release": {
        # The gates themselves are those of every installation; what they need to decide suits 60 held-out trajectories.
        "gates": {
            "forbidden": {"all": [FORBIDDEN]},
            "margin": 0.1,
            "delta": 0.2,
            "min_drift": 20,
            "psi_fail": 5.0,
            "latency_p99_ms_by_problem": {"choice": 500.0},
            "thresholds": {"min_ess": 10.0},
        },
    },
}


def coordinate(folder: Path) -> None:
    with open_loop() as loop, (folder / "ticks.log").open("a", buffering=1) as log:

        def report(tick: Tick) -> None:
            for line in (*tick.happened, *tick.problems):
                log.write(f"{datetime.now(UTC):%H:%M:%S} {line}\n")

        run(loop, stop=threading.Event(), report=report)


def serve(folder: Path) -> None:
    """A process that serves every slot: it writes down when it first sees a version serve."""
    registry, followers, seen = open_registry(), dict[str, Any](), set[tuple[str, str]]()
    with (folder / "seen.jsonl").open("a", buffering=1) as log:
        while True:
            for slot in registry.slots():
                if slot not in followers:
                    followers[slot] = registry.follow(slot)
                version = followers[slot].serving().incumbent
                if version is not None and (slot, version) not in seen:
                    etude.load(slot).choose("prove")  # it decides
                    seen.add((slot, version))
                    log.write(json.dumps({"slot": slot, "version": version, "time": time.time()}) + "\n")
            time.sleep(0.05)


def log_slot(store: SqliteStore, slot: str, *, forbidden: bool) -> None:
    """Uniform choices of a slot with their rewards; the best option may be one that the settings forbid."""
    rng, now, events = random.Random(slot), datetime.now(UTC), list[Any]()
    options = (FORBIDDEN, *OPTIONS[1:]) if forbidden else OPTIONS
    for i in range(TRAJECTORIES):
        kind = rng.choice(list(KINDS))
        chosen = rng.choice(options)
        right = chosen == (FORBIDDEN if forbidden else KINDS[kind])
        done, at = rng.random() < (0.95 if right else 0.15), now - timedelta(seconds=TRAJECTORIES - i)
        decision = LoggedDecision(
            problem=slot,
            context={"kind": kind, "text": kind},
            eligible=list(options),
            action=chosen,
            propensity=1 / len(OPTIONS),
            policy="uniform",
        )
        name = f"{slot.replace(':', '.')}-{i}"
        task = Trajectory(
            id=name,
            time=at,
            task=f"{kind}, number {i}",
            problem=slot,
            policy="uniform",
            decisions=(decision,),
            outcome=Outcome(success=done),
        )
        reward = Reward(
            id=f"r-{name}", time=at, trajectory_id=name, version=1, total=float(done), definition="d", confidence=1.0
        )
        events += [task, reward]
    store.append([(event, encode(event)) for event in events])


class Faults:
    """Injects the faults, each when its job has come that far."""

    def __init__(self, folder: Path, of: dict[str, str], queue: SqliteJobs) -> None:
        self.folder, self.of, self.queue = folder, of, queue
        self.done: dict[str, str] = {}  # slot → fault that was injected
        self.lock: sqlite3.Connection | None = None
        self.unlock_at = 0.0

    def look(self) -> None:
        if self.lock is not None and time.monotonic() > self.unlock_at:
            self.lock.rollback()
            self.lock.close()
            self.lock = None
        for job in self.queue.jobs(states=[JobState.RUNNING]):
            fault = self.of.get(job.slot)
            if job.slot in self.done or not job.dataset:
                continue
            if fault == "killed" and self._kill(job):
                self.done[job.slot] = fault
            elif fault == "dataset":
                for shard in (self.folder / job.dataset).rglob("*.jsonl"):
                    shard.write_bytes(shard.read_bytes()[:-20])
                self.done[job.slot] = fault

    def lock_store(self, slot: str) -> None:
        """No other process can write to the store for a while."""
        self.lock = sqlite3.connect(self.folder / DATA / STORE, isolation_level=None)
        self.lock.execute("BEGIN IMMEDIATE")
        self.unlock_at, self.done[slot] = time.monotonic() + AWAY_S, "store"

    def _kill(self, job: Job) -> bool:
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (path / "cmdline").read_bytes().split(b"\0")
                if job.run.encode() in command and b"train" in command and (path / "cwd").resolve() == self.folder:
                    os.kill(int(path.name), signal.SIGKILL)
                    return True
        return False


def play(folder: Path, *, jobs: int, every_s: float) -> dict[str, Any]:
    os.chdir(folder)
    (folder / "etude.yaml").write_text(json.dumps(SETTINGS))  # JSON is YAML
    pids = [_fork(lambda: coordinate(folder), folder), _fork(lambda: serve(folder), folder)]
    slots = [f"choice:s{n:02d}" for n in range(jobs)]
    of = {slots[n]: FAULTS[n // 10 % len(FAULTS)] for n in range(5, jobs, 10)}
    complete: dict[str, float] = {}
    registry, approved = open_registry(), set[str]()
    with closing(SqliteStore(folder / DATA / STORE)) as store, closing(SqliteJobs(folder / DATA / JOBS)) as queue:
        faults, began = Faults(folder, of, queue), time.monotonic()
        waiting = list(slots)
        try:
            while waiting or not _settled(queue, slots):
                if time.monotonic() - began > jobs * every_s + SETTLE_S:
                    break
                if waiting and time.monotonic() - began > (jobs - len(waiting)) * every_s and faults.lock is None:
                    slot = waiting.pop(0)
                    log_slot(store, slot, forbidden=of.get(slot) == "gates")
                    if of.get(slot) == "memory":  # a request of a person, with its own limit
                        _submit(queue, slot, Compute(memory_gb=0.05))
                    complete[slot] = time.time()
                    if of.get(slot) == "store":
                        faults.lock_store(slot)
                    if of.get(slot) in ("memory", "gates"):
                        faults.done[slot] = of[slot]
                faults.look()
                for slot in registry.slots():
                    head = registry.head(slot)
                    if head is not None and head.action is Action.GATES_PASSED and slot not in approved:
                        registry.approve(slot, str(head.version), by="ada")
                        approved.add(slot)
                time.sleep(0.1)
            seconds = time.monotonic() - began
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return {"seconds": round(seconds), **measure(folder, slots, faults, complete, queue)}


def _submit(queue: SqliteJobs, slot: str, compute: Compute) -> None:
    now = datetime.now(UTC)
    request = TrainingRequest(id=f"request-{slot[-3:]}", time=now, problem=slot, compute=compute)
    queue.submit(Job(id=job_id(request.id), slot=slot, request=request, created=now))


def _settled(queue: SqliteJobs, slots: list[str]) -> bool:
    jobs = queue.jobs()
    ended = {
        job.slot for job in jobs if job.state == JobState.FAILED or job.stage in ("refused", "started", "undecided")
    }
    return ended >= set(slots)


def measure(
    folder: Path, slots: list[str], faults: Faults, complete: dict[str, float], queue: SqliteJobs
) -> dict[str, Any]:
    registry = open_registry()
    jobs = {job.slot: job for job in reversed(queue.jobs())}
    seen = [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]
    first = {(one["slot"], one["version"]): one["time"] for one in reversed(seen)}
    starts, gates, deployments = list[float](), list[float](), list[float]()
    rows = list[dict[str, Any]]()
    for slot in slots:
        job, history = jobs.get(slot), registry.history(slot)
        times = {entry.action: entry.time.timestamp() for entry in reversed(history)}
        if job is None:
            continue
        if job.started is not None:
            starts.append(job.started.timestamp() - complete[slot])
        verdict = next((e.time.timestamp() for e in history if e.action.startswith("gates_")), None)
        if verdict is not None:
            gates.append(verdict - times[Action.REGISTERED])
        used = first.get((slot, str(job.version)))
        if used is not None:
            deployments.append(used - times[Action.APPROVED])
        rows.append(
            {
                "slot": slot,
                "fault": faults.of.get(slot),
                "injected": slot in faults.done,
                "state": job.state.value,
                "stage": job.stage and job.stage.value,
                "attempts": job.attempts,
                "failures": job.failures,
                "error": job.error.kind if job.error else None,
                "cpu_hours": job.cost.cpu_hours,
                "usd": job.cost.usd,
                "wall_s": job.cost.wall_hours * 3600,
                "serves": used is not None and registry.serving(slot).incumbent == job.version,
            }
        )
    healthy = [row for row in rows if row["fault"] not in ("memory", "gates")]
    broken = [row for row in rows if row["fault"]]
    return {
        "jobs": len(rows),
        "faults": len(broken),
        "injected": sum(row["injected"] for row in broken),
        "trained": sum(row["state"] == "completed" for row in rows),
        "trained_share": sum(row["state"] == "completed" for row in rows) / len(slots),
        "healthy": len(healthy),
        "deployed": sum(row["serves"] for row in healthy),
        "deployed_share": sum(row["serves"] for row in healthy) / max(1, len(healthy)),
        "unhealthy_serving": sum(row["serves"] for row in rows if row["fault"] in ("memory", "gates")),
        "by_fault": {row["fault"]: row for row in broken},
        "start_s": _quantiles(starts),
        "gates_s": _quantiles(gates),
        "deployment_s": _quantiles(deployments),
        "usd_per_job": _quantiles([row["usd"] for row in rows]),
        "cpu_s_per_job": _quantiles([row["cpu_hours"] * 3600 for row in rows]),
        "usd": sum(row["usd"] for row in rows),
        "cpu_hours": sum(row["cpu_hours"] for row in rows),
        "rows": rows,
    }


def _quantiles(values: list[float]) -> dict[str, float]:
    return {name: float(np.quantile(values, q)) for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


def _fork(role: Callable[[], None], folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        role()
    except BaseException:
        (folder / "errors.log").open("a").write(traceback.format_exc())
    finally:
        os._exit(1)


def main() -> None:
    from results import save

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--every-s", type=float, default=8.0, help="seconds between two triggers")
    parser.add_argument("--folder", type=Path, help="kept for a look at it; a temporary one by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True, parents=True)
        values = play(folder.resolve(), jobs=options.jobs, every_s=options.every_s)
        os.chdir("/")
    save("loop_jobs", {"every_s": options.every_s, **values})
    for name, value in values.items():
        if name != "rows":
            print(f"{name:20} {value}")
    if values["trained_share"] < 0.9 or values["deployed_share"] < 0.95 or values["unhealthy_serving"]:
        sys.exit("too few trained or deployed, or what failed its gates serves")


if __name__ == "__main__":
    main()
