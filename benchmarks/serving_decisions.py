"""How quick decisions over HTTP are, compared with a plain FastAPI + torch server in the same run.

    python benchmarks/serving_decisions.py                # about 15 minutes, on a machine that does nothing else
    python benchmarks/serving_decisions.py --quick        # about two minutes; figures of no worth, saved nowhere

One server process is pinned to core 0; the load generator (`load.py`) has core 1. Latencies are from when a request was
due (no coordinated omission). Every decision is on disk, synced, before its answer. The floor is what one core does at
least about a request: parse the bytes of HTTP and write an answer of that size, by uvicorn alone, without a disk.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from load import Load, at_rate, saturated
from results import save
from serving_home import (
    ALLOCATION,
    PLAIN,
    TEXT,
    WORKFLOW,
    Running,
    begin,
    bodies,
    expose,
    free_port,
    learn_allocation,
    learn_choice,
    learn_workflow,
    make_key,
    post,
    process,
    promote,
    requests,
    serving,
    take_back,
    until_it_decides,
)

SERVER, GENERATOR = 0, 1
"""Cores."""
PATH = "/v1/decisions"
WANTED = {PLAIN: 4000, TEXT: 2000, ALLOCATION: 4000}
"""Decisions per second at saturation."""
FLOOR = """
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    lines = [(b"content-type", b"application/json"), (b"content-length", b"200")]
    await send({"type": "http.response.start", "status": 200, "headers": lines})
    await send({"type": "http.response.body", "body": b" " * 200})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short runs, to see that the script works")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of each load")
    parser.add_argument("--rate", type=float, default=1000.0, help="requests per second of the open load")
    given = parser.parse_args()
    seconds = 2.0 if given.quick else given.seconds
    with tempfile.TemporaryDirectory() as folder:
        begin(Path(folder), policies=(PLAIN, TEXT, ALLOCATION, WORKFLOW))
        versions = {PLAIN: [learn_choice(PLAIN, seed, rows=400 if given.quick else 1500) for seed in (0, 1)]}
        versions[TEXT] = [learn_choice(TEXT, 0, rows=400 if given.quick else 1500)]
        versions[ALLOCATION] = [learn_allocation()]
        versions[WORKFLOW] = [learn_workflow(scenarios=60 if given.quick else 4000)]
        for slot, found in versions.items():
            promote(slot, found[0])
        key = make_key()
        values: dict[str, Any] = {"seconds": seconds, "rate": given.rate}
        values["start_to_ready_s"] = [_ready_s() for _ in range(1 if given.quick else 5)]
        values["floor"] = floor(key, seconds)
        with serving(core=SERVER) as running:
            values["decisions"] = {slot: ours(running, key, slot, given.rate, seconds) for slot in WANTED}
            values["plan"] = plan(running, key, seconds)
            values["swap"] = swap(running, key, versions[PLAIN], given.rate, seconds)
        values["peer"] = {slot: peer(slot, versions[slot][0], key, given.rate, seconds) for slot in (PLAIN, ALLOCATION)}
        values["rollback"] = rollback(key, versions[PLAIN], times=3 if given.quick else 30, processes=3)
    _print(values)
    if not given.quick:
        save("serving_decisions", values)


def _ready_s() -> float:
    with serving() as running:
        return running.ready_s


def floor(key: str, seconds: float) -> dict[str, float]:
    """Requests of that size, and nothing done about them."""
    Path("floor.py").write_text(FLOOR)
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "floor:app",
        "--port",
        str(port),
        "--no-access-log",
        "--lifespan",
        "off",
    ]
    with process(command, SERVER, "floor.log"):
        address = ("127.0.0.1", port)
        _until_up(address, requests(PATH, key, bodies(PLAIN))[0])
        return _saturated(address, requests(PATH, key, bodies(PLAIN)), seconds)


def ours(running: Running, key: str, slot: str, rate: float, seconds: float) -> dict[str, Any]:
    until_it_decides(running.port, key, slot)
    made = requests(PATH, key, bodies(slot))
    warm = saturated(running.address, lambda i: made[i % len(made)], seconds=min(3.0, seconds), core=GENERATOR)
    assert not warm.failed, warm.bodies[:1]
    began = running.cpu_s()
    open_load = _at_rate(running.address, made, rate, seconds)
    cpu_s = running.cpu_s() - began
    found: dict[str, Any] = {
        "at_rate": open_load | {"cpu_us": cpu_s / open_load["requests"] * 1e6},
        "saturated": _saturated(running.address, made, seconds),
        "body_bytes": float(np.mean([len(one.partition(b"\r\n\r\n")[2]) for one in made])),
    }
    assert not found["saturated"]["failed"]
    assert not open_load["failed"]
    return found


def plan(running: Running, key: str, seconds: float) -> dict[str, Any]:
    """Different instructions one after the other, and at five per second: what a planner is asked for."""
    until_it_decides(running.port, key, WORKFLOW)
    made = requests(PATH, key, bodies(WORKFLOW))
    alone = saturated(running.address, lambda i: made[i % len(made)], seconds=seconds, connections=1, core=GENERATOR)
    fresh = requests(PATH, key, bodies(WORKFLOW, seed=2))
    spaced = at_rate(running.address, lambda i: fresh[i % len(fresh)], per_s=5, seconds=seconds, core=GENERATOR)
    return {"one_by_one": alone.summary(), "at_5_per_s": spaced.summary()}


