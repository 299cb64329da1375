"""The workflow planner in the simulated office: phase 1, phase 2, and recovery after each shift.

    python benchmarks/workflow_learning.py                       # five seeds, about 20 minutes each on one core
    python benchmarks/workflow_learning.py --seeds 3 --out DIR   # one seed, its runs kept in DIR; gathers what is there
    python benchmarks/workflow_learning.py --ablation            # without the potential, and from the rules' log

Each seed has other instructions, other hidden skills, other mistakes of the experts and another rng. Every policy and
baseline is measured on the same held-out instructions. Trainings that a folder already holds are not made again.

The ablation answers what the simulator's knowledge is worth. By default phase 2 gets potential-based shaping, which
pays for agreeing with the hidden best plan, and phase 1 imitates 16,000 plans of experts. Its rows leave out the first,
then the second too: then nothing is learned from but 2,500 executions of the rules and simulated outcomes.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from options import setting
from results import save, summary
from workflow_loop import FEW, Settings, collect

import etude
from etude.evidence.intervals import interval
from etude.learning.evaluate import evaluate, greedy
from etude.problems.workflow.phase2 import read_office

EPISODES = 4096
SEED = 2_000_003
SHIFTS = {"degraded": 40_000, "new_tool": 40_000, "phrasings": 80_000}  # workflows of the training after each
EXECUTIONS = 2500
"""Workflows that the rules carry out for the log."""
NO_POTENTIAL: Settings = {"training.phase2_rl.potential": 0}
ARMS: dict[str, tuple[str, Settings]] = {
    "experts, potential": ("experts", {}),
    "experts, no potential": ("experts", NO_POTENTIAL),
    "rules' log, potential": ("log", {}),
    "rules' log, no potential": ("log", NO_POTENTIAL),
}
"""The ablation: what phase 1 imitates, and what differs in phase 2."""


def settings(seed: int, given: argparse.Namespace) -> Settings:
    own = {"run.seed": seed, "office.skill_seed": seed, "office.scenario_seed": seed}
    return own | {"run.device": given.device, "run.threads": given.threads}


def trained(folder: Path, chosen: Settings, **options: Any) -> float:
    """Seconds that the training of this folder took, now or before."""
    run = etude.train("workflow", out=folder, preset="office", settings=chosen, **options)
    return float(run.folder.summary()["wall_s"])


def measured(folder: Path, only: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Every policy on held-out instructions; `policy` is this run's, `phase 1` or `before` the one it started from."""
    file = folder / "measured.json"
    if not file.exists():
        problem, policies = read_office(folder)
        baselines = {name: actor for name, actor in problem.baselines().items() if only is None or name in only}
        actors = {name: greedy(policy) for name, policy in policies.items()} | baselines
        scores = {name: evaluate(problem, actor, episodes=EPISODES, seed=SEED) for name, actor in actors.items()}
        file.write_text(json.dumps({name: score.to_json() for name, score in scores.items()}))
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def one(seed: int, root: Path, given: argparse.Namespace) -> None:
    began = time.perf_counter()
    first, second = root / f"{seed}" / "p1", root / f"{seed}" / "p2"
    usual, own = settings(seed, given), dict(given.set)
    seconds = {"p1": trained(first, usual | own)}
    seconds["p2"] = trained(second, usual | own, phase=2, checkpoint=first)
    measured(second)
    print(f"seed {seed}: {json.dumps(seconds)} after {time.perf_counter() - began:.0f} s", flush=True)
    for shift, workflows in SHIFTS.items() if given.shifts else ():
        folder = root / f"{seed}" / shift
        short = usual | {"office.shift": shift, "training.phase2_rl.num_episodes": workflows} | own
        seconds[shift] = trained(folder, short, phase=2, checkpoint=second)
        measured(folder)
    (root / f"{seed}" / "seconds.json").write_text(json.dumps(seconds))


def ablate(seed: int, arm: str, root: Path, given: argparse.Namespace) -> None:
    """One arm of one seed: phase 1 if it is not there yet, phase 2, and their returns on held-out instructions."""
    start, chosen = ARMS[arm]
    folder, budget = root / f"{seed}", {"training.phase2_rl.num_episodes": given.workflows}
    first, second = folder / f"p1-{start}", folder / arm.replace(" ", "-")
    seconds = {"p1": phase_1(seed, start, first, given)}
    practised = settings(seed, given) | budget | chosen | dict(given.set)
    seconds["p2"] = trained(second, practised, phase=2, checkpoint=first)
    (second / "seconds.json").write_text(json.dumps(seconds))
    print(f"seed {seed}, {arm}: {json.dumps(seconds)}", flush=True)
    measured(second, ("oracle", "rules"))


