"""How true a plan's probability is, and what is said to be asked and not covered: public data, held-out instructions.

    python benchmarks/calibration.py ../shared/data/plans/{ultratool,nestful} --seeds 3 12     # about 10 minutes

For each seed a share of the examples is held out, a planner is trained on the others by the default command, and its
probabilities are compared with how often its plans have exactly the right subtasks (node F1 ≥ .99). Small sets need
more seeds. Intervals resample instructions, since several seeds may hold out the same one.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plans import MAX_NODES, hold_out
from results import save

import etude
from etude.problems.catalogue import read_catalogue
from etude.problems.workflow.doubt import UNCALIBRATED, Calibration, Proposal
from etude.problems.workflow.examples import read_examples
from etude.problems.workflow.metrics import score_plans
from etude.problems.workflow.plan import Plan
from etude.problems.workflow.planner import Planner
from etude.problems.workflow.training_set import to_plan

BINS, RESAMPLES, THRESHOLD = 10, 1000, 0.5
Pairs = tuple[np.ndarray, np.ndarray]
"""Probabilities, and whether what they are of came true."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One held-out instruction, under one planner."""

    instruction: str
    expected: Plan
    calibrated: Proposal
    uncalibrated: Proposal
    few_examples: Proposal  # with the coverage weights of a planner that had no example to calibrate on

    @property
    def is_right(self) -> bool:
        return bool(score_plans([self.calibrated.plan], [self.expected]).accuracy[0])

    @property
    def has_right_links(self) -> bool:
        return self.is_right and sorted(self.calibrated.plan.links) == sorted(self.expected.links)


