"""`etude catalogue`: writes the task types and workers of a workers file as the catalogue that training files use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from etude.cli.display import console
from etude.contracts.errors import CatalogueError, DataError
from etude.files.durable import SHARED, replace_file
from etude.orchestrator.log import same_ids
from etude.problems.catalogue import Catalogue, read_catalogue

app = typer.Typer(no_args_is_help=True, help="The catalogue: task types and workers.")


@app.callback()
def catalogue() -> None:
    """The catalogue: task types and workers."""  # a group of one command stays a group


@app.command()
def export(
    workers: Annotated[Path, typer.Argument(help="YAML file of workers.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Catalogue file to write.")] = Path("catalogue.json"),
) -> None:
    """Write the task types and workers of a workers file, with descriptions and prices.

    A training file next to it may name task types and workers as the workers file does.
    """
    from etude.orchestrator.workplace import make_workplace

    found = make_workplace(workers).crew.catalogue
    _check_replaceable(out, found)
    try:
        replace_file(out, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n", mode=SHARED)
    except OSError as error:
        raise DataError(f"{out}: cannot be written ({error.strerror}): choose another file with --out") from error
    screen = console()
    counts = f"{len(found.task_types):,} task types and {len(found.workers):,} workers"
    screen.print(f"{counts} written to {escape(str(out))}", soft_wrap=True)


def _check_replaceable(out: Path, found: Catalogue) -> None:
    """DataError where `out` is no catalogue, or one in which ids mean something else."""
    if not out.exists():
        return
    remedy = "choose another file with --out, or move this one away"
    try:
        same = same_ids(read_catalogue(out), found)
    except CatalogueError as error:
        raise DataError(f"{error}; {remedy}") from error
    if not same:
        raise DataError(f"{out}: has other task types or workers, which ids in files next to it refer to: {remedy}")
