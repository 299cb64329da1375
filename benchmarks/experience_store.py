"""The SQLite store of experience: appending, and a million trajectories read back in every way, as a dataset too.

    python benchmarks/experience_store.py                            # ≈ 5 min
    python benchmarks/experience_store.py --trajectories 20000       # seconds

The peer is SQLite itself, with the same durability and one table of ids and bytes: what a store costs on top of it.
"""

from __future__ import annotations

import argparse
import os
import resource
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from results import save

from etude.adapters.objects import FolderBlobs
from etude.adapters.sqlite import SqliteStore
from etude.contracts.decision import LoggedDecision
from etude.contracts.query import Where
from etude.contracts.reward import Component, Reward
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Event, Outcome, Trajectory, Turn
from etude.experience.datasets import SPLITS, Dataset, DatasetConfig, create

BATCH = 200
BEGAN = datetime(2026, 9, 1, tzinfo=UTC)
Pairs = list[tuple[Event, bytes]]


def experience(count: int, *, size: int, seed: int = 0) -> Iterator[Pairs]:
    """Batches of trajectories of about `size` bytes over sixty days, each with its reward after it."""
    random = Random(seed)
    words = "".join(random.choices("abcdefghijklmnopqrstuvwxyz ", k=2 * size))
    step = timedelta(days=60) / count
    for start in range(0, count, BATCH):
        batch: Pairs = []
        for i in range(start, min(start + BATCH, count)):
            place = random.randrange(size)
            trajectory = Trajectory(
                id=f"t-{seed}-{i:08}",
                time=BEGAN + i * step,
                task=f"answer request {random.randrange(count // 4 + 1)}",
                problem="workflow" if i % 20 else "prompt",
                policy=f"v{i * 20 // count}",
                agent="planner",
                user=f"user-{random.randrange(20_000)}",
                group="trial" if i % 10 else "staff",
                decisions=(LoggedDecision(problem="workflow", action=[1, 2], propensity=0.5, policy="v1"),),
                turns=(Turn(observation=words[place : place + max(1, size - 500)], action="search"),),
                outcome=Outcome(success=random.choice((True, True, False, None)), cost_usd=0.01, latency_ms=900.0),
            )
            reward = Reward(
                id=f"r-{trajectory.id}",
                time=trajectory.time,
                trajectory_id=trajectory.id,
                version=1,
                definition="d",
                total=random.random(),
                confidence=0.8,
                components=(Component(name="completion", raw=1.0, value=1.0, weight=1.0, why="the task ended well"),),
            )
            batch += [(trajectory, encode(trajectory)), (reward, encode(reward))]
        yield batch


def append(path: Path, batches: list[Pairs]) -> float:
    """Trajectories a second."""
    with closing(SqliteStore(path)) as store:
        began = time.perf_counter()
        for batch in batches:
            store.append(batch)
        return sum(len(batch) for batch in batches) / 2 / (time.perf_counter() - began)


def append_bare(path: Path, batches: list[Pairs]) -> float:
    """The same bytes into one table, of SQLite alone."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("CREATE TABLE events (id TEXT PRIMARY KEY, body BLOB)")
        began = time.perf_counter()
        for batch in batches:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO events VALUES (?, ?)", ((event.id, body) for event, body in batch))
            db.execute("COMMIT")
        return sum(len(batch) for batch in batches) / 2 / (time.perf_counter() - began)


def read(store: SqliteStore, path: Path, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {"stats_s": seconds(lambda: store.stats(Where(), version=1))}
    found["stats_one_policy_s"] = seconds(lambda: store.stats(Where(policy="v3"), version=1))
    part = Where(since=BEGAN + timedelta(days=3, hours=7))
    found["stats_since_s"] = seconds(lambda: store.stats(part, version=1))
    found["stats_any_condition_s"] = seconds(lambda: store.stats(Where(group="staff", min_reward=0.5), version=1))
    found["page_ms"] = 1000 * max(pages(store, count))
    for name, where in (
        ("policy", Where(policy="v3")),
        ("user", Where(user="user-7")),
        ("reward", Where(min_reward=0.9)),
    ):
        found[f"page_of_{name}_ms"] = 1000 * seconds(lambda where=where: store.page(where, version=1))
    began, rows, size = time.perf_counter(), 0, 0
    for row in store.scan(Where(), version=1):
        rows, size = rows + 1, size + len(row.body)
    found["scan_rows_per_s"] = rows / (time.perf_counter() - began)
    assert rows == count
    found["body_bytes"] = size / rows
    with closing(sqlite3.connect(path)) as db:
        began = time.perf_counter()
        for _ in db.execute("SELECT seq, body FROM bodies"):
            pass
        found["bare_scan_rows_per_s"] = rows / (time.perf_counter() - began)
    return found


def seconds(work: Any) -> float:
    times = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def pages(store: SqliteStore, count: int) -> Iterator[float]:
    """Seconds of a page at the top, at the bottom, and at nine places between."""
    for share in range(11):
        oldest = BEGAN + timedelta(days=60) * (1 - share / 10)
        after = f"{int(oldest.timestamp() * 1e6)}:t"
        yield seconds(lambda after=after: store.page(Where(), version=1, after=after))


def run(folder: Path, trajectories: int) -> dict[str, Any]:
    large = list(experience(5_000, size=20_000, seed=1))
    ours, bare = append(folder / "large.db", large), append_bare(folder / "bare.db", large)
    print(f"append, 20 KB: {ours:,.0f} trajectories/s, SQLite alone {bare:,.0f} ({bare / ours:.1f} ×)", flush=True)
    for file in folder.iterdir():
        file.unlink()
    del large
    path = folder / "million.db"
    with closing(SqliteStore(path)) as store:
        batches, spent = experience(trajectories, size=1_000), 0.0
        while some := list(islice(batches, 100)):
            began = time.perf_counter()
            for batch in some:
                store.append(batch)
            spent += time.perf_counter() - began
        print(f"append, 1 KB: {trajectories / spent:,.0f} trajectories/s", flush=True)
        found = read(store, path, trajectories)
        began = time.perf_counter()
        made = create(
            store,
            FolderBlobs(folder / "dataset"),
            problem="workflow",
            where=Where(),
            version=1,
            config=DatasetConfig(),
            time=BEGAN + timedelta(days=61),
        )
        found["dataset_rows_per_s"] = made.counts.trajectories / (time.perf_counter() - began)
        began = time.perf_counter()
        examples = sum(
            len(shard) for split in SPLITS for shard in Dataset(FolderBlobs(folder / "dataset")).shards(split)
        )
        assert examples == made.counts.trajectories
        found["dataset_read_per_s"] = examples / (time.perf_counter() - began)
        began = time.perf_counter()
        store.forget("user-7")
        found["forget_s"] = time.perf_counter() - began
    found |= {
        "trajectories": trajectories,
        "append_20kb_per_s": ours,
        "bare_append_20kb_per_s": bare,
        "append_1kb_per_s": trajectories / spent,
        "file_mb": path.stat().st_size / 1e6,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    for name, value in found.items():
        print(f"  {name:<24} {value:,.3f}" if isinstance(value, float) else f"  {name:<24} {value:,}")
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--trajectories", type=int, default=1_000_000)
    options.add_argument("--no-save", action="store_true", help="leave results/ as it is")
    given = options.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), given.trajectories)
    if not given.no_save:
        save("experience_store", {"load_before": load, **found})


if __name__ == "__main__":
    main()
