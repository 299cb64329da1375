"""Learning in the simulated office from logs alone: success and cost relative to the behaviour policy.

    python benchmarks/office_logs.py                          # five seeds, about 18 minutes each on one core
    python benchmarks/office_logs.py --seeds 3 --executions 200 1000 --policy flawed --out DIR
    python benchmarks/office_logs.py --part --seeds 3 --executions 200 --policy flawed --out DIR  # of many
    python benchmarks/office_logs.py --seeds --out DIR        # the results of all that DIR holds, at the end

A policy carries out 200, 1,000 or 5,000 instructions of the simulated office, and a tenth of its decisions is explored.
Then come the steps that a user takes: `prepare`, phase 1 on the prepared file, `ingest`, a dataset, and
`train workflow --dataset` from phase 1. At the end, every policy carries out the same 400 fresh instructions, each
under the same conditions. Each seed has other instructions, other hidden skills and another rng. What a folder holds is
not made again.

`flawed`   plans are right, except that in 20 % of the workflows a subtask is dropped, replaced or added at random;
           workers are chosen by reputation, failures are corrected as the rules do
`rules`    the keyword rules: `etude collect --policy rules --explore 0.1`

Nothing that learns sees a best plan: it sees what was logged, with the verdict on each finished workflow. Ratios are to
the behaviour policy without exploration, which is better and cheaper than it was while it logged; those to the policy
as it logged are in the results file too. `kept` is what the verdict of the last training kept, `learned` what it
learned (`--keep always`); `with fallback` is `learned`, except that the behaviour policy plans, with learned workers,
where the learned plan is less probable than the behaviour policy's workflows are right, by the log; the planner
revises those plans where held-out examples show that this makes them better.

The other rows are bounds, which know best plans or hidden skills. They show where the losses are: the behaviour
policy's plans, learned plans and right plans, with learned workers and with the best ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from zlib import crc32

import torch
from options import setting
from results import save, summary
from torch import Generator
from workflow_loop import Settings, of_office

import etude
from etude.experience.datasets import MANIFEST
from etude.files.durable import replace_file
from etude.orchestrator.executor import Orchestrator
from etude.orchestrator.flow import PlanDecider
from etude.orchestrator.log import ExecutionLog, read_log
from etude.orchestrator.prepare import prepare, write_prepared
from etude.orchestrator.record import Execution
from etude.orchestrator.unsure import Unsure, Verdicts
from etude.orchestrator.virtual_time import run_virtually
from etude.orchestrator.workers.simulated import SimulatedCrew
from etude.orchestrator.workplace import (
    Workplace,
    baseline_deciders,
    fresh_instructions,
    instructions_for,
    make_decider,
    make_workplace,
)
from etude.problems.base import Action, Obs
from etude.problems.workflow.assignment import Assignment
from etude.problems.workflow.corrections import correct_by_fault
from etude.problems.workflow.decide import Chooser, Choosers, WorkflowDecider, by_rules, exploring
from etude.problems.workflow.experts import RulePlanner, Score, by_reputation, retry_then_switch
from etude.problems.workflow.grammar import Rules
from etude.problems.workflow.office.office import Office, knowing
from etude.problems.workflow.office.scenarios import Scenarios, from_examples
from etude.problems.workflow.office.world import Tables
from etude.problems.workflow.planner import Planner
from etude.problems.workflow.worker_model import WorkerModel

POLICIES = ("flawed", "rules")
SIZES = (200, 1000, 5000)
"""Numbers of logged executions."""
WRONG, EXPLORE = 0.2, 0.1
FRESH = 400
"""Instructions that each policy carries out at the end."""
REFERENCE, EXPLORING, LEARNED, FALLBACK = "behaviour policy", "as it logged", "learned", "with fallback"
NUMBERS = ("success", "cost_usd", "latency_ms", "attempts", "right subtasks", "right plans")
CAUSES = ("a subtask left out", "a subtask too many", "a link left out", "workers and corrections")
"""Why a workflow did not succeed; the first that applies to its first plan."""

LIMITS = {"limits.max_nodes": 10, "limits.max_corrections": 3}
"""Those of the simulated office."""

Assign = Callable[[Rules, Obs, Action], Action]
"""Gives the node that an action adds to a draft another worker."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The office of one seed, and the behaviour policy in it."""

    seed: int
    policy: str
    chosen: Settings

    @cached_property
    def place(self) -> Workplace:
        return make_workplace(None, settings=of_office(self.chosen), seed=self.seed)

    @property
    def office(self) -> Office:
        assert self.place.office is not None
        return self.place.office

    @cached_property
    def usual(self) -> Choosers:
        """The behaviour policy without exploration."""
        if self.policy == "rules":
            return by_rules()
        return self.planning(flawed(self.office, self.seed), by_reputation(self.office.rules))

    def planning(self, plans: Scenarios, worker: Score) -> Choosers:
        """These plans, with workers by this score and failures corrected as the rules do."""
        return knowing(RulePlanner(self.office.rules, plans, worker=worker, correction=retry_then_switch), self.office)

    def decider(self, choosers: Choosers, version: str) -> WorkflowDecider:
        assert self.place.config is not None
        return WorkflowDecider(
            version=version, catalogue=self.office.catalogue, limits=self.place.config.limits, choosers=choosers
        )

    @cached_property
    def explorer(self) -> WorkflowDecider:
        return self.decider(exploring(self.usual, EXPLORE), f"{self.policy}+{EXPLORE:g}")

    @cached_property
    def worth(self) -> torch.Tensor:
        """(T, W): the value of each worker at each task type by its hidden skill, its price and its latency."""
        assert self.place.config is not None
        return Tables(self.place.config, self.office.scenarios, "cpu").worth(self.place.config)

    def references(self) -> dict[str, PlanDecider]:
        """The behaviour policy, and bounds that do not depend on logs."""
        right, best = self.office.scenarios, self.planning(self.office.scenarios, self._by_worth)
        bounds = {
            "its plans, best workers": reassigned(self.usual, self._to_the_best, best),
            "right plans, its workers": self.planning(right, by_reputation(self.office.rules)),
            "right plans, best workers": best,
        }
        found: dict[str, PlanDecider] = {REFERENCE: self.decider(self.usual, self.policy), EXPLORING: self.explorer}
        found |= {name: self.decider(choosers, name) for name, choosers in bounds.items()}
        return found | {"oracle": baseline_deciders(self.place)["oracle"]}

    def candidates(self, folder: Path) -> dict[str, PlanDecider]:
        """The trained policies, and bounds with their plans or their workers."""
        planner: Planner = etude.load(folder / LEARNED)
        right, reputation = self.office.scenarios, by_reputation(self.office.rules)
        assert planner.workers is not None
        own = replace(planner, workers=None)
        bounds = {
            "its plans, learned workers": with_model(self.usual, planner.workers),
            "right plans, learned workers": with_model(self.planning(right, reputation), planner.workers),
            "learned plans, best workers": reassigned(
                lambda rules, text: own._chooser(rules, text, explore=False),
                self._to_the_best,
                self.planning(right, self._by_worth),
            ),
        }
        trained: dict[str, PlanDecider] = {
            name: make_decider(str(folder / name), self.place) for name in ("phase 1", "kept", LEARNED)
        }
        return trained | {name: self.decider(choosers, name) for name, choosers in bounds.items()}

    def _by_worth(self, obs: Obs, task_type: torch.Tensor) -> torch.Tensor:
        return self.worth[task_type]

    def _to_the_best(self, rules: Rules, draft: Obs, action: Action) -> Action:
        kind = int(action["type"])
        if kind >= rules.types:
            return action
        legal = rules.workers_for(draft, action["correction"], action["type"], action["links"])
        score = torch.where(legal, self.worth[kind][: rules.workers], -torch.inf)
        return action | {"worker": score.argmax(1)}


