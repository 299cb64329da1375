"""`etude prepare`: makes a training file from execution logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from etude.cli.display import console, print_json, progress_bar, table
from etude.orchestrator.log import log_files
from etude.orchestrator.prepare import Prepared, write_prepared
from etude.orchestrator.prepare import prepare as prepare_logs


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
    total = sum(file.stat().st_size for file in log_files(logs))
    with progress_bar("reading", total, screen, in_bytes=True) as advance:
        prepared = prepare_logs(logs, max_nodes=max_nodes, progress=advance)
    tell_prepared(prepared, logs, screen)
    write_prepared(prepared, out)
    if as_json:
        places, counts = prepared.places, prepared.dropped.most_common()
        dropped = {reason: {"count": count, "places": places[reason]} for reason, count in counts}
        print_json({"out": str(out), "read": prepared.read, "kept": len(prepared.examples), "dropped": dropped})
    screen.print(f"{len(prepared.examples):,} examples written to {escape(str(out))}", soft_wrap=True)
    screen.print(f"next: etude train workflow --phase 1 --data {escape(str(out))} --out runs/p1", soft_wrap=True)


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
