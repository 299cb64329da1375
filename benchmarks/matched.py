"""`matched`, 16 agents × 64 slots: the learned policy beside schedulers, on the same 256 episodes.

    python benchmarks/matched.py                                 # trains two seeds, one a core (7 min)
    python benchmarks/matched.py --device cuda --preset wide      # large batches on a GPU
    python benchmarks/matched.py --baselines                     # how the schedulers' own choices compare, no training

The bar is 10 % above the better of `greedy` and `assignment`. `value per step` is a third scheduler, tuned by hand to
this world: it knows durations, refuses what cannot be done in time and leaves tasks to experts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from results import save, sentence
from torch import Generator

from etude.bootstrap.allocation import make_training, read_policy
from etude.learning.evaluate import Score, evaluate, greedy, interval
from etude.problems.allocation.baselines import match_all, optimal_match, scheduler
from etude.problems.allocation.matched import LONGEST, PAIR_BASE, PAIR_COST, PAIR_GAIN, WORK
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.allocation.world import TASK_TYPES, AllocationConfig
from etude.problems.base import Action, Actor, Obs
from etude.settings.tree import resolve

EPISODES = 256


def value_per_step(least_skill: float = 0.5) -> Actor:
    """An assignment by what a task will earn (and not lose) for each step it takes."""

    def act(obs: Obs, generator: Generator) -> Action:
        agents, tasks = obs["agents"], obs["tasks"]
        skill = agents[..., -len(TASK_TYPES) :] @ tasks[..., -len(TASK_TYPES) :].mT  # (n, agents, slots)
        priority, work, left = (tasks[:, None, :, i] * unit for i, unit in ((2, 1.0), (1, WORK), (3, float(LONGEST))))
        boost = (1 - PAIR_COST) * (PAIR_BASE + PAIR_GAIN * obs["matrix"].amax(2))[..., None]
        duration = work / (skill * agents[..., :1] * boost).clamp(min=0.05)
        spare = (left - duration).clamp(min=0)
        value = (10 * priority * skill * (1 + spare / 30) + 5 * priority) / duration
        possible = obs["legal"][..., :-1] & (agents[..., 1:2] == 0) & (left > duration) & (skill > least_skill)
        one = torch.ones_like(agents[..., 0])
        accept = match_all(torch.where(possible, value, 0.0), optimal_match)
        return {"accept": accept, "allocate": one, "collaborate": one}

    return act


def changed(actor: Actor, **columns: float) -> Actor:
    def act(obs: Obs, generator: Generator) -> Action:
        action = actor(obs, generator)
        return action | {name: torch.full_like(action[name], value) for name, value in columns.items()}

    return act


def alternatives() -> dict[str, Actor]:
    """Other choices the schedulers could make."""
    assignment = scheduler(optimal_match)
    return {
        "assignment, never collaborating": changed(assignment, collaborate=0.0),
        "assignment, sharing capacity evenly": changed(assignment, allocate=0.0),
        "assignment, two tasks in hand": scheduler(optimal_match, held=1),
    }


def show(name: str, score: Score) -> None:
    metrics = "  ".join(f"{key} {value:.2f}" for key, value in score.metrics.items())
    print(f"{name:38} {score.mean:7.0f} [{score.low:.0f}, {score.high:.0f}]  {metrics}", flush=True)


def train(seed: int, device: str, preset: str | None, chosen: list[str]) -> tuple[Score, float]:
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"run.{key}" for key in (f"seed={seed}", f"device={device}", "threads=1")]
        began = time.perf_counter()
        training = make_training(
            resolve(preset=preset, assignments=["allocation.variant=matched", *flags, *chosen]).settings,
            Path(folder) / "run",
        )
        for update in training.updates():
            if update.score:
                line = f"  seed {seed}: {update.step:>9,} steps {update.wall_s:5.0f} s  {update.score.mean:7.0f}"
                print(line, flush=True)
        seconds = time.perf_counter() - began
        trained = read_policy(Path(folder) / "run")
        actor = greedy(trained.network.to(device))
        return evaluate(trained.problem, actor, episodes=EPISODES, seed=99, device=device), seconds


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--seeds", type=int, default=2)
    arguments.add_argument("--jobs", type=int, default=2, help="how many train at a time, one thread each")
    arguments.add_argument("--preset")
    arguments.add_argument("--baselines", action="store_true", help="only the schedulers and their alternatives")
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = arguments.parse_args()

    problem = AllocationProblem(config=AllocationConfig(variant="matched", agents=16, slots=64))
    actors = dict(problem.baselines()) | {"value per step": value_per_step()}
    scores = {
        name: evaluate(problem, actor, episodes=EPISODES, seed=99)
        for name, actor in (actors | (alternatives() if given.baselines else {})).items()
    }
    for name, score in scores.items():
        show(name, score)
    if given.baselines:
        return
    bar = max(scores["greedy"], scores["assignment"], key=lambda score: score.mean)
    jobs = [(seed, given.device, given.preset, given.set) for seed in range(given.seeds)]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        trained = pool.starmap(train, jobs, chunksize=1)
    for seed, (score, seconds) in enumerate(trained):
        show(f"learned, seed {seed} ({seconds:.0f} s)", score)
    gains = np.array([score.mean / bar.mean - 1 for score, _ in trained])
    print(f"above the better of greedy and assignment: {sentence(100 * gains, '%')} (wanted ≥ 10 %)")
    pairs = [np.array(score.returns) - np.array(bar.returns) for score, _ in trained]
    save(
        f"matched_{given.preset}" if given.preset else "matched",
        {
            "baselines": {name: score.to_json() for name, score in scores.items()},
            "learned": [score.to_json() | {"seconds": seconds} for score, seconds in trained],
            "gain": gains.tolist(),
            "paired_difference_ci95": [interval(pair) for pair in pairs],
        },
    )


if __name__ == "__main__":
    main()
