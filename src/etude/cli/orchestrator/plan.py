"""`etude plan`: makes a plan for an instruction."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from etude.cli.display import console, print_json, table
from etude.problems.catalogue import read_catalogue
from etude.problems.workflow.drawing import to_svg
from etude.problems.workflow.plan import Plan


def plan(
    run: Annotated[Path, typer.Argument(help="A run of `etude train workflow`.", show_default=False)],
    instruction: Annotated[str, typer.Argument(help="What to do; - reads it from stdin.", show_default=False)],
    catalogue: Annotated[
        Path | None, typer.Option(help="JSON file of task types and workers to plan with.", show_default="the run's")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    svg: Annotated[Path | None, typer.Option(help="SVG file to draw the plan into.")] = None,
) -> None:
    """Make a plan for an instruction."""
    from etude.problems.workflow.artefact import load_planner

    planner = load_planner(run)
    if catalogue is not None:
        planner = planner.under(read_catalogue(catalogue))
    made = planner.plan(read_stdin() if instruction == "-" else instruction)
    if svg is not None:
        svg.write_text(to_svg(made))
    if as_json:
        print_json(msgspec.to_builtins(made))
    else:
        console().print(_table(made))
        if svg is not None:
            console().print(f"\ndrawn in {svg}", markup=False)


def read_stdin() -> str:
    """What is piped in; bytes that are not text become replacement characters."""
    return sys.stdin.buffer.read().decode("utf-8", errors="replace")


def _table(made: Plan) -> Any:
    rows = [
        [str(i), node.task_type, ", ".join(map(str, node.dependencies)) or "–", node.worker or "–"]
        for i, node in enumerate(made.nodes)
    ]
    return table("node", "task type", "after", "worker", rows=[[escape(cell) for cell in row] for row in rows])
