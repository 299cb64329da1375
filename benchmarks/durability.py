"""Nothing that was acknowledged is lost and nothing is stored twice, whoever is killed: by ids, from end to end.

    python benchmarks/durability.py --kills 50

Two chains carry events of 20 KB under load while SIGKILL ends one of their processes at random, which comes back:
embedded  producer → outbox → consumer                        nats  producer → outbox → forwarder → NATS → consumer
The producer writes down, and to the disk, each id that `publish` returned from. The consumer stores as the real store
does, by unique ids, and counts what was given to it again. In the end every id that was written down must be in the
consumer's store with the bytes it was sent with, once. `unasked` are stored ones whose producer died before it could
write them down.

Then how long publishing to the outbox takes with the broker up and down, and what goes through NATS in a second.
"""

from __future__ import annotations

import argparse
import os
import signal
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

from etude.adapters.nats import NatsBus
from etude.adapters.outbox import Outbox
from etude.contracts.bus import EventBus, Message
from etude.contracts.errors import BusError
from etude.contracts.subjects import TRAJECTORIES
from etude.experience.forward import forward

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.servers.nats import NatsServer

SUBJECT, GROUP, SIZE = "agent.rl.trajectory.v1", "store", 20_000
HASTE: dict[str, Any] = {"ack_wait_s": 2.0, "backoff_s": (0.2, 0.5, 1.0), "max_deliveries": 20}
"""A process that was killed gives its messages back after seconds, and is killed often."""
PAUSE_S = 0.002
"""Between the producer's batches; and for each event between storing and acknowledging it: time to be killed."""


def produce(folder: Path) -> None:
    """Batches of 1 to 8, whose ids are written down when they are acknowledged."""
    luck, run = Random(), f"{os.getpid()}-{time.time_ns()}"
    outbox = Outbox(folder / "outbox.db", **HASTE)
    with (folder / f"acknowledged-{run}").open("ab", buffering=0) as ledger:
        number = 0
        while not (folder / "enough").exists():
            batch = [event(f"{run}-{number + i}") for i in range(luck.randint(1, 8))]
            number += len(batch)
            outbox.publish(batch)
            ledger.write("".join(f"{message.id}\n" for message in batch).encode())
            os.fsync(ledger.fileno())
            time.sleep(PAUSE_S)
    outbox.close()


def consume(folder: Path, url: str | None) -> None:
    """Until it is killed: each event once into a store, whatever comes how often."""
    bus: EventBus = NatsBus(url, timeout_s=2, **HASTE) if url else Outbox(folder / "outbox.db", **HASTE)
    with closing(sqlite3.connect(folder / "store.db", isolation_level=None)) as store:
        store.executescript(STORE)
        while True:
            try:
                deliveries = bus.pull(TRAJECTORIES, GROUP, limit=50, timeout_s=1)
                store.execute("BEGIN IMMEDIATE")
                for delivery in deliveries:
                    digest = sha256(delivery.message.body).hexdigest()
                    if store.execute("INSERT OR IGNORE INTO known VALUES (?)", (delivery.message.id,)).rowcount:
                        store.execute("INSERT INTO stored VALUES (?, ?)", (delivery.message.id, digest))
                    else:
                        store.execute("INSERT INTO again VALUES (?)", (delivery.message.id,))
                store.execute("COMMIT")
                time.sleep(PAUSE_S * len(deliveries))
                bus.ack(deliveries)
            except BusError:
                time.sleep(0.1)


STORE = """
PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS known (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stored (id TEXT, digest TEXT);
CREATE TABLE IF NOT EXISTS again (id TEXT);
"""


def carry(folder: Path, url: str) -> None:
    forward(Outbox(folder / "outbox.db", **HASTE), NatsBus(url, timeout_s=2), stop=threading.Event())