def flawed(office: Office, seed: int) -> Scenarios:
    """The best plans; of a share of them a subtask is dropped, replaced or added at random."""
    scenarios, kinds = office.scenarios, range(len(office.catalogue.task_types))
    plans = []
    for row, text in enumerate(scenarios.instructions):
        rng = random.Random(crc32(f"{seed}:{text}".encode()))
        types, needs = scenarios.of(row)
        if rng.random() < WRONG:
            types, needs = _spoilt(types, needs, [kind for kind in kinds if kind not in types], rng)
        plans.append((text, types, needs))
    return from_examples(plans, scenarios.catalogue)


def _spoilt(
    types: list[int], needs: list[list[int]], others: list[int], rng: random.Random
) -> tuple[list[int], list[list[int]]]:
    how = rng.choice(("drop", "replace", "add") if len(types) > 1 else ("replace", "add"))
    place, other = rng.randrange(len(types)), rng.choice(others)
    if how == "add":
        return [*types, other], [*needs, [place]]
    if how == "replace":
        return [other if i == place else kind for i, kind in enumerate(types)], needs
    kept = [i for i in range(len(types)) if i != place]
    return [types[i] for i in kept], [[kept.index(j) for j in needs[i] if j != place] for i in kept]


def reassigned(plans: Choosers, assign: Assign, corrections: Choosers) -> Choosers:
    """Plans of one policy with other workers, and the corrections of another policy."""

    def choosers(rules: Rules, instruction: str) -> Chooser:
        planned, corrected = plans(rules, instruction), corrections(rules, instruction)

        def choose(draft: Obs, rng: Generator) -> Sequence[tuple[Action, float | None]]:
            if int(draft["failed"]) >= 0:
                return corrected(draft, rng)
            found = list[tuple[Action, float | None]]()
            for action, _ in planned(draft, rng):
                found.append((assign(rules, draft, action), 1.0))
                draft, _ = rules.grow(draft, found[-1][0])
            return found

        return choose

    return choosers


