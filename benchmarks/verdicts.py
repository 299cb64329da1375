"""Are verdicts right? A hundred trainings on logs of real tools, half of them corrupted: how many *better* are not?

    python benchmarks/own_tools.py --out DIR       # first: tools, phase 1 and executions of five seeds
    python benchmarks/verdicts.py --out DIR        # about 35 minutes on one core; continues what DIR holds

Each training learns from a random part of the executions of a seed, with a verifier of the whole workflow or without,
workers alone or plans and workers. Corrupted logs have verdicts of other executions, two verdicts in five reversed,
attempts by other workers than those that made them, costs of other attempts, a verifier that always says yes, or faults
of other attempts. Whatever a training says is better then carries out the held-out instructions, next to phase 1, and
true success and cost say whether it is: utility, success less what cost is worth to the worker model.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ledgers.kinds import make_work
from ledgers.model_server import serving
from own_tools import Measured, able_workers, answers, command, in_process
from results import save

from etude.evidence.intervals import estimate_mean, estimate_share
from etude.orchestrator.workplace import make_decider
from etude.problems.workflow.worker_model import WorkerModelConfig

Lines = list[dict[str, Any]]
EXECUTIONS = (150, 300, 500)
"""Sizes of the random parts."""
SEEDS, REPEATS = range(5), 10
PLANS = 2
"""Of the repeats with a verifier, those that learn plans as well: six times the work."""


def shuffled_verdicts(lines: Lines, rng: random.Random) -> None:
    _set_success(lines, rng.sample([line["success"] for line in lines], len(lines)))


def reversed_verdicts(lines: Lines, rng: random.Random) -> None:
    _set_success(lines, [line["success"] != (rng.random() < 0.4) for line in lines])


def always_yes(lines: Lines, rng: random.Random) -> None:
    _set_success(lines, [True] * len(lines))


def _set_success(lines: Lines, values: list[bool]) -> None:
    for line, value in zip(lines, values, strict=True):
        line["success"] = line["execution_result"]["success"] = value


def _attempts(lines: Lines) -> list[tuple[int, dict[str, Any]]]:
    return [(node["task_type"], one) for line in lines for node in line["nodes"] for one in node.get("attempts", ())]


def other_workers(lines: Lines, rng: random.Random) -> None:
    """Each attempt by some worker that had that task type in the log."""
    doers: dict[int, list[int]] = {}
    for kind, one in _attempts(lines):
        doers.setdefault(kind, []).append(one["worker"])
    for kind, one in _attempts(lines):
        one["worker"] = rng.choice(doers[kind])


def shuffled_costs(lines: Lines, rng: random.Random) -> None:
    every = [one for _, one in _attempts(lines)]
    for one, cost in zip(every, rng.sample([one["cost_usd"] for one in every], len(every)), strict=True):
        one["cost_usd"] = cost


def shuffled_faults(lines: Lines, rng: random.Random) -> None:
    every = [one for _, one in _attempts(lines)]
    for one, fault in zip(every, rng.sample([one.get("fault") for one in every], len(every)), strict=True):
        one["fault"] = fault


CORRUPTIONS: dict[bool, list[Callable[[Lines, random.Random], None]]] = {
    True: [shuffled_verdicts, reversed_verdicts, other_workers, always_yes, shuffled_costs],
    False: [shuffled_faults, other_workers, shuffled_costs],
}


def trainings() -> Iterator[tuple[int, int, bool, bool, bool]]:
    """Seed, number, whether there is a verifier of the whole, whether plans are learned, whether it is corrupted."""
    for seed in SEEDS:
        for repeat in range(REPEATS):
            for corrupted in (False, True):
                verified = repeat % 2 == 0
                yield seed, repeat, verified, verified and repeat < 2 * PLANS, corrupted


def train(root: Path, seed: int, repeat: int, verified: bool, plans: bool, corrupted: bool) -> Path:
    """The run of one training, in a folder of its own."""
    folder = root / str(seed)
    cell = folder / "verdicts" / f"{repeat}{'-corrupted' if corrupted else ''}"
    if (cell / "run/summary.json").exists():
        return cell
    rng = random.Random(f"{seed} {repeat} {corrupted}")
    source = folder / "logs" / ("verified" if verified else "unverified")
    lines = [json.loads(line) for line in (source / "executions.jsonl").read_text().splitlines()]
    lines = rng.sample(lines, EXECUTIONS[repeat % len(EXECUTIONS)])
    how = "none"
    if corrupted:
        corruption = CORRUPTIONS[verified][repeat // 2 % len(CORRUPTIONS[verified])]
        corruption(lines, rng)
        how = corruption.__name__
    (cell / "log").mkdir(parents=True, exist_ok=True)
    (cell / "log/executions.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (cell / "log/catalogue.json").write_text((source / "catalogue.json").read_text())
    command(cell, "ingest", "log/executions.jsonl")
    command(cell, "dataset", "create", "--problem", "workflow", "--out", "dataset")
    data: list[str] = []
    if plans:
        experts = str(folder / "experts.json")
        command(cell, "prepare", "--logs", "log", "--experts", experts, "--out", "training_data.json")
        data = ["--data", "training_data.json"]
    common = ["--dataset", "dataset", *data, "--checkpoint", str(folder / "runs/p1"), "--out", "run"]
    command(cell, "train", "workflow", *common, "--set", f"run.seed={repeat}")
    (cell / "about.json").write_text(json.dumps({"verified": verified, "plans": plans, "corruption": how}))
    return cell


def is_better(verdict: Any) -> bool:
    return "better" in (verdict.values() if isinstance(verdict, dict) else [verdict])


def measure(root: Path, seed: int, cell: Path) -> dict[str, Any]:
    """The verdict of a training, and the truth where it is *better*."""
    summary = json.loads((cell / "run/summary.json").read_text())
    verdict = answers(summary["verdict"])
    found = {"seed": seed, "name": cell.name, "verdict": verdict, **json.loads((cell / "about.json").read_text())}
    if not is_better(verdict):
        return found
    measured = Measured(root / str(seed), make_work(seed, able_workers()))
    measured.of("phase 1", lambda place: make_decider("runs/p1", place))
    name = f"verdicts {cell.name}"
    measured.of(name, lambda place: make_decider(str(cell / "run"), place))
    new, old = (np.array(measured.outcomes[each]) for each in (name, "phase 1"))
    unit = WorkerModelConfig().cost_weight / typical_cost(root / str(seed))
    difference = new - old
    success, cost = estimate_mean(difference[:, 0]), estimate_mean(difference[:, 1])
    utility = estimate_mean(difference[:, 0] - unit * difference[:, 1])
    numbers = {"success": success.to_json(), "cost_usd": cost.to_json(), "utility": utility.to_json()}
    return found | {"is_right": utility.mean > 0, **numbers}


def typical_cost(folder: Path) -> float:
    """Mean cost of an attempt in the log."""
    lines = [json.loads(line) for line in (folder / "logs/verified/executions.jsonl").read_text().splitlines()]
    return float(np.mean([one["cost_usd"] for _, one in _attempts(lines)]))


def gather(found: list[dict[str, Any]]) -> dict[str, Any]:
    better = [one for one in found if is_better(one["verdict"])]
    wrong = [one for one in better if not one["is_right"]]
    share = estimate_share(len(wrong), len(better))
    clean = [one for one in found if one["corruption"] == "none"]
    print(f"{len(found)} trainings, {len(found) - len(clean)} of them on corrupted logs")
    for name in ["none", *sorted({one["corruption"] for one in found} - {"none"})]:
        own = [one for one in found if one["corruption"] == name]
        said = [one for one in own if is_better(one["verdict"])]
        print(f"  {name:18} {len(own):3} trainings, {len(said):3} better, {sum(x in wrong for x in said)} of those not")
    print(f"better, but not: {len(wrong)} of {len(better)}, {share.mean:.1%} [{share.low:.1%}, {share.high:.1%}]")
    return {
        "trainings": len(found),
        "corrupted": len(found) - len(clean),
        "better": len(better),
        "better_on_clean_logs": sum(is_better(one["verdict"]) for one in clean),
        "wrong": len(wrong),
        "wrong_share": share.to_json(),
        "each": found,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="folder of own_tools.py")
    arguments.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    given = arguments.parse_args()
    root = given.out.resolve()
    with serving() as url:
        for seed in given.seeds:
            in_process(of_seed, seed, root, url)
    files = sorted(root.glob("*/verdicts/found.json"))
    save("verdicts", gather([one for file in files for one in json.loads(file.read_text())]))


def of_seed(seed: int, root: Path, url: str) -> None:
    """In a process of its own: tools are modules of the seed's folder."""
    torch.set_num_threads(1)
    set_url(root / str(seed), url)
    found, began = list[dict[str, Any]](), time.perf_counter()
    for own, repeat, verified, plans, corrupted in trainings():
        if own == seed:
            cell = train(root, seed, repeat, verified, plans, corrupted)
            found.append(measure(root, seed, cell))
            said = found[-1]["verdict"], found[-1].get("is_right")
            print(f"seed {seed}, {time.perf_counter() - began:5.0f} s: {cell.name} {said}", flush=True)
    (root / str(seed) / "verdicts/found.json").write_text(json.dumps(found))


def set_url(folder: Path, url: str) -> None:
    """The language model of the tools is at another address each time."""
    for name in ("workers.yaml", "unverified.yaml"):
        lines = (folder / name).read_text().splitlines()
        lines = [f"    url: {url}" if line.startswith("    url: ") else line for line in lines]
        (folder / name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
