"""Instructions to plans on public data: the planner after phase 1 compared with copying the nearest neighbour.

    python benchmarks/plans.py ../shared/data/plans/ultratool                                # fast, about 2 minutes
    python benchmarks/plans.py ../shared/data/plans/{ultratool,nestful} --encoder minilm     # both sets, one planner

Each folder holds `catalogue.json` and `train.json`. A share is held out before anything else sees it; plans for it are
made one at a time on one thread, as `etude plan` makes them.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from options import setting
from results import save

import etude
from etude.evidence.intervals import interval
from etude.problems.catalogue import Catalogue, read_catalogue
from etude.problems.workflow.examples import Example, read_examples
from etude.problems.workflow.metrics import PlanScores, score_plans
from etude.problems.workflow.plan import Plan
from etude.problems.workflow.training_set import to_plan
from etude.text.tfidf import count_matrix, inverse_document_frequency, tfidf

PARTS = ("node_f1", "link_f1", "accuracy")
MAX_NODES = 1000
"""Nodes of an example that is measured on: all of them are."""


def hold_out(folder: Path, share: float, seed: int, into: Path) -> Path:
    """Writes the examples to learn from; returns the file of those held out."""
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
    counts = count_matrix(texts)
    idf = inverse_document_frequency(counts)
    kernel = tfidf(count_matrix([e.instruction for e in asked]), idf) @ tfidf(counts, idf).T
    return [to_plan(catalogue, learned[i]) for i in kernel.toarray().argmax(1)]


def to_json(scores: PlanScores) -> dict[str, Any]:
    parts = {name: getattr(scores, name) for name in PARTS}
    return {name: {"mean": float(x.mean()), "ci95": interval(x)} for name, x in parts.items()}


def show(name: str, scores: dict[str, Any]) -> None:
    cells = [f"{key} {part['mean']:.3f} [{part['ci95'][0]:.3f}, {part['ci95'][1]:.3f}]" for key, part in scores.items()]
    print(f"{name:38} " + "  ".join(cells), flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folders", nargs="+", type=Path)
    arguments.add_argument("--encoder", default="fast")
    arguments.add_argument("--seeds", type=int, default=1)
    arguments.add_argument("--held-out", type=float, default=500 / 3027, help="share held out to measure on")
    arguments.add_argument("--device", default="auto")
    arguments.add_argument("--set", type=setting, action="append", default=[], metavar="KEY=VALUE")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    data: dict[str, Any] = {"encoder": given.encoder, "held_out": given.held_out, "runs": []}
    for seed in range(given.seeds):
        with tempfile.TemporaryDirectory() as scratch:
            tests = {f.name: hold_out(f, given.held_out, seed, Path(scratch) / f.name) for f in given.folders}
            began = time.perf_counter()
            run = etude.train(
                "workflow",
                out=Path(scratch) / "run",
                data=[test.with_name("train.json") for test in tests.values()],
                encoder=given.encoder,
                seed=seed,
                device=given.device,
                settings=dict(given.set),
            )
            seconds, stopped = time.perf_counter() - began, run.folder.summary()["stopped"]
            print(f"seed {seed}: {run.step} epochs, {seconds:.0f} s in all, stopped by {stopped}", flush=True)
            data["runs"].append({"seed": seed, "seconds": seconds, "epochs": run.step, "sets": {}})
            for name, test in tests.items():
                source = test.with_name("catalogue.json")
                catalogue = read_catalogue(source)
                learned = read_examples(test.with_name("train.json"), catalogue, max_nodes=MAX_NODES)
                asked = read_examples(test, catalogue, max_nodes=MAX_NODES)
                wanted = [to_plan(catalogue, example) for example in asked]
                copied = to_json(score_plans(nearest(learned, asked, catalogue), wanted))
                found = etude.evaluate(run.folder.path, data=test, catalogue=source).json
                ours = {part: {"mean": found[part], "ci95": found[f"{part}_ci95"]} for part in PARTS}
                show(f"{name}, nearest neighbour ({len(asked)})", copied)
                show(f"{name}, planner ({given.encoder})", ours)
                times = found["latency_ms"]
                print(f"{name}, one plan: p50 {times['p50']:.1f} ms, p99 {times['p99']:.1f} ms", flush=True)
                data["runs"][-1]["sets"][name] = {
                    "asked": len(asked),
                    "nearest": copied,
                    "planner": ours,
                    "latency_ms": times,
                }
    save(f"plans_{'_'.join(f.name for f in given.folders)}_{given.encoder}", data)


if __name__ == "__main__":
    main()
