"""`etude ingest`: stores events from files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console
from rich.markup import escape

from etude.bootstrap.experience import Experience, experience
from etude.cli.display import console, print_json, print_warning, progress_bar, table
from etude.cli.options import ConfigFile
from etude.contracts.errors import DataError
from etude.experience.cleaning_pool import clean_messages
from etude.experience.files import Convert, read_lines
from etude.experience.ingest import Counts, ingest_messages
from etude.orchestrator.labels import Labels, read_labels
from etude.orchestrator.log import LABELS_FILE, execution_event, log_catalogue, logs_in
from etude.problems.catalogue import Catalogue, read_catalogue

SHOWN = 5
"""Maximum number of reasons shown."""


def ingest(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE…", help="JSON Lines files of events, or execution logs; - is standard input."),
    ],
    catalogue: Annotated[
        Path | None,
        typer.Option(help="Catalogue of execution logs.", show_default="catalogue.json next to them"),
    ] = None,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON; the rest goes to stderr.")] = False,
) -> None:
    """Ingest trajectories and feedback: checked, redacted, stored once, rewarded.

    Lines that are not events become dead letters with the reason. Ingesting a file again changes nothing.
    """
    files = [name for name in files if Path(name).name != LABELS_FILE]  # read with the log next to them
    for name in files:
        if name != "-" and (Path(name).is_dir() or not Path(name).exists()):
            wrong = "is a folder" if Path(name).is_dir() else "there is no such file"
            raise DataError(f"{name}: {wrong}: expected JSON Lines of events, or - for standard input")
    screen = console(stderr=as_json)
    total = sum(Path(name).stat().st_size for name in files if name != "-")
    labels = _labels(files)
    with experience(config) as opened:
        with progress_bar("ingesting", total or None, screen, in_bytes=True) as advance:
            for name in files:
                with open(0, "rb", closefd=False) if name == "-" else Path(name).open("rb") as file:
                    for size in _ingest(opened, file, _convert(name, catalogue, labels.get(Path(name).parent))):
                        advance(size)
        _print_counts(opened.caught_up, screen, as_json=as_json)
    for folder, read in labels.items():
        if set(logs_in(folder)) <= set(map(Path, files)) and (problem := read.problem()):
            print_warning(escape(problem), screen)


def _labels(files: Sequence[str]) -> dict[Path, Labels]:
    """The labels next to these logs, by folder."""
    folders = dict.fromkeys(Path(name).parent for name in files if name != "-")
    return {folder: labels for folder in folders if (labels := read_labels(folder)).by_id}


def _ingest(opened: Experience, file: BinaryIO, convert: Convert) -> Iterator[int]:
    """Send batches of lines to the store or, if there is one, to the broker; yield their sizes in bytes."""
    ingest = opened.ingest() if opened.is_embedded else None
    for messages, size in clean_messages(read_lines(file), opened.config, convert):
        if ingest is not None:
            ingest_messages(opened.bus, ingest, messages, opened.caught_up)
        else:
            opened.bus.publish(messages)
            opened.caught_up.sent += len(messages)
        yield size


def _convert(name: str, catalogue: Path | None, labels: Labels | None) -> Convert:
    """A function that converts lines of an execution log to trajectories; it reads the catalogue on first use."""
    change = None if labels is None else labels.apply
    known: list[Catalogue] = []

    def convert(line: bytes) -> bytes | None:
        if b'"planner_outputs"' not in line or b'"execution_result"' not in line or b'"agent.rl.' in line:
            return None
        if not known:
            known.append(read_catalogue(catalogue) if catalogue is not None else log_catalogue(Path(name)))
        return execution_event(line, known[0], change=change)

    return convert


def _print_counts(counts: Counts, screen: Console, *, as_json: bool) -> None:
    counted = {str(kind): count for kind, count in counts.stored.items()}
    counted |= {"sent": counts.sent} if counts.sent else {}
    if as_json:
        print_json({**counted, "dead_letters": counts.buried, "reasons": dict(counts.reasons)})
        return
    rows = [[kind.replace("_", " "), f"{count:,}"] for kind, count in counted.items()]
    rows += [["dead letter", f"{counts.buried:,}"]] if counts.buried else []
    screen.print(table("became", "events", rows=rows, right=("events",)) if rows else "there was nothing to ingest")
    for reason, count in counts.reasons.most_common(SHOWN):
        screen.print(f"{count:,} × {escape(reason)}", soft_wrap=True)
    if counts.buried:
        screen.print("`etude experience dead-letters` shows them all", soft_wrap=True)
