"""`etude label`: shows logged workflows one by one, and a person says by one key which of them really succeeded."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from etude.cli.display import SAID_BY, console, print_warning, progress_bar
from etude.contracts.errors import LogError
from etude.orchestrator.labels import Label, Labels, append_label, read_labels
from etude.orchestrator.log import log_catalogue, log_files, read_lines
from etude.orchestrator.record import Execution, NodeRecord
from etude.problems.catalogue import Catalogue, TaskType, Worker

MAX_PER_SESSION = 10_000
"""Maximum number of workflows held in memory to be shown; the next session continues after them."""
MAX_SHOWN_CHARS = 400
"""Maximum length of an instruction, an output or a message on the screen."""
KEYS = "y yes   n no   s skip   b back   q quit"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a person sees of one execution, shortened."""

    id: str
    lines: tuple[tuple[str, str], ...]  # what it is, and the text
    self_declared: bool  # a success that no one else vouches for


def label(
    logs: Annotated[Path, typer.Option(help="Folder of execution logs (*.jsonl), or one of them.", show_default=False)],
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of workflows to show, at random, unlabelled ones first.",
            show_default="all that have no label",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample.")] = 0,
) -> None:
    """Say which logged workflows really succeeded: y yes, n no, s skip, b back, q quit.

    Labels go to labels.jsonl next to the log, at once; the same command continues where it stopped. `etude prepare` and
    `etude ingest` take them in place of the logged outcome. Without a terminal, keys are read from stdin, one per line.
    """
    screen, labels, catalogue = console(), read_labels(logs), log_catalogue(logs)
    ids = _ids(logs, screen)
    labels.met.update(labels.by_id.keys() & set(ids))
    if problem := labels.check() if logs.is_dir() else "":
        print_warning(escape(problem), screen)
    asked = choose(ids, labels.by_id.keys(), sample=sample, seed=seed)[:MAX_PER_SESSION]
    if asked:
        _Session(screen, labels, _cards(logs, asked, catalogue, labels)).run()
    labelled = len(labels.by_id.keys() & set(ids))
    screen.print(f"{labelled:,} of {len(ids):,} workflows are labelled in {escape(str(labels.file))}", soft_wrap=True)
    if labelled:
        screen.print(f"next: etude prepare --logs {escape(str(logs))} --out training_data.json", soft_wrap=True)


def choose(ids: Sequence[str], labelled: Collection[str], *, sample: int | None, seed: int) -> list[str]:
    """The executions to show: those without a label in the log's order, or a random sample, unlabelled ones first."""
    if sample is None:
        return [id for id in ids if id not in labelled]
    shuffled = Random(seed).sample(ids, len(ids))  # the same order each time, so that a session continues the last
    return sorted(shuffled, key=lambda id: id in labelled)[:sample]


def _ids(logs: Path, screen: Console) -> list[str]:
    """Ids of the executions that were carried out to their end."""
    found = dict[str, None]()
    total = sum(file.stat().st_size for file in log_files(logs))
    with progress_bar("reading", total, screen, in_bytes=True) as advance:
        for line in read_lines(logs):
            if isinstance(line.content, Execution) and line.content.ended != "cancelled":
                found[line.content.id] = None
            advance(line.size)
    if not found:
        raise LogError(f"{logs}: holds no workflow that was carried out: collect some with `etude collect`")
    return list(found)


def _cards(logs: Path, asked: Sequence[str], catalogue: Catalogue, labels: Labels) -> list[Card]:
    """In the order in which they are asked about."""
    wanted = set(asked)
    found = {
        line.content.id: _card(line.content, catalogue, labels.by_id.get(line.content.id))
        for line in read_lines(logs)
        if isinstance(line.content, Execution) and line.content.id in wanted
    }
    return [found[id] for id in asked]


def _card(execution: Execution, catalogue: Catalogue, label: Label | None) -> Card:
    nodes, outputs = execution.nodes, execution.execution_result.outputs
    plan = [_planned(node, nodes, catalogue) for node in nodes if node.status != "dropped"]
    lines = [("asked", execution.instruction), ("plan", "; ".join(plan) or "none")]
    lines += [
        ("output", f"{_name(catalogue.task_types, node.task_type)}: {_text(outputs[str(i)])}")
        for i, node in enumerate(nodes)
        if str(i) in outputs
    ]
    lines += [("error", execution.error)] if execution.error else []
    result = "success" if execution.success else "no success"
    lines += [("result", f"{result}, {SAID_BY[execution.success_by or 'unknown']}")]
    lines += [("labelled", f"{'yes' if label.success else 'no'}, {label.time}")] if label else []
    return Card(
        id=execution.id,
        lines=tuple((name, _shortened(text)) for name, text in lines),
        self_declared=execution.success and execution.success_by in ("self", None),
    )


def _planned(node: NodeRecord, nodes: Sequence[NodeRecord], catalogue: Catalogue) -> str:
    by = "" if node.worker is None else f" by {_name(catalogue.workers, node.worker)}"
    earlier = [_name(catalogue.task_types, nodes[i].task_type) for i in node.dependencies if i < len(nodes)]
    after = f" after {', '.join(earlier)}" if earlier else ""
    return f"{_name(catalogue.task_types, node.task_type)}{by}{after}" + f" ({node.status})" * (node.status != "done")


def _name(entries: Sequence[TaskType | Worker], i: int) -> str:
    return entries[i].name if 0 <= i < len(entries) else f"#{i}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _shortened(text: str) -> str:
    text = text.strip()
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}… ({len(text):,} characters)"


class _Session:
    """One pass over cards. Every label is in the file before the next card is shown."""

    def __init__(self, screen: Console, labels: Labels, cards: Sequence[Card]) -> None:
        self.screen, self.labels, self.cards = screen, labels, cards
        self.given: dict[str, bool] = {}

    def run(self) -> None:
        place = 0
        while 0 <= place < len(self.cards):
            step = self._ask(place)
            if step is None:
                break
            place = max(0, place + step)
        yes = sum(self.given.values())
        self.screen.print(f"\n{len(self.given):,} labels given: {yes:,} yes, {len(self.given) - yes:,} no")
        claimed = [self.given[card.id] for card in self.cards if card.self_declared and card.id in self.given]
        if claimed:
            self.screen.print(f"{sum(claimed):,} of {len(claimed):,} self-declared successes were right")

    def _ask(self, place: int) -> int | None:
        """Show a card and act on a key: how far to go on, or None to end."""
        card = self.cards[place]
        self.screen.print(f"\n[bold]{place + 1:,} of {len(self.cards):,}[/]")
        for name, text in card.lines:
            self.screen.print(f"[dim]{name:<9}[/] {escape(text)}", soft_wrap=True)
        self.screen.print(f"[dim]{KEYS}[/]")
        while (key := _read_key()) not in ("q", ""):
            if key in ("y", "n"):
                now = datetime.now(UTC).isoformat(timespec="seconds")
                self.labels.by_id[card.id] = given = Label(id=card.id, success=key == "y", time=now)
                append_label(self.labels.file, given)
                self.given[card.id] = given.success
            if key in ("y", "n", "s", "b"):
                return -1 if key == "b" else 1
            self.screen.print(f"{escape(repr(key))} is no key: {KEYS}")
        return None


def _read_key() -> str:
    """A key, in lower case; empty at the end of the input and on Ctrl-C."""
    try:
        if sys.stdin.isatty():
            return typer.getchar().lower()
        line = sys.stdin.readline()
    except (KeyboardInterrupt, EOFError):
        return ""
    return (line.strip().lower() or "(an empty line)") if line else ""
