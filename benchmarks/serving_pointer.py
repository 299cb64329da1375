"""What a release costs a decision, and how soon every process follows a rollback.

    python benchmarks/serving_pointer.py                  # about two minutes
    python benchmarks/serving_pointer.py --rollbacks 50

A policy learned from logged choices decides among nine options, by itself and as `etude.load("choice:model")`: with
nothing exposed, and during a canary at 50 %, when each decision is a new unit that is assigned and journalled; there
the policy by itself is two policies in turn at random, since two need more of the processor's cache than one. All are
timed in turns, so that a busy machine slows them alike. Then eight processes ask what serves while another one promotes
and rolls back; the time is from the append to the ledger until the last of them sees it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
from results import save

import etude
from etude.adapters.objects import open_blobs
from etude.bootstrap.experience import experience
from etude.bootstrap.release import open_registry
from etude.contracts.decision import DecisionRequest
from etude.contracts.query import Where
from etude.contracts.release import Action, Exposure, Mode, Serving
from etude.evidence.eprocess import Evidence, EvidenceConfig, Unit
from etude.experience.datasets import DatasetConfig, create
from etude.learning.run_folder import find_policy
from etude.release.assignment import Assignments
from etude.release.registry import Registry

SLOT = "choice:model"
KINDS = ("summarise", "translate", "prove", "refactor")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="rounds of 200 decisions each")
    parser.add_argument("--rollbacks", type=int, default=100)
    parser.add_argument("--processes", type=int, default=8)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        versions = [_learn(Path(folder), seed) for seed in (0, 1)]
        values = {
            "assignment_us": assignment_us(Path(folder)),
            "update_us": update_us(),
            "overhead": overhead(versions, arguments.rounds),
            "rollback": rollback(versions, arguments.rollbacks, arguments.processes),
        }
    save("serving_pointer", values)
    _print(values)


def assignment_us(folder: Path) -> dict[str, float]:
    """Assignment of a new unit, with its probability, in the journal."""
    assignments = Assignments(folder / "assignments", clock_ns=time.time_ns)
    exposure = Exposure(release="r", candidate="0" * 16, mode=Mode.CANARY, share=0.1)
    times = []
    for i in range(20_000):
        began = time.perf_counter()
        assignments.assign(exposure, f"t-{i}")
        times.append(time.perf_counter() - began)
    return _quantiles(np.array(times) * 1e6)


def update_us() -> dict[str, float]:
    """All processes of a release, by one unit."""
    rng, evidence, times = np.random.default_rng(0), Evidence(EvidenceConfig()), []
    for _ in range(20_000):
        unit = Unit(
            candidate=bool(rng.random() < 0.1), share=0.1, score=float(rng.random()), error=bool(rng.random() < 0.02)
        )
        began = time.perf_counter()
        evidence.update(unit)
        times.append(time.perf_counter() - began)
    return _quantiles(np.array(times) * 1e6)


def overhead(versions: list[str], rounds: int) -> dict[str, Any]:
    """µs per `choose`, medians of rounds, and their ratios to the policy by itself."""
    registry = open_registry()
    for version in versions:
        registry.record(SLOT, Action.GATES_PASSED, version, actor="benchmark")
        registry.approve(SLOT, version, by="benchmark")
    registry.promote_directly(SLOT, versions[0], by="benchmark", reason="first")
    bare = [etude.load(version) for version in versions]
    served = etude.load(SLOT)

    def ask_served(i: int) -> Any:
        return served.choose(KINDS[i % 4], trajectory=f"t-{i}")

    found = {"idle": _in_turns({"bare": lambda i: bare[0].choose(KINDS[i % 4]), "served": ask_served}, rounds)}
    _expose(registry, Action.STARTED, versions[1], _exposure(versions[1]))
    served.prepare()
    assert served.decide(DecisionRequest(context="prove", trajectory="one")).policy in versions
    arms = np.random.default_rng(0).integers(2, size=1000).tolist()  # both policies in turn at random, as in a canary
    both = {"bare": lambda i: bare[arms[i % 1000]].choose(KINDS[i % 4]), "served": ask_served}
    found["canary"] = _in_turns(both, rounds)
    _expose(registry, Action.STOPPED, versions[1], None)
    return found


def _learn(folder: Path, seed: int) -> str:
    """A choice policy from 600 logged decisions among nine options, registered."""
    rng = np.random.default_rng(seed)
    names = [f"option-{i}" for i in range(9)]
    skill = rng.random((len(KINDS), len(names)))
    lines = []
    for _ in range(600):
        kind, option = rng.integers(len(KINDS)), rng.integers(len(names))
        lines.append((KINDS[kind], names[option], bool(rng.random() < skill[kind, option])))
    for kind_name, option_name, success in lines:
        with etude.task(kind_name) as task:
            task.decided("model", option_name, options=names, propensity=1 / 9, policy="uniform", context=kind_name)
            task.outcome(success=success)
    out = folder / f"dataset-{seed}"
    with experience() as opened:
        create(
            opened.store,
            open_blobs(out),
            problem=SLOT,
            where=Where(problem=SLOT),
            version=1,
            config=DatasetConfig(),
            time=datetime.now(UTC),
        )
    run = etude.train("choice", out=folder / f"run-{seed}", dataset=out, seed=seed)
    return open_registry().register(find_policy(Path(run.folder.path)), SLOT, actor="benchmark")


def _in_turns(sides: Mapping[str, Callable[[int], Any]], rounds: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in sides}
    number = 0
    for turn in range(rounds + 3):
        for name, call in sides.items():
            began = time.perf_counter()
            for _ in range(200):
                number += 1
                call(number)
            if turn >= 3:
                times[name].append((time.perf_counter() - began) / 200 * 1e6)
    ratios = np.array(times["served"]) / np.array(times["bare"])
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (2000, len(ratios))), axis=1)
    return {
        "bare_us": float(np.median(times["bare"])),
        "served_us": float(np.median(times["served"])),
        "ratio": float(np.median(ratios)),
        "ratio_ci95": [float(q) for q in np.quantile(medians, (0.025, 0.975))],
    }


def rollback(versions: list[str], rollbacks: int, processes: int) -> dict[str, Any]:
    """Milliseconds from the decision until every process serves by it."""
    registry, context = open_registry(), multiprocessing.get_context("spawn")
    seen: Any = context.Queue()
    stop = context.Event()
    watchers = [context.Process(target=_watch, args=(seen, stop)) for _ in range(processes)]
    for watcher in watchers:
        watcher.start()
    _all_saw(seen, processes)
    times = []
    for _ in range(rollbacks):
        _expose(registry, Action.STARTED, versions[1], _exposure(versions[1]))
        _all_saw(seen, processes)
        began = time.time()
        _expose(registry, Action.STOPPED, versions[1], None)
        times.append(_all_saw(seen, processes) - began)
    stop.set()
    for watcher in watchers:
        watcher.join(10)
    return {"processes": processes, "rollbacks": rollbacks, "ms": _quantiles(np.array(times) * 1e3)}


def _all_saw(seen: Any, processes: int) -> float:
    """When the last of them did."""
    return float(max(seen.get(timeout=60) for _ in range(processes)))


def _expose(registry: Registry, action: Action, version: str, exposure: Exposure | None) -> None:
    registry.record(
        SLOT,
        action,
        version,
        actor="benchmark",
        change=lambda serving: Serving(incumbent=serving.incumbent, exposure=exposure),
    )


def _exposure(version: str) -> Exposure:
    return Exposure(release="r-1", candidate=version, mode=Mode.CANARY, share=0.5)


def _watch(seen: Any, stop: Event) -> None:
    """Asks as often as a busy server would: every millisecond; says when what serves has changed."""
    follower = open_registry().follow(SLOT)
    last = follower.serving()
    seen.put(time.time())
    while not stop.is_set():
        now = follower.serving()
        if now != last:
            last = now
            seen.put(time.time())
        time.sleep(0.001)


def _quantiles(values: np.ndarray) -> dict[str, float]:
    return {name: float(np.quantile(values, q)) for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


def _print(values: dict[str, Any]) -> None:
    for name in ("assignment_us", "update_us"):
        print(f"{name:16} p50 {values[name]['p50']:6.1f}   p99 {values[name]['p99']:6.1f}   (< 20 wanted)")
    for name, found in values["overhead"].items():
        low, high = found["ratio_ci95"]
        print(
            f"choose, {name:7} bare {found['bare_us']:6.0f} µs, served {found['served_us']:6.0f} µs: "
            f"{found['ratio']:.3f} × [{low:.3f}, {high:.3f}]   (≤ 1.10 wanted)"
        )
    ms = values["rollback"]["ms"]
    print(
        f"rollback seen by {values['rollback']['processes']} processes: p50 {ms['p50']:.1f} ms, p99 {ms['p99']:.1f} "
        f"ms, longest {ms['max']:.1f} ms   (< 5,000 wanted)"
    )


if __name__ == "__main__":
    main()
