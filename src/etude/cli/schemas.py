"""`etude schemas`: the events as JSON Schemas, for those who write or read them elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.display import console
from etude.contracts.errors import DataError

app = typer.Typer(no_args_is_help=True, help="The events' JSON Schemas.")


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="Where they go.", show_default=False)],
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail where a file there differs.")] = False,
) -> None:
    """Write the five JSON Schemas and the registry of topics."""
    from etude.contracts.schemas import schema_files

    files = schema_files()
    if check:
        stale = [name for name, text in files.items() if _text(folder / name) != text]
        if stale:
            raise DataError(
                f"{folder / stale[0]} is not what the code says ({len(stale)} of {len(files)} files): "
                f"`etude schemas export {folder}` writes them anew"
            )
        return
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        console().print(str(path), soft_wrap=True, markup=False)


def _text(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None
