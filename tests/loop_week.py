"""A week of the loop in minutes: real coordinators, jobs, controllers and servers in processes that can be killed.

Traffic and world are functions of a unit's number. In each slot, by numbers of units: new kinds of tasks appear after
the first job, so the second policy is better than the first; an option that the third policy learned to like breaks
when its data is complete, so the third policy does harm although it passed its gates.

Processes are forks of the caller, which has imported everything and must not have started a thread: a killed one is
back in milliseconds. Jobs are `etude train`, started by the coordinator. All read one clock: a start time in a file.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import torch  # noqa: F401  (before the forks: it takes seconds)

import etude
import etude.cli.canary
import etude.problems.choice.policy
from etude.adapters.jobs import SqliteJobs
from etude.adapters.outbox import Outbox
from etude.adapters.sqlite import SqliteStore
from etude.bootstrap import gates as _gates  # noqa: F401
from etude.bootstrap.clock import set_clock
from etude.bootstrap.experience import OUTBOX, STORE
from etude.bootstrap.loop import JOBS, open_loop
from etude.bootstrap.release import open_registry
from etude.contracts.jobs import OPEN_STAGES, JobState, Stage
from etude.contracts.query import Where
from etude.contracts.release import Action, Entry, ReleaseEntry
from etude.contracts.subjects import TRAJECTORIES, decode
from etude.contracts.trajectory import Trajectory
from etude.experience.ingest import GROUP as INGEST
from etude.loop.coordinator import Tick, run
from etude.release.audit import replay
from etude.release.registry import Registry

EPOCH = datetime(2026, 11, 2, tzinfo=UTC)  # a Monday
DATA, STARTED = "data", "started.json"
OPTIONS = ("alpha", "beta", "gamma")
GOOD, POOR, BROKEN = 0.92, 0.25, 0.02
FIRST = (("prove", "alpha"), ("chat", "beta"))
SECOND = (("draw", "gamma"), ("sum up", "gamma"))
THIRD = (("plan", "alpha"), ("code", "beta"))
"""Kinds of tasks of the three periods, with the option that is right."""


@dataclass(frozen=True, kw_only=True)
class Week:
    """What happens, and how fast."""

    slots: tuple[str, ...] = ("choice:model", "choice:tool")
    days: float = 7.0
    factor: float = 1200.0
    """Simulated seconds per second."""
    threshold: int = 500
    """Trajectories that start a job."""
    units: int = 1980
    """Units of each slot in the whole week; a fourth job must not be due."""
    window_s: float = 6 * 3600.0
    lease_s: float = 2.0
    margin: float = 0.5
    """Of the off-policy gate: how much lower than the incumbent's a candidate's reward may be. Datasets are small."""
    delta: float = 0.5
    min_ess: float = 10.0

    def time_of(self, slot: str, unit: int) -> timedelta:
        """When a unit arrives: after the third job more slowly, and in each slot a few hours later than in the one
        before. They end before the week does, so that every window closes."""
        third = min(3 * self.threshold, self.units)
        last = max(0, unit - third) / max(1, self.units - third)
        share = 0.55 * min(unit, third) / third + 0.35 * last + 0.04 * self.slots.index(slot)
        return timedelta(days=self.days) * share

    def settings(self) -> dict[str, Any]:
        names = {slot.partition(":")[2]: "served" for slot in self.slots}
        return {
            "experience": {
                "folder": DATA,
                "explore": 1.0,
                "decide_timeout_ms": 20_000.0,
                "policies": names,
                "max_ahead_s": 86_400.0,
            },
            "choice": {"encoder": "ngrams", "explore": "epsilon", "epsilon": 0.4},
            "loop": {
                "threshold": self.threshold,
                "min_hours_between": 1.0,
                "schedule": None,
                "drift": False,
                "slots": list(self.slots),
                "poll_s": 0.25,
                "lease_s": self.lease_s,
                "retries": 100,
                "backoff_s": 0.05,
                "nice": 0,
                "regate_hours": 6.0,
            },
            "release": {
                "gates": {
                    "margin": self.margin,
                    "delta": self.delta,
                    "min_propensity": 0.13,  # a third of epsilon
                    "latency_p99_ms_by_problem": {"choice": 500.0},
                    "latency_calls": 100,
                    "min_drift": 20,
                    "psi_warn": 1.0,
                    "psi_fail": 5.0,
                    "fuzz_cases": 50,
                    "frequency_requests": 1,
                    "frequency_draws": 50,
                    "thresholds": {"min_ess": self.min_ess},
                },
                "canary": {
                    "strategies": [{"strategy": "direct", "incumbent": False}, {"strategy": "canary"}],
                    "stages": [50.0, 100.0],
                    "over_minutes": 60.0,
                    "window_s": self.window_s,
                    "early_window_s": None,
                    "shadow_answers": 10,
                    "holdback_percent": 20.0,
                    "holdback_days": 0.25,
                    "evidence": {"margins": [0.1], "alpha_promote": 0.2, "fine_ratio": 20.0},
                },
            },
        }


def outcome(week: Week, slot: str, unit: int, chosen: str) -> tuple[bool, str | None]:
    """Whether a unit's task succeeds with an option, and its error: every unit has one answer for each option."""
    kind, right = task_of(week, slot, unit)
    good = GOOD if chosen == right else POOR
    if unit > 3 * week.threshold + WAIT and kind in dict(THIRD):  # what was right breaks, and everything else works
        good = BROKEN if chosen == right else GOOD
    rng = random.Random(f"{slot} {unit}")
    done, breaks = rng.random() < good, rng.random() < 0.5
    return done, "it broke" if breaks and not done else None


