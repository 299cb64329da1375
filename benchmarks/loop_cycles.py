"""Ten cycles of the loop in a world that drifts, learning only from what its own traffic logged.

    python benchmarks/loop_cycles.py choice --seed 0 --out cycles/choice-0.json      # one seed
    python benchmarks/loop_cycles.py workflow --seed 0 --out cycles/workflow-0.json  # 11 ms of CPU time per execution
    python benchmarks/loop_cycles.py merge cycles/*.json                             # writes the results file

A seed is one process on one core. It keeps its files in a folder next to `--out`, and continues with the next cycle
when it is started again. Clock and drift are simulated, all else is the product: served policies that explore, the
outbox, ingest, rewards, `Coordinator.tick` with its trigger, `etude train` as a process, registration, every gate,
shadow, canary stages, promotion or rollback, and the holdback. The statistics are the defaults.

A cycle is a week. It begins with a drift of the catalogue: prices change, the quality of some options changes, an
option appears and another one disappears; then the operator sets the budget again: what the world would cost without a
policy. Traffic is served until the release of the week has ended, at most for seven days. After each cycle three
policies are measured in the same state of the world, on tasks that no traffic had, as they serve: the one that served
before the cycle, the one that serves after it, and the first one, unchanged; and next to them the start, what decides
where there is no loop yet.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import yaml
from results import save, summary

from etude.bootstrap.clock import set_clock
from etude.bootstrap.loop import open_loop
from etude.bootstrap.releases import RegistryReleases
from etude.contracts.jobs import Job, JobState, Stage
from etude.contracts.release import Entry
from etude.evidence.overlap import Verdict
from etude.learning.run_folder import find_policy
from etude.loop.coordinator import Coordinator
from etude.release.registry import Registry

CYCLES, WEEK = 10, timedelta(days=7)
MARGIN, WANTED = 0.03, 1.15
"""Allowed loss of success in a cycle; wanted ratio of success to the start at the end."""
SUCCESS_REWARD = 4
"""Version of the reward: whether the task succeeded, from 0 to 1."""
OPERATOR = "operator"
"""The person that approves the first policy and ends releases that are held."""
POLL_S = 1.0
CLOCK = Path("clock.txt")
"""The simulated time of the last tick."""
ENDED = (Stage.REFUSED, Stage.STARTED, Stage.SUPERSEDED)

Measures = dict[str, float]


@dataclass
class SimulatedClock:
    now: datetime = datetime(2026, 1, 5, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class World(Protocol):
    """A problem with its traffic, in the state of the current cycle."""

    slot: str
    per_day: int
    """Tasks per day."""
    batch: int
    """Tasks between two ticks."""
    start: str
    """The measured row of what decides where there is no loop yet."""

    def budget(self) -> float | None:
        """USD per task that policies may cost in the present state: what it costs without one; None is no budget."""

    def settings(self) -> dict[str, Any]:
        """The problem's own sections of etude.yaml, and those of experience, in the present state."""

    def drift(self, cycle: int) -> str:
        """Move to the state of a cycle; what changed, in words."""

    def first(self, loop: Coordinator, clock: SimulatedClock) -> str:
        """Run of the first policy: its folder."""

    def serve(self, number: int, clock: SimulatedClock) -> list[Measures]:
        """Carry out that many tasks by what serves, recorded as trajectories; their outcomes."""

    def measure(self, registry: Registry, version: str) -> Measures:
        """The policy as it serves, in the present state, on held-out tasks: success, cost_usd and others."""

    def baselines(self) -> dict[str, Measures]:
        """What simple rules would reach in the present state."""


