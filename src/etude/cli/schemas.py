"""`etude schemas`: writes the JSON Schemas of the events, for producers and consumers in other languages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.display import console
from etude.contracts.errors import DataError
from etude.contracts.schemas import schema_files

app = typer.Typer(no_args_is_help=True, help="The events' JSON Schemas.")


@app.callback()
def schemas() -> None:
    """The events' JSON Schemas."""  # a group of one command stays a group


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="Output folder.", show_default=False)],
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file differs.")] = False,
) -> None:
    """Write the five JSON Schemas and the registry of topics."""
    files = schema_files()
    if check:
        there = {name: folder / name for name in files if (folder / name).is_file()}
        stale = [name for name, text in files.items() if name not in there or there[name].read_text("utf-8") != text]
        if stale:
            raise DataError(
                f"{folder / stale[0]} is not what the code says ({len(stale)} of {len(files)} files): "
                f"`etude schemas export {folder}` writes them again"
            )
        return
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        console().print(str(path), soft_wrap=True, markup=False)
