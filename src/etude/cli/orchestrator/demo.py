"""`etude demo workflow`: the whole loop, from executions by rules to a better policy and a report.

Every stage writes to the folder of the demo: logs/ the collected executions, training_data.json the examples prepared
from them, p1/ and p2/ the two phases, comparison/ the same new instructions with every policy, and report.html.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from etude.bootstrap.runs import make_request, start_run
from etude.cli.demo import OUT, first_free, print_ending
from etude.cli.display import console, duration, print_command, table
from etude.cli.orchestrator.collect import carry_out_all
from etude.cli.orchestrator.demo_report import (
    AFTER,
    BEFORE,
    BETWEEN,
    DemoResults,
    headline,
    shown_numbers,
    write_demo_report,
)
from etude.cli.orchestrator.prepare import tell_prepared
from etude.cli.progress import Display, Terminated, follow, interruptible
from etude.files.durable import write_json
from etude.learning.compute import one_thread
from etude.learning.requests import LearnRequest
from etude.learning.run_folder import RunFolder
from etude.orchestrator.executor import Orchestrator
from etude.orchestrator.flow import PlanDecider
from etude.orchestrator.log import ExecutionLog, log_catalogue, read_ended
from etude.orchestrator.metrics import Summary, summarise
from etude.orchestrator.prepare import Prepared, prepare, write_prepared
from etude.orchestrator.record import Execution
from etude.orchestrator.workplace import (
    baseline_deciders,
    fresh_instructions,
    instructions_for,
    make_decider,
    make_workplace,
)
from etude.problems.workflow.settings import WorkflowSettings

LOGS, DATA, PHASE_1, PHASE_2, COMPARISON, ASKED = "logs", "training_data.json", "p1", "p2", "comparison", "demo.json"
CONCURRENCY = 16
"""Number of concurrent workflows."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The size of a demo, stored in demo.json."""

    seed: int = 0
    executions: int = 2_000  # collected
    workflows: int = 10_000  # of phase 2
    compare: int = 200  # fresh instructions for every policy


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the demo.")] = OUT,
    seed: Annotated[int, typer.Option(min=0, help="Seed; the same seed gives the same policy.")] = 0,
    executions: Annotated[int, typer.Option(min=20, help="Number of executions to collect.")] = Asked.executions,
    workflows: Annotated[
        int, typer.Option(min=1, help="Number of workflows that phase 2 learns from.")
    ] = Asked.workflows,
    compare: Annotated[int, typer.Option(min=2, help="Number of fresh instructions for every policy.")] = Asked.compare,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Print plain lines, no live display.")] = False,
) -> None:
    """Show in four minutes how the whole loop learns to plan workflows.

    Rules carry out workflows in a simulated office; a network learns from that, then from its own; a report compares.

    Takes the default settings, whatever etude.yaml says. If it was interrupted, the same command resumes it.

    A finished demo stays as it is: the next one goes to runs/demo-2, then runs/demo-3, …
    """
    screen = console()
    if no_progress and screen.is_terminal:
        screen = Console(highlight=False, force_terminal=False)
    workflow_demo(out, Asked(seed=seed, executions=executions, workflows=workflows, compare=compare), screen)


