"""Output of commands: consoles, numbers, tables."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from etude.contracts.formats import duration as duration

BLOCKS = "▁▂▃▄▅▆▇█"
REDRAWN_S = 0.05
SAID_BY = {
    "verifier": "a verifier",
    "judge": "a language model as judge",
    "person": "a person",
    "self": "self-declared",
    "unknown": "unknown",
}
"""Who said whether a task succeeded."""


def console(*, stderr: bool = False) -> Console:
    """A console for the current stdout or stderr. Piped output is not folded at 80 columns."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=1000)


def fail(message: str) -> None:
    """Print one red line per error."""
    for line in message.splitlines() or [message]:
        console(stderr=True).print(f"error: {escape(line)}", style="red", soft_wrap=True)


def print_warning(said: str, screen: Console, *, advice: str = "") -> None:
    """Print a warning; `said` is markup."""
    todo = f"\n         what to do: {escape(advice)}" if advice else ""
    screen.print(f"[yellow]warning:[/] {said}{todo}", soft_wrap=True)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def print_command(said: str, screen: Console) -> None:
    """Print a line, and below it the command that is running."""
    screen.print(f"{said}\n  {escape(shlex.join(['etude', *sys.argv[1:]]))}", soft_wrap=True)


def setting(value: Any) -> str:
    """A value as written in etude.yaml."""
    return value if isinstance(value, str) else json.dumps(value, default=_given)


def _given(value: Any) -> Any:
    """A dataclass as the fields that differ from its defaults."""
    usual = {field.name: field.default for field in fields(value)}
    return {name: given for name, given in vars(value).items() if given != usual[name]}


def table(*columns: str, rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """A plain table; the columns in `right` are aligned to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


@contextmanager
def progress_bar(
    what: str, total: int | None, screen: Console, *, in_bytes: bool = False
) -> Iterator[Callable[[int], None]]:
    """A bar with the time left, on a terminal; the block gets a function to advance it, cheap to call often."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    count = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn(what), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task, waiting, due = bar.add_task("", total=total), 0, 0.0

        def advance(many: int) -> None:
            nonlocal waiting, due
            waiting += many
            if time.monotonic() >= due:
                bar.advance(task, waiting)
                waiting, due = 0, time.monotonic() + REDRAWN_S

        yield advance


def sparkline(values: Sequence[float]) -> str:
    """The last values as a line of block characters."""
    shown = list(values)[-24:]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] for value in shown)


def number(value: float) -> str:
    """A return, with one decimal if it is large, else two."""
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.2f}"


def singular(unit: str) -> str:
    """A unit of runs, such as steps or passes, for one of them."""
    return unit.removesuffix("es" if unit.endswith("sses") else "s")


def counted(count: int, unit: str) -> str:
    return f"{count:,} {singular(unit) if count == 1 else unit}"
