"""What every page is made of: numbers and words in, one HTML file out.

The page holds all it needs, so it opens from a file without a network. A section appears when there is data for it:
the page of a run in progress is the same page with less in it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from etude.learning.charts import Line, line_chart, thin
from etude.learning.formats import Format, compact, plain, whole
from etude.learning.runs import RunFolder, leaves

Row = Mapping[str, float]
"""One update, or one epoch: what metrics.jsonl says of it."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number by which something is told: its name, what it means and how it is written."""

    label: str
    about: str
    form: Format = plain


def write_page(path: Path, title: str, body: str) -> Path:
    css = files("etude.learning.report").joinpath("page.css").read_text("utf-8")
    text = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>\n{css}</style></head>\n'
        f"<body><main>{body}</main></body></html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8", errors="replace")  # half a character, a lone surrogate, is no text
    return path


def read_rows(folder: RunFolder) -> list[Row]:
    """What can be drawn. JSON has no number for NaN and infinity: they stand there as words, or as null."""
    words = {"None": math.nan, "NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    rows = folder.read_metrics()
    read = [{k: v if isinstance(v, int | float) else words.get(str(v)) for k, v in row.items()} for row in rows]
    return [{k: float(v) for k, v in row.items() if v is not None} for row in read]


def header(title: str, *, state: str = "", facts: Sequence[str], tiles: Sequence[str], lead: str = "") -> str:
    """What it is, how it stands, the main numbers, and what they say in words."""
    return (
        f"<header><h1>{escape(title)}" + (f'<span class="state">{escape(state)}</span>' if state else "") + "</h1>"
        f'<div class="soft">{escape(" · ".join(facts))}</div></header><div class="staff"></div>'
        f'<div class="tiles">{"".join(tiles)}</div>' + (f'<p class="lead">{escape(lead)}</p>' if lead else "")
    )


def tile(label: str, value: str, note: str, *, kind: str = "") -> str:
    texts = f"<span>{escape(label)}</span><b>{escape(value)}</b><span>{escape(note)}</span>"
    return f'<div class="tile {kind}">{texts}</div>'


def section(title: str, note: str, body: str, *, before: str = "") -> str:
    return f'\n<section>{before}<h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{body}</section>'


def multiples(rows: Sequence[Row], measures: Mapping[str, Measure], *, unit: str, x_unit: float = 0.0) -> str:
    """A small chart for each measure that the rows have, against their step, which counts `unit`."""
    known = [key for key in measures if any(math.isfinite(row.get(key, math.nan)) for row in rows)]
    charts = "".join(_small_chart(rows, key, measures[key], unit, x_unit) for key in known)
    return f'<div class="multiples">{charts}</div>' if charts else ""


def _small_chart(rows: Sequence[Row], key: str, measure: Measure, unit: str, x_unit: float) -> str:
    x, y = thin([row["step"] for row in rows], [row.get(key, math.nan) for row in rows])
    last = next(value for value in reversed(y) if math.isfinite(value))
    form, name = measure.form, escape(measure.label)
    tips = [(a, f"<b>{form(b)}</b><br>{whole(a)} {unit}") for a, b in zip(x, y, strict=True) if math.isfinite(b)]
    chart = line_chart(
        [Line(name=measure.label, x=x, y=y, colour="--policy")],
        label=f"{measure.label} against {unit}",
        tips=tips,
        x_from=None if x_unit else 0,
        x_unit=x_unit,
        x_format=compact,
        y_format=form,
        size="small",
    )
    return f'<div><h3 title="{escape(measure.about)}">{name}<span>{form(last)}</span></h3>{chart}</div>'


def settings(config: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th><code>{escape(key)}</code></th><td><code>{escape(json.dumps(value))}</code></td></tr>"
        for key, value in leaves(config)
    )
    return f'\n<section><details id="settings"><summary>Settings</summary><table>{rows}</table></details></section>'


def code(text: str) -> str:
    """Text in which what stands between backticks is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))