def with_model(plans: Choosers, model: WorkerModel) -> Choosers:
    """Plans of a policy with the workers and corrections of a model; corrections it does not make are the policy's."""

    def corrections(rules: Rules, instruction: str) -> Chooser:
        assignment, usual = Assignment(model=model, rules=rules), plans(rules, instruction)

        def choose(draft: Obs, rng: Generator) -> Sequence[tuple[Action, float | None]]:
            found = assignment.correct(draft, correct_by_fault(rules, draft), None)
            return usual(draft, rng) if found is None else [found]

        return choose

    def assign(rules: Rules, draft: Obs, action: Action) -> Action:
        chances = Assignment(model=model, rules=rules).chances(draft, action)
        return action if chances is None else action | {"worker": torch.tensor([int(chances.argmax())])}

    return reassigned(plans, assign, corrections)


def learn(bench: Bench, executions: int, folder: Path) -> dict[str, Any]:
    """What a user does: collect, prepare, phase 1, ingest, a dataset, and both trainings from it."""
    chosen, data, dataset = bench.chosen, folder / "training_data.json", folder / "dataset"
    if not data.exists():
        rmtree(folder / "logs", ignore_errors=True)  # of a collection that was interrupted
        place = make_workplace(None, settings=of_office(chosen), seed=bench.seed)
        with ExecutionLog(folder / "logs", place.crew.catalogue, redact=None) as log:
            collecting = Orchestrator(bench.explorer, place.crew, log=log, seed=bench.seed)
            run_virtually(collecting.execute_all(instructions_for(place, executions)))
        write_prepared(prepare(folder / "logs", max_nodes=bench.explorer.limits.max_nodes), data)
    first = folder / "phase 1"
    etude.train("workflow", out=first, settings=chosen, data=data)
    if not (dataset / MANIFEST).exists():
        rmtree(dataset, ignore_errors=True)
        command("ingest", str(folder / "logs" / "executions.jsonl"), folder=folder)
        command("dataset", "create", "--problem", "workflow", "--out", str(dataset), folder=folder)
    found: dict[str, Any] = {"examples": len(json.loads(data.read_text()))}
    for name, keep in (("kept", "better"), (LEARNED, "always")):
        run = etude.train(
            "workflow", out=folder / name, settings=chosen, dataset=str(dataset), checkpoint=first, keep=keep
        )
        found[name] = {key: run.folder.summary()[key] for key in ("verdict", "kept")}
    return found


