"""`etude demo`: nothing in; the whole loop out, from what rules did to a policy that does better, and a report.

A demo is a folder, and each stage leaves its own in it: logs/ what was collected, training_data.json what was kept of
it, p1/ and p2/ the two phases, comparison/ the same fresh instructions with every policy, report.html all of it.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from etude.cli.allocation_demo import allocation_demo, first_free, print_ending
from etude.cli.collect import carry_out_all
from etude.cli.display import console, duration, table
from etude.cli.prepare import tell_prepared
from etude.cli.progress import LiveDisplay, PlainDisplay, Terminated, follow, interruptible
from etude.cli.workflow import follow_epochs
from etude.contracts.errors import ConfigError

if TYPE_CHECKING:
    from etude.cli.demo_report import Found
    from etude.orchestrator.executor import Orchestrator
    from etude.orchestrator.metrics import Summary
    from etude.orchestrator.prepare import Prepared
    from etude.orchestrator.record import Execution
    from etude.problems.workflow.decide import Decider
    from etude.settings.tree import Settings

LOGS, DATA, PHASE_1, PHASE_2, COMPARISON, ASKED = "logs", "training_data.json", "p1", "p2", "comparison", "demo.json"
EXECUTIONS, WORKFLOWS, COMPARED = 2_000, 10_000, 200
MAX_STEPS, EPISODES = 400_000, 200
CONCURRENCY = 16
"""Workflows under way at the same time."""


class Problem(StrEnum):
    WORKFLOW = "workflow"
    ALLOCATION = "allocation"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How large a demo of the workflow planner is; demo.json has it."""

    seed: int = 0
    executions: int = EXECUTIONS  # collected
    workflows: int = WORKFLOWS  # of phase 2
    compare: int = COMPARED  # fresh instructions for every policy


def demo(
    problem: Annotated[Problem, typer.Argument(help="What is learned.")] = Problem.WORKFLOW,
    out: Annotated[Path, typer.Option(help="The demo's folder.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same policy.")] = 0,
    executions: Annotated[
        int | None,
        typer.Option(min=20, help="workflow: executions to collect.", show_default=str(EXECUTIONS)),
    ] = None,
    workflows: Annotated[
        int | None,
        typer.Option(min=1, help="workflow: those that phase 2 learns from.", show_default=str(WORKFLOWS)),
    ] = None,
    compare: Annotated[
        int | None,
        typer.Option(min=2, help="workflow: fresh instructions for every policy.", show_default=str(COMPARED)),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(min=1, help="allocation: budget of environment steps.", show_default=str(MAX_STEPS)),
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option(min=2, help="allocation: episodes of each policy compared.", show_default=str(EPISODES)),
    ] = None,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Plain lines, no live display.")] = False,
) -> None:
    """See Etude learn: the whole loop of the workflow planner in four minutes, or allocation in one.

    Rules carry out workflows in a simulated office; a network learns from that, then from its own; a report compares.

    Takes the default settings, whatever etude.yaml says. If it was interrupted, the same command goes on.

    A finished demo stays as it is: the next one goes to runs/demo-2, then runs/demo-3, …
    """
    _check(problem, Problem.WORKFLOW, {"--executions": executions, "--workflows": workflows, "--compare": compare})
    _check(problem, Problem.ALLOCATION, {"--max-steps": max_steps, "--episodes": episodes})
    if problem == Problem.ALLOCATION:
        budget, played = max_steps or MAX_STEPS, episodes or EPISODES
        allocation_demo(out, seed=seed, max_steps=budget, episodes=played, live=not no_progress)
    else:
        asked = Asked(
            seed=seed,
            executions=executions or EXECUTIONS,
            workflows=workflows or WORKFLOWS,
            compare=compare or COMPARED,
        )
        screen = console()
        workflow_demo(out, asked, _plain(screen) if no_progress else screen)


def _plain(screen: Console) -> Console:
    """The same without a live display."""
    return Console(highlight=False, force_terminal=False) if screen.is_terminal else screen


def _check(problem: Problem, own: Problem, given: dict[str, int | None]) -> None:
    """Options of one demo are none of the other's."""
    for flag, value in given.items():
        if value is not None and problem != own:
            raise ConfigError(f"{flag} is for `etude demo {own}`: leave it out, or ask for that demo")


