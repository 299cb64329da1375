"""One decision followed through Etude: how many calls between our modules lie between a command and the work it does.

    python benchmarks/walk.py

Runs the real commands in a temporary folder: a planner decides about a workflow, the decision is logged, ingested,
rewarded, frozen into a dataset, learned from and used to judge the policy that learned. For each stage the script
notes the chain of calls from the command to the function that does the stage's work, and counts a hop wherever a
function of one of our modules calls one of another.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from results import save

MAX_HOPS = 40
PACKAGE = str(Path(importlib.import_module("etude").__file__ or "").parent)


def commands(folder: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """Commands, and by stage the function that does its work."""
    planner, dataset, learned = str(folder / "planner"), str(folder / "dataset"), str(folder / "learned")
    run = ("run", planner, "Please fetch the letter, then mail it", "--experience")
    train = ("train", "workflow", "--dataset", dataset, "--checkpoint", planner, "--out", learned, "--quiet")
    return {
        run: {
            "run": "etude.problems.workflow.decide:WorkflowDecider.decide",
            "log": "etude.adapters.outbox:Outbox.publish",
        },
        ("experience", "stats"): {
            "ingest": "etude.adapters.sqlite:SqliteStore.append",
            "reward": "etude.experience.rewards:Rewarder.reward",
        },
        ("dataset", "create", "--problem", "workflow", "--out", dataset): {
            "dataset": "etude.experience.datasets.create:create"
        },
        train: {"train": "etude.problems.workflow.worker_model:fit_workers"},
        ("evaluate", learned, "--dataset", dataset): {"evaluate": "etude.learning.off_policy:evaluate_off_policy"},
    }


def walk(folder: Path) -> dict[str, list[str]]:
    """By stage, the functions from the command to its work."""
    found: dict[str, list[str]] = {}
    with chdir(folder):
        prepare(folder)
        for command, targets in commands(folder).items():
            found |= chains(command, targets)
    return found


def prepare(folder: Path) -> None:
    """A small planner, and enough logged workflows to learn from."""
    sizes = {"office.scenarios": 200, "office.held_out": 20, "training.phase1_supervised.num_epochs": 2}
    fast = [part for key, value in sizes.items() for part in ("--set", f"{key}={value}")]
    call("train", "workflow", "--phase", "1", "--out", str(folder / "planner"), "--quiet", *fast)
    logs = str(folder / "logs")
    call("collect", "--policy", str(folder / "planner"), "--num-executions", "300", "--explore", "1", "--out", logs)
    call("ingest", f"{logs}/executions.jsonl")


def call(*arguments: str) -> None:
    from etude.cli import app

    with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
        try:
            app(args=list(arguments), prog_name="etude", standalone_mode=False)
        except SystemExit as ended:
            if ended.code not in (0, 3, None):  # 3: a workflow that was carried out and failed
                raise RuntimeError(f"etude {' '.join(arguments)}: {out.getvalue()}") from ended


def chains(command: Sequence[str], targets: Mapping[str, str]) -> dict[str, list[str]]:
    codes = {code_of(target): name for name, target in targets.items()}
    found: dict[str, list[str]] = {}

    def profile(frame: FrameType, event: str, _: Any) -> None:
        name = codes.get(frame.f_code) if event == "call" else None
        if name is not None and name not in found:
            found[name] = ours(frame)

    sys.setprofile(profile)
    try:
        call(*command)
    finally:
        sys.setprofile(None)
    for name in targets.keys() - found.keys():
        raise RuntimeError(f"{name}: `etude {' '.join(command)}` does not reach {targets[name]}")
    return found


def code_of(target: str) -> CodeType:
    module, _, name = target.partition(":")
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    while hasattr(value, "__wrapped__"):
        value = value.__wrapped__
    code: CodeType = value.__code__
    return code


def ours(frame: FrameType | None) -> list[str]:
    """Our functions on the stack, the command first."""
    found = []
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(PACKAGE) and not frame.f_code.co_qualname.startswith("<") and "/cli/lazy.py" not in file:
            found.append(f"{os.path.relpath(file, PACKAGE)}:{frame.f_code.co_qualname}")
        frame = frame.f_back
    return [name for name in reversed(found) if not name.startswith("cli/__init__.py")]


def hops(functions: Sequence[str]) -> int:
    """Calls from one of our modules to another."""
    modules = [name.partition(":")[0] for name in functions]
    return sum(a != b for a, b in pairwise(modules))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = walk(Path(folder))
    for name, functions in found.items():
        print(f"{name}, {hops(functions)} hops")
        for function in functions:
            print(f"    {function}")
    total = sum(hops(functions) for functions in found.values())
    print(f"{total} hops, at most {MAX_HOPS}")
    save("walk", {"stages": found, "hops": {name: hops(f) for name, f in found.items()}, "total": total})


if __name__ == "__main__":
    main()
