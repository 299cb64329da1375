"""Time to an evaluated return of 1300 on `document`: Etude's defaults beside Stable-Baselines3, on the same cores.

    python benchmarks/time_to_target.py                  # 5 seeds of ours, then 4 of the peer, two at a time (≈ 15 min)
    python benchmarks/time_to_target.py --peer-seeds 0   # ours alone, seconds

Ours counts everything `etude train` does: collecting, learning, evaluating, logging, checkpoints. The peer's
evaluations are not counted. Each uses one thread; the peer's seeds run side by side, one a core.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from peer import make_peer, peer_actor
from results import save, sentence

from etude.bootstrap.allocation import make_training
from etude.learning.evaluate import evaluate, greedy, interval
from etude.learning.tracking import read_metrics
from etude.problems.allocation.problem import AllocationProblem
from etude.settings.tree import resolve

TARGET, FINAL = 1300.0, 1480.0
Curve = list[tuple[int, float, float]]  # step, seconds, evaluated return


def ours(seed: int) -> tuple[Curve, float]:
    """The learning curve with default settings, and the best policy's return over 200 fresh episodes."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = [f"run.seed={seed}", "run.eval_every=16384", "run.device=cpu"]
        training = make_training(resolve(assignments=chosen).settings, Path(folder) / "run")
        for _ in training.updates():
            pass
        lines = [line for line in read_metrics(training.folder.metrics) if "eval_return" in line]
        final = evaluate(training.problem, greedy(training.policy), episodes=200, seed=77).mean
        return [(line["step"], line["wall_s"], line["eval_return"]) for line in lines], final


def peer(seed: int, max_steps: int) -> Curve:
    torch.set_num_threads(1)
    model, problem = make_peer(seed), AllocationProblem()
    curve: Curve = []
    seconds = 0.0
    while not curve or (curve[-1][0] < max_steps and curve[-1][2] < TARGET):
        began = time.perf_counter()
        model.learn(2 * 8192, reset_num_timesteps=False)
        seconds += time.perf_counter() - began
        score = evaluate(problem, peer_actor(model), episodes=64)
        curve.append((model.num_timesteps, seconds, score.mean))
        print(f"peer, seed {seed}: {curve[-1][0]:>9,} steps {seconds:6.0f} s  return {score.mean:7.1f}", flush=True)
    return curve


def reached(curve: Curve) -> tuple[int, float] | None:
    return next(((step, seconds) for step, seconds, value in curve if value >= TARGET), None)


def plot(ours_: list[Curve], peers: list[Curve], path: Path) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axis, x, label in ((axes[0], 1, "seconds (log)"), (axes[1], 0, "environment steps (log)")):
        for curves, colour, name in ((ours_, "#0b7285", "Etude"), (peers, "#c2255c", "Stable-Baselines3")):
            for i, curve in enumerate(curves):
                axis.plot([p[x] for p in curve], [p[2] for p in curve], color=colour, label=None if i else name, lw=1.5)
        axis.axhline(TARGET, color="grey", ls=":", lw=1)
        axis.set(xscale="log", xlabel=label)
        axis.xaxis.set_minor_formatter(NullFormatter())
    axes[0].set_ylabel("evaluated return")
    axes[0].legend()
    figure.suptitle("Learning allocation `document`")
    figure.savefig(path, bbox_inches="tight")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--peer-seeds", type=int, default=4)
    arguments.add_argument("--peer-steps", type=int, default=900_000)
    arguments.add_argument("--plot", type=Path, default=Path("docs/figures/time_to_target.svg"))
    given = arguments.parse_args()

    runs = [ours(seed) for seed in range(given.seeds)]
    curves, finals = [curve for curve, _ in runs], np.array([final for _, final in runs])
    hits = [reached(curve) for curve in curves]
    seconds = np.array([hit[1] for hit in hits if hit])
    print(f"etude: {len(seconds)}/{len(hits)} seeds reach {TARGET:.0f}; {sentence(seconds, 's')};", end=" ")
    print(f"steps {[hit[0] for hit in hits if hit]}; final return {sentence(finals)} (wanted ≥ {FINAL:.0f})")
    peers: list[Curve] = []
    if given.peer_seeds:
        with multiprocessing.get_context("spawn").Pool(min(2, given.peer_seeds)) as pool:
            peers = pool.starmap(peer, [(seed, given.peer_steps) for seed in range(given.peer_seeds)], chunksize=1)
        peer_seconds = np.array([(reached(curve) or curve[-1])[1] for curve in peers])
        print(f"stable-baselines3: {sentence(peer_seconds, 's')}; reached: {[reached(c) is not None for c in peers]}")
        means, worst = peer_seconds.mean() / seconds.mean(), peer_seconds.min() / seconds.max()
        print(f"ratio of means {means:.0f}×, of the slowest of ours to the quickest peer {worst:.0f}×")
        plot(curves, peers, given.plot)
    save("time_to_target", {"ours": curves, "final": finals.tolist(), "final_ci95": interval(finals), "peer": peers})


if __name__ == "__main__":
    main()
