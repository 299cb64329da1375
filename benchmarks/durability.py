"""Nothing that was acknowledged is lost and nothing is stored twice, whatever is killed: by ids, from end to end.

    python benchmarks/durability.py --kills 50

Two chains carry events of 20 KB while SIGKILL ends one of their processes at random, which is started again:
embedded  agents → outbox → worker                         nats  agents → outbox → forwarder → NATS → worker
All of them are the product's own: agents use `etude.task` (and forward, where there is a broker), the worker is
`etude experience work` on its SQLite store, the forwarder the thread that every agent has, in a process of its own.
An agent writes down, and to the disk, the id of each task that `task.collected` says is safe. In the end every id that
was written down must be in the store with the content it was sent with, once, and rewarded. `unasked` are stored ones
whose agent was killed before it could write them down.

Then how long publishing to the outbox takes with the broker up and down, and what goes through NATS in a second.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import etude
from etude.adapters.nats import NatsBus
from etude.adapters.outbox import Outbox
from etude.adapters.sqlite import SqliteStore
from etude.bootstrap.experience import OUTBOX, STORE, config_here, open_bus, open_outbox
from etude.contracts.bus import Message
from etude.contracts.query import Where
from etude.contracts.subjects import TRAJECTORIES, decode
from etude.contracts.trajectory import Trajectory
from etude.experience.forward import GROUP as FORWARD
from etude.experience.forward import Forwarding, forward
from etude.experience.ingest import GROUP as INGEST

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.servers.nats import NatsServer

SUBJECT, GROUP, SIZE = "agent.rl.trajectory.v1", "store", 20_000
AGENTS = 2
PAUSE_S = 0.01
"""Between two tasks of an agent."""
DATA = "data"
"""`experience.folder` of a chain."""
LETTERS = str.maketrans("0123456789abcdef", "ghijklmnopabcdef")


def run_agent() -> None:
    """Tasks one after the other; ids are written down when they are acknowledged."""
    run, number = f"{os.getpid()}-{time.time_ns()}", 0
    with open(f"acknowledged-{run}", "ab", buffering=0) as ledger:
        while not Path("enough").exists():
            number += 1
            with etude.task("tidy up", id=f"{run}-{number}", user=f"u{number % 100}") as task:
                task.decide("tone", options=["formal", "casual"])
                task.turn(result=content(task.id))
            if task.collected:
                ledger.write(f"{task.id}\n".encode())
                os.fsync(ledger.fileno())
            time.sleep(PAUSE_S)


def run_forwarder() -> None:
    config = config_here()
    Forwarding(open_outbox(config), lambda: open_bus(config))
    threading.Event().wait()


def content(id: str) -> str:
    """Follows from the id, so that the store can be checked; words in which nothing is to be redacted."""
    digest = sha256(id.encode()).hexdigest().translate(LETTERS)
    words = " ".join(digest[i : i + 8] for i in range(0, 64, 8))
    return (words + " ") * (SIZE // (len(words) + 1))


def event(id: str) -> Message:
    return Message(id=id, subject=SUBJECT, body=content(id).encode())


def carry(folder: Path, url: str) -> None:
    forward(Outbox(folder / "outbox.db"), NatsBus(url, timeout_s=2), stop=threading.Event())


class Chain:
    """The processes of one mode, any of which can be killed and is started again."""

    def __init__(self, folder: Path, *, nats: bool) -> None:
        folder.mkdir()
        self.folder, self.server = folder, NatsServer(folder / "nats") if nats else None
        bus = self.server.url if self.server else "embedded"
        (folder / "etude.yaml").write_text(f"experience: {{folder: {DATA}, bus: '{bus}'}}\n")
        agent = [sys.executable, __file__, "--role", "agent"]
        self._commands = {f"agent {number}": agent for number in range(AGENTS)}
        self._commands["worker"] = [sys.executable, "-m", "etude.cli", "experience", "work"]
        if self.server:
            self._commands["forwarder"] = [sys.executable, __file__, "--role", "forwarder"]
        self._processes = {name: self._start(name) for name in self._commands}

    @property
    def victims(self) -> list[str]:
        return [*self._commands, *(["broker"] if self.server else [])]

    def kill(self, name: str, *, away_s: float) -> None:
        if name == "broker":
            assert self.server is not None
            self.server.kill()
            time.sleep(away_s)
            self.server.start()
        else:
            self._end(name)
            time.sleep(away_s)
            self._processes[name] = self._start(name)

    def drain(self, *, timeout_s: float = 400) -> None:
        """The agents end by themselves; then until nothing is under way."""
        (self.folder / "enough").touch()
        for number in range(AGENTS):
            self._processes[f"agent {number}"].wait(timeout=30)
        deadline = time.monotonic() + timeout_s
        while any(self.pending()):
            assert time.monotonic() < deadline, f"{self.pending()} messages are still under way"
            time.sleep(0.5)

    def pending(self) -> list[int]:
        with closing(Outbox(self.folder / DATA / OUTBOX)) as outbox:
            if self.server is None:
                return [outbox.pending(TRAJECTORIES, INGEST)]
            with closing(NatsBus(self.server.url, timeout_s=10)) as bus:
                return [outbox.pending(TRAJECTORIES, FORWARD), bus.pending(TRAJECTORIES, INGEST)]

    def dead(self) -> int:
        with closing(Outbox(self.folder / DATA / OUTBOX)) as outbox:
            count = len(outbox.dead_letters(limit=10_000))
        if self.server is not None:
            with closing(NatsBus(self.server.url, timeout_s=10)) as bus:
                count += len(bus.dead_letters(limit=10_000))
        return count

    def end(self) -> None:
        for name in self._commands:
            self._end(name)
        if self.server is not None:
            self.server.kill()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name.replace(' ', '-')}.log").open("ab") as log:
            return subprocess.Popen(self._commands[name], cwd=self.folder, stdout=log, stderr=log)

    def _end(self, name: str) -> None:
        process = self._processes[name]
        if process.poll() is None:
            process.kill()
        process.wait(timeout=20)


def kill_and_compare(folder: Path, *, nats: bool, kills: int, seed: int) -> dict[str, Any]:
    """Kill, compare, and say what was found."""
    from rich.progress import track

    rng, began, killed = Random(seed), time.monotonic(), Counter[str]()
    chain = Chain(folder, nats=nats)
    try:
        for _ in track(range(kills), description=f"{folder.name}: killing"):
            time.sleep(rng.uniform(0.5, 6.0))
            victim = rng.choice(chain.victims)
            killed[victim.partition(" ")[0]] += 1
            chain.kill(victim, away_s=rng.choice((0.0, 0.0, rng.uniform(0, 1))))
        loaded_s = time.monotonic() - began
        chain.drain()
        dead = chain.dead()
    finally:
        chain.end()
    return compare(folder) | {
        "kills": kills,
        "killed": dict(killed),
        "dead_letters": dead,
        "seconds": round(loaded_s, 1),
    }


def compare(folder: Path) -> dict[str, int]:
    lines = [line for file in folder.glob("acknowledged-*") for line in file.read_text().split("\n")]
    # A ledger's last line is torn where its writer was killed over it: without its end it says nothing.
    acknowledged = {line for line in lines if line}
    ids, altered, unrewarded = list[str](), 0, 0
    with closing(SqliteStore(folder / DATA / STORE)) as store:
        for row in store.scan(Where(), version=1):
            stored = decode(row.body)
            assert isinstance(stored, Trajectory)
            ids.append(stored.id)
            altered += stored.turns[0].result != content(stored.id)
            unrewarded += row.summary.reward is None
    return {
        "acknowledged": len(acknowledged),
        "stored": len(ids),
        "lost": len(acknowledged - set(ids)),
        "stored_twice": len(ids) - len(set(ids)),
        "altered": altered,
        "unrewarded": unrewarded,
        "unasked": len(set(ids) - acknowledged),
    }


@contextmanager
def process(*arguments: str) -> Iterator[None]:
    running = subprocess.Popen([sys.executable, __file__, "--role", *arguments])
    try:
        yield
    finally:
        running.kill()
        running.wait()


def latencies(folder: Path, *, count: int) -> dict[str, dict[str, float]]:
    """Of publishing one event at a time to an outbox, about 300 per second, while a forwarder empties it."""
    found: dict[str, dict[str, float]] = {"bare SQLite commit": bare(folder / "bare.db", count)}
    for name in ("outbox alone", "broker up", "broker down"):
        place = folder / name.replace(" ", "-")
        with closing(Outbox(place / "outbox.db")) as outbox:
            if name == "outbox alone":
                found[name] = timed(lambda message: outbox.publish([message]), count)
                continue
            server = NatsServer(place / "nats")
            try:
                with process("carry", str(place), server.url):
                    time.sleep(1)
                    if name == "broker down":
                        server.kill()
                    found[name] = timed(lambda message: outbox.publish([message]), count)
            finally:
                server.kill()
    return found


def bare(path: Path, count: int) -> dict[str, float]:
    """The least that it can take on this disk: one row with these bytes, durable."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (body BLOB)")
        return timed(lambda message: db.execute("INSERT INTO t VALUES (?)", (message.body,)), count)