def workflow_demo(out: Path, asked: Asked, screen: Console) -> None:
    import torch

    from etude.cli.demo_report import Found, headline, write_demo_report
    from etude.learning.checkpoint import write_json
    from etude.learning.runs import RunFolder
    from etude.orchestrator.log import log_catalogue

    began, settings = time.perf_counter(), demo_settings(asked)
    torch.set_num_threads(1)  # one workflow at a time is too little to share out
    root = choose_folder(out, asked)
    with _resumable(screen), RunFolder(root).locked():
        write_json(root / ASKED, asdict(asked))
        collected = _collect(asked, settings, root / LOGS, screen)
        prepared = _prepare(root, screen)
        _imitate(settings, root, screen)
        _learn_on(settings, root, screen)
        compared = _compare(asked, settings, root, screen)
        found = Found(
            catalogue=log_catalogue(root / LOGS),
            limits=settings.limits,
            collected=collected,
            prepared=prepared,
            first=RunFolder(root / PHASE_1),
            second=RunFolder(root / PHASE_2),
            runs=compared,
        )
        report = write_demo_report(RunFolder(root).report, found)
    of_each = f"{asked.compare:,} fresh instructions each, from the same seeds"
    screen.print(f"\n{of_each}; in brackets the 95 % interval of success\n", soft_wrap=True)
    screen.print(_comparison(found))
    screen.print("\n" + " ".join(headline(found)), markup=False)
    print_ending(report, root / PHASE_2, screen, seconds=time.perf_counter() - began)


