"""`etude init`: makes a folder of tools, expert workflows and instructions that works at once."""

from __future__ import annotations

import shlex
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from etude.cli.display import console
from etude.contracts.errors import DataError

README = "README.md"


def init(
    folder: Annotated[Path, typer.Argument(help="Folder to make; it must be empty or not exist.")] = Path("."),
) -> None:
    """Make a folder with tools, expert workflows, instructions and a verifier, to learn on and to put your own into."""
    _check_empty(folder)
    with as_file(files("etude.cli.orchestrator") / "init_files") as source:
        paths = sorted(path.relative_to(source) for path in source.rglob("*") if _is_content(path))
        for path in paths:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((source / path).read_bytes())
        commands = first_commands((source / README).read_text("utf-8"))
    screen = console()
    screen.print(
        f"{len(paths)} files in {folder}, explained in {folder / README}. Next:\n", markup=False, soft_wrap=True
    )
    enter = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    for command in (*enter, *commands):
        screen.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)


def _check_empty(folder: Path) -> None:
    """DataError for a file or a folder with something in it: nothing is overwritten."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: is a file: choose another name for the folder")
    if folder.exists() and (there := sorted(path.name for path in folder.iterdir())):
        others = f" and {len(there) - 1:,} more" if len(there) > 1 else ""
        raise DataError(f"{folder}: is not empty, it has {there[0]!r}{others}: choose another folder")


def _is_content(path: Path) -> bool:
    return path.is_file() and path.parent.name != "__pycache__"


def first_commands(page: str) -> list[str]:
    """The lines of the first shell block of a page."""
    block = page.partition("```sh\n")[2].partition("```")[0]
    return [line for line in block.splitlines() if line]
