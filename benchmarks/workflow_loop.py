"""The whole loop in the simulated office: collect by rules, prepare, phase 1, phase 2, and run again.

    python benchmarks/workflow_loop.py                       # five seeds, about 6 minutes each on one core
    python benchmarks/workflow_loop.py --seeds 3 --out DIR   # one seed, its files kept in DIR; gathers what is there

Before and after carry out the same fresh instructions, which nobody learned from, on the executor. A seed is another
set of instructions, other hidden skills and other luck. What a folder already holds is not made again.
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
from etude.bootstrap.orchestration import fresh_instructions, instructions_for, make_decider, make_workplace
from etude.bootstrap.outcomes import make_outcomes
from etude.learning.evaluate import interval
from etude.orchestrator.executor import Orchestrator
from etude.orchestrator.log import ExecutionLog
from etude.orchestrator.metrics import summarise
from etude.orchestrator.prepare import prepare, write_prepared
from etude.orchestrator.virtual_time import run_virtually
from etude.settings.tree import Settings, resolve

FRESH = 400
"""Instructions that each policy carries out in the end."""


def settings(seed: int, workflows: int) -> Settings:
    own = [f"run.seed={seed}", f"office.skill_seed={seed}", f"office.scenario_seed={seed}", "run.device=cpu"]
    few = ["training.phase1_supervised.batch_size=32", "training.phase1_supervised.synthetic_augmentations=500"]
    budget = [f"training.phase2_rl.num_episodes={workflows}", "run.threads=1"]
    return resolve(preset="office", assignments=[*own, *few, *budget]).settings


def one(seed: int, root: Path, executions: int, workflows: int) -> None:
    """From nothing to what a seed came to, in a folder of its own."""
    folder, chosen, took = root / str(seed), settings(seed, workflows), dict[str, float]()
    if (folder / "measured.json").exists():
        return
    data, first, second = folder / "training_data.json", folder / "p1", folder / "p2"
    for path in (first, second):
        path.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    if not data.exists():
        place = make_workplace(None, settings=chosen, seed=seed)
        with ExecutionLog(folder / "logs", place.crew.catalogue) as log:
            by_rules = Orchestrator(make_decider("rules", place), place.crew, log=log, seed=seed)
            run_virtually(by_rules.execute_all(instructions_for(place, executions)))
        write_prepared(prepare(folder / "logs", max_nodes=chosen.limits.max_nodes), data)
    took["collect and prepare"] = time.perf_counter() - began
    imitation = make_imitation(chosen, first, [(data, None)])
    for _ in imitation.epochs():
        pass
    outcomes = make_outcomes(chosen, second, first)
    for _ in outcomes.updates():
        pass
    took["both phases"] = time.perf_counter() - began - took["collect and prepare"]
    measured = {name: carried_out(name, policy, chosen, seed) for name, policy in policies(first, second).items()}
    told = {"policies": measured, "seconds": took}
    (folder / "measured.json").write_text(json.dumps(told))
    print(f"seed {seed}: " + json.dumps({name: m["success"]["mean"] for name, m in measured.items()}), flush=True)


def policies(first: Path, second: Path) -> dict[str, str]:
    return {"rules": "rules", "phase 1": str(first), "phase 2": str(second)}


def carried_out(name: str, policy: str, chosen: Settings, seed: int) -> dict[str, Any]:
    """Metrics of a policy on the fresh instructions, the same luck for all."""
    place = make_workplace(None, settings=chosen, seed=seed + 1)
    orchestrator = Orchestrator(make_decider(policy, place), place.crew, seed=seed)
    results = run_virtually(orchestrator.execute_all(fresh_instructions(place, FRESH)))
    return summarise((result.execution for result in results), place.crew.catalogue).to_json()


def gather(root: Path) -> dict[str, Any]:
    """What the seeds that are there came to, with intervals."""
    files = sorted(root.glob("*/measured.json"))
    seeds = [json.loads(file.read_text()) for file in files]
    found: dict[str, Any] = {"seeds": [file.parent.name for file in files], "workflows": FRESH, "policies": {}}
    for name in ("rules", "phase 1", "phase 2"):
        rows = [seed["policies"][name] for seed in seeds]
        found["policies"][name] = {
            key: [row[key]["mean"] for row in rows] for key in ("success", "cost_usd", "latency_ms", "reward")
        }
        found["policies"][name]["violations"] = sum(sum(row["violations"].values()) for row in rows)
        told = found["policies"][name]
        print(f"{name:8} success {np.mean(told['success']):.1%}, {np.mean(told['cost_usd']):.4f} USD, ", end="")
        print(f"{np.mean(told['latency_ms']) / 1000:.1f} s, {told['violations']} violations")
    for key in ("success", "cost_usd", "latency_ms"):
        before, after = (np.array(found["policies"][name][key]) for name in ("rules", "phase 2"))
        found[f"{key}, relative"] = (after / before).tolist()
        low, high = interval(after / before)
        print(f"{key}, after to before: {np.mean(after / before):.2f} [{low:.2f}, {high:.2f}]")
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, nargs="*", default=list(range(5)))
    arguments.add_argument("--executions", type=int, default=2500, help="workflows collected by rules")
    arguments.add_argument("--workflows", type=int, default=20_000, help="workflows of phase 2")
    arguments.add_argument("--out", type=Path, default=None, help="where files are kept")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    root = given.out or Path(mkdtemp())
    for seed in given.seeds:
        one(seed, root, given.executions, given.workflows)
    save("workflow_loop", gather(root))


if __name__ == "__main__":
    main()
