"""Latency of one decision through `etude.load(run).act(observation)`, with the document's networks and ours.

python benchmarks/inference.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from results import save

import etude

CALLS = 5000


def latencies_ms(preset: str | None) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        short = {"run.max_steps": 16384, "ppo.envs": 64, "ppo.steps": 64, "ppo.epochs": 1, "run.device": "cpu"}
        etude.train("allocation", out=Path(folder) / "run", preset=preset, settings=short)
        policy = etude.load(Path(folder) / "run")
        observations = np.random.default_rng(0).random((CALLS, 94), dtype=np.float32)
        for observation in observations[:200]:
            policy.act(observation)
        times = []
        for observation in observations:
            began = time.perf_counter_ns()
            policy.act(observation, deterministic=True)
            times.append(time.perf_counter_ns() - began)
        return np.array(times) / 1e6


def main() -> None:
    data = {}
    for name, preset in (("default networks (64-64)", None), ("document networks (256-256-128)", "document")):
        times = latencies_ms(preset)
        data[name] = {f"p{q}_ms": float(np.percentile(times, q)) for q in (50, 99)} | {"max_ms": float(times.max())}
        print(f"{name}: p50 {data[name]['p50_ms']:.3f} ms, p99 {data[name]['p99_ms']:.3f} ms (wanted < 1 ms)")
    save("inference", data)


if __name__ == "__main__":
    main()