def command(*arguments: str, folder: Path) -> None:
    """An `etude` command with its experience in a folder."""
    own = {"ETUDE_EXPERIENCE__FOLDER": str(folder / "experience")}
    subprocess.run(
        [sys.executable, "-m", "etude.cli", *arguments], check=True, capture_output=True, env=os.environ | own
    )


def carry_out(bench: Bench, decider: PlanDecider, unsure: Unsure | None = None) -> dict[str, Any]:
    """Means over the fresh instructions. Loads and outages depend on the instruction's number alone."""
    instructions, found = fresh_instructions(bench.place, FRESH), list[dict[str, float]]()
    causes: Counter[str] = Counter()
    for number, text in enumerate(instructions):
        crew = SimulatedCrew(bench.office, seed=FRESH * bench.seed + number)
        orchestrator = Orchestrator(decider, crew, seed=bench.seed, unsure=unsure)
        execution = run_virtually(orchestrator.execute(text, number=number)).execution
        cause = flaw(execution, bench.office.requirements(text))
        found.append(
            {
                "success": execution.success,
                "cost_usd": execution.cost,
                "latency_ms": execution.latency_ms,
                "attempts": sum(len(node.attempts) for node in execution.nodes),
                "right subtasks": cause not in CAUSES[:2],
                "right plans": cause not in CAUSES[:3],
                "planned by fallback": execution.decisions[0].policy != decider.version,
            }
        )
        if not execution.success:
            causes[cause] += 1
    means: dict[str, Any] = {name: sum(row[name] for row in found) / len(found) for name in found[0]}
    return means | {"failures": {cause: causes[cause] / len(found) for cause in CAUSES}}


def logged_verdicts(folder: Path) -> Verdicts:
    """What the log says of the behaviour policy's workflows."""
    right = [line.success for line in read_log(folder / "logs") if isinstance(line, Execution)]
    return Verdicts(right=sum(right), wrong=len(right) - sum(right))


def flaw(execution: Execution, needs: dict[int, set[int]]) -> str:
    """What is wrong with the first plan of an execution, the last of CAUSES if nothing is."""
    plan = execution.planner_outputs
    assert plan is not None
    if needs.keys() - set(plan.task_types):
        return CAUSES[0]
    if set(plan.task_types) - needs.keys():
        return CAUSES[1]
    for j, kind in enumerate(plan.task_types):
        if needs[kind] - {plan.task_types[i] for i, row in enumerate(plan.workflow_graph.adjacency) if row[j]}:
            return CAUSES[2]
    return CAUSES[3]


def one(seed: int, policy: str, sizes: Sequence[int], root: Path, chosen: Settings) -> None:
    """Everything of one seed and one behaviour policy; what the folder holds is not made again."""
    folder, began = root / policy / str(seed), time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(seed=seed, policy=policy, chosen=settings(seed) | chosen)
    if not (file := folder / "references.json").exists():
        references = {name: carry_out(bench, decider) for name, decider in bench.references().items()}
        replace_file(file, json.dumps(references).encode())  # another process may read it
        print(f"{policy}, seed {seed}: references, {time.perf_counter() - began:.0f} s", flush=True)
    for executions in sizes:
        if (file := folder / str(executions) / "measured.json").exists():
            continue
        began = time.perf_counter()
        about = learn(bench, executions, file.parent)
        about["seconds to learn"] = time.perf_counter() - began
        candidates = bench.candidates(file.parent)
        policies = {name: carry_out(bench, decider) for name, decider in candidates.items()}
        usual = bench.decider(bench.usual, policy)
        unsure = Unsure(min_probability=None, then="fallback", fallback=usual, verdicts=logged_verdicts(file.parent))
        policies[FALLBACK] = carry_out(bench, candidates[LEARNED], unsure)
        about |= {"policies": policies, "seconds": time.perf_counter() - began}
        replace_file(file, json.dumps(about).encode())
        print(f"{policy}, seed {seed}: {executions:,} executions, {about['seconds']:.0f} s", flush=True)


