"""What watching costs: a scrape of /metrics with many trajectories, and what each request pays.

python benchmarks/metrics.py --trajectories 1000000
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import chdir
from datetime import UTC, datetime, timedelta
from statistics import median
from tempfile import TemporaryDirectory

from results import save

from etude.bootstrap.serving import open_server
from etude.contracts.reward import Reward
from etude.contracts.store import ExperienceStore
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Event, Outcome, Trajectory
from etude.serving.metrics import ProcessMetrics, render

DAYS, BATCH = 30, 4000


def fill(store: ExperienceStore, count: int) -> None:
    """Trajectories of 30 days, five choices, seven policies and 50,000 users, each with its reward."""
    now = datetime.now(UTC)
    for first in range(0, count, BATCH):
        events: list[tuple[Event, bytes]] = []
        for i in range(first, min(count, first + BATCH)):
            at = now - timedelta(days=DAYS) * ((count - i) / count)
            task = Trajectory(
                id=f"t-{i}",
                time=at,
                task="x",
                problem=f"choice:{i % 5}",
                policy=f"p{i % 7}",
                user=f"u{i % 50_000}",
                outcome=Outcome(success=i % 3 > 0, cost_usd=0.01),
            )
            reward = Reward(
                id=f"r-{i}",
                time=at,
                trajectory_id=task.id,
                version=1,
                total=(i % 97) / 97,
                definition="d",
                confidence=1.0,
            )
            events += [(task, encode(task)), (reward, encode(reward))]
        store.append(events)


def timed_ms(do: Callable[[], object], times: int) -> list[float]:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        do()
        found.append(1e3 * (time.perf_counter() - began))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=1_000_000)
    count = parser.parse_args().trajectories
    with TemporaryDirectory() as folder, chdir(folder), open_server() as server:
        fill(server.store, count)

        def scrape() -> None:
            server.installation._read_at = float("-inf")  # nothing is given again
            render([*server.installation.samples(), *server.metrics.samples()])

        scrape()
        scrapes = timed_ms(scrape, 50)
    metrics, many = ProcessMetrics(), 100_000

    def requests() -> None:
        for _ in range(many):
            metrics.answered("/v1/decisions", "POST", 200, 0.002)

    request_us = min(timed_ms(requests, 5)) / many * 1e3
    found = {
        "trajectories": count,
        "scrape_ms": {"median": median(scrapes), "max": max(scrapes)},
        "request_us": request_us,
    }
    print(f"scrape: median {median(scrapes):.1f} ms, max {max(scrapes):.1f} ms; a request: {request_us:.2f} µs")
    save("metrics", found)


if __name__ == "__main__":
    main()
