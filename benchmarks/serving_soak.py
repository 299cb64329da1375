"""A long run of the whole: decisions and their outcomes over HTTP, while the loop trains, canaries and rolls back.

    python benchmarks/serving_soak.py                     # ten minutes, on a machine that does nothing else
    python benchmarks/serving_soak.py --minutes 1 --rate 100

`etude serve` with its loop. Half of the requests ask for decisions, at a fixed rate, and the other half report their
outcomes a moment later. A policy is promoted, exposed in a canary of all tasks, or rolled back from it, in turns, every
20 seconds, besides what the loop does by itself. In the end: no request failed, the memory of the server and of the
process that stores its events is that of its second fifth within 5 %, and every acknowledged trajectory is stored once.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml
from load import at_rate
from results import save
from serving_home import (
    PLAIN,
    begin,
    bodies,
    expose,
    learn_choice,
    make_key,
    promote,
    requests,
    serving,
    take_back,
    until_it_decides,
)

from etude.bootstrap.experience import experience
from etude.bootstrap.loop import open_jobs
from etude.bootstrap.loop import settings_here as loop_settings
from etude.bootstrap.release import open_registry
from etude.contracts.query import Where

PATH = "/v1/decisions"
SLICE_S = 5.0
"""Seconds of decisions after which their outcomes are reported."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=500.0, help="requests per second, half of them decisions")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        begin(Path(folder), policies=(PLAIN,))
        _with_loop(Path(folder))
        versions = [learn_choice(PLAIN, seed) for seed in (0, 1)]
        promote(PLAIN, versions[0])
        key = make_key()
        with serving(loop=True) as running:
            until_it_decides(running.port, key, PLAIN)
            stop, errors = threading.Event(), list[str]()
            swaps = threading.Thread(target=_swap, args=(versions, stop, errors))
            swaps.start()
            values, acknowledged = _soak(running, key, given.minutes * 60, given.rate)
            stop.set()
            swaps.join()
            stored = _stored(acknowledged, patience_s=120)
        values |= {"minutes": given.minutes, "rate": given.rate, "swap_errors": errors, "stored": stored}
        values["loop"] = _happened()
    print(json.dumps(values, indent=1))
    flat = values["memory_mb"]["growth"] <= 0.05
    fine = not values["failed"] and not errors and flat and stored == {"missing": 0, "twice": 0}
    print("as wanted" if fine else "NOT as wanted")
    if given.minutes >= 10:
        save("serving_soak", values)


def _with_loop(folder: Path) -> None:
    """A loop that trains this slot every few minutes."""
    path = folder / "etude.yaml"
    settings = yaml.safe_load(path.read_text())
    settings["loop"] = {"slots": [PLAIN], "threshold": 5000, "min_hours_between": 0.05, "schedule": None}
    path.write_text(yaml.safe_dump(settings))


def _swap(versions: list[str], stop: threading.Event, errors: list[str]) -> None:
    turn = 0
    while not stop.wait(20):
        try:
            turn += 1
            if turn % 3 == 0:
                promote(PLAIN, versions[turn // 3 % 2])
            elif turn % 3 == 1:
                expose(PLAIN, versions[(turn // 3 + 1) % 2])
            else:
                take_back(PLAIN, versions[(turn // 3 + 1) % 2])
        except Exception as error:  # another release is in progress: the loop's
            if "release" not in str(error):
                errors.append(str(error))


def _soak(running: Any, key: str, seconds: float, rate: float) -> tuple[dict[str, Any], list[str]]:
    """Decisions in slices; the outcomes of one are reported while the next one is asked for."""
    made, rng = requests(PATH, key, bodies(PLAIN)), random.Random(0)
    statuses, latencies, memory, lost = Counter[int](), list[float](), list[dict[str, float]](), 0
    acknowledged, waiting, turn = list[str](), list[str](), list[bytes]()
    began, failed = time.monotonic(), list[str]()
    while time.monotonic() - began < seconds or waiting:
        asks = time.monotonic() - began < seconds
        reports = [{"id": id, "success": rng.random() < 0.7} for id in waiting]
        outcomes = requests("/v1/feedback", key, reports)
        decisions = [made[rng.randrange(len(made))] for _ in range(int(rate / 2 * SLICE_S))] if asks else []
        turn = [*decisions, *outcomes]
        order = list(range(len(turn)))
        rng.shuffle(order)
        per_s = max(1.0, len(turn) / SLICE_S)
        mixed = [turn[i] for i in order]
        load = at_rate(running.address, mixed.__getitem__, per_s=per_s, seconds=len(turn) / per_s, keep=True)
        statuses += load.statuses
        latencies += load.latencies_ms
        lost += load.lost
        answers = [msgspec.json.decode(body) for body in load.bodies]
        failed += [str(answer) for answer in answers if "status" in answer]
        acknowledged += [answer["trajectory"] for answer in answers if "trajectory" in answer]
        waiting = [answer["id"] for answer in answers if "action" in answer]
        memory.append(running.rss_mb())
    return {
        "statuses": {str(status): count for status, count in statuses.items()},
        "failed": lost + len(failed),
        "first_failures": failed[:3],
        "p50_ms": float(np.quantile(latencies, 0.5)),
        "p99_ms": float(np.quantile(latencies, 0.99)),
        "memory_mb": _memory(memory),
        "acknowledged": len(acknowledged),
    }, acknowledged


def _memory(measured: list[dict[str, float]]) -> dict[str, Any]:
    """Of the server and the process that stores: how much larger the maximum after the first fifth is than what it was
    in the second fifth. The loop is listed by itself: it works on data that grow."""
    serving = [one["server"] + one.get("ingest", 0.0) for one in measured]
    second = serving[len(serving) // 5 : max(2 * len(serving) // 5, len(serving) // 5 + 1)]
    low, high = min(second), max(serving[len(serving) // 5 :])
    parts = {name: [round(one.get(name, 0.0), 1) for one in measured] for name in ("server", "ingest", "loop")}
    return {"second_fifth": low, "max": high, "growth": high / low - 1, **parts}


def _stored(acknowledged: list[str], *, patience_s: float) -> dict[str, int]:
    """How many of the acknowledged trajectories are not stored, or more than once."""
    deadline = time.monotonic() + patience_s
    while True:
        with experience() as opened:
            found = Counter(row.summary.id for row in opened.store.scan(Where(problem=PLAIN), version=1))
        missing = sum(found[id] == 0 for id in acknowledged)
        if not missing or time.monotonic() > deadline:
            return {"missing": missing, "twice": sum(found[id] > 1 for id in acknowledged)}
        time.sleep(2)


def _happened() -> dict[str, dict[str, int]]:
    """Jobs of the loop by state and stage, and steps of the slot by action."""
    with open_jobs(loop_settings()) as jobs:
        found = Counter(f"{job.state}, {job.stage}" for job in jobs.jobs(slot=PLAIN))
    return {"jobs": dict(found), "steps": dict(Counter(str(step.action) for step in open_registry().history(PLAIN)))}


if __name__ == "__main__":
    main()
