"""A report page, written as one HTML file.

The page is self-contained, so it opens without a network. A section appears if there is data for it: a run in progress
has the same page with fewer sections.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.contracts.formats import Format, compact, plain, whole
from etude.learning.run_folder import RunFolder, leaves
from etude.reports.blocks import Block, Strong, Text, Tile, view
from etude.reports.charts import Chart, Line, line_chart, thin

Row = Mapping[str, float]
"""One update, epoch or pass: a line of metrics.jsonl."""


@dataclass(frozen=True)
class Measure:
    """A reported number: its label, its meaning and its format."""

    label: str
    about: str
    form: Format = plain


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of a page: title, state, main numbers, a summary in words, sections, and settings."""

    title: str
    sections: Sequence[Block]
    heading: str = ""  # where it is not the title
    state: str = ""
    facts: Sequence[str] = ()
    tiles: Sequence[Tile] = ()
    lead: str = ""
    config: Mapping[str, Any] | None = None
    footer: Text = ""

    @property
    def settings(self) -> list[tuple[str, str]]:
        return [(key, json.dumps(value)) for key, value in leaves(self.config or {})]

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = view("page", page=self).__html__()
        path.write_text(text, "utf-8", errors="replace")  # a lone surrogate has no UTF-8
        return path


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A small chart with its title; `about` shows while the pointer is on it."""

    title: str
    note: str
    chart: Chart
    about: str = ""


def read_rows(folder: RunFolder) -> list[Row]:
    """The metrics as numbers; NaN and infinity are strings or null in JSON."""
    words = {"None": math.nan, "NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    rows = folder.read_metrics()
    read = [{k: v if isinstance(v, int | float) else words.get(str(v)) for k, v in row.items()} for row in rows]
    return [{k: float(v) for k, v in row.items() if v is not None} for row in read]


def explained(measures: Mapping[str, Measure]) -> str:
    """What each measure means, in one sentence each."""
    return " ".join(f"{m.label[:1].upper()}{m.label[1:]}: {m.about}." for m in measures.values() if m.about)


def multiples(rows: Sequence[Row], measures: Mapping[str, Measure], *, unit: str, x_unit: float = 0.0) -> list[Block]:
    """A small chart for each measure that the rows have, against their step, which counts `unit`.

    A measure `x` has a band where the rows have `x_low` and `x_high`.
    """
    known = [key for key in measures if any(math.isfinite(row.get(key, math.nan)) for row in rows)]
    panels = [_small_chart(rows, key, measures[key], unit, x_unit) for key in known]
    return [view("multiples", panels=panels, colours={})] if panels else []


def _small_chart(rows: Sequence[Row], key: str, measure: Measure, unit: str, x_unit: float) -> Panel:
    steps = [row["step"] for row in rows]
    x, y = thin(steps, [row.get(key, math.nan) for row in rows])
    low, high = (thin(steps, [row.get(f"{key}_{side}", math.nan) for row in rows])[1] for side in ("low", "high"))
    form = measure.form
    chart = line_chart(
        [Line(name=measure.label, x=x, y=y, colour="--policy", band=(low, high))],
        label=f"{measure.label} against {unit}",
        tips=[(a, [Strong(form(b)), f"\n{whole(a)} {unit}"]) for a, b in zip(x, y, strict=True) if math.isfinite(b)],
        x_from=None if x_unit else 0,
        x_unit=x_unit,
        x_format=compact,
        y_format=form,
        size="small",
    )
    last = next(value for value in reversed(y) if math.isfinite(value))
    return Panel(title=measure.label, note=form(last), about=measure.about, chart=chart)
