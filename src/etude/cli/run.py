"""`etude run`: an instruction in; a plan, carried out and corrected before one's eyes, out."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text
from rich.tree import Tree

from etude.cli.display import console, duration, print_json

if TYPE_CHECKING:
    from etude.bootstrap.orchestration import Workplace
    from etude.orchestrator.executor import Event, Human, Orchestrator, Question, Result
    from etude.problems.workflow.catalogue import Catalogue
    from etude.problems.workflow.grammar import Correction
    from etude.problems.workflow.progress import Progress, Step

WorkersOption = Annotated[
    Path | None, typer.Option(help="Who does the work, a YAML file.", show_default="a simulated office")
]
MARKS = {"planned": "[dim]○[/]", "running": "[yellow]◐[/]", "done": "[green]●[/]", "failed": "[red]✗[/]"}
MARKS["skipped"] = "[dim]–[/]"


def run(
    policy: Annotated[
        str, typer.Argument(help="A run of `etude train workflow`, or rules, retry, random.", show_default=False)
    ],
    instruction: Annotated[str, typer.Argument(help="What is to be done; - reads it from stdin.", show_default=False)],
    workers: WorkersOption = None,
    log: Annotated[Path | None, typer.Option(help="A folder to log the execution in.")] = None,
    experience: Annotated[
        bool, typer.Option("--experience", help="Keep the execution as a trajectory to learn from.")
    ] = False,
    ask: Annotated[bool, typer.Option("--ask", help="Ask me before giving up.")] = False,
    svg: Annotated[Path | None, typer.Option(help="Draw the plan and what became of it into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what happened as JSON, as the log has it.")] = False,
) -> None:
    """Plan an instruction, carry the plan out, correct what fails."""
    import msgspec

    from etude.bootstrap.orchestration import make_decider, make_workplace, settings_of
    from etude.cli.workflow import read_stdin
    from etude.orchestrator.executor import Orchestrator
    from etude.orchestrator.log import ExecutionLog

    screen = console(stderr=as_json)
    place = make_workplace(workers, settings=settings_of(policy))
    decider = make_decider(policy, place)
    text = read_stdin() if instruction == "-" else instruction
    human = _asking(screen) if ask or (place.file is not None and place.file.human) else None
    with ExecutionLog(log, place.crew.catalogue) if log else nullcontext() as kept:
        view = View(place.crew.catalogue, screen)
        orchestrator = Orchestrator(decider, place.crew, log=kept, watch=view.show, human=human)
        with view:
            result = carry_out(place, orchestrator, text)
    if experience:
        from etude.bootstrap.experience import collector
        from etude.orchestrator.trajectories import to_trajectory

        collector().hand_over(to_trajectory(result.execution, place.crew.catalogue))
    if svg is not None:
        svg.write_text(drawn(result, place.crew.catalogue))
    if as_json:
        print_json(msgspec.to_builtins(result.execution))
    else:
        _conclude(result, screen, place)
    if not result.success:
        raise typer.Exit(3)


def carry_out(place: Workplace, orchestrator: Orchestrator, instruction: str) -> Result:
    """Real workers take real time; simulated ones none."""
    from etude.orchestrator.virtual_time import run_virtually
    from etude.orchestrator.workers_file import check_workers

    async def once() -> Result:
        try:
            if place.file is not None and not place.is_simulated:
                await check_workers(place.file)
            return await orchestrator.execute(instruction)
        finally:
            await orchestrator.close()

    return run_virtually(once()) if place.is_simulated else asyncio.run(once())


def drawn(result: Result, catalogue: Catalogue) -> str:
    """The nodes that stood in the end, as a picture."""
    from etude.cli.execution_story import final_plan, standing
    from etude.problems.workflow.drawing import to_svg

    nodes = standing(result.execution)
    plan = final_plan(nodes, catalogue, result.execution.instruction)
    return to_svg(plan, status=[node.status for node in nodes])


class View:
    """A tree of subtasks that follows the execution: live on a terminal, a line an event elsewhere."""

    def __init__(self, catalogue: Catalogue, screen: Console) -> None:
        self.catalogue, self.screen = catalogue, screen
        self.notes: dict[Step, list[str]] = {}
        self.live = Live(console=screen, refresh_per_second=8, transient=False) if screen.is_terminal else None
        self.last: Event | None = None

    def __enter__(self) -> View:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def show(self, event: Event) -> None:
        self.last = event
        if event.step is not None and event.kind == "failed":
            self.notes.setdefault(event.step, []).append(f"{event.fault}: {event.message}")
        if event.step is not None and event.choice is not None:
            self.notes[event.step][-1] += f" → {event.choice.correction}"
        if self.live:
            self.live.update(self.tree(event))
        elif event.kind == "ended":
            self.screen.print(self.tree(event))

    def tree(self, event: Event) -> Any:
        """Each subtask below the last that it waits for, with its worker, cost and time."""
        progress = event.progress
        root, branches = Tree(Text(progress.instruction, style="bold")), dict[int, Tree]()
        for step in _in_order(progress):
            before = [s for s in step.dependencies if id(s) in branches]
            parent = branches[id(before[-1])] if before else root
            branches[id(step)] = parent.add(self._line(step, before[:-1], event))
        for step in progress.dropped:
            root.add(f"[dim]{escape(self._name(step))}: planned anew[/]")
        spent = sum(attempt.cost_usd for s in (*progress.steps, *progress.dropped) for attempt in s.tries)
        return Group(root, f"[dim]{duration(event.at_ms / 1000)}, {spent:.4f} USD[/]")

    def _line(self, step: Step, others: list[Step], event: Event) -> str:
        state = "running" if step.begun else step.status.name.lower()
        tries = step.tries
        told = f"{MARKS[state]} {escape(self._name(step))} [cyan]{escape(self.catalogue.workers[step.worker].name)}[/]"
        if others:
            told += f" [dim]also after {escape(', '.join(map(self._name, others)))}[/]"
        if tries:
            took = sum(attempt.latency_ms for attempt in tries) / 1000
            told += f" [dim]{duration(took)} {sum(attempt.cost_usd for attempt in tries):.4f} USD"
            told += f", {len(tries)} attempts[/]" if len(tries) > 1 else "[/]"
        return told + "".join(f"\n  [red]{escape(note)}[/]" for note in self.notes.get(step, ()))

    def _name(self, step: Step) -> str:
        return self.catalogue.task_types[step.task_type].name


def _in_order(progress: Progress) -> list[Step]:
    from etude.problems.workflow.plan import in_order

    steps = progress.steps
    place = {id(step): i for i, step in enumerate(steps)}
    return [steps[i] for i in in_order([[place[id(b)] for b in step.dependencies] for step in steps])]


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
    told = "[green]done[/]" if result.success else f"[red]not done[/]: {escape(result.execution.error)}"
    screen.print(
        f"\n{told} in {duration(result.latency_ms / 1000)}{' (simulated)' if place.is_simulated else ''} "
        f"for {result.cost_usd:.4f} USD",
        soft_wrap=True,
    )
    if result.success and not place.is_simulated:
        outputs = result.output if isinstance(result.output, dict) else {"": result.output}
        for made in outputs.values():
            screen.print(f"\n{made}", markup=False, soft_wrap=True)
