"""`etude config`: shows the settings in force, where each value came from, and what each setting does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from etude.cli.display import console, setting, table
from etude.cli.options import Assignments, ConfigFile
from etude.contracts.errors import ConfigError
from etude.contracts.services import mask_url
from etude.settings.sources import FILE, Field
from etude.settings.tree import resolve_settings, tree_of

app = typer.Typer(no_args_is_help=True, help="Show and explain settings.")


@app.command()
def show(
    preset: Annotated[str | None, typer.Option(help="Named group of settings, for every problem that has it.")] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Show the settings in force and where each value came from."""
    file = config or (Path(FILE) if Path(FILE).exists() else None)
    resolved = resolve_settings(preset=preset, config=file, environ=os.environ, assignments=assignments or ())
    values = resolved.settings.model_dump(mode="json")
    rows = []
    for key, origin in resolved.origins.items():
        value: Any = values
        for part in key.split("."):
            value = value[part]
        cells = [key, setting(mask_url(value) if isinstance(value, str) and ":" in value else value), origin]
        style = "dim" if origin == "default" else "bold"
        rows.append([f"[{style}]{escape(cell)}[/]" for cell in cells])
    console().print(table("setting", "value", "from", rows=rows))


@app.command()
def explain(
    key: Annotated[str | None, typer.Argument(help="Setting or section to explain; all by default.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a page for the documentation.")] = False,
) -> None:
    """Show what each setting does, its type and its default."""
    found = _fields(key)
    if markdown:
        typer.echo(to_markdown(found), nl=False)
        return
    for field in found:
        console().print(
            f"[bold]{field.key}[/] [dim]({escape(field.type)}; default {_default(field)})[/]", soft_wrap=True
        )
        console().print(f"    {escape(field.doc)}", soft_wrap=True)


def to_markdown(found: Sequence[Field]) -> str:
    """A page with one table per section and the same text as `explain`."""
    lines: list[str] = []
    section = ""
    for field in found:
        own, _, name = field.key.rpartition(".") if "." in field.key else (field.key, "", "")
        if own != section:
            section = own
            lines += ["", f"## {section}", "", "| setting | takes | default | what it does |", "|---|---|---|---|"]
        cells = [f"`{name or own}`", field.type, f"`{_default(field)}`", field.doc]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines).strip() + "\n"


def _fields(key: str | None) -> list[Field]:
    tree = tree_of(None)
    found = [field for field in tree.fields if key is None or f"{field.key}.".startswith(f"{key}.")]
    if not found:
        raise ConfigError(
            f"there is no setting {key!r}: {tree.suggest(key or '')}`etude config explain` lists them all"
        )
    return found


def _default(field: Field) -> str:
    value = field.default
    return setting(list(value) if isinstance(value, tuple) else value)