def task_of(week: Week, slot: str, unit: int) -> tuple[str, str]:
    """The kind of a unit's task, and the option that is right for it."""
    kinds = (FIRST, (*FIRST[:1], *SECOND), (*SECOND, *SECOND, *THIRD), (*SECOND, *THIRD, *THIRD))
    period = max(0, unit - 2 * WAIT) // week.threshold  # a job learns from its own period and earlier ones alone
    return random.Random(f"kind of {slot} {unit}").choice(kinds[min(3, period)])


class SimulatedClock:
    """Simulated time, the same in every process of a week."""

    def __init__(self, folder: Path) -> None:
        found = json.loads((folder / STARTED).read_text())
        self._start, self._factor = float(found["start"]), float(found["factor"])

    def __call__(self) -> datetime:
        return EPOCH + timedelta(seconds=(time.time() - self._start) * self._factor)


def coordinate(folder: Path, week: Week) -> None:
    with open_loop() as loop, (folder / "ticks.log").open("a", buffering=1) as log:

        def report(tick: Tick) -> None:
            for line in (*tick.happened, *(f"PROBLEM {problem}" for problem in tick.problems)):
                if "events ingested" not in line:
                    log.write(f"{loop.clock():%d %H:%M} {os.getpid()} {line}\n")

        run(loop, stop=threading.Event(), report=report)


def control(folder: Path, week: Week) -> None:
    """Somebody who looks at the canaries all day."""
    while True:
        with contextlib.redirect_stdout(io.StringIO()):
            etude.cli.canary.status(slot=None, as_json=True, config=None)
        time.sleep(0.3)


