"""`etude collect`: carry out many workflows and log them, one line each, to learn from."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from etude.cli.display import console, print_command, print_json, print_warning
from etude.cli.orchestrator.execution_display import success_sentence, summary_tables
from etude.cli.orchestrator.policies import find_decider, find_settings
from etude.cli.orchestrator.run import (
    InputOption,
    Strict,
    Unredacted,
    UserOption,
    WorkersOption,
    check_workers,
    prepare_log,
    shortened,
)
from etude.cli.orchestrator.unsure import (
    Fallback,
    MinProbability,
    WhenUnsureOption,
    fallback_json,
    fallback_sentence,
    learn_from_log,
    make_unsure,
)
from etude.contracts.errors import LogError
from etude.contracts.trajectory import Trajectory
from etude.orchestrator.inputs import Inputs, parse_inputs
from etude.orchestrator.log import ExecutionLog, Redact, read_ended
from etude.orchestrator.metrics import summarise
from etude.orchestrator.virtual_time import run_virtually
from etude.problems.workflow.decisions import PROBLEM

if TYPE_CHECKING:  # these bring torch, which help does not need
    from etude.orchestrator.executor import Orchestrator, Result
    from etude.orchestrator.workplace import Workplace

STEPS = 10
"""Number of progress lines without a terminal."""


def collect(
    num_executions: Annotated[int, typer.Option(min=1, help="Number of workflows to carry out.")] = 200,
    out: Annotated[Path, typer.Option(help="Folder of the log.")] = Path("execution_logs"),
    workers: WorkersOption = None,
    policy: Annotated[
        str,
        typer.Option(
            help="Policy that decides: a run of `etude train workflow`, llm:URL#MODEL, or rules, retry, random."
        ),
    ] = "rules",
    min_probability: MinProbability = None,
    when_unsure: WhenUnsureOption = None,
    fallback: Fallback = None,
    instructions: Annotated[
        Path | None,
        typer.Option(
            help="File of instructions, one per line: text, or JSON with inputs.",
            show_default="made up from the catalogue",
        ),
    ] = None,
    input_: InputOption = None,
    explore: Annotated[
        float, typer.Option(min=0, max=1, help="Share of decisions made at random; a run samples as in training.")
    ] = 0.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Number of workflows at a time.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Seed of instructions and random decisions.")] = 0,
    append: Annotated[
        bool, typer.Option("--append", help="Log in a folder that also holds workflows of other policies.")
    ] = False,
    user: UserOption = None,
    unredacted: Unredacted = False,
    strict: Strict = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Carry out many workflows and log what happened, redacted. If it was interrupted, the same command resumes."""
    from etude.orchestrator.executor import Orchestrator
    from etude.orchestrator.workplace import instructions_for, make_workplace

    screen = console(stderr=as_json)
    inputs = parse_inputs(input_ or ())
    with screen.status("reading workers and instructions"):
        place = make_workplace(workers, settings=find_settings(policy), seed=seed)
        decider = find_decider(policy, place, explore=explore)
        asked = instructions_for(place, num_executions, file=instructions, seed=seed)
    unsure = make_unsure(
        place, decider, min_probability=min_probability, when_unsure=when_unsure, fallback=fallback
    )  # no one is asked: `ask` refuses
    redact = prepare_log(out, user, unredacted=unredacted)
    with ExecutionLog(out, place.crew.catalogue, redact=redact) as log:
        there = logged_numbers(out, decider.version, append=append)
        _check_instructions(out, there, asked, redact)
        waiting = [(i, text) for i, text in enumerate(asked) if i not in there]
        learn_from_log(unsure, out, place)
        _announce(out, len(asked), len(waiting), decider.version, place, screen)
        orchestrator = Orchestrator(decider, place.crew, log=log, unsure=unsure, seed=seed)
        try:
            carry_out_all(orchestrator, place, waiting, concurrency, screen, user=user, strict=strict, inputs=inputs)
        except KeyboardInterrupt:
            print_command("interrupted; what was under way is in the log. The same command resumes:", screen)
            raise typer.Exit(130) from None
    summary = summarise(read_ended(out), place.crew.catalogue)
    if as_json:
        print_json(summary.to_json() | fallback_json(unsure))
    for part in summary_tables(summary):
        screen.print(part)
    screen.print(f"\n{success_sentence(summary.successes_by)}", soft_wrap=True)
    if said := fallback_sentence(unsure):
        screen.print(escape(said), soft_wrap=True)
    screen.print(f"next: etude prepare --logs {escape(str(out))} --out training_data.json", soft_wrap=True)


