"""Which distribution fits actions that are thresholds and proportions: steps to 1300 on `document`, and final return.

python benchmarks/distributions.py        # 3 distributions × 3 seeds, a few minutes
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from results import save, sentence

import etude
from etude.learning.evaluate import evaluate, greedy
from etude.learning.tracking import read_metrics

TARGET = 1300.0


def run(distribution: str, seed: int) -> tuple[int | None, float]:
    """Steps at which an evaluation first reaches the target, and the final return over 200 episodes."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"network.distribution": distribution, "run.eval_every": 16384}
        run = etude.train("allocation", out=Path(folder) / "run", settings=settings, seed=seed, device="cpu")
        lines = read_metrics(run.folder.metrics)
        hit = next((line["step"] for line in lines if line.get("eval_return", 0) >= TARGET), None)
        return hit, evaluate(run.learner.problem, greedy(run.learner.net), episodes=200, seed=77).mean


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=3)
    given = arguments.parse_args()
    data = {}
    for name in ("mixed", "beta", "gaussian"):
        runs = [run(name, seed) for seed in range(given.seeds)]
        data[name] = runs
        print(f"{name:9} steps to {TARGET:.0f}: {[hit for hit, _ in runs]}", end="  ")
        print(f"final {sentence(np.array([final for _, final in runs]))}", flush=True)
    save("distributions", data)


if __name__ == "__main__":
    main()