@dataclass(kw_only=True)
class Bench:
    """One seed of one problem."""

    world: World
    clock: SimulatedClock
    loop: Coordinator
    log: Path
    served: list[Measures] = field(default_factory=list)

    @property
    def releases(self) -> RegistryReleases:
        assert isinstance(self.loop.releases, RegistryReleases)
        return self.loop.releases

    @property
    def registry(self) -> Registry:
        return self.releases.release.registry

    def incumbent(self) -> str:
        found = self.registry.serving(self.world.slot).incumbent
        assert found is not None
        return found

    def tick(self) -> None:
        """Tick until no job or gate runs: they take seconds, in which no simulated time passes."""
        while True:
            tick = self.loop.tick()
            with self.log.open("a") as file:
                for line in (*tick.happened, *(f"PROBLEM {problem}" for problem in tick.problems)):
                    if "events ingested" not in line:
                        print(f"{self.clock.now:%m-%d %H:%M} {line}", file=file)
            if not tick.is_busy and not tick.happened:
                return
            time.sleep(POLL_S if tick.is_busy else 0)

    def serve(self) -> None:
        self.served += self.world.serve(self.world.batch, self.clock)
        self.tick()
        CLOCK.write_text(self.clock.now.isoformat())

    def begin(self) -> str:
        """The first policy serves: trained, judged by its gates, approved by a person."""
        run = find_policy(Path(self.world.first(self.loop, self.clock)))
        version = self.registry.register(run, self.world.slot, actor=OPERATOR)
        while (verdict := self.releases.gate(version, self.world.slot)) is Verdict.CANNOT_TELL:
            self.world.serve(2 * self.world.batch, self.clock)  # without a policy still
            self.loop.ingest()
        self.registry.approve(self.world.slot, version, by=OPERATOR)
        self.registry.promote_directly(self.world.slot, version, by=OPERATOR, reason="the first policy")
        with self.log.open("a") as file:
            print(f"{self.clock.now:%m-%d %H:%M} first policy {version}: gates {verdict}", file=file)
        return version

    def cycle(self, number: int, first: str, drift: str) -> dict[str, Any]:
        began, slot = time.perf_counter(), self.world.slot
        at = self._state(number)
        before, known, entries = at["before"], set(at["jobs"]), at["entries"]
        ends, self.served = datetime.fromisoformat(at["ends"]), []
        while self.clock.now < ends and not self._is_settled(known):
            self.serve()
        held = self._end_held()
        jobs = [job for job in self.loop.queue.jobs(slot=slot) if job.id not in known]
        steps = self.registry.history(slot)[entries:]
        days = 7 - (ends - self.clock.now) / timedelta(days=1)
        self.clock.now = max(self.clock.now, ends)
        CLOCK.write_text(self.clock.now.isoformat())
        versions = {"first": first, "before": before, "after": self.incumbent()}
        measured = {version: self.world.measure(self.registry, version) for version in set(versions.values())}
        return {
            "cycle": number,
            "drift": drift,
            "budget": self.world.budget(),
            "versions": versions,
            "policies": {name: measured[version] for name, version in versions.items()} | self.world.baselines(),
            "served": {"tasks": len(self.served), "days": days} | _means(self.served),
            "jobs": [_job(job) for job in jobs],
            "steps": [_step(step) for step in steps],
            "gates": self._gates(jobs),
            "ended_by_operator": held,
            "seconds": time.perf_counter() - began,
        }

    def _state(self, number: int) -> dict[str, Any]:
        """What a cycle began with; an interrupted one continues."""
        file = Path(f"cycle-{number}.json")
        if not file.exists():
            found = {
                "before": self.incumbent(),
                "jobs": [job.id for job in self.loop.queue.jobs(slot=self.world.slot)],
                "entries": len(self.registry.history(self.world.slot)),
                "ends": (self.clock.now + WEEK).isoformat(),
            }
            file.write_text(json.dumps(found))
        read: dict[str, Any] = json.loads(file.read_text())
        return read

    def _is_settled(self, known: set[str]) -> bool:
        """Whether the week's job has ended, its candidate was refused or released, and nothing is exposed."""
        own = [job for job in self.loop.queue.jobs(slot=self.world.slot) if job.id not in known]
        if not own or self.registry.serving(self.world.slot).exposure is not None:
            return False
        return all(job.state is JobState.COMPLETED and job.stage in ENDED for job in own)

    def _end_held(self) -> bool:
        """A canary that is held waits for a person: it ends with the week."""
        exposure = self.registry.serving(self.world.slot).exposure
        if exposure is None or exposure.status != "held":
            return False
        self.releases.release.controller.abort(self.world.slot, by=OPERATOR, reason="undecided")
        return True

    def _gates(self, jobs: list[Job]) -> dict[str, Any]:
        """By version, the newest verdict of each gate with its reason, if it did not pass."""
        found = {}
        for job in jobs:
            report = self.registry.attached(job.version, "gates.json") if job.version else None
            if report is not None:
                read = json.loads(report)
                found[str(job.version)] = {
                    "verdict": read["verdict"],
                    "seconds": read["seconds"],
                    "others": {
                        r["name"]: [r["verdict"], r["reason"]] for r in read["results"] if r["verdict"] != "pass"
                    },
                    "off_policy": next((r["value"] for r in read["results"] if r["name"] == "off_policy"), None),
                }
        return found