def event(id: str) -> Message:
    """Its bytes follow from its id, so that the store can be checked."""
    return Message(id=id, subject=SUBJECT, body=(sha256(id.encode()).hexdigest() * (SIZE // 64 + 1))[:SIZE].encode())


class Chain:
    """The processes of one mode, any of which can be killed and comes back."""

    def __init__(self, folder: Path, *, nats: bool) -> None:
        folder.mkdir()
        self.folder, self.server = folder, NatsServer(folder / "nats") if nats else None
        url = [self.server.url] if self.server else []
        self._commands = {"producer": ["produce", str(folder)], "consumer": ["consume", str(folder), *url]}
        if self.server:
            self._commands["forwarder"] = ["carry", str(folder), *url]
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
            self._end(name, signal.SIGKILL)
            time.sleep(away_s)
            self._processes[name] = self._start(name)

    def drain(self, *, timeout_s: float = 120) -> None:
        """The producer ends by itself; then until nothing is under way."""
        (self.folder / "enough").touch()
        self._processes["producer"].wait(timeout=20)
        deadline = time.monotonic() + timeout_s
        while any(self.pending()):
            assert time.monotonic() < deadline, f"{self.pending()} messages are still under way"
            time.sleep(0.2)

    def pending(self) -> list[int]:
        with closing(Outbox(self.folder / "outbox.db")) as outbox:
            if self.server is None:
                return [outbox.pending(TRAJECTORIES, GROUP)]
            with closing(NatsBus(self.server.url, timeout_s=10)) as bus:
                return [outbox.pending(TRAJECTORIES, "forward"), bus.pending(TRAJECTORIES, GROUP)]

    def dead(self) -> int:
        with closing(Outbox(self.folder / "outbox.db")) as outbox:
            count = len(outbox.dead_letters(limit=10_000))
        if self.server is not None:
            with closing(NatsBus(self.server.url, timeout_s=10)) as bus:
                count += len(bus.dead_letters(limit=10_000))
        return count

    def end(self) -> None:
        for name in self._commands:
            self._end(name, signal.SIGKILL)
        if self.server is not None:
            self.server.kill()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, __file__, "--role", *self._commands[name]])

    def _end(self, name: str, how: int) -> None:
        process = self._processes[name]
        if process.poll() is None:
            process.send_signal(how)
        process.wait(timeout=20)


def torment(folder: Path, *, nats: bool, kills: int, seed: int) -> dict[str, Any]:
    """Kill, compare, and say what was found."""
    from rich.progress import track

    luck, began, killed = Random(seed), time.monotonic(), Counter[str]()
    chain = Chain(folder, nats=nats)
    try:
        for _ in track(range(kills), description=f"{folder.name}: killing"):
            time.sleep(luck.uniform(0.3, 1.5))
            victim = luck.choice(chain.victims)
            killed[victim] += 1
            chain.kill(victim, away_s=luck.choice((0.0, 0.0, luck.uniform(0, 1))))
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
    with closing(sqlite3.connect(folder / "store.db")) as store:
        stored = store.execute("SELECT id, digest FROM stored").fetchall()
        (again,) = store.execute("SELECT count(*) FROM again").fetchone()
    ids = [id for id, _ in stored]
    return {
        "acknowledged": len(acknowledged),
        "stored": len(ids),
        "lost": len(acknowledged - set(ids)),
        "stored_twice": len(ids) - len(set(ids)),
        "altered": sum(digest != sha256(event(id).body).hexdigest() for id, digest in stored),
        "given_again": again,
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
    """Of publishing one event at a time to an outbox, about 300 a second, while a forwarder empties it."""
    found: dict[str, dict[str, float]] = {"bare SQLite commit": bare(folder / "bare.db", count)}
    for name in ("nobody else", "broker up", "broker down"):
        place = folder / name.replace(" ", "-")
        with closing(Outbox(place / "outbox.db")) as outbox:
            if name == "nobody else":
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
    parser.add_argument("--count", type=int, default=3000, help="events that are timed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        chains = {
            name: torment(folder / name, nats=name == "nats", kills=options.kills, seed=options.seed)
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
    save("durability", {"chains": chains, "publish_to_outbox": timings, "nats": rates})
    if any(chain[key] for chain in chains.values() for key in ("lost", "stored_twice", "altered")):
        sys.exit("events were lost, altered or stored twice")


ROLES: dict[str, Callable[..., None]] = {
    "produce": lambda folder: produce(Path(folder)),
    "consume": lambda folder, url=None: consume(Path(folder), url),
    "carry": lambda folder, url: carry(Path(folder), url),
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--role"]:
        ROLES[sys.argv[2]](*sys.argv[3:])
    else:
        main()