def measure(folder: Path, seed: int, share: float, device: str) -> list[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        test = hold_out(folder, share, seed, Path(scratch) / folder.name)
        out = Path(scratch) / "run"
        data, settings = [test.with_name("train.json")], {"run.threads": 1}  # quickest on a machine that others use
        etude.train("workflow", out=out, data=data, encoder="fast", seed=seed, device=device, settings=settings)
        catalogue = read_catalogue(test.with_name("catalogue.json"))
        planner: Planner = etude.load(out)
        assert planner.calibration is not None
        few = Calibration(subtasks=planner.calibration.subtasks, coverage=UNCALIBRATED.coverage)
        variants = [replace(planner, calibration=c) for c in (planner.calibration, None, few)]
        found = []
        for example in read_examples(test, catalogue, max_nodes=MAX_NODES):
            text, plan = example.instruction, to_plan(catalogue, example)
            ours, plain, prior = (variant.propose(text) for variant in variants)
            found.append(Row(instruction=text, expected=plan, calibrated=ours, uncalibrated=plain, few_examples=prior))
        return found


def calibration_error(pairs: Pairs) -> float:
    """Expected calibration error over bins of equally many."""
    p, y = pairs
    bins = np.array_split(np.argsort(p, kind="stable"), BINS)
    return float(sum(len(rows) * abs(p[rows].mean() - y[rows].mean()) for rows in bins if len(rows)) / len(p))


def brier(pairs: Pairs) -> float:
    p, y = pairs
    return float(((p - y) ** 2).mean())


def reliability(pairs: Pairs) -> list[dict[str, float]]:
    p, y = pairs
    bins = np.array_split(np.argsort(p, kind="stable"), BINS)
    return [{"probability": float(p[b].mean()), "right": float(y[b].mean()), "plans": len(b)} for b in bins]


def with_interval(rows: list[Row], statistic: Callable[[list[Row]], float]) -> dict[str, Any]:
    """A statistic with its 95 % bootstrap interval over instructions."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.instruction, []).append(row)
    texts, rng = list(groups), np.random.default_rng(0)
    drawn = (rng.choice(len(texts), len(texts)) for _ in range(RESAMPLES))
    values = [statistic([row for i in chosen for row in groups[texts[i]]]) for chosen in drawn]
    return {"mean": statistic(rows), "ci95": np.nanpercentile(values, [2.5, 97.5]).tolist()}


def pairs_of(rows: list[Row], kind: str, *, links: bool = False) -> Pairs:
    name = "probability_with_links" if links else "probability"
    right = [row.has_right_links if links else row.is_right for row in rows]
    return np.array([getattr(getattr(row, kind), name) for row in rows]), np.array(right, float)


def _score(score: Callable[[Pairs], float], kind: str, rows: list[Row]) -> float:
    return score(pairs_of(rows, kind))


def perfect_error(pairs: Pairs) -> float:
    """The mean error of probabilities that are exactly true, with as many plans: what chance alone causes."""
    p, rng = pairs[0], np.random.default_rng(0)
    return float(np.mean([calibration_error((p, (rng.random(len(p)) < p).astype(float))) for _ in range(RESAMPLES)]))


def coverage(rows: list[Row], kind: str) -> dict[str, Any]:
    """How often what is said to be missing is in the expert's plan, and how much of what is missing is found."""

    def counts(some: list[Row]) -> tuple[int, int, int]:
        hits = said = missing = 0
        for row in some:
            wanted = {node.task_type for node in row.expected.nodes}
            proposal: Proposal = getattr(row, kind)
            missing += len(wanted - {node.task_type for node in proposal.plan.nodes})
            said += len(proposal.uncovered)
            hits += sum(one.task_type in wanted for one in proposal.uncovered)
        return hits, said, missing

    def precision(some: list[Row]) -> float:
        hits, said, _ = counts(some)
        return hits / said if said else float("nan")

    def recall(some: list[Row]) -> float:
        hits, _, missing = counts(some)
        return hits / max(1, missing)

    return {
        "said": counts(rows)[1],
        "missing": counts(rows)[2],
        "precision": with_interval(rows, precision),
        "recall": with_interval(rows, recall),
    }


def summarise(rows: list[Row]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "plans": len(rows),
        "right": with_interval(rows, lambda r: pairs_of(r, "calibrated")[1].mean()),
    }
    for kind in ("calibrated", "uncalibrated"):
        found[kind] = {
            "ece": with_interval(rows, partial(_score, calibration_error, kind)),
            "ece_with_links": calibration_error(pairs_of(rows, kind, links=True)),
            "brier": with_interval(rows, partial(_score, brier, kind)),
            "reliability": reliability(pairs_of(rows, kind)),
        }
    found["ece_if_perfect"] = perfect_error(pairs_of(rows, "calibrated"))
    p, y = pairs_of(rows, "calibrated")
    sure = p >= THRESHOLD
    found["at_half"] = {
        "sure": float(sure.mean()),
        "right": float(y[sure].mean()),
        "unsure_right": float(y[~sure].mean()),
    }
    found["coverage"] = {kind: coverage(rows, kind) for kind in ("calibrated", "few_examples")}
    return found


def show(name: str, found: dict[str, Any]) -> None:
    def cell(part: dict[str, Any]) -> str:
        return f"{part['mean']:.3f} [{part['ci95'][0]:.3f}, {part['ci95'][1]:.3f}]"

    print(
        f"{name}: {found['plans']} plans, right {cell(found['right'])}, error by chance {found['ece_if_perfect']:.3f}"
    )
    for kind in ("calibrated", "uncalibrated"):
        print(f"  {kind:13} ECE {cell(found[kind]['ece'])}  Brier {cell(found[kind]['brier'])}")
    for part in found["calibrated"]["reliability"]:
        print(f"    said {part['probability']:.2f}  right {part['right']:.2f}  of {part['plans']}")
    for kind, part in found["coverage"].items():
        said = f"{part['said']} said, {part['missing']} missing"
        print(f"  not covered ({kind}): precision {cell(part['precision'])}  recall {cell(part['recall'])}  {said}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folders", nargs="+", type=Path)
    arguments.add_argument("--seeds", nargs="+", type=int, default=[3], help="number of seeds, one for each folder")
    arguments.add_argument("--first-seed", type=int, default=10)
    arguments.add_argument("--held-out", type=float, default=500 / 3027, help="share held out to measure on")
    arguments.add_argument("--device", default="auto")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    counts = given.seeds * len(given.folders) if len(given.seeds) == 1 else given.seeds
    data: dict[str, Any] = {"first_seed": given.first_seed, "sets": {}}
    for folder, count in zip(given.folders, counts, strict=True):
        rows: list[Row] = []
        for seed in range(given.first_seed, given.first_seed + count):
            rows += measure(folder, seed, given.held_out, given.device)
            print(f"{folder.name}, seed {seed}: {len(rows)} plans", flush=True)
        data["sets"][folder.name] = {"seeds": count, **summarise(rows)}
        show(folder.name, data["sets"][folder.name])
    save("calibration", data)


if __name__ == "__main__":
    main()
