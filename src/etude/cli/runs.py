"""`etude runs`: lists runs, shows one, writes its report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from etude.cli.display import console, counted, duration, number, print_warning, table
from etude.cli.lazy import Entry, group
from etude.contracts.errors import EtudeError
from etude.learning.run_folder import RunFolder, find_runs

app = group(
    {
        "list": Entry("etude.cli.runs:list_runs", "List every run below a folder, newest last."),
        "show": Entry("etude.cli.show:show", "Show a run: settings, progress, evaluations, warnings, why it stopped."),
        "plot": Entry("etude.cli.plot:plot", "Write a run's report page."),
    },
    help="List runs, show one, plot it.",
)


def list_runs(root: Annotated[Path, typer.Argument(help="Folder to search.")] = Path("runs")) -> None:
    """List every run below a folder, newest last."""
    found = find_runs(root)
    if not found:
        console().print(f"no runs below {escape(str(root))}: `etude train` makes one", soft_wrap=True)
        return
    columns = ("run", "problem", "seed", "steps", "budget", "best score", "time", "state")
    rows, broken = [], []
    for folder in found:
        try:
            rows.append(_row(folder))
        except (EtudeError, KeyError, TypeError) as error:  # one broken run must not hide the others
            rows.append([escape(str(folder.path)), *["–"] * 6, "[red]unreadable[/]"])
            broken.append(f"{folder.path}: {error}")
    console().print(table(*columns, rows=rows, right=("seed", "steps", "budget", "best score", "time")))
    for line in broken:
        print_warning(escape(line), console(stderr=True))


def _row(folder: RunFolder) -> list[str]:
    config, rows = folder.config(), folder.read_metrics()
    numbers = [
        counted(steps_done(rows), config["unit"]),
        config["budget"] or "–",
        best_score(config, rows),
        run_time(rows),
    ]
    seed = config.get("run", {}).get("seed", "–")
    return [escape(str(folder.path)), escape(config["title"]), str(seed), *numbers, run_state(folder)]


def run_state(folder: RunFolder) -> str:
    summary = folder.summary()
    if summary is not None:
        return f"finished: {summary['stopped']}"
    return "training" if folder.in_use() else "interrupted"


def steps_done(rows: list[dict[str, Any]]) -> int:
    return int(rows[-1]["step"]) if rows else 0


def run_time(rows: list[dict[str, Any]]) -> str:
    return duration(rows[-1]["wall_s"]) if rows else "–"


def best_score(config: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    keys = {"return": "eval_return", "validation score": "validation_score", "estimate": "estimate"}
    key = keys.get(config["score"], config["score"])
    scores = [row[key] for row in rows if key in row]
    return number(max(scores)) if scores else "–"