def logged_numbers(folder: Path, version: str, *, append: bool = False) -> dict[int, str]:
    """The instructions of this policy's workflows in the log, by number.

    LogError where other policies logged there, unless this one is to be appended.
    """
    there, others = dict[int, str](), Counter[str]()
    for execution in read_ended(folder):
        if execution.number is not None and execution.policy == version:
            there[execution.number] = execution.instruction
        elif execution.number is not None:
            others[execution.policy] += 1
    if others and not append:
        raise LogError(
            f"{folder}: holds {others.total():,} workflows decided by {', '.join(map(repr, sorted(others)))}, not by "
            f"{version!r}: choose another folder with --out, or log next to them with --append"
        )
    return there


def _check_instructions(folder: Path, there: Mapping[int, str], asked: Sequence[str], redact: Redact | None) -> None:
    """LogError where the log has other instructions: a collection resumes only with its own."""
    for number, logged_text in there.items():
        if number < len(asked) and logged_text != (text := asked[number]):
            if redact is not None and logged_text == redact(_with_task(text)).task:
                continue
            raise LogError(
                f"{folder}: workflow {number} of its log is {shortened(logged_text)!r}, not {shortened(text)!r}: give "
                "the instructions and seed that it was collected with, or choose another folder with --out"
            )


def _with_task(text: str) -> Trajectory:
    return Trajectory(id="unlogged", time=datetime.now(UTC), task=text, problem=PROBLEM)


def _announce(out: Path, asked: int, waiting: int, version: str, place: Workplace, screen: Console) -> None:
    there = asked - waiting
    what = f"carrying out {asked:,} workflows" if not there else f"{there:,} of {asked:,} workflows are in the log"
    if there:
        what += f", carrying out the other {waiting:,}" if waiting else ", nothing is left to carry out"
    workers = "simulated workers" if place.is_simulated else f"{len(place.crew.members)} workers"
    screen.print(f"{escape(str(out))}: {what}, decided by {escape(version)}, on {workers}", soft_wrap=True)


def carry_out_all(
    orchestrator: Orchestrator,
    place: Workplace,
    waiting: list[tuple[int, str]],
    concurrency: int,
    screen: Console,
    *,
    user: str | None = None,
    strict: bool = False,
    inputs: Inputs | None = None,
) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())

    async def all_of_them() -> None:
        refused: list[Result] = []
        lacking: list[Result] = []
        try:
            await orchestrator.check()
            await check_workers(place, strict=strict)
            done, successes = 0, 0
            results = orchestrator.stream(waiting, concurrency=concurrency, user=user, inputs=inputs)
            with Progress(*columns, *times, console=screen, transient=True, disable=not screen.is_terminal) as bar:
                task = bar.add_task("success –", total=len(waiting))
                async with aclosing(results):
                    async for result in results:
                        refused += [result] if result.refused else []
                        lacking += [result] if result.lacks_input else []
                        done, successes = done + 1, successes + result.success
                        bar.update(task, completed=done, description=f"success {successes / done:.0%}")
                        if not screen.is_terminal and done % max(1, len(waiting) // STEPS) == 0:
                            screen.print(f"{done:,} of {len(waiting):,} workflows, success {successes / done:.1%}")
        finally:
            await orchestrator.close()
        if refused:
            said = f"{len(refused):,} workflows were refused and are not logged: {refused[0].error}"
            print_warning(escape(said), console(stderr=True))
        if lacking:
            said = f"{len(lacking):,} workflows failed before their first attempt: {lacking[0].error}"
            print_warning(escape(said), console(stderr=True))

    run_virtually(all_of_them()) if place.is_simulated else asyncio.run(all_of_them())
