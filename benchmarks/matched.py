"""`matched`, 16 agents × 64 slots: learned policies compared with schedulers, on the same 256 episodes.

    python benchmarks/matched.py                                 # trains two seeds, one per core (7 min)
    python benchmarks/matched.py --device cuda --preset wide      # large batches on a GPU
    python benchmarks/matched.py --baselines                     # variants of the schedulers, no training

The target is 10 % above the better of `greedy` and `assignment`. `value per step` is a third scheduler, written by hand
for this world: it knows durations, refuses what cannot be done in time and leaves tasks to experts.

Everyone is evaluated on the CPU from the same seed. The world's random numbers do not depend on the actions, so agents,
arrivals and durations of an episode are the same for all, and returns can be compared episode by episode.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import save, sentence, summary
from torch import Generator

from etude.bootstrap.runs import make_request, start_run
from etude.evidence.intervals import interval
from etude.learning.evaluate import Score, evaluate, greedy
from etude.learning.measure import read_network
from etude.problems.allocation import SPEC
from etude.problems.allocation.baselines import match_all, optimal_match, scheduler
from etude.problems.allocation.matched import MAX_DEADLINE_STEPS, PAIR_BASE, PAIR_COST, PAIR_GAIN, WORK
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.allocation.world import TASK_TYPES, AllocationConfig
from etude.problems.base import Action, Actor, Obs

EPISODES, SEED = 256, 99


def value_per_step(least_skill: float = 0.5) -> Actor:
    """An assignment by what a task earns, or does not lose, per step of work."""

    def act(obs: Obs, generator: Generator) -> Action:
        agents, tasks = obs["agents"], obs["tasks"]
        skill = agents[..., -len(TASK_TYPES) :] @ tasks[..., -len(TASK_TYPES) :].mT  # (n, agents, slots)
        priority, work, left = (
            tasks[:, None, :, i] * unit for i, unit in ((2, 1.0), (1, WORK), (3, float(MAX_DEADLINE_STEPS)))
        )
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
        inputs = {"variant": "matched", "seed": seed, "device": device}
        began = time.perf_counter()
        request = make_request(
            SPEC.name,
            out=Path(folder) / "run",
            inputs=inputs,
            preset=preset,
            assignments=["run.threads=1", *chosen],
            isolated=True,
        )
        run = start_run(request)
        for update in run.updates():
            if update.score is not None:
                line = f"  seed {seed}: {update.step:>9,} steps {update.wall_s:5.0f} s  {update.score:7.0f}"
                print(line, flush=True)
        seconds = time.perf_counter() - began
        problem, network = read_network(run.artefact(), SPEC)
        return evaluate(problem, greedy(network), episodes=EPISODES, seed=SEED), seconds


def paired(learned: list[Score], baseline: Score) -> dict[str, Any]:
    """How far the learned policies are above a scheduler, from differences episode by episode."""
    differences = np.array([score.returns for score in learned]) - np.array(baseline.returns)  # (seeds, episodes)
    mean = baseline.mean
    return {
        "per_seed": [summary_of(row / mean) for row in differences],
        "over_seeds": summary((differences.mean(1) / mean).tolist()),
        "over_episodes": summary_of(differences.mean(0) / mean),
        "episodes_better": float((differences.mean(0) > 0).mean()),
    }


def summary_of(x: np.ndarray) -> dict[str, float]:
    """Without the values themselves: there is one per episode."""
    low, high = interval(x)
    return {"mean": float(x.mean()), "low": low, "high": high}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--seeds", type=int, default=2)
    arguments.add_argument("--jobs", type=int, default=2, help="trainings at a time, one thread each")
    arguments.add_argument("--preset")
    arguments.add_argument("--baselines", action="store_true", help="only the schedulers and their variants")
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = arguments.parse_args()

    problem = AllocationProblem(config=AllocationConfig(variant="matched", agents=16, slots=64))
    actors = dict(problem.baselines()) | {"value per step": value_per_step()}
    scores = {
        name: evaluate(problem, actor, episodes=EPISODES, seed=SEED)
        for name, actor in (actors | (alternatives() if given.baselines else {})).items()
    }
    for name, score in scores.items():
        show(name, score)
    if given.baselines:
        save("matched_schedulers", {name: score.to_json() for name, score in scores.items()})
        return
    jobs = [(seed, given.device, given.preset, given.set) for seed in range(given.seeds)]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        trained = pool.starmap(train, jobs, chunksize=1)
    learned = [score for score, _ in trained]
    for seed, (score, seconds) in enumerate(trained):
        show(f"learned, seed {seed} ({seconds:.0f} s)", score)
    against = {name: paired(learned, scores[name]) for name in ("greedy", "assignment", "value per step")}
    for name, found in against.items():
        gains = 100 * np.array(found["over_seeds"]["values"])
        print(f"above {name}: {sentence(gains, '%')} over seeds, {gains.min():.1f} to {gains.max():.1f} %")
    save(
        f"matched_{given.preset}" if given.preset else "matched",
        {
            "better_scheduler": max(("greedy", "assignment"), key=lambda name: scores[name].mean),
            "baselines": {name: score.to_json() for name, score in scores.items()},
            "learned": [score.to_json() | {"seconds": seconds} for score, seconds in trained],
            "above": against,
        },
    )


if __name__ == "__main__":
    main()
