"""Output of commands: consoles, numbers, tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from etude.contracts.formats import duration as duration

BLOCKS = "▁▂▃▄▅▆▇█"


def console(*, stderr: bool = False) -> Console:
    """A console for the current stdout or stderr. Piped output is not folded at 80 columns."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=1000)


def fail(message: str) -> None:
    """Print one red line per error."""
    for line in message.splitlines() or [message]:
        console(stderr=True).print(f"error: {escape(line)}", style="red", soft_wrap=True)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def setting(value: Any) -> str:
    """A value as written in etude.yaml."""
    return value if isinstance(value, str) else json.dumps(value)


def table(*columns: str, rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """A plain table; the columns in `right` are aligned to the right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def sparkline(values: Sequence[float]) -> str:
    """The last values as a line of block characters."""
    shown = list(values)[-24:]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] for value in shown)


def number(value: float) -> str:
    """A return, with one decimal if it is large, else two."""
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.2f}"
