"""`etude collect`: workflows carried out one after the other, each a line of a log to learn from."""

from __future__ import annotations

import asyncio
import shlex
import sys
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from etude.cli.display import console, print_json
from etude.cli.execution_display import summary_tables
from etude.cli.run import WorkersOption

if TYPE_CHECKING:
    from rich.console import Console

    from etude.bootstrap.orchestration import Workplace
    from etude.orchestrator.executor import Orchestrator

STEPS = 10
"""Lines that tell how far it is, where there is no terminal."""


def collect(
    num_executions: Annotated[int, typer.Option(min=1, help="Workflows to carry out.")] = 200,
    out: Annotated[Path, typer.Option(help="The folder of the log.")] = Path("execution_logs"),
    workers: WorkersOption = None,
    policy: Annotated[
        str, typer.Option(help="Who decides: a run of `etude train workflow`, or rules, retry, random.")
    ] = "rules",
    instructions: Annotated[
        Path | None, typer.Option(help="What to do, one a line.", show_default="made up from the catalogue")
    ] = None,
    explore: Annotated[
        float, typer.Option(min=0, max=1, help="Share of decisions left to chance; a run draws as in training.")
    ] = 0.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Workflows at a time.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Of instructions and chance.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Carry out many workflows and log what happened. If it was interrupted, the same command goes on."""
    from etude.bootstrap.orchestration import instructions_for, make_decider, make_workplace, settings_of
    from etude.orchestrator.executor import Orchestrator
    from etude.orchestrator.log import ExecutionLog, read_log
    from etude.orchestrator.metrics import Tally
    from etude.orchestrator.record import Execution

    screen = console(stderr=as_json)
    with screen.status("reading workers and instructions"):
        place = make_workplace(workers, settings=settings_of(policy), seed=seed)
        decider = make_decider(policy, place, explore=explore)
        asked = instructions_for(place, num_executions, file=instructions, seed=seed)
    with ExecutionLog(out, place.crew.catalogue) as log:
        before = read_log(out) if any(out.glob("*.jsonl")) else ()
        there = {e.number for e in before if isinstance(e, Execution) and e.ended != "cancelled"}
        waiting = [(i, text) for i, text in enumerate(asked) if i not in there]
        told = f"going on after {len(asked) - len(waiting):,} of" if len(waiting) < len(asked) else "carrying out"
        who = "simulated workers" if place.is_simulated else f"{len(place.crew.members)} workers"
        screen.print(
            f"{escape(str(out))}: {told} {len(asked):,} workflows, decided by {escape(decider.version)}, on {who}",
            soft_wrap=True,
        )
        try:
            carry_out_all(Orchestrator(decider, place.crew, log=log, seed=seed), place, waiting, concurrency, screen)
        except KeyboardInterrupt:
            screen.print("interrupted; what was under way is in the log. The same command goes on:", soft_wrap=True)
            screen.print(f"  {escape(shlex.join(['etude', *sys.argv[1:]]))}", soft_wrap=True)
            raise typer.Exit(130) from None
    tally = Tally(place.crew.catalogue)
    for execution in read_log(out):
        if isinstance(execution, Execution) and execution.ended != "cancelled":
            tally.add(execution)
    summary = tally.summary()
    if as_json:
        print_json(summary.to_json())
    for part in summary_tables(summary):
        screen.print(part)
    screen.print(f"\nnext: etude prepare --logs {escape(str(out))} --out training_data.json", soft_wrap=True)


def carry_out_all(
    orchestrator: Orchestrator, place: Workplace, waiting: list[tuple[int, str]], concurrency: int, screen: Console
) -> None:
    from etude.orchestrator.virtual_time import run_virtually
    from etude.orchestrator.workers_file import check_workers

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())

    async def all_of_them() -> None:
        try:
            if place.file is not None and not place.is_simulated:
                await check_workers(place.file)
            done, successes = 0, 0
            results = orchestrator.stream(waiting, concurrency=concurrency)
            with Progress(*columns, *times, console=screen, transient=True, disable=not screen.is_terminal) as bar:
                task = bar.add_task("success –", total=len(waiting))
                async with aclosing(results):
                    async for result in results:
                        done, successes = done + 1, successes + result.success
                        bar.update(task, completed=done, description=f"success {successes / done:.0%}")
                        if not screen.is_terminal and done % max(1, len(waiting) // STEPS) == 0:
                            screen.print(f"{done:,} of {len(waiting):,} workflows, success {successes / done:.1%}")
        finally:
            await orchestrator.close()

    run_virtually(all_of_them()) if place.is_simulated else asyncio.run(all_of_them())
