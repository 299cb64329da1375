"""`etude runs show`: shows a run in detail."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from etude.cli.display import console, counted, number, print_warning, setting, sparkline, table
from etude.cli.runs import best_score, run_state, run_time, steps_done
from etude.contracts.errors import ConfigError
from etude.learning.health import ADVICE, Symptom
from etude.learning.run_folder import RunFolder, find_root, leaves
from etude.problems.spec import ProblemSpec
from etude.problems.table import spec_of
from etude.settings.tree import Settings, resolve_settings


def show(run: Annotated[Path, typer.Argument(help="Folder of the run.", show_default=False)]) -> None:
    """Show settings that differ from the defaults, progress, evaluations, warnings, and why the run stopped."""
    folder = RunFolder(find_root(run))
    rows, screen = folder.read_metrics(), console()
    screen.print(f"[bold]{escape(str(folder.path))}[/]  {run_state(folder)}", soft_wrap=True)
    config = folder.config()
    done = counted(steps_done(rows), config["unit"]) + (f" of {config['budget']}" if config["budget"] else "")
    progress = f"{config['title']}: {done}, {run_time(rows)}, best {config['score']} {best_score(config, rows)}\n"
    screen.print(progress, soft_wrap=True)
    spec = _spec(folder)
    screen.print(table("setting", "value", "default", rows=_differences(config, spec)))
    evaluations = [row for row in rows if "eval_return" in row]
    if evaluations:
        screen.print(f"\n[bold]evaluations[/]  {sparkline([row['eval_return'] for row in evaluations])}")
        screen.print(_evaluations(evaluations, spec))
    _print_warnings(rows)


def _spec(folder: RunFolder) -> ProblemSpec | None:
    """The problem of a run; None, with a note, if it is not installed or cannot be imported."""
    try:
        return spec_of(folder.path, folder.config()["problem"])
    except ConfigError as error:
        note = f"[yellow]note:[/] {escape(str(error))}; until then all settings are shown, without defaults\n"
        console().print(note, soft_wrap=True)
        return None


def _differences(config: dict[str, Any], spec: ProblemSpec | None) -> list[list[str]]:
    """The seed, and the settings that differ from their defaults; all settings if the defaults are unknown."""
    if spec is None:
        facts = {name for name, value in config.items() if not isinstance(value, dict)}
        every = leaves({name: value for name, value in config.items() if name not in facts})
        return [[key, escape(setting(value)), "–"] for key, value in every]
    sections = {*spec.sections, *Settings.model_fields} & config.keys()
    own = dict(leaves({name: config[name] for name in sections}))
    variant = [f"{spec.variants[0]}={own[spec.variants[0]]}"] if spec.variants and spec.variants[0] in own else []
    usual = dict(leaves(resolve_settings(spec.name, assignments=variant).settings.model_dump(mode="json")))
    changed = [key for key, value in own.items() if value != usual.get(key) or key == "run.seed"]
    return [[key, escape(setting(own[key])), escape(setting(usual.get(key)))] for key in changed]


def _evaluations(evaluations: list[dict[str, Any]], spec: ProblemSpec | None) -> Any:
    best = max(row["eval_return"] for row in evaluations)
    shown = {
        name: label
        for name, (label, _, kind) in (spec.metrics if spec is not None else {}).items()
        if kind == "share" and f"eval_{name}" in evaluations[0]
    }
    rows = [
        [
            f"{row['step']:,.0f}",
            number(row["eval_return"]) + (" ★" if row["eval_return"] == best else "  "),
            *(f"{row[key]:.1%}" if (key := f"eval_{name}") in row else "–" for name in shown),
        ]
        for row in evaluations
    ]
    heads = ("step", "return", *shown.values())
    return table(*heads, rows=rows, right=heads)


def _print_warnings(rows: list[dict[str, Any]]) -> None:
    found = [
        (row["step"], name.removeprefix("warning_"), value)
        for row in rows
        for name, value in row.items()
        if name.startswith("warning_")
    ]
    for step, name, value in found:
        advice = ADVICE[Symptom(name)] if name in set(Symptom) else ""
        shown = value if value is None else f"{value:.4g}"
        print_warning(f"[bold]{name}[/] at step {step:,.0f} (value {shown})", console(), advice=advice)
