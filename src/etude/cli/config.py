"""`etude config`: what is in force and where each value came from, and what each setting does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from etude.cli.display import console, setting, table
from etude.contracts.errors import ConfigError

if TYPE_CHECKING:
    from etude.settings.sources import Field, Resolved
    from etude.settings.tree import Settings

app = typer.Typer(no_args_is_help=True, help="Show and explain settings.")

ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings file instead of ./etude.yaml.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as ppo.lr=0.001; may be repeated."),
]
Preset = Annotated[
    str | None,
    typer.Option(metavar="document|wide", help="The source document's hyper-parameters, or batches for a GPU."),
]


def resolve_settings(
    *,
    preset: str | None,
    config: Path | None,
    assignments: Sequence[str] | None,
    flags: Mapping[str, Any] | None = None,
) -> Resolved[Settings]:
    """What a command is to use: the only place where the environment and the working directory are looked at."""
    from etude.settings.sources import FILE
    from etude.settings.tree import resolve

    file = config or (Path(FILE) if Path(FILE).exists() else None)
    return resolve(preset=preset, config=file, environ=os.environ, flags=flags, assignments=assignments or ())


@app.command()
def show(preset: Preset = None, config: ConfigFile = None, assignments: Assignments = None) -> None:
    """What is in force here and where each value came from."""
    resolved = resolve_settings(preset=preset, config=config, assignments=assignments)
    values = resolved.settings.model_dump(mode="json")
    rows = []
    for key, origin in resolved.origins.items():
        value: Any = values
        for part in key.split("."):
            value = value[part]
        cells = [key, setting(value), origin]
        style = "dim" if origin == "default" else "bold"
        rows.append([f"[{style}]{escape(cell)}[/]" for cell in cells])
    console().print(table("setting", "value", "from", rows=rows))


@app.command()
def explain(
    key: Annotated[str | None, typer.Argument(help="A setting or a section; all when left out.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="As a page for the documentation.")] = False,
) -> None:
    """What each setting does, what it takes, and its default."""
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
    """One table a section; the same text as `explain`, so the page can be made anew at any time."""
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
    from etude.settings.tree import TREE

    found = [field for field in TREE.fields if key is None or f"{field.key}.".startswith(f"{key}.")]
    if not found:
        raise ConfigError(
            f"there is no setting {key!r}: {TREE.suggest(key or '')}`etude config explain` lists them all"
        )
    return found


def _default(field: Field) -> str:
    value = field.default
    return setting(list(value) if isinstance(value, tuple) else value)