def timed(publish: Callable[[Message], object], count: int) -> dict[str, float]:
    took = []
    for number in range(count):
        message = event(f"latency-{number}")
        began = time.perf_counter()
        publish(message)
        took.append(1000 * (time.perf_counter() - began))
        time.sleep(0.003)
    took.sort()
    return {
        "p50_ms": round(took[count // 2], 3),
        "p99_ms": round(took[int(count * 0.99)], 3),
        "max_ms": round(took[-1], 3),
    }


def throughput(folder: Path, *, count: int) -> dict[str, float]:
    """Publish all, then pull and acknowledge all, in batches of 256; the server waits for its disk each time."""
    server = NatsServer(folder / "throughput")
    events = [event(f"throughput-{number}") for number in range(count)]
    try:
        with closing(NatsBus(server.url)) as bus:
            began = time.perf_counter()
            for start in range(0, count, 256):
                bus.publish(events[start : start + 256])
            published, taken = time.perf_counter(), 0
            while taken < count:
                deliveries = bus.pull(TRAJECTORIES, GROUP, limit=256, timeout_s=5)
                bus.ack(deliveries)
                taken += len(deliveries)
            ended = time.perf_counter()
    finally:
        server.kill()
    return {
        "published_per_s": round(count / (published - began)),
        "pulled_and_acknowledged_per_s": round(count / (ended - published)),
        "all_per_s": round(count / (ended - began)),
    }


def table(title: str, rows: Sequence[tuple[object, ...]], *columns: str) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title)
    for column in columns:
        shown.add_column(column)
    for row in rows:
        shown.add_row(*map(str, row))
    Console().print(shown)


def main() -> None:
    from results import save

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="in each chain")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", default="", help="about the machine, for the results")
    parser.add_argument("--count", type=int, default=3000, help="events that are timed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        chains = {
            name: kill_and_compare(folder / name, nats=name == "nats", kills=options.kills, seed=options.seed)
            for name in ("embedded", "nats")
        }
        timings = latencies(folder, count=options.count)
        rates = throughput(folder, count=options.count)
    rows = [(key, *(chain[key] for chain in chains.values())) for key in chains["nats"]]
    table("Killed at random", rows, "", *chains)
    floor = timings["bare SQLite commit"]["p50_ms"]
    spans = [(name, *values.values(), round(values["p50_ms"] / floor, 2)) for name, values in timings.items()]
    table("Publishing 20 KB to the outbox", spans, "", "p50 ms", "p99 ms", "max ms", "p50 ÷ bare")
    table("Through NATS, 20 KB each", list(rates.items()), "", "per second")
    save("durability", {"note": options.note, "chains": chains, "publish_to_outbox": timings, "nats": rates})
    if any(chain[key] for chain in chains.values() for key in ("lost", "stored_twice", "altered", "dead_letters")):
        sys.exit("events were lost, altered, stored twice or not processed")


ROLES: dict[str, Callable[..., None]] = {
    "agent": run_agent,
    "forwarder": run_forwarder,
    "carry": lambda folder, url: carry(Path(folder), url),
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--role"]:
        ROLES[sys.argv[2]](*sys.argv[3:])
    else:
        main()