def demo_settings(asked: Asked) -> Settings:
    """Those of the simulated office, in a size that fits a demo: each instruction is practised on three times or so.

    Small minibatches make many gradient steps of few workflows, and one thread is quickest with them.
    """
    from etude.settings.tree import resolve

    first, second = "training.phase1_supervised", "training.phase2_rl"
    chosen = {
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
    return resolve(preset="office", assignments=[f"{key}={value}" for key, value in chosen.items()]).settings


def choose_folder(out: Path, asked: Asked) -> Path:
    """`out`, or the first numbered one after it, that is new or holds this very demo without its report."""

    def is_own(path: Path) -> bool:
        try:
            return bool(json.loads((path / ASKED).read_bytes()) == asdict(asked))
        except (OSError, ValueError):
            return False

    return first_free(out, is_own)


@contextmanager
def _resumable(screen: Console) -> Iterator[None]:
    """Ctrl-C and SIGTERM end with how to go on. Nothing needs saving: every stage keeps what it has done."""
    with interruptible(screen):
        try:
            yield
        except (KeyboardInterrupt, Terminated):
            screen.print("interrupted; what is done is kept. The same command goes on from here:", soft_wrap=True)
            screen.print(f"  {escape(shlex.join(['etude', *sys.argv[1:]]))}", soft_wrap=True)
            raise


def _stage(number: int, title: str, about: str, screen: Console) -> None:
    screen.print(f"\n[bold]{number} of 5: {title}[/]\n[dim]{about}[/]", soft_wrap=True)


def _collect(asked: Asked, settings: Settings, logs: Path, screen: Console) -> Summary:
    from etude.bootstrap.orchestration import instructions_for, make_decider, make_workplace
    from etude.orchestrator.executor import Orchestrator
    from etude.orchestrator.log import ExecutionLog
    from etude.orchestrator.metrics import Tally

    about = "Hand-written rules plan workflows, simulated workers carry them out, all decisions are logged: "
    _stage(1, "collect", f"{about}{logs}", screen)
    place = make_workplace(None, settings=settings, seed=asked.seed)
    asked_for = instructions_for(place, asked.executions)
    there = {execution.number for execution in _logged(logs)}
    waiting = [(i, text) for i, text in enumerate(asked_for) if i not in there]
    if there:
        screen.print(f"{len(asked_for) - len(waiting):,} of {len(asked_for):,} workflows are there already")
    if waiting:
        with ExecutionLog(logs, place.crew.catalogue) as log:
            rules = make_decider("rules", place)
            orchestrator = Orchestrator(rules, place.crew, log=log, seed=asked.seed)
            carry_out_all(orchestrator, place, waiting, CONCURRENCY, screen)
    tally = Tally(place.crew.catalogue)
    for execution in _logged(logs):
        tally.add(execution)
    summary = tally.summary()
    screen.print(f"{summary.count:,} workflows, of which {summary.success.mean:.0%} succeeded")
    return summary


def _logged(folder: Path) -> Iterator[Execution]:
    """What was carried out to its end."""
    from etude.orchestrator.log import read_log
    from etude.orchestrator.record import Execution

    if any(folder.glob("*.jsonl")):
        for line in read_log(folder):
            if isinstance(line, Execution) and line.ended != "cancelled":
                yield line


def _prepare(root: Path, screen: Console) -> Prepared:
    from etude.orchestrator.prepare import prepare, write_prepared

    about = "Of each instruction, the plan that did best is kept as an example to learn from: "
    _stage(2, "prepare", f"{about}{root / DATA}", screen)
    with screen.status("reading the log"):
        prepared = prepare(root / LOGS)
    tell_prepared(prepared, root / LOGS, screen)
    if not (root / DATA).exists():
        write_prepared(prepared, root / DATA)
    return prepared


def _imitate(settings: Settings, root: Path, screen: Console) -> None:
    from etude.bootstrap.imitation import make_imitation
    from etude.learning.runs import RunFolder

    about = "A small network learns to plan as the best of these plans did: "
    _stage(3, "phase 1, learn from examples", f"{about}{root / PHASE_1}", screen)
    if RunFolder(root / PHASE_1).summary() is None:
        with screen.status("reading examples"):
            training = make_imitation(settings, root / PHASE_1, [(root / DATA, None)])
        follow_epochs(training, screen)
    summary = RunFolder(root / PHASE_1).summary()
    assert summary is not None
    took, score = duration(summary["wall_s"]), summary["validation_score"]
    screen.print(f"learned in {took}; plans for examples kept aside score {score:.2f} of 1 beside them")


def _learn_on(settings: Settings, root: Path, screen: Console) -> None:
    from etude.bootstrap.outcomes import make_outcomes
    from etude.learning.runs import RunFolder

    about = "It goes on from what becomes of its own plans: whom to trust, what to do when something fails: "
    _stage(4, "phase 2, learn from outcomes", f"{about}{root / PHASE_2}", screen)
    if RunFolder(root / PHASE_2).summary() is None:
        with screen.status("reading the instructions that it practises on"):
            training = make_outcomes(settings, root / PHASE_2, root / PHASE_1)
        follow(training, LiveDisplay(training, screen) if screen.is_terminal else PlainDisplay(training, screen))
    summary = RunFolder(root / PHASE_2).summary()
    assert summary is not None
    screen.print(f"learned in {duration(summary['wall_s'])}; best evaluated return {summary['best_return']:.2f}")


def _compare(asked: Asked, settings: Settings, root: Path, screen: Console) -> dict[str, list[Execution]]:
    """By policy, what became of each fresh instruction, in their order."""
    from etude.bootstrap.orchestration import baseline_deciders, fresh_instructions, make_decider, make_workplace
    from etude.cli.demo_report import AFTER, BEFORE, BETWEEN

    about = f"{asked.compare:,} instructions that nobody learned from, carried out by every policy: "
    _stage(5, "run again", f"{about}{root / COMPARISON}", screen)
    with screen.status("reading policies"):
        place = make_workplace(None, settings=settings)
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
            found[name] = _carried_out(decider, fresh, asked.seed + 1, settings, logs)
        successes = sum(execution.success for execution in found[name])
        screen.print(f"{name:<12} {successes / len(fresh):>4.0%} succeeded")
    return found


def _carried_out(decider: Decider, fresh: list[str], seed: int, settings: Settings, logs: Path) -> list[Execution]:
    """Everybody meets the office in the same state; what is in the log already is not carried out again."""
    from etude.bootstrap.orchestration import make_workplace
    from etude.orchestrator.executor import Orchestrator
    from etude.orchestrator.log import ExecutionLog
    from etude.orchestrator.virtual_time import run_virtually

    there = {execution.number for execution in _logged(logs)}
    waiting = [(i, text) for i, text in enumerate(fresh) if i not in there]
    if waiting:
        crew = make_workplace(None, settings=settings, seed=seed).crew
        with ExecutionLog(logs, crew.catalogue) as log:
            run_virtually(_to_the_end(Orchestrator(decider, crew, log=log, seed=seed), waiting))
    by_number = {execution.number: execution for execution in _logged(logs)}
    return [by_number[i] for i in range(len(fresh))]


async def _to_the_end(orchestrator: Orchestrator, waiting: list[tuple[int, str]]) -> None:
    try:
        async with aclosing(orchestrator.stream(waiting, concurrency=CONCURRENCY)) as results:
            async for _ in results:
                pass
    finally:
        await orchestrator.close()


def _comparison(found: Found) -> object:
    from etude.cli.demo_report import shown_numbers

    rows = [[name, *numbers.values()] for name, numbers in shown_numbers(found).items()]
    heads = list(next(iter(shown_numbers(found).values())))
    return table("", *heads, rows=rows, right=heads)
