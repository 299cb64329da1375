"""Tools that were added after training: how often a planner that has only read their descriptions chooses them.

    python benchmarks/new_tools.py ../shared/data/plans/ultratool                  # fast, three draws of tools

A share of the task types is withheld: no example with one of them is learned from, and the catalogue of the training
does not have them. Then the whole catalogue is given to the planner, and the instructions that need them are planned.
Compared with the same planner without the new tools' descriptions (their names alone), and with chance.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from options import setting
from results import save, sentence

import etude
from etude.problems.catalogue import Catalogue, TaskType, read_catalogue
from etude.problems.workflow.examples import Example, read_examples
from etude.problems.workflow.metrics import score_plans
from etude.problems.workflow.plan import Plan
from etude.problems.workflow.training_set import to_plan

WITHHELD = 0.1


def known_part(catalogue: Catalogue, new: set[str]) -> Catalogue:
    return Catalogue(task_types=tuple(t for t in catalogue.task_types if t.name not in new), workers=catalogue.workers)


def write(folder: Path, catalogue: Catalogue, examples: list[Example], whole: Catalogue) -> Path:
    """A training file over the smaller catalogue."""
    place = {t.name: i for i, t in enumerate(catalogue.task_types)}
    records = []
    for example in examples:
        targets = msgspec.to_builtins(example.targets)
        targets["task_types"] = [place[whole.task_types[t].name] for t in example.targets.task_types]
        records.append({"instruction": example.instruction, "targets": targets})
    (folder / "catalogue.json").write_bytes(msgspec.json.encode(catalogue))
    (folder / "train.json").write_text(json.dumps(records))
    return folder / "train.json"


def found(made: list[Plan], wanted: list[Plan], new: set[str]) -> float:
    """The share of the new tools that were wanted that were chosen."""
    pairs = [
        (task, {n.task_type for n in m.nodes})
        for m, w in zip(made, wanted, strict=True)
        for task in {n.task_type for n in w.nodes} & new
    ]
    return float(np.mean([task in chosen for task, chosen in pairs]))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--encoder", default="fast")
    arguments.add_argument("--draws", type=int, default=3)
    arguments.add_argument("--set", type=setting, action="append", default=[], metavar="KEY=VALUE")
    given = arguments.parse_args()
    whole = read_catalogue(given.folder / "catalogue.json")
    examples = read_examples(given.folder / "train.json", whole, max_nodes=64)
    names = [t.name for t in whole.task_types]
    rows: dict[str, list[float]] = {"described": [], "by name alone": [], "by chance": [], "plans, node F1": []}
    for draw in range(given.draws):
        new = set(random.Random(draw).sample(names, round(WITHHELD * len(names))))
        asked = [e for e in examples if any(names[t] in new for t in e.targets.task_types)]
        learned = [e for e in examples if not any(names[t] in new for t in e.targets.task_types)]
        with tempfile.TemporaryDirectory() as scratch:
            data = write(Path(scratch), known_part(whole, new), learned, whole)
            out, settings = Path(scratch) / "run", dict(given.set)
            etude.train("workflow", out=out, data=data, encoder=given.encoder, seed=draw, settings=settings)
            planner = etude.load(out)
        texts, wanted = [e.instruction for e in asked], [to_plan(whole, e) for e in asked]
        bare = [t if t.name not in new else TaskType(name=t.name) for t in whole.task_types]
        for row, catalogue in (
            ("described", whole),
            ("by name alone", Catalogue(task_types=tuple(bare), workers=whole.workers)),
        ):
            planner = planner.under(catalogue)
            made = planner.plans(texts)
            rows[row].append(found(made, wanted, new))
            if row == "described":
                rows["plans, node F1"].append(float(score_plans(made, wanted).node_f1.mean()))
        rows["by chance"].append(float(np.mean([len(p.nodes) for p in wanted])) / len(names))
        line = "  ".join(f"{row} {values[-1]:.3f}" for row, values in rows.items())
        print(f"draw {draw}: {len(new)} tools withheld, {len(asked)} instructions need one: {line}", flush=True)
    data_: dict[str, Any] = {"encoder": given.encoder, "withheld": WITHHELD, **rows}
    for row, values in rows.items():
        print(f"{row:16} {sentence(100 * np.array(values), '%')}")
    save(f"new_tools_{given.folder.name}_{given.encoder}", data_)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