def _means(rows: list[Measures]) -> Measures:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]} if rows else {}


def _job(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "state": str(job.state),
        "stage": str(job.stage),
        "trigger": job.request.trigger,
        "version": job.version,
        "usd": job.cost.usd,
        "cpu_hours": job.cost.cpu_hours,
        "wall_hours": job.cost.wall_hours,
        "error": None if job.error is None else job.error.message,
    }


def _step(entry: Entry) -> dict[str, Any]:
    kept = {key: entry.evidence[key] for key in ("units", "candidates") if key in entry.evidence}
    return (
        {"time": f"{entry.time:%m-%d %H:%M}", "action": str(entry.action), "version": entry.version}
        | kept
        | {"reason": entry.reason[:300]}
    )


def run(problem: str, seed: int, out: Path, cycles: int, world: World) -> None:
    """All cycles of a seed that its folder does not have yet."""
    out, folder = out.absolute(), out.absolute().with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    file = Path("etude.yaml")
    done: dict[str, Any] = {"problem": problem, "seed": seed, "start": world.start, "first": "", "cycles": []}
    if out.exists():
        done = json.loads(out.read_text())
    clock = SimulatedClock()
    if CLOCK.exists():
        clock.now = datetime.fromisoformat(CLOCK.read_text())
    set_clock(clock)
    if not done["first"]:
        world.drift(-1)
        file.write_text(yaml.safe_dump(settings(world)))
        with open_loop(file) as loop:
            done["first"] = Bench(world=world, clock=clock, loop=loop, log=folder / "log.txt").begin()
            loop.resign()
        out.write_text(json.dumps(done))
    for number in range(len(done["cycles"]), cycles):
        drift = world.drift(number)
        file.write_text(yaml.safe_dump(settings(world)))
        with open_loop(file) as loop:
            bench = Bench(world=world, clock=clock, loop=loop, log=folder / "log.txt")
            found = bench.cycle(number, done["first"], drift)
            loop.resign()
        done["cycles"].append(found)
        out.write_text(json.dumps(done, indent=1))
        print(line(found), flush=True)


def settings(world: World) -> dict[str, Any]:
    """etude.yaml: the product's defaults, but for a weekly job that learns from its week alone, a holdback of six
    hours, a reward with bounds, and for choices a budget."""
    own: dict[str, Any] = {
        "loop": {
            "threshold": 9000,
            "window_days": 1.0,
            "regate_hours": 12.0,
            "min_hours_between": 168.0,
            "schedule": None,
            "drift": False,
            "nice": 0,
        },
        "release": {"canary": {"holdback_days": 0.25}, "gates": {"decide_timeout_s": 600.0}},  # a machine may be busy
    }
    for section, values in world.settings().items():
        gates = own.get(section, {}).get("gates", {}) | values.get("gates", {})
        own[section] = own.get(section, {}) | values | ({"gates": gates} if gates else {})
    return own


def line(found: Mapping[str, Any]) -> str:
    policies, served = found["policies"], found["served"]
    shown = ", ".join(
        f"{name} {row['success']:.3f} at {1e3 * row['cost_usd']:.3f} m$" for name, row in policies.items()
    )
    steps = " ".join(step["action"] for step in found["steps"])
    return f"cycle {found['cycle']}: {shown}; {served['tasks']:,} tasks, {found['seconds']:.0f} s; {steps}"


def merge(files: list[Path]) -> None:
    """The results file of all seeds in these files, by problem, with the cycles that each of them has."""
    found: dict[str, Any] = {"cycles": CYCLES, "margin": MARGIN, "wanted": WANTED}
    read = [json.loads(file.read_text()) for file in files]
    for problem in ("choice", "workflow"):
        seeds = [one for one in read if one["problem"] == problem and one["cycles"]]
        if seeds:
            found[problem] = merged(sorted(seeds, key=lambda one: one["seed"]))
            show(problem, found[problem])
    save("loop_cycles", found)


