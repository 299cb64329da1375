"""The workflow planner in the simulated office: phase 1, phase 2, and back on its feet after each shift.

    python benchmarks/workflow_learning.py                       # five seeds, about 20 minutes each on one core
    python benchmarks/workflow_learning.py --seeds 3 --out DIR   # one seed, its runs kept in DIR; gathers what is there

A seed is another set of instructions, other hidden skills, other experts' mistakes and other luck. Every policy is
measured on instructions that neither phase has seen, beside the baselines, from the same seeds. Trainings that a folder
already holds are not made again.
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
from results import save

from etude.bootstrap.imitation import make_imitation
from etude.bootstrap.outcomes import make_outcomes, read_office
from etude.learning.evaluate import evaluate, greedy, interval
from etude.learning.runs import RunFolder
from etude.settings.tree import Settings, resolve

EPISODES = 4096
SEED = 2_000_003
SHIFTS = {"degraded": 40_000, "new_tool": 40_000, "phrasings": 80_000}  # workflows of the training after each


def settings(seed: int, given: argparse.Namespace, *chosen: str) -> Settings:
    own = [f"run.seed={seed}", f"office.skill_seed={seed}", f"office.scenario_seed={seed}"]
    place = [f"run.device={given.device}", f"run.threads={given.threads}"]
    return resolve(preset="office", assignments=[*own, *place, *chosen, *given.set]).settings


def trained(folder: Path, training: Any, steps: Any) -> float:
    """Seconds that the training of this folder took, now or before."""
    for _ in steps():
        pass
    summary = RunFolder(folder).summary()
    assert summary is not None
    return float(summary["wall_s"])


def measured(folder: Path) -> dict[str, Any]:
    """Every policy on instructions kept aside; `policy` is this run's, `phase 1` or `before` what it began with."""
    file = folder / "measured.json"
    if not file.exists():
        problem, policies = read_office(folder)
        actors = {name: greedy(policy) for name, policy in policies.items()} | dict(problem.baselines())
        scores = {name: evaluate(problem, actor, episodes=EPISODES, seed=SEED) for name, actor in actors.items()}
        file.write_text(json.dumps({name: score.to_json() for name, score in scores.items()}))
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def one(seed: int, root: Path, given: argparse.Namespace) -> None:
    began = time.perf_counter()
    first, second = root / f"{seed}" / "p1", root / f"{seed}" / "p2"
    for folder in (first, second):
        folder.mkdir(parents=True, exist_ok=True)
    plain = settings(seed, given)
    imitation = make_imitation(plain, first, [])
    seconds = {"p1": trained(first, imitation, imitation.epochs)}
    outcomes = make_outcomes(plain, second, first)
    seconds["p2"] = trained(second, outcomes, outcomes.updates)
    measured(second)
    print(f"seed {seed}: {json.dumps(seconds)} after {time.perf_counter() - began:.0f} s", flush=True)
    for shift, workflows in SHIFTS.items() if given.shifts else ():
        folder = root / f"{seed}" / shift
        folder.mkdir(exist_ok=True)
        short = [f"office.shift={shift}", f"training.phase2_rl.num_episodes={workflows}"]
        again = make_outcomes(settings(seed, given, *short), folder, second)
        seconds[shift] = trained(folder, again, again.updates)
        measured(folder)
    (root / f"{seed}" / "seconds.json").write_text(json.dumps(seconds))


def gather(root: Path) -> dict[str, Any]:
    """What the seeds that are there came to, with intervals."""
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
            told = {
                key: [s[policy][key] for s in scores] for key in ("mean_return", "success", "cost_usd", "latency_ms")
            }
            found[name]["policies"][policy] = told
        print(f"\n{name}")
        for row, values in rows.items():
            low, high = interval(np.array(values))
            print(f"  {row:28} {np.mean(values):9.3f} [{low:.3f}, {high:.3f}]  least {min(values):.3f}")
        for policy, told in found[name]["policies"].items():
            print(f"  {policy:28} {np.mean(told['mean_return']):9.2f} return, {np.mean(told['success']):.1%} success")
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, nargs="*", default=list(range(5)))
    arguments.add_argument("--out", type=Path, default=None, help="where runs are kept")
    arguments.add_argument("--no-shifts", dest="shifts", action="store_false")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    root = given.out or Path(mkdtemp())
    for seed in given.seeds:
        one(seed, root, given)
    save("workflow_learning", gather(root))


if __name__ == "__main__":
    main()