def swap(running: Running, key: str, versions: Sequence[str], rate: float, seconds: float) -> dict[str, Any]:
    """A promotion per second while requests arrive: failed requests, and latencies meanwhile."""
    made, policies, ended = requests(PATH, key, bodies(PLAIN)), set[str](), threading.Event()
    until_it_decides(running.port, key, PLAIN)
    swaps = 0

    def change() -> None:
        nonlocal swaps
        while not ended.wait(1.0):
            promote(PLAIN, versions[(swaps + 1) % 2])
            policies.add(str(post(running.port, key, PATH, bodies(PLAIN)[0])["policy"]))
            swaps += 1

    changes = threading.Thread(target=change)
    changes.start()
    load = at_rate(
        running.address, lambda i: made[i % len(made)], per_s=rate, seconds=max(seconds, 5.0), core=GENERATOR
    )
    ended.set()
    changes.join()
    if swaps % 2:
        promote(PLAIN, versions[0])
    return load.summary() | {"swaps": swaps, "policies_seen": len(policies)}


def peer(slot: str, version: str, key: str, rate: float, seconds: float) -> dict[str, Any]:
    """FastAPI with the same policy."""
    about = {"PEER_POLICY": version, "PEER_KEY": key, "PEER_DATABASE": str(Path("peer") / f"{slot}.sqlite")}
    folder, port = str(Path(__file__).parent), free_port()
    command = [sys.executable, "-m", "uvicorn", "serving_peer:app", "--app-dir", folder, "--port", str(port)]
    with process([*command, "--no-access-log"], SERVER, "peer.log", more=about) as (_, running):
        address, made = ("127.0.0.1", port), requests(PATH, key, bodies(slot))
        _until_up(address, made[0])
        found = Running(port=port, process=running, ready_s=0.0)
        saturated(address, lambda i: made[i % len(made)], seconds=min(3.0, seconds), core=GENERATOR)
        began = found.cpu_s()
        open_load = _at_rate(address, made, rate, seconds)
        cpu_s = found.cpu_s() - began
        return {
            "at_rate": open_load | {"cpu_us": cpu_s / max(1, open_load["requests"]) * 1e6},
            "saturated": _saturated(address, made, seconds),
        }


def rollback(key: str, versions: Sequence[str], *, times: int, processes: int) -> dict[str, Any]:
    """Seconds from the end of a canary until every process decides without it, each asked every 10 ms."""
    seconds = list[float]()
    with ExitStack() as stack:
        running = [stack.enter_context(serving(log=f"serve-{i}.log")) for i in range(processes)]
        body = bodies(PLAIN)[0]
        for one in running:
            until_it_decides(one.port, key, PLAIN)

        def all_decide_by(version: str) -> None:
            for one in running:
                while not str(post(one.port, key, PATH, body)["policy"]).startswith(version):
                    time.sleep(0.01)

        for _ in range(times):
            expose(PLAIN, versions[1])
            all_decide_by(versions[1])
            began = time.monotonic()
            take_back(PLAIN, versions[1])
            all_decide_by(versions[0])
            seconds.append(time.monotonic() - began)
    return {"processes": processes, "times": times, "p50_s": float(np.median(seconds)), "max_s": max(seconds)}


def _at_rate(address: tuple[str, int], made: Sequence[bytes], rate: float, seconds: float) -> dict[str, float]:
    return _kept(lambda: at_rate(address, lambda i: made[i % len(made)], per_s=rate, seconds=seconds, core=GENERATOR))


def _saturated(address: tuple[str, int], made: Sequence[bytes], seconds: float) -> dict[str, float]:
    return _kept(lambda: saturated(address, lambda i: made[i % len(made)], seconds=seconds, core=GENERATOR))


def _kept(load: Callable[[], Load]) -> dict[str, float]:
    """The generator is on its core for this load alone: what runs later may use all."""
    cores = os.sched_getaffinity(0)
    try:
        return load().summary()
    finally:
        os.sched_setaffinity(0, cores)


def _until_up(address: tuple[str, int], request: bytes) -> None:
    while True:
        try:
            if not at_rate(address, lambda _: request, per_s=1, seconds=1, connections=1).failed:
                return
        except OSError:
            time.sleep(0.1)


def _print(values: dict[str, Any]) -> None:
    print(f"start to ready: {max(values['start_to_ready_s']):.1f} s at most   (< 5 wanted)")
    print(f"floor: {values['floor']['per_s']:,.0f} requests/s by uvicorn alone")
    for slot, found in values["decisions"].items():
        rate, most = found["at_rate"], found["saturated"]
        print(
            f"{slot:13} p50 {rate['p50']:.2f}, p99 {rate['p99']:.2f} ms at {values['rate']:,.0f}/s (< 5 wanted), "
            f"{rate['cpu_us']:.0f} µs of CPU each; at most {most['per_s']:,.0f}/s ({WANTED[slot]:,} wanted), "
            f"{values['floor']['per_s'] / most['per_s']:.1f} × the floor"
        )
        if slot in values["peer"]:
            other = values["peer"][slot]
            print(
                f"  FastAPI     p50 {other['at_rate']['p50']:.2f}, p99 {other['at_rate']['p99']:.2f} ms, "
                f"{other['at_rate']['cpu_us']:.0f} µs; at most {other['saturated']['per_s']:,.0f}/s: "
                f"ours is {most['per_s'] / other['saturated']['per_s']:.2f} ×"
            )
    for name, found in values["plan"].items():
        print(f"a plan, {name}: p50 {found['p50']:.1f}, p99 {found['p99']:.1f} ms   (< 60 wanted)")
    found = values["swap"]
    print(f"{found['swaps']} swaps: {found['failed']} failed (0 wanted), p99 {found['p99']:.1f} ms (< 50 wanted)")
    found = values["rollback"]
    print(f"rollback reaches {found['processes']} processes within {found['max_s']:.2f} s   (< 5 wanted)")


if __name__ == "__main__":
    main()
