"""`etude prepare`: makes a training file from execution logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from etude.cli.display import console, print_json, table
from etude.orchestrator.log import log_files
from etude.orchestrator.prepare import Prepared, write_prepared
from etude.orchestrator.prepare import prepare as prepare_logs

STEP = 1 << 20
"""Bytes read between updates of the progress bar."""


def prepare(
    logs: Annotated[Path, typer.Option(help="Folder of execution logs (*.jsonl), or one of them.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Training file to write; catalogue.json is put next to it.")] = Path(
        "training_data.json"
    ),
    max_nodes: Annotated[
        int | None, typer.Option(min=1, help="Leave out plans with more subtasks.", show_default="no limit")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was kept and dropped as JSON; the rest goes to stderr.")
    ] = False,
) -> None:
    """Make a training file of execution logs: of each instruction, the plan that did best."""
    screen = console(stderr=as_json)
    prepared = _read(logs, max_nodes, screen)
    tell_prepared(prepared, logs, screen)
    write_prepared(prepared, out)
    if as_json:
        print_json(_to_json(prepared, out))
    screen.print(f"{len(prepared.examples):,} examples written to {escape(str(out))}", soft_wrap=True)
    screen.print(f"next: etude train workflow --phase 1 --data {escape(str(out))} --out runs/p1", soft_wrap=True)


def _read(logs: Path, max_nodes: int | None, screen: Console) -> Prepared:
    total = sum(file.stat().st_size for file in log_files(logs))
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task, waiting = bar.add_task("", total=total), 0

        def progress(size: int) -> None:
            nonlocal waiting
            waiting += size
            if waiting >= STEP:
                bar.advance(task, waiting)
                waiting = 0

        return prepare_logs(logs, max_nodes=max_nodes, progress=progress)


def tell_prepared(prepared: Prepared, logs: Path, screen: Console) -> None:
    kept, dropped = len(prepared.examples), sum(prepared.dropped.values())
    screen.print(
        f"{escape(str(logs))}: {prepared.read:,} executions read, {kept:,} kept, {dropped:,} dropped", soft_wrap=True
    )
    rows = [
        [reason, f"{count:,}", escape(prepared.places[reason][0])] for reason, count in prepared.dropped.most_common()
    ]
    if rows:
        screen.print(table("dropped", "count", "for example", rows=rows, right=("count",)))


def _to_json(prepared: Prepared, out: Path) -> dict[str, object]:
    return {
        "out": str(out),
        "read": prepared.read,
        "kept": len(prepared.examples),
        "dropped": {
            reason: {"count": count, "places": prepared.places[reason]}
            for reason, count in prepared.dropped.most_common()
        },
    }
