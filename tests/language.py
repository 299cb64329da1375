"""A made-up language: instructions that name their subtasks, and the plans an expert makes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.examples import Example, Targets
from tests.tiny import etude

WORDS = {
    "fetch": "fetch a document from the archive",
    "translate": "translate a text to French",
    "summarise": "summarise a text in few words",
    "count": "count the words there are",
    "draw": "draw a picture of it",
    "mail": "mail the result to the team",
}
CAREFUL = ("translate", "summarise")
CATALOGUE = Catalogue(
    task_types=tuple(TaskType(name=name, description=text) for name, text in WORDS.items()),
    workers=(
        Worker(name="quick", description="does anything at once", usd_per_call=0.01, latency_ms=10.0),
        Worker(name="careful", description="reads twice", task_types=CAREFUL, usd_per_call=0.05, latency_ms=50.0),
    ),
)
THINGS = ("report", "letter", "invoice", "novel", "minutes", "contract")


def examples(count: int, seed: int = 0) -> list[Example]:
    """Chains of one to three subtasks over CATALOGUE; texts go to the careful worker."""
    rng = random.Random(seed)
    names = list(WORDS)
    found = []
    for _ in range(count):
        chosen = rng.sample(names, rng.randint(1, 3))
        text = f"Please {chosen[0]} the {rng.choice(THINGS)}" + "".join(f", then {name} it" for name in chosen[1:])
        found.append(chain(text, [names.index(name) for name in chosen], [int(name in CAREFUL) for name in chosen]))
    return found


def chain(instruction: str, task_types: Sequence[int], workers: Sequence[int] | None = None) -> Example:
    """Each subtask after the one before."""
    targets = Targets(
        task_types=tuple(task_types),
        dependencies=tuple((i - 1,) if i else () for i in range(len(task_types))),
        model_selections=None if workers is None else tuple(workers),
    )
    return Example(instruction=instruction, targets=targets)


def write_data(folder: Path, count: int = 32, *, seed: int = 0) -> tuple[Path, Path]:
    """A training file and its catalogue."""
    folder.mkdir(parents=True, exist_ok=True)
    data, catalogue = folder / "train.json", folder / "catalogue.json"
    data.write_text(json.dumps(msgspec.to_builtins(examples(count, seed))))
    catalogue.write_bytes(msgspec.json.encode(CATALOGUE))
    return data, catalogue


SETTINGS = {
    "planner.width": "32",
    "planner.layers": "1",
    "planner.heads": "2",
    "limits.max_nodes": "4",
    "run.device": "cpu",
    "run.threads": "1",
    "training.phase1_supervised.learning_rate": "1e-3",
    "training.phase1_supervised.num_epochs": "12",
    "training.phase1_supervised.plateau_patience": "12",
    "training.phase1_supervised.early_stop_patience": "12",
    "training.phase1_supervised.final_epochs": "2",
    "training.phase1_supervised.average": "0.8",
    "training.phase1_supervised.synthetic_augmentations": "48",
}


def command(data: Path, out: Path, *more: str | Path, **changed: str) -> list[str | Path]:
    """Arguments of `etude` for a planner small enough for a test; `changed` has keys of phase 1."""
    settings = SETTINGS | {f"training.phase1_supervised.{key}": value for key, value in changed.items()}
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    given = ["train", "workflow", "--phase", "1", "--data", data, "--encoder", "ngrams", "--out", out]
    return [*given, *flags, *more]


def trained_run(factory: pytest.TempPathFactory) -> Path:
    """One finished run for all tests that only read it; its data is in the same folder."""
    out = factory.getbasetemp() / "planner" / "run"
    if not (out / "summary.json").exists():
        data, _ = write_data(out.parent)
        assert etude(*command(data, out, "--quiet")) == 0
    return out
