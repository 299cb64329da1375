"""How commands speak: consoles, numbers, tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

BLOCKS = "▁▂▃▄▅▆▇█"


def console(*, stderr: bool = False) -> Console:
    """Made when needed, so that it sees where output goes now. Piped output is not folded at 80 columns."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=1000)


def fail(message: str) -> None:
    """One red line for each thing that is wrong."""
    for line in message.splitlines() or [message]:
        console(stderr=True).print(f"error: {escape(line)}", style="red", soft_wrap=True)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def setting(value: Any) -> str:
    """As it would stand in etude.yaml."""
    return value if isinstance(value, str) else json.dumps(value)


def table(*columns: str, rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """A plain table; the columns named in `right` hold numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def sparkline(values: Sequence[float]) -> str:
    """The last values as a little picture, the lowest of them at the bottom."""
    shown = list(values)[-24:]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((value - low) * scale)] for value in shown)


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours else f"{minutes}m {rest:02d}s" if minutes else f"{seconds:.1f}s"


def number(value: float) -> str:
    """A return: large ones with one digit after the point, small ones with two."""
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.2f}"
