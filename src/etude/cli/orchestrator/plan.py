"""`etude plan`: makes a plan for an instruction, and says how sure it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.markup import escape

from etude.cli.display import console, print_json, table
from etude.problems.catalogue import read_catalogue
from etude.problems.workflow.drawing import to_svg
from etude.problems.workflow.plan import Plan

if TYPE_CHECKING:  # it brings torch, which help does not need
    from etude.problems.workflow.doubt import Proposal


def plan(
    run: Annotated[Path, typer.Argument(help="A run of `etude train workflow`.", show_default=False)],
    instruction: Annotated[str, typer.Argument(help="What to do; - reads it from stdin.", show_default=False)],
    catalogue: Annotated[
        Path | None, typer.Option(help="JSON file of task types and workers to plan with.", show_default="the run's")
    ] = None,
    alternatives: Annotated[int, typer.Option(min=0, help="Maximum number of next best plans to show.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan and its doubts as JSON.")] = False,
    svg: Annotated[Path | None, typer.Option(help="SVG file to draw the plan into.")] = None,
) -> None:
    """Make a plan for an instruction, with its probability, its doubts and the next best plans."""
    from etude.problems.workflow.artefact import load_planner

    planner = load_planner(run)
    if catalogue is not None:
        planner = planner.under(read_catalogue(catalogue))
    found = planner.propose(read_stdin() if instruction == "-" else instruction, count=alternatives)
    made = found.plan
    if svg is not None:
        svg.write_text(to_svg(made))
    if as_json:
        about = msgspec.to_builtins(found)
        print_json(about.pop("plan") | about)
    else:
        console().print(_table(made))
        for line in proposal_lines(found):
            console().print(line, soft_wrap=True)
        if svg is not None:
            console().print(f"\ndrawn in {svg}", markup=False)


def read_stdin() -> str:
    """What is piped in; bytes that are not text become replacement characters."""
    return sys.stdin.buffer.read().decode("utf-8", errors="replace")


def proposal_lines(found: Proposal) -> Iterator[str]:
    """How sure the planner is, what it doubts, what is not covered and the next best plans, for the screen."""
    how = "" if found.calibrated else " (uncalibrated)"
    yield (
        f"probability that these are the right subtasks: {found.probability:.2f}; and these links: "
        f"{found.probability_with_links:.2f}{how}"
    )
    if found.doubts:
        doubts = (f"node {one.node} {one.part} {one.choice} ({one.probability:.2f})" for one in found.doubts)
        yield f"least certain: {escape(', '.join(doubts))}"
    if found.uncovered:
        asked = (f"{one.task_type} ({one.probability:.2f})" for one in found.uncovered)
        yield f"[yellow]asked and not covered: {escape(', '.join(asked))}[/]"
    if found.alternatives:
        yield "next best plans:"
    for i, other in enumerate(found.alternatives, start=1):
        yield f"  {i}  {other.probability:.2f}  {escape(subtasks(other.plan))}"


def subtasks(plan: Plan) -> str:
    """The task types of a plan, in order."""
    return " → ".join(node.task_type for node in plan.nodes)


def _table(made: Plan) -> Any:
    rows = [
        [str(i), node.task_type, ", ".join(map(str, node.dependencies)) or "–", node.worker or "–"]
        for i, node in enumerate(made.nodes)
    ]
    return table("node", "task type", "after", "worker", rows=[[escape(cell) for cell in row] for row in rows])
