"""Instructions to plans on public data: the planner after phase 1 beside copying the nearest neighbour.

    python benchmarks/plans.py ../shared/data/plans/ultratool                                # fast, about 2 minutes
    python benchmarks/plans.py ../shared/data/plans/{ultratool,nestful} --encoder minilm     # both sets, one planner

Each folder holds `catalogue.json` and `train.json`. A share is kept aside before anything else sees it; plans for it
are made one at a time on one thread, as `etude plan` makes them.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import save

from etude.bootstrap.imitation import make_imitation
from etude.bootstrap.planner import load_planner
from etude.learning.evaluate import interval
from etude.problems.workflow.catalogue import Catalogue, read_catalogue
from etude.problems.workflow.examples import Example, read_examples
from etude.problems.workflow.lesson import to_plan
from etude.problems.workflow.memory import counted, weighted
from etude.problems.workflow.metrics import PlanScores, score_plans
from etude.problems.workflow.plan import Plan
from etude.settings.tree import resolve


def keep_aside(folder: Path, share: float, seed: int, into: Path) -> Path:
    """Writes what may be learned from; returns the file of what may not."""
    records = json.loads((folder / "train.json").read_text())
    random.Random(seed).shuffle(records)
    count = round(share * len(records))
    into.mkdir()
    (into / "train.json").write_text(json.dumps(records[count:]))
    (into / "catalogue.json").write_text((folder / "catalogue.json").read_text())
    (into / "test.json").write_text(json.dumps(records[:count]))
    return into / "test.json"


def nearest(learned: list[Example], asked: list[Example], catalogue: Catalogue) -> list[Plan]:
    """The plan of the most similar instruction (TF-IDF)."""
    texts = [example.instruction for example in learned]
    counts = counted(texts)
    seen = np.bincount(counts.indices, minlength=counts.shape[1])
    idf = (np.log((1 + len(texts)) / (1 + seen)) + 1).astype(np.float32)
    kernel = weighted(counted([e.instruction for e in asked]), idf) @ weighted(counts, idf).T
    return [to_plan(catalogue, learned[i]) for i in kernel.toarray().argmax(1)]


def told(scores: PlanScores) -> dict[str, Any]:
    parts = {name: getattr(scores, name) for name in ("node_f1", "link_f1", "accuracy")}
    return {name: {"mean": float(x.mean()), "ci95": interval(x)} for name, x in parts.items()}


def show(name: str, scores: PlanScores) -> None:
    cells = [
        f"{key} {part['mean']:.3f} [{part['ci95'][0]:.3f}, {part['ci95'][1]:.3f}]" for key, part in told(scores).items()
    ]
    print(f"{name:38} " + "  ".join(cells), flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folders", nargs="+", type=Path)
    arguments.add_argument("--encoder", default="fast")
    arguments.add_argument("--seeds", type=int, default=1)
    arguments.add_argument("--aside", type=float, default=0.15, help="share kept aside to measure on")
    arguments.add_argument("--device", default="auto")
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    data: dict[str, Any] = {"encoder": given.encoder, "aside": given.aside, "runs": []}
    for seed in range(given.seeds):
        with tempfile.TemporaryDirectory() as scratch:
            tests = {f.name: keep_aside(f, given.aside, seed, Path(scratch) / f.name) for f in given.folders}
            chosen = [f"planner.encoder={given.encoder}", f"run.seed={seed}", f"run.device={given.device}", *given.set]
            began = time.perf_counter()
            files = [(test.with_name("train.json"), None) for test in tests.values()]
            training = make_imitation(resolve(assignments=chosen).settings, Path(scratch) / "run", files)
            epochs = list(training.epochs())
            seconds = time.perf_counter() - began
            print(
                f"seed {seed}: {len(epochs)} epochs, {seconds:.0f} s in all, stopped by {training.stopped}", flush=True
            )
            data["runs"].append({"seed": seed, "seconds": seconds, "epochs": len(epochs), "sets": {}})
            planner = load_planner(Path(scratch) / "run")
            for name, test in tests.items():
                planner.catalogue = catalogue = read_catalogue(test.with_name("catalogue.json"))
                learned = read_examples(test.with_name("train.json"), catalogue, max_nodes=64)
                asked = read_examples(test, catalogue, max_nodes=64)
                wanted = [to_plan(catalogue, example) for example in asked]
                copied = score_plans(nearest(learned, asked, catalogue), wanted)
                times, made = [], []
                for example in asked:
                    started = time.perf_counter()
                    made.append(planner.plan(example.instruction))
                    times.append(1000 * (time.perf_counter() - started))
                ours = score_plans(made, wanted)
                show(f"{name}, nearest neighbour ({len(asked)})", copied)
                show(f"{name}, planner ({given.encoder})", ours)
                p50, p99 = np.percentile(times, [50, 99])
                print(f"{name}, one plan: p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True)
                data["runs"][-1]["sets"][name] = {
                    "asked": len(asked),
                    "nearest": told(copied),
                    "planner": told(ours),
                    "latency_ms": {"p50": float(p50), "p99": float(p99)},
                }
    save(f"plans_{'_'.join(f.name for f in given.folders)}_{given.encoder}", data)


if __name__ == "__main__":
    main()