def workflow_demo(out: Path, asked: Asked, screen: Console) -> None:
    began, own = time.perf_counter(), demo_settings(asked)
    root = choose_folder(out, asked)
    # One workflow at a time is too little work to divide among threads.
    with _resumable(screen), RunFolder(root).locked(), one_thread(only=True):
        write_json(root / ASKED, asdict(asked))
        collected = _collect(asked, own, root / LOGS, screen)
        prepared = _prepare(root, screen)
        _learn(asked, root, screen, phase=1, data=[root / DATA])
        _learn(asked, root, screen, phase=2, checkpoint=root / PHASE_1)
        compared = _compare(asked, own, root, screen)
        found = DemoResults(
            catalogue=log_catalogue(root / LOGS),
            limits=own.limits,
            collected=collected,
            prepared=prepared,
            first=RunFolder(root / PHASE_1),
            second=RunFolder(root / PHASE_2),
            runs=compared,
        )
        report = write_demo_report(RunFolder(root).report, found)
    of_each = f"{asked.compare:,} fresh instructions each, from the same seeds"
    screen.print(f"\n{of_each}; in brackets the 95 % interval of success; workers are simulated\n", soft_wrap=True)
    numbers = shown_numbers(found)
    heads = list(numbers[AFTER])
    screen.print(table("", *heads, rows=[[name, *row.values()] for name, row in numbers.items()], right=heads))
    screen.print("\n" + " ".join(headline(found)), markup=False)
    print_ending(report, root / PHASE_2, screen, seconds=time.perf_counter() - began)