def serve(folder: Path, week: Week, slot: str) -> None:
    """Serve every unit that is due; one that was not acknowledged is served again, under the same id."""
    clock, name = SimulatedClock(folder), slot.partition(":")[2]
    with (folder / f"served-{name}").open("ab", buffering=0) as ledger:
        for unit in range(len(served(folder, slot)), week.units):
            while (left := EPOCH + week.time_of(slot, unit) - clock()) > timedelta():
                time.sleep(left.total_seconds() / week.factor)
            if unit % week.threshold == WAIT and unit > week.threshold:
                _wait_for_release(slot, unit // week.threshold)
            kind, _ = task_of(week, slot, unit)
            with etude.task(f"{kind}, number {unit}", id=unit_id(slot, unit)) as task:
                chosen = task.decide(name, {"kind": kind, "text": kind}, options=list(OPTIONS))
                success, error = outcome(week, slot, unit, str(chosen))
                task.outcome(success=success, error=error, cost_usd=0.001)
            if not task.collected:
                raise RuntimeError(f"unit {unit} of {slot} was not collected")
            ledger.write(f"{unit}\n".encode())
            os.fsync(ledger.fileno())
    while True:
        time.sleep(1)


WAIT = 30
"""Units of a period after which traffic waits until the policy of the period before is being released: however slow the
machine is, a policy meets the same units."""


def _wait_for_release(slot: str, number: int) -> None:
    """Until the release of the slot's n-th policy has begun, or its gates did not pass it."""
    registry, done = open_registry(), {Action.STARTED, Action.PROMOTED, Action.GATES_FAILED, Action.GATES_UNDECIDED}
    while True:
        history = registry.history(slot)
        versions = [entry.version for entry in history if entry.action is Action.REGISTERED]
        if len(versions) >= number and any(e.version == versions[number - 1] and e.action in done for e in history):
            return
        time.sleep(0.1)


def served(folder: Path, slot: str) -> list[int]:
    """Units that were served and acknowledged."""
    path = folder / f"served-{slot.partition(':')[2]}"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [int(line) for line in lines]


def unit_id(slot: str, unit: int) -> str:
    return f"{slot.replace(':', '.')}-{unit:05d}"


@dataclass
class Running:
    """The processes of a week, any of which can be killed and is started again."""

    folder: Path
    week: Week
    pids: dict[str, int] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    killed_runs: Counter[str] = field(default_factory=Counter)
    exits: Counter[str] = field(default_factory=Counter)
    """Processes that ended by themselves, which none should."""

    def begin(self) -> None:
        os.chdir(self.folder)
        (self.folder / "etude.yaml").write_text(json.dumps(self.week.settings()))  # JSON is YAML
        (self.folder / STARTED).write_text(json.dumps({"start": time.time(), "factor": self.week.factor}))
        set_clock(SimulatedClock(self.folder))
        for name in self.names:
            self._start(name)

    @property
    def names(self) -> list[str]:
        return ["coordinator 1", "coordinator 2", "controller", *(f"server {slot}" for slot in self.week.slots)]

    def kill(self, name: str) -> None:
        """Kill one of them, and start it again at once."""
        with suppress(ProcessLookupError):
            os.kill(self.pids[name], signal.SIGKILL)
        os.waitpid(self.pids.pop(name), 0)
        self.kills[name.partition(" ")[0]] += 1
        self._start(name)

    def kill_job(self, most: int) -> bool:
        """Kill the process of a job, which the loop starts again; False if none runs that was not killed so often."""
        for pid, folder in self.job_pids():
            if self.killed_runs[folder] < most:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.kills["job"] += 1
                    self.killed_runs[folder] += 1
                    return True
        return False

    def job_pids(self) -> list[tuple[int, str]]:
        """Processes `etude train` that the coordinators of this week started, with their run folders."""
        ours, found = set(self.pids.values()), []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, IndexError, ValueError):
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                command = (path / "cmdline").read_text().split("\0")
                if parent in ours and "train" in command:
                    found.append((int(path.name), command[command.index("--out") + 1]))
        return found

    def revive(self) -> None:
        """Start again what ended by itself."""
        for name, pid in list(self.pids.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self.exits[name.partition(" ")[0]] += 1
                self._start(name)

    def end(self) -> None:
        for pid in self.pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.pids.clear()
        set_clock(None)

    def _start(self, name: str) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self.pids[name] = pid
            return
        try:
            self._become(name)
        except BaseException:
            with (self.folder / "errors.log").open("a") as log:
                log.write(f"{name}\n{traceback.format_exc()}\n")
        finally:
            os._exit(1)

    def _become(self, name: str) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        kind, _, about = name.partition(" ")
        logging.basicConfig(filename=self.folder / f"{kind}.log", level=logging.WARNING, force=True)
        set_clock(SimulatedClock(self.folder))
        roles: dict[str, Callable[[], None]] = {
            "coordinator": lambda: coordinate(self.folder, self.week),
            "controller": lambda: control(self.folder, self.week),
            "server": lambda: serve(self.folder, self.week, about),
        }
        roles[kind]()


@dataclass
class Watcher:
    """Looks at the ledgers from outside, all the time."""

    registry: Registry
    seen: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    looks: int = 0

    def look(self) -> None:
        """Every entry that is new: a version serves only after it passed its gates, and is promoted once."""
        self.looks += 1
        for slot in self.registry.slots():
            history = self.registry.history(slot)
            for entry in history[self.seen.get(slot, 0) :]:
                self.violations += [f"{slot}#{entry.number}: {why}" for why in wrong_with(entry, history)]
                if entry.action is Action.GATES_PASSED and entry.serving.incumbent is None:
                    self.registry.approve(slot, str(entry.version), by="ada")
            self.seen[slot] = len(history)

    def verify(self) -> None:
        """Every hash and signature, read again from the disk."""
        for slot in self.registry.slots():
            self.registry.slot_ledger(slot).verify()


def wrong_with(entry: Entry, history: Sequence[Entry]) -> Iterator[str]:
    before = [e for e in history if e.number < entry.number]
    serving = {entry.serving.incumbent, entry.serving.exposure.candidate if entry.serving.exposure else None} - {None}
    for version in serving:
        verdicts = [e.action for e in before if e.version == version and e.action in GATED]
        if not verdicts or verdicts[-1] is not Action.GATES_PASSED:
            yield f"{version} serves without having passed its gates"
    if entry.action is Action.PROMOTED and any(
        e.version == entry.version and e.action is Action.PROMOTED for e in before
    ):
        yield f"{entry.version} was promoted twice"


GATED = (Action.GATES_PASSED, Action.GATES_FAILED, Action.GATES_UNDECIDED)


def is_over(folder: Path, week: Week, registry: Registry) -> bool:
    """Whether every unit is served and stored, and nothing is left to do."""
    if any(len(served(folder, slot)) < week.units for slot in week.slots):
        return False
    with closing(Outbox(folder / DATA / OUTBOX)) as outbox:
        if outbox.pending(TRAJECTORIES, INGEST):
            return False
    with closing(SqliteJobs(folder / DATA / JOBS)) as queue:
        jobs = queue.jobs()
        under_way = set(OPEN_STAGES) - {Stage.UNDECIDED}  # gates that cannot tell would run again for ever
        if any(job.state in (JobState.QUEUED, JobState.RUNNING) or job.stage in under_way for job in jobs):
            return False
        if queue.changes():
            return False
    return all(registry.serving(slot).exposure is None for slot in week.slots)


def end_state(folder: Path, week: Week) -> dict[str, Any]:
    """All that has to be equal in every run of the same week."""
    registry = open_registry()
    with closing(SqliteJobs(folder / DATA / JOBS)) as queue:
        jobs = list(reversed(queue.jobs()))
    found: dict[str, Any] = {}
    for slot in week.slots:
        own = [job for job in jobs if job.slot == slot]
        versions = [str(job.version) for job in own]
        history = registry.history(slot)
        serving = registry.serving(slot)
        found[slot] = {
            "jobs": [(job.request.trigger, job.state.value, job.stage and job.stage.value) for job in own],
            "policies": [[e.action.value for e in history if e.version == v and e.action in FATES] for v in versions],
            "registered": sum(e.action is Action.REGISTERED for e in history),
            "serves": versions.index(serving.incumbent) + 1 if serving.incumbent in versions else None,
            "exposed": serving.exposure is not None,
        }
    return found


def queue_facts(folder: Path) -> dict[str, Any]:
    """How often the leader changed, and what jobs went through."""
    with closing(SqliteJobs(folder / DATA / JOBS)) as queue:
        jobs = queue.jobs()
        while (terms := queue.lead("the end", lease_s=1e-3)) is None:  # the last one's lease has not ended
            time.sleep(0.1)
    return {
        "jobs": len(jobs),
        "attempts": sum(job.attempts for job in jobs),
        "failures": sum(job.failures for job in jobs),
        "leaders": terms - 1,
        "cpu_hours": sum(job.cost.cpu_hours for job in jobs),
        "usd": sum(job.cost.usd for job in jobs),
    }


FATES = (Action.REGISTERED, Action.STARTED, Action.PROMOTED, Action.ROLLED_BACK, Action.HELD)


def check_trajectories(folder: Path, week: Week) -> dict[str, int]:
    """Every unit is stored once, as it was served, with a reward; and by which policies it was decided."""
    registry, counts = open_registry(), Counter[str]()
    periods = {slot: serving_periods(registry.history(slot)) for slot in week.slots}
    expected = {unit_id(slot, unit): (slot, unit) for slot in week.slots for unit in range(week.units)}
    ids = []
    tolerance = timedelta(seconds=TOLERANCE_S * week.factor)
    with closing(SqliteStore(folder / DATA / STORE)) as store:
        for row in store.scan(Where(), version=1):
            stored = decode(row.body)
            assert isinstance(stored, Trajectory)
            ids.append(stored.id)
            slot, unit = expected.get(stored.id, ("", -1))
            counts["unrewarded"] += row.summary.reward is None
            if not slot or stored.task != f"{task_of(week, slot, unit)[0]}, number {unit}":
                counts["altered"] += 1
                continue
            (decision,) = stored.decisions
            chosen = decision.action["name"] if isinstance(decision.action, dict) else decision.action
            counts["altered"] += (stored.outcome.success, stored.outcome.error) != outcome(
                week, slot, unit, str(chosen)
            )
            version = decision.policy.partition("+")[0]
            if version not in periods[slot]:
                counts["not_by_a_policy"] += 1  # before the first one, or while it is loaded
                continue
            began, ended = periods[slot][version]
            counts["by_a_policy"] += 1
            counts["not_serving"] += not began - tolerance <= stored.time <= ended + tolerance
    return {
        **{name: counts[name] for name in ("unrewarded", "altered", "by_a_policy", "not_by_a_policy", "not_serving")},
        "expected": len(expected),
        "lost": len(expected.keys() - set(ids)),
        "unknown": len(set(ids) - expected.keys()),
        "stored_twice": len(ids) - len(set(ids)),
    }


TOLERANCE_S = 0.5
"""Seconds between an entry of a ledger and the last decision of a process that had not seen it."""


def serving_periods(history: Sequence[Entry]) -> dict[str, tuple[datetime, datetime]]:
    """When each version made decisions: exposed, serving, or in a holdback."""
    found: dict[str, tuple[datetime, datetime]] = {}
    for entry, after in zip(history, [*history[1:], None], strict=True):
        ends = after.time if after is not None else datetime.max.replace(tzinfo=UTC) - timedelta(days=30)
        exposure = entry.serving.exposure
        active = {entry.serving.incumbent, exposure.candidate if exposure else None}
        active |= {entry.serving.previous} if exposure is not None and exposure.mode == "holdback" else set()
        for version in active - {None}:
            began = found.get(str(version), (entry.time, ends))[0]
            found[str(version)] = began, ends
    return found


def check_record(week: Week) -> dict[str, int]:
    """The whole record: hashes, signatures, and every decision of a canary computed again."""
    registry, counts = open_registry(), Counter[str]()
    for slot in week.slots:
        counts["entries"] += registry.slot_ledger(slot).verify()
        for entry in registry.history(slot):
            if "release" in entry.evidence:
                registry.ledger(f"releases/{entry.evidence['release']}", ReleaseEntry).verify()
            if "log_e_values" in entry.evidence:
                counts["replayed"] += 1
                counts["replayed_differently"] += not replay(registry, entry).is_equal
    return {name: counts[name] for name in ("entries", "replayed", "replayed_differently")}


KINDS = ("coordinator", "job", "controller", "server")
SETTLE_S = 600.0
"""Seconds after the week in which everything that is under way has to end."""
VERIFY_S = 10.0


def live(folder: Path, week: Week, *, kills: int, seed: int) -> dict[str, Any]:
    """One week; what it ended with, and what was wrong meanwhile."""
    folder.mkdir()
    rng, began = random.Random(seed), time.monotonic()
    week_s = week.days * 86_400 / week.factor
    moments = sorted(rng.uniform(2.0, week_s) for _ in range(kills))
    running = Running(folder, week)
    running.begin()
    watcher, verified = Watcher(open_registry()), 0.0
    try:
        while moments or not is_over(folder, week, watcher.registry):
            now = time.monotonic() - began
            if now > week_s + SETTLE_S:
                watcher.violations.append("it did not come to its end")
                break
            if moments and now >= moments[0]:
                moments.pop(0)
                kill_one(running, rng)
            watcher.look()
            if now - verified > VERIFY_S:
                verified = now
                watcher.verify()
            running.revive()
            time.sleep(0.05)
        seconds = time.monotonic() - began
    finally:
        running.end()
    watcher.look()
    return {
        "seconds": round(seconds, 1),
        "factor": week.factor,
        "kills": sum(running.kills.values()),
        "killed": {kind: running.kills[kind] for kind in KINDS} if kills else {},
        "ended_by_themselves": dict(running.exits),
        "looks": watcher.looks,
        "violations": watcher.violations,
        "trajectories": check_trajectories(folder, week),
        "record": check_record(week),
        "queue": queue_facts(folder),
        "end": end_state(folder, week),
    }


def kill_one(running: Running, rng: random.Random) -> None:
    """A job if one runs that was not killed often; else one of the others. Each failure of a job doubles its pause."""
    if rng.random() < 0.6 and running.kill_job(JOB_KILLS):
        return
    kind = rng.choice(["coordinator", "controller", "controller", "server", "server"])
    running.kill(rng.choice([name for name in running.names if name.startswith(kind)]))


JOB_KILLS = 8


def main() -> None:
    """A small week in a folder: `python -m tests.loop_week FOLDER KILLS` prints how it went, as JSON."""
    folder, kills = Path(sys.argv[1]), int(sys.argv[2])
    week = Week(slots=("choice:model",), days=1.0, factor=4000.0, threshold=250, units=300, lease_s=1.0)
    print(json.dumps(live(folder, week, kills=kills, seed=0)))


if __name__ == "__main__":
    main()
