"""The whole loop in the simulated office: collect by rules, prepare, phase 1, phase 2, and run again.

    python benchmarks/workflow_loop.py                       # five seeds, about 6 minutes each on one core
    python benchmarks/workflow_loop.py --seeds 3 --out DIR   # one seed, its files kept in DIR; gathers what is there
    python benchmarks/workflow_loop.py --potential 0         # phase 2 from outcomes alone; a results file of its own

Before and after carry out the same fresh instructions, which no policy learned from, on the executor. Each seed has
other instructions, other hidden skills and another rng. What a folder already holds is not made again.

By default phase 2 gets potential-based shaping: a share of its reward measures how far a plan agrees with the hidden
best plan, which only a simulator knows. With `--potential 0` it learns from outcomes alone, as in real executions.
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
from results import save

import etude
from etude.evidence.intervals import interval
from etude.orchestrator.executor import Orchestrator
from etude.orchestrator.log import ExecutionLog
from etude.orchestrator.metrics import summarise
from etude.orchestrator.prepare import prepare, write_prepared
from etude.orchestrator.virtual_time import run_virtually
from etude.orchestrator.workplace import fresh_instructions, instructions_for, make_decider, make_workplace
from etude.problems.workflow.settings import WorkflowSettings
from etude.settings.tree import resolve_settings

Settings = dict[str, Any]
"""By dotted key, as `etude.train` takes them."""
FRESH = 400
"""Instructions that each policy carries out at the end."""


FEW = {"training.phase1_supervised.batch_size": 32, "training.phase1_supervised.synthetic_augmentations": 500}
"""Settings of phase 1 that suit the small number of examples in a log."""


def settings(seed: int, workflows: int) -> Settings:
    own = {"run.seed": seed, "office.skill_seed": seed, "office.scenario_seed": seed, "run.device": "cpu"}
    return own | FEW | {"training.phase2_rl.num_episodes": workflows, "run.threads": 1}


def of_office(chosen: Settings) -> WorkflowSettings:
    """The same settings for the simulated office that executions run in."""
    assignments = [f"{key}={json.dumps(value)}" for key, value in chosen.items()]
    return resolve_settings("workflow", preset="office", assignments=assignments).settings.own(WorkflowSettings)


def collect(chosen: Settings, folder: Path, executions: int, seed: int) -> Path:
    """The training file that `prepare` makes of what the rules carried out."""
    data = folder / "training_data.json"
    if not data.exists():
        own = of_office(chosen)
        place = make_workplace(None, settings=own, seed=seed)
        with ExecutionLog(folder / "logs", place.crew.catalogue, redact=None) as log:
            by_rules = Orchestrator(make_decider("rules", place), place.crew, log=log, seed=seed)
            run_virtually(by_rules.execute_all(instructions_for(place, executions)))
        write_prepared(prepare(folder / "logs", max_nodes=own.limits.max_nodes), data)
    return data


def one(seed: int, root: Path, executions: int, chosen: Settings) -> None:
    """The whole loop of one seed, in a folder of its own."""
    folder, took = root / str(seed), dict[str, float]()
    if (folder / "measured.json").exists():
        return
    first, second = folder / "p1", folder / "p2"
    began = time.perf_counter()
    data = collect(chosen, folder, executions, seed)
    took["collect and prepare"] = time.perf_counter() - began
    etude.train("workflow", out=first, preset="office", settings=chosen, data=data)
    etude.train("workflow", out=second, preset="office", settings=chosen, phase=2, checkpoint=first)
    took["both phases"] = time.perf_counter() - began - took["collect and prepare"]
    measured = {name: carried_out(name, policy, chosen, seed) for name, policy in policies(first, second).items()}
    (folder / "measured.json").write_text(json.dumps({"policies": measured, "seconds": took}))
    print(f"seed {seed}: " + json.dumps({name: m["success"]["mean"] for name, m in measured.items()}), flush=True)


def policies(first: Path, second: Path) -> dict[str, str]:
    return {"rules": "rules", "phase 1": str(first), "phase 2": str(second)}


def carried_out(name: str, policy: str, chosen: Settings, seed: int) -> dict[str, Any]:
    """Metrics of a policy on the fresh instructions, the same rng for all."""
    place = make_workplace(None, settings=of_office(chosen), seed=seed + 1)
    orchestrator = Orchestrator(make_decider(policy, place), place.crew, seed=seed)
    results = run_virtually(orchestrator.execute_all(fresh_instructions(place, FRESH)))
    return summarise((result.execution for result in results), place.crew.catalogue).to_json()


def gather(root: Path) -> dict[str, Any]:
    """The figures of all seeds in the folder, with intervals."""
    files = sorted(root.glob("*/measured.json"))
    seeds = [json.loads(file.read_text()) for file in files]
    found: dict[str, Any] = {"seeds": [file.parent.name for file in files], "workflows": FRESH, "policies": {}}
    for name in ("rules", "phase 1", "phase 2"):
        rows = [seed["policies"][name] for seed in seeds]
        found["policies"][name] = {
            key: [row[key]["mean"] for row in rows] for key in ("success", "cost_usd", "latency_ms", "reward")
        }
        found["policies"][name]["violations"] = sum(sum(row["violations"].values()) for row in rows)
        row = found["policies"][name]
        print(f"{name:8} success {np.mean(row['success']):.1%}, {np.mean(row['cost_usd']):.4f} USD, ", end="")
        print(f"{np.mean(row['latency_ms']) / 1000:.1f} s, {row['violations']} violations")
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
    arguments.add_argument("--potential", type=float, default=None, help="weight of the shaping by the best plan")
    arguments.add_argument("--out", type=Path, default=None, help="folder that keeps the files")
    arguments.add_argument("--set", type=setting, action="append", default=[], metavar="KEY=VALUE")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    root = given.out or Path(mkdtemp())
    chosen = dict(given.set)
    if given.potential is not None:
        chosen["training.phase2_rl.potential"] = given.potential
    for seed in given.seeds:
        one(seed, root, given.executions, settings(seed, given.workflows) | chosen)
    about = {"phase 2 workflows": given.workflows, "executions": given.executions, "settings": chosen}
    save("workflow_loop_no_potential" if given.potential == 0 else "workflow_loop", about | gather(root))


if __name__ == "__main__":
    main()