def phase_1(seed: int, start: str, folder: Path, given: argparse.Namespace) -> float:
    chosen = settings(seed, given) | (FEW if start == "log" else {}) | dict(given.set)
    data = [collect(chosen, folder.parent, EXECUTIONS, seed)] if start == "log" else []
    return trained(folder, chosen, data=data)


def gather_ablation(root: Path, workflows: int) -> dict[str, Any]:
    found: dict[str, Any] = {"workflows": workflows, "executions": EXECUTIONS, "episodes": EPISODES, "arms": {}}
    for arm in ARMS:
        files = sorted(root.glob(f"*/{arm.replace(' ', '-')}/measured.json"))
        if not files:
            continue
        scores = [json.loads(file.read_text()) for file in files]
        rows = {
            "return, share of the oracle's": [s["policy"]["mean_return"] / s["oracle"]["mean_return"] for s in scores],
            "return after phase 1, share": [s["phase 1"]["mean_return"] / s["oracle"]["mean_return"] for s in scores],
            "success": [s["policy"]["success"] for s in scores],
            "success after phase 1": [s["phase 1"]["success"] for s in scores],
            "success of the rules": [s["rules"]["success"] for s in scores],
            "success, relative to rules": [s["policy"]["success"] / s["rules"]["success"] for s in scores],
            "cost, relative to rules": [s["policy"]["cost_usd"] / s["rules"]["cost_usd"] for s in scores],
        }
        found["arms"][arm] = {"seeds": [file.parents[1].name for file in files]}
        found["arms"][arm] |= {name: summary(values) for name, values in rows.items()}
        print(arm)
        for name, values in rows.items():
            print(f"  {name:30} {np.mean(values):.3f}, {[round(value, 3) for value in values]}")
    return found


def gather(root: Path) -> dict[str, Any]:
    """The figures of all seeds in the folder, with intervals."""
    seeds = sorted(path.parent for path in root.glob("*/seconds.json"))
    found: dict[str, Any] = {"seeds": [path.name for path in seeds], "episodes": EPISODES}
    for name in ("p2", *SHIFTS):
        scores = [json.loads((path / name / "measured.json").read_text()) for path in seeds if (path / name).exists()]
        if not scores:
            continue
        before = "phase 1" if name == "p2" else "before"
        took = [json.loads((path / "seconds.json").read_text())[name] for path in seeds]
        rows = {
            "of the oracle's return": [s["policy"]["mean_return"] / s["oracle"]["mean_return"] for s in scores],
            "of it before": [s[before]["mean_return"] / s["oracle"]["mean_return"] for s in scores],
            "success": [s["policy"]["success"] for s in scores],
            "success, relative to rules": [s["policy"]["success"] / s["rules"]["success"] for s in scores],
            "validity": [s["policy"]["validity"] for s in scores],
            "seconds of training": took,
        }
        found[name] = {"policies": {}, **rows}
        for policy in scores[0]:
            row = {
                key: [s[policy][key] for s in scores] for key in ("mean_return", "success", "cost_usd", "latency_ms")
            }
            found[name]["policies"][policy] = row
        print(f"\n{name}")
        for label, values in rows.items():
            low, high = interval(np.array(values))
            print(f"  {label:28} {np.mean(values):9.3f} [{low:.3f}, {high:.3f}]  least {min(values):.3f}")
        for policy, row in found[name]["policies"].items():
            print(f"  {policy:28} {np.mean(row['mean_return']):9.2f} return, {np.mean(row['success']):.1%} success")
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, nargs="*", default=list(range(5)))
    arguments.add_argument("--out", type=Path, default=None, help="folder that keeps the runs")
    arguments.add_argument("--ablation", action="store_true", help="phase 2 without the simulator's knowledge")
    arguments.add_argument("--arms", nargs="*", choices=list(ARMS), default=list(ARMS))
    arguments.add_argument("--workflows", type=int, default=80_000, help="workflows of phase 2 in the ablation")
    arguments.add_argument("--no-shifts", dest="shifts", action="store_false")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--set", type=setting, action="append", default=[], metavar="KEY=VALUE")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    root = given.out or Path(mkdtemp())
    if given.ablation:
        for seed in given.seeds:
            for arm in given.arms:
                ablate(seed, arm, root, given)
        save("workflow_ablation", gather_ablation(root, given.workflows))
        return
    for seed in given.seeds:
        one(seed, root, given)
    save("workflow_learning", gather(root))


if __name__ == "__main__":
    main()