def demo_values(asked: Asked) -> dict[str, Any]:
    """Settings of a size that fits a demo: each instruction is practised on three times or so.

    Small minibatches make many gradient steps of few workflows, and one thread is quickest with them.
    """
    first, second = "training.phase1_supervised", "training.phase2_rl"
    return {
        "run.seed": asked.seed,
        "run.device": "cpu",
        "run.threads": 1,
        "office.scenarios": max(asked.executions, asked.workflows // 3),
        "office.held_out": 2 * asked.compare,
        f"{first}.batch_size": 16,
        f"{first}.num_epochs": 14,
        f"{first}.plateau_patience": 2,
        f"{first}.early_stop_patience": 4,
        f"{second}.num_episodes": asked.workflows,
        f"{second}.envs": max(16, min(256, asked.workflows // 10)),
        f"{second}.minibatch": 256,
        f"{second}.eval_every": max(1, asked.workflows * 4 // 3),  # about six of them: a workflow is eight decisions
        f"{second}.eval_episodes": min(300, asked.workflows),
    }


def demo_settings(asked: Asked) -> WorkflowSettings:
    return _request(asked, Path(), {}).settings.own(WorkflowSettings)


def _request(asked: Asked, out: Path, inputs: Mapping[str, Any]) -> LearnRequest:
    values = [f"{key}={value}" for key, value in demo_values(asked).items()]
    return make_request("workflow", out=out, inputs=inputs, preset="office", assignments=values, isolated=True)


def choose_folder(out: Path, asked: Asked) -> Path:
    """`out`, or the first numbered folder after it, that is new or holds this demo without its report."""

    def is_own(path: Path) -> bool:
        try:
            return bool(json.loads((path / ASKED).read_bytes()) == asdict(asked))
        except (OSError, ValueError):
            return False

    return first_free(out, is_own)


@contextmanager
def _resumable(screen: Console) -> Iterator[None]:
    """On Ctrl-C and SIGTERM, print how to resume. Every stage has already saved its work."""
    with interruptible(screen):
        try:
            yield
        except (KeyboardInterrupt, Terminated):
            print_command("interrupted; what is done is kept. The same command resumes:", screen)
            raise


def _stage(number: int, title: str, about: str, screen: Console) -> None:
    screen.print(f"\n[bold]{number} of 5: {title}[/]\n[dim]{about}[/]", soft_wrap=True)


def _collect(asked: Asked, own: WorkflowSettings, logs: Path, screen: Console) -> Summary:
    about = "Hand-written rules plan workflows, simulated workers carry them out, all decisions are logged: "
    _stage(1, "collect", f"{about}{logs}", screen)
    place = make_workplace(None, settings=own, seed=asked.seed)
    asked_for = instructions_for(place, asked.executions)
    there = {execution.number for execution in read_ended(logs)}
    waiting = [(i, text) for i, text in enumerate(asked_for) if i not in there]
    if there:
        screen.print(f"{len(asked_for) - len(waiting):,} of {len(asked_for):,} workflows are there already")
    if waiting:
        with ExecutionLog(logs, place.crew.catalogue, redact=None) as log:  # nothing simulated is private
            rules = make_decider("rules", place)
            orchestrator = Orchestrator(rules, place.crew, log=log, seed=asked.seed)
            carry_out_all(orchestrator, place, waiting, CONCURRENCY, screen)
    summary = summarise(read_ended(logs), place.crew.catalogue)
    screen.print(f"{summary.count:,} workflows, of which {summary.success.mean:.0%} succeeded")
    return summary


def _prepare(root: Path, screen: Console) -> Prepared:
    about = "Of each instruction, the plan that did best is kept as an example to learn from: "
    _stage(2, "prepare", f"{about}{root / DATA}", screen)
    with screen.status("reading the log"):
        prepared = prepare(root / LOGS)
    tell_prepared(prepared, root / LOGS, screen)
    if not (root / DATA).exists():
        write_prepared(prepared, root / DATA)
    return prepared


PHASES = {
    1: (3, PHASE_1, "learn from examples", "A small network learns to plan as the best of these plans did: "),
    2: (
        4,
        PHASE_2,
        "learn from outcomes",
        "It learns on from the outcomes of its own plans: whom to trust, what to do when something fails: ",
    ),
}


def _learn(asked: Asked, root: Path, screen: Console, *, phase: int, **inputs: Any) -> None:
    number, place, title, about = PHASES[phase]
    _stage(number, f"phase {phase}, {title}", f"{about}{root / place}", screen)
    folder = RunFolder(root / place)
    if folder.summary() is None:
        with screen.status("reading what to learn from"):
            run = start_run(_request(asked, folder.path, {"phase": phase, **inputs}))
        follow(run, Display(run, screen, live=screen.is_terminal))
    summary = folder.summary()
    assert summary is not None
    score = folder.config()["score"]
    screen.print(f"learned in {duration(summary['wall_s'])}; best {score} {summary['best_score']:.2f}")


def _compare(asked: Asked, own: WorkflowSettings, root: Path, screen: Console) -> dict[str, list[Execution]]:
    """The executions of the new instructions, in their order, by policy."""
    about = f"{asked.compare:,} instructions that no policy learned from, carried out by every policy: "
    _stage(5, "run again", f"{about}{root / COMPARISON}", screen)
    with screen.status("reading policies"):
        place = make_workplace(None, settings=own)
        fresh = fresh_instructions(place, asked.compare)
        deciders = {
            BEFORE: make_decider("rules", place),
            BETWEEN: make_decider(str(root / PHASE_1), place),
            AFTER: make_decider(str(root / PHASE_2), place),
        }
        # The baseline of the same name decides as the rules that collected.
        deciders |= {name: decider for name, decider in baseline_deciders(place).items() if name != "rules"}
    found = {}
    for name, decider in deciders.items():
        with screen.status(f"{name}: {len(fresh):,} workflows"):
            logs = root / COMPARISON / name.replace(" ", "-")
            found[name] = _carried_out(decider, fresh, asked.seed + 1, own, logs)
        successes = sum(execution.success for execution in found[name])
        screen.print(f"{name:<12} {successes / len(fresh):>4.0%} succeeded")
    return found


def _carried_out(
    decider: PlanDecider, fresh: list[str], seed: int, own: WorkflowSettings, logs: Path
) -> list[Execution]:
    """Carry out the instructions, each policy in the same state of the office; logged ones are not repeated."""
    there = {execution.number for execution in read_ended(logs)}
    waiting = [(i, text) for i, text in enumerate(fresh) if i not in there]
    if waiting:
        place = make_workplace(None, settings=own, seed=seed)
        with ExecutionLog(logs, place.crew.catalogue, redact=None) as log:
            orchestrator = Orchestrator(decider, place.crew, log=log, seed=seed)
            carry_out_all(orchestrator, place, waiting, CONCURRENCY, Console(quiet=True))
    by_number = {execution.number: execution for execution in read_ended(logs)}
    return [by_number[i] for i in range(len(fresh))]
