"""`etude ingest`: events from files to the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from etude.cli.config import ConfigFile
from etude.cli.display import console, print_json, table
from etude.contracts.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

    from etude.bootstrap.experience import Experience
    from etude.experience.files import Convert
    from etude.experience.ingest import Counts
    from etude.problems.workflow.catalogue import Catalogue

SHOWN = 5
"""Reasons that are told."""


def ingest(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE…", help="JSON Lines of events, or execution logs; - is standard input."),
    ],
    catalogue: Annotated[
        Path | None,
        typer.Option(help="Of execution logs: what their ids mean.", show_default="catalogue.json beside them"),
    ] = None,
    config: ConfigFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what became of the lines as JSON; the rest goes to stderr.")
    ] = False,
) -> None:
    """Take in trajectories and feedback: checked, redacted, stored once, rewarded.

    Lines that are no events are kept as dead letters with the reason. The same file again changes nothing.
    """
    from etude.bootstrap.experience import experience

    for name in files:
        if name != "-" and (Path(name).is_dir() or not Path(name).exists()):
            wrong = "is a folder" if Path(name).is_dir() else "there is no such file"
            raise DataError(f"{name}: {wrong}: expected JSON Lines of events, or - for standard input")
    screen = console(stderr=as_json)
    total = sum(Path(name).stat().st_size for name in files if name != "-")
    columns = (TextColumn("ingesting"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with experience(config) as opened:
        with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
            task = bar.add_task("", total=total or None)
            for name in files:
                with open(0, "rb", closefd=False) if name == "-" else Path(name).open("rb") as file:
                    for size in _take(opened, file, _convert(name, catalogue)):
                        bar.advance(task, size)
        _tell(opened.caught_up, screen, as_json=as_json)


def _take(opened: Experience, file: BinaryIO, convert: Convert) -> Iterator[int]:
    """Batches of lines to the store or, where there is one, to the broker; their bytes."""
    from etude.bootstrap.ingesting import clean_messages
    from etude.experience.files import read_lines
    from etude.experience.ingest import take_in

    taking = opened.ingest() if opened.is_embedded else None
    for messages, size in clean_messages(read_lines(file), opened.config, convert):
        if taking is not None:
            take_in(opened.bus, taking, messages, opened.caught_up)
        else:
            opened.bus.publish(messages)
            opened.caught_up.sent += len(messages)
        yield size


def _convert(name: str, catalogue: Path | None) -> Convert:
    """Lines of an execution log to trajectories; its catalogue is read when the first is met."""
    known: list[Catalogue] = []

    def convert(line: bytes) -> bytes | None:
        if b'"planner_outputs"' not in line or b'"execution_result"' not in line or b'"agent.rl.' in line:
            return None
        from etude.bootstrap.deciding import execution_event, log_catalogue_of

        if not known:
            known.append(log_catalogue_of(Path(name), catalogue))
        return execution_event(line, known[0])

    return convert


def _tell(counts: Counts, screen: Console, *, as_json: bool) -> None:
    told = {str(kind): count for kind, count in counts.stored.items()}
    told |= {"sent": counts.sent} if counts.sent else {}
    if as_json:
        print_json({**told, "dead_letters": counts.buried, "reasons": dict(counts.reasons)})
        return
    rows = [[kind.replace("_", " "), f"{count:,}"] for kind, count in told.items()]
    rows += [["dead letter", f"{counts.buried:,}"]] if counts.buried else []
    screen.print(table("became", "events", rows=rows, right=("events",)) if rows else "there was nothing to take in")
    for reason, count in counts.reasons.most_common(SHOWN):
        screen.print(f"{count:,} × {escape(reason)}", soft_wrap=True)
    if counts.buried:
        screen.print("`etude experience dead-letters` shows them all", soft_wrap=True)