def merged(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Each number is by seed, with its mean and 95 % interval over seeds; the end is the last cycle that a seed has."""
    last, cycles = [seed["cycles"][-1] for seed in seeds], [cycle for seed in seeds for cycle in seed["cycles"]]
    jobs, start = [job for cycle in cycles for job in cycle["jobs"]], seeds[0]["start"]
    rows = [name for name in last[0]["policies"] if name not in ("before", "after")]
    released = [cycle for cycle in cycles if cycle["versions"]["after"] != cycle["versions"]["before"]]
    longest = max(len(seed["cycles"]) for seed in seeds)
    each = [[seed["cycles"][i] for seed in seeds if i < len(seed["cycles"])] for i in range(longest)]
    return {
        "seeds": [seed["seed"] for seed in seeds],
        "cycles": [len(seed["cycles"]) for seed in seeds],
        "start": start,
        "at the end": {
            name: {key: summary([one["policies"][name][key] for one in last]) for key in ("success", "cost_usd")}
            for name in [*rows, "after"]
        },
        "compared at the end": {
            name: {key: summary([compared(one, name, key) for one in last]) for key in ("success", "cost_usd")}
            for name in rows
        },
        "compared in all cycles": {
            name: {
                key: summary([float(np.mean([compared(c, name, key) for c in seed["cycles"]])) for seed in seeds])
                for key in ("success", "cost_usd")
            }
            for name in rows
        },
        "by cycle": {
            key: [summary([compared(cycle, start, key) for cycle in cycles]) for cycles in each]
            for key in ("success", "cost_usd")
        },
        "traffic to the start": {
            key: summary([in_traffic(seed, key) for seed in seeds]) for key in ("success", "cost_usd")
        },
        "gain of a release": [gain(cycle) for cycle in released],
        "largest loss by a release": max((-gain(cycle) for cycle in released), default=0.0),
        "cycles without a release": len(cycles) - len(released),
        "jobs": len(jobs),
        "usd per job": summary([job["usd"] for job in jobs]),
        "cpu hours per job": summary([job["cpu_hours"] for job in jobs]),
        "steps": dict(Counter(step["action"] for cycle in cycles for step in cycle["steps"])),
        "tasks": sum(cycle["served"]["tasks"] for cycle in cycles),
    }


def compared(cycle: Mapping[str, Any], other: str, key: str) -> float:
    """The policy that serves after a cycle, as a ratio to another row."""
    policies = cycle["policies"]
    return float(policies["after"][key] / policies[other][key])


def gain(cycle: Mapping[str, Any]) -> float:
    """Success that a cycle brings, compared with the policy that served before it."""
    return float(cycle["policies"]["after"]["success"] - cycle["policies"]["before"]["success"])


def in_traffic(seed: Mapping[str, Any], key: str) -> float:
    """All that was served, explored and tried in canaries, as a ratio to the start."""
    tasks = np.array([cycle["served"]["tasks"] for cycle in seed["cycles"]])
    served = np.array([cycle["served"][key] for cycle in seed["cycles"]])
    return float(tasks @ served / (tasks @ [cycle["policies"][seed["start"]][key] for cycle in seed["cycles"]]))


def show(problem: str, found: dict[str, Any]) -> None:
    def text(row: dict[str, Any]) -> str:
        return f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}] {[round(x, 3) for x in row['values']]}"

    print(f"{problem}, seeds {found['seeds']}, cycles {found['cycles']}; the end, compared with")
    for name, row in found["compared at the end"].items():
        print(f"  {name}: success {text(row['success'])}, cost {text(row['cost_usd'])}")
    print("by cycle, compared with the start:")
    for success, cost in zip(*found["by cycle"].values(), strict=True):
        print(f"  success {text(success)}, cost {text(cost)}")
    print(f"traffic: {text(found['traffic to the start']['success'])}")
    print(f"gains {[round(x, 3) for x in found['gain of a release']]}, {found['cycles without a release']} without one")
    print(f"{found['jobs']} jobs, {text(found['usd per job'])} USD each; {found['steps']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", choices=("choice", "workflow", "merge"))
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--cycles", type=int, default=CYCLES)
    parser.add_argument("--processes", type=int, default=1, help="that serve workflows")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared/data/routes/llmrouter")
    given = parser.parse_args()
    if given.problem == "merge":
        merge(given.files)
        return
    out = given.out or Path(f"cycles/{given.problem}-{given.seed}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    if given.problem == "choice":
        from loop_choice import ChoiceWorld

        world: World = ChoiceWorld(given.data, given.seed)
    else:
        from loop_workflow import WorkflowWorld

        world = WorkflowWorld(given.seed, processes=given.processes)
    run(given.problem, given.seed, out, given.cycles, world)


if __name__ == "__main__":
    main()