def settings(seed: int) -> Settings:
    own = {"run.seed": seed, "office.skill_seed": seed, "office.scenario_seed": seed}
    return own | LIMITS | {"run.device": "cpu", "run.threads": 1}


def gather(root: Path) -> dict[str, Any]:
    """The figures of all that the folder holds, with 95 % intervals over seeds."""
    found: dict[str, Any] = {"fresh instructions": FRESH, "wrong plans": WRONG, "explored": EXPLORE}
    for policy in POLICIES:
        for executions in sorted({int(file.parent.name) for file in root.glob(f"{policy}/*/*/measured.json")}):
            files = sorted(root.glob(f"{policy}/*/{executions}/measured.json"))
            learned = [json.loads(file.read_text()) for file in files]
            references = [json.loads((file.parents[1] / "references.json").read_text()) for file in files]
            rows = [a | b["policies"] for a, b in zip(references, learned, strict=True)]
            found.setdefault(policy, {})[str(executions)] = {
                "seeds": [file.parents[1].name for file in files],
                "examples": [each["examples"] for each in learned],
                "verdicts": [each["kept"]["verdict"]["answer"] for each in learned],
                "seconds": [each["seconds"] for each in learned],
                "policies": {name: compared(name, rows) for name in rows[0]},
            }
            show(policy, executions, found[policy][str(executions)])
    return found


def compared(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A policy's numbers by seed, and its ratios to the behaviour policy."""
    own = [row[name] for row in rows]
    found: dict[str, Any] = {number: summary([each[number] for each in own]) for number in NUMBERS}
    found["failures"] = {cause: summary([each["failures"][cause] for each in own]) for cause in CAUSES}
    found["planned by fallback"] = [each["planned by fallback"] for each in own]
    for other in (REFERENCE, EXPLORING):
        for number in ("success", "cost_usd"):
            ratios = [each[number] / row[other][number] for each, row in zip(own, rows, strict=True)]
            found[f"{number}, relative to {other}"] = summary(ratios)
    return found


def show(policy: str, executions: int, found: dict[str, Any]) -> None:
    examples, verdicts = found["examples"], Counter(found["verdicts"])
    print(f"\n{policy}, {executions:,} executions, seeds {', '.join(found['seeds'])}: ", end="")
    print(f"{sum(examples) / len(examples):,.0f} plans prepared; verdict {dict(verdicts)}")
    print(
        f"{'':30} {'success':>8} {'ratio':>20} {'USD':>8} {'ratio':>20} {'subtasks':>8} {'plans':>6}  failures by cause"
    )
    for name, row in found["policies"].items():
        ratios = [row[f"{number}, relative to {REFERENCE}"] for number in ("success", "cost_usd")]
        success, cost = (f"{r['mean']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" for r in ratios)
        causes = " ".join(f"{row['failures'][cause]['mean']:6.1%}" for cause in CAUSES)
        print(
            f"{name:30} {row['success']['mean']:8.1%} {success:>20} {row['cost_usd']['mean']:8.4f} {cost:>20} ", end=""
        )
        print(f"{row['right subtasks']['mean']:8.1%} {row['right plans']['mean']:6.1%} {causes}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, nargs="*", default=list(range(5)))
    arguments.add_argument("--executions", type=int, nargs="*", default=list(SIZES))
    arguments.add_argument("--policy", nargs="*", choices=POLICIES, default=list(POLICIES), help="behaviour policies")
    arguments.add_argument("--out", type=Path, default=None, help="folder that keeps the files")
    arguments.add_argument("--part", action="store_true", help="measure alone: the results file is left as it is")
    arguments.add_argument("--set", type=setting, action="append", default=[], metavar="KEY=VALUE")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    root = given.out or Path(mkdtemp())
    for policy in given.policy:
        for seed in given.seeds:
            one(seed, policy, given.executions, root, dict(given.set))
    if not given.part:
        save("office_logs", {"settings": dict(given.set), **gather(root)})


if __name__ == "__main__":
    main()
