"""`etude run`: plans an instruction, carries out the plan and shows its progress."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text
from rich.tree import Tree

from etude.cli.display import SAID_BY, console, duration, print_json, print_warning
from etude.cli.orchestrator.execution_display import SELF_DECLARED
from etude.cli.orchestrator.plan import read_stdin
from etude.cli.orchestrator.policies import find_decider, find_settings
from etude.cli.orchestrator.unsure import (
    Fallback,
    MinProbability,
    WhenUnsureOption,
    ask_for_plan,
    learn_from_log,
    make_unsure,
)
from etude.contracts.errors import DataError, EtudeError, WorkersError
from etude.orchestrator.inputs import Inputs, parse_inputs
from etude.orchestrator.log import ExecutionLog, Redact
from etude.orchestrator.virtual_time import run_virtually
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.drawing import to_svg
from etude.problems.workflow.plan import topological_order

if TYPE_CHECKING:  # these bring torch, which help does not need
    from etude.orchestrator.executor import Event, Human, Orchestrator, Question, Result
    from etude.orchestrator.workplace import Workplace
    from etude.problems.workflow.grammar import Correction
    from etude.problems.workflow.progress import Step

WorkersOption = Annotated[Path | None, typer.Option(help="YAML file of workers.", show_default="a simulated office")]
UserOption = Annotated[
    str | None,
    typer.Option(help="User that it is done for, by a name without meaning elsewhere; `experience forget` erases it."),
]
Unredacted = Annotated[
    bool, typer.Option("--unredacted", help="Log personal data and secrets unredacted: for a machine of your own.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse to start if any worker cannot be reached, not only a needed one.")
]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="NAME=FILE|TEXT",
        help="Input of the workflow: a file if there is one, else the text; NAME=@FILE, NAME:=JSON. May be repeated.",
    ),
]
MAX_SHOWN_CHARS = 200
"""Maximum length of an instruction, an output or a message on the screen."""
MARKS = {"planned": "[dim]○[/]", "running": "[yellow]◐[/]", "done": "[green]●[/]", "failed": "[red]✗[/]"}
MARKS["skipped"] = "[dim]–[/]"


def run(
    policy: Annotated[
        str,
        typer.Argument(
            help="A run of `etude train workflow`, llm:URL#MODEL, or rules, retry, random.", show_default=False
        ),
    ],
    instruction: Annotated[str, typer.Argument(help="Instruction; - reads it from stdin.", show_default=False)],
    workers: WorkersOption = None,
    min_probability: MinProbability = None,
    when_unsure: WhenUnsureOption = None,
    fallback: Fallback = None,
    input_: InputOption = None,
    log: Annotated[Path | None, typer.Option(help="Folder to log the execution in, redacted.")] = None,
    experience: Annotated[
        bool, typer.Option("--experience", help="Keep the execution as a trajectory to learn from.")
    ] = False,
    user: UserOption = None,
    unredacted: Unredacted = False,
    strict: Strict = False,
    ask: Annotated[bool, typer.Option("--ask", help="Ask a person before the workflow is aborted.")] = False,
    svg: Annotated[Path | None, typer.Option(help="SVG file for a drawing of the plan and its outcome.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the execution as JSON, as in a log.")] = False,
) -> None:
    """Plan an instruction, carry out the plan, correct failures."""
    from etude.orchestrator.executor import Orchestrator
    from etude.orchestrator.workplace import make_workplace

    screen = console(stderr=as_json)
    inputs = parse_inputs(input_ or ())
    place = make_workplace(workers, settings=find_settings(policy))
    decider = find_decider(policy, place)
    unsure = make_unsure(
        place,
        decider,
        min_probability=min_probability,
        when_unsure=when_unsure,
        fallback=fallback,
        ask=ask_for_plan(screen),
    )
    text = read_stdin() if instruction == "-" else instruction
    human = _asking(screen) if ask or (place.file is not None and place.file.human) else None
    redact = prepare_log(log, user, unredacted=unredacted) if log else None
    with ExecutionLog(log, place.crew.catalogue, redact=redact) if log else nullcontext() as kept:
        learn_from_log(unsure, log, place)
        view = View(place.crew.catalogue, screen)
        orchestrator = Orchestrator(decider, place.crew, log=kept, watch=view.show, human=human, unsure=unsure)
        result = carry_out(place, orchestrator, text, view, user=user, strict=strict, inputs=inputs)
    if result.refused:
        raise EtudeError(result.error)
    if experience:
        from etude.bootstrap.experience import collector

        collector().publish(result.trajectory)
    if svg is not None:
        _write(svg, drawn(result, place.crew.catalogue))
    if as_json:
        print_json(msgspec.to_builtins(result.execution))
    else:
        _conclude(result, screen, place)
    if not result.success:
        raise typer.Exit(3)


def prepare_log(folder: Path, user: str | None, *, unredacted: bool) -> Redact | None:
    """What redacts its lines; a log that names a user is registered, so that forgetting that user reaches it."""
    from etude.bootstrap.executions import log_redaction, register_log

    if user is not None:
        register_log(folder)
    return None if unredacted else log_redaction()


def carry_out(
    place: Workplace,
    orchestrator: Orchestrator,
    instruction: str,
    view: View,
    *,
    user: str | None,
    strict: bool,
    inputs: Inputs | None = None,
) -> Result:
    """Carry out the workflow; simulated workers run in virtual time."""

    async def once() -> Result:
        try:
            await orchestrator.check()
            await check_workers(place, strict=strict)
            with view.live or nullcontext():
                return await orchestrator.execute(instruction, user=user, inputs=inputs)
        finally:
            await orchestrator.close()

    return run_virtually(once()) if place.is_simulated else asyncio.run(once())


async def check_workers(place: Workplace, *, strict: bool) -> None:
    """Reports workers that cannot be reached, which are then given no work; `strict` refuses to start."""
    from etude.orchestrator.workers_file import unreachable_workers

    if place.file is None or place.is_simulated:
        return
    place.crew.unreachable = found = await unreachable_workers(place.file)
    if found and strict:
        raise WorkersError("\n".join(found.values()))
    for name, why in found.items():
        print_warning(escape(f"worker {name} is given no work: {why}"), console(stderr=True))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}): choose another file") from error


def drawn(result: Result, catalogue: Catalogue) -> str:
    """A drawing of the final nodes."""
    from etude.cli.orchestrator.execution_detail import final_plan, standing

    nodes = standing(result.execution)
    plan = final_plan(nodes, catalogue, result.execution.instruction)
    return to_svg(plan, status=[node.status for node in nodes])


class View:
    """A tree of subtasks that follows the execution: live on a terminal, printed at the end elsewhere."""

    def __init__(self, catalogue: Catalogue, screen: Console) -> None:
        self.catalogue, self.screen = catalogue, screen
        self.notes: dict[Step, list[str]] = {}
        self.live = Live(console=screen, refresh_per_second=8, transient=False) if screen.is_terminal else None
        self.last: Event | None = None

    def show(self, event: Event) -> None:
        self.last = event
        if event.step is not None and event.kind == "failed":
            self.notes.setdefault(event.step, []).append(f"{event.fault}: {event.message}")
        if event.step is not None and event.choice is not None:
            self.notes[event.step][-1] += f" → {event.choice.correction}"
        if self.live:
            self.live.update(self.tree(event))
        elif event.kind == "ended" and event.progress.steps:
            self.screen.print(self.tree(event))

    def tree(self, event: Event) -> Any:
        """Each subtask below the last that it waits for, with its worker, cost and time."""
        progress = event.progress
        root, branches = Tree(Text(shortened(progress.instruction), style="bold")), dict[int, Tree]()
        place = {id(step): i for i, step in enumerate(progress.steps)}
        order = topological_order([[place[id(b)] for b in step.dependencies] for step in progress.steps])
        for step in (progress.steps[i] for i in order):
            before = [s for s in step.dependencies if id(s) in branches]
            parent = branches[id(before[-1])] if before else root
            branches[id(step)] = parent.add(self._line(step, before[:-1], event))
        for step in progress.dropped:
            root.add(f"[dim]{escape(self._name(step))}: replanned[/]")
        return Group(root, f"[dim]{duration(event.at_ms / 1000)}, {progress.spent_usd:.4f} USD[/]")

    def _line(self, step: Step, others: list[Step], event: Event) -> str:
        state = "running" if step.begun else step.status.name.lower()
        tries = step.tries
        line = f"{MARKS[state]} {escape(self._name(step))} [cyan]{escape(self.catalogue.workers[step.worker].name)}[/]"
        if others:
            line += f" [dim]also after {escape(', '.join(map(self._name, others)))}[/]"
        if tries:
            took = sum(attempt.latency_ms for attempt in tries) / 1000
            line += f" [dim]{duration(took)} {sum(attempt.cost_usd for attempt in tries):.4f} USD"
            line += f", {len(tries)} attempts[/]" if len(tries) > 1 else "[/]"
        return line + "".join(f"\n  [red]{escape(note)}[/]" for note in self.notes.get(step, ()))

    def _name(self, step: Step) -> str:
        return self.catalogue.task_types[step.task_type].name


def shortened(text: str) -> str:
    """For the screen."""
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}… ({len(text):,} characters)"


def _asking(screen: Console) -> Human:
    async def ask(question: Question) -> Correction | None:
        options = {option.name.lower(): option for option in question.options}
        screen.print(
            f"{escape(question.task_type)} by {escape(question.worker)} failed: {escape(question.message)}. "
            f"What now? ({', '.join(options)})"
        )
        answer = await asyncio.to_thread(input, "> ")
        return options.get(answer.strip().lower())

    return ask


def _conclude(result: Result, screen: Console, place: Workplace) -> None:
    end = "[green]done[/]" if result.success else f"[red]not done[/]: {escape(result.error)}"
    screen.print(
        f"\n{end} in {duration(result.latency_ms / 1000)}{' (simulated)' if place.is_simulated else ''} "
        f"for {result.cost_usd:.4f} USD",
        soft_wrap=True,
    )
    if result.lacks_input and " input" in result.error:
        screen.print("give it an input with --input NAME=FILE or --input NAME=TEXT", soft_wrap=True)
    if result.success and (by := result.trajectory.outcome.success_by):
        said = f"success is {SELF_DECLARED}" if by == "self" else f"{SAID_BY[by]} said that it succeeded"
        screen.print(f"[dim]{said}[/]", soft_wrap=True)
    if result.success and not place.is_simulated:
        outputs = result.output if isinstance(result.output, dict) else {"": result.output}
        for made in outputs.values():
            screen.print(f"\n{made}", markup=False, soft_wrap=True)
