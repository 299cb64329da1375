"""A run of allocation for people: its folder and, where given, its comparison with other policies in; a page out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from etude.learning.charts import Line, heat_map, line_chart
from etude.learning.comparison import METRICS, RANDOM, interpret
from etude.learning.evaluate import Score
from etude.learning.formats import percent, plain
from etude.learning.report.page import Measure, Row, header, read_rows, section, settings, write_page
from etude.learning.report.returns import (
    STOPPED,
    Scores,
    colours_of,
    health,
    learning_curve,
    return_histograms,
    return_tiles,
    score_table,
    time_tiles,
)
from etude.learning.runs import RunFolder
from etude.problems.allocation.behaviour import Tendency
from etude.problems.allocation.world import TASK_TYPES

MEASURES = {key: Measure(label=label, about=about, form=percent) for key, (label, about) in METRICS.items()}
SIZES = {"agents": "agents", "slots": "places in the queue", "horizon": "steps an episode"}


def write_allocation_report(
    folder: RunFolder,
    *,
    comparison: Scores | None = None,
    tendencies: Mapping[str, Sequence[Tendency]] | None = None,
    out: Path | None = None,
) -> Path:
    """Write the page, by default into the folder. The first entry of `comparison` is the run's own policy."""
    config, rows, scores = folder.config(), read_rows(folder), comparison or {}
    body = [
        _headline(config, folder.summary(), rows, scores),
        learning_curve(rows, scores, episodes=config.get("run", {}).get("eval_episodes", 0)),
        score_table(scores, MEASURES),
        _roles(scores),
        _tendencies(tendencies or {}, colours_of(scores or tendencies or {})),
        return_histograms(scores),
        health(rows),
        settings(config),
    ]
    return write_page(out or folder.report, f"{_title(config)} · {folder.path.name}", "".join(body))


def _title(config: Mapping[str, Any]) -> str:
    variant = config.get("allocation", {}).get("variant")
    return " · ".join(str(part) for part in (config.get("problem", "run"), variant) if part)


def _headline(config: Mapping[str, Any], summary: Mapping[str, Any] | None, rows: Sequence[Row], scores: Scores) -> str:
    size = config.get("allocation", {})
    facts = [f"{size[key]} {word}" for key, word in SIZES.items() if key in size]
    facts += [f"seed {seed}"] if (seed := config.get("run", {}).get("seed")) is not None else []
    return header(
        _title(config),
        state=STOPPED.get(str(summary.get("stopped")), "ended") if summary else "in progress",
        facts=facts,
        tiles=[*return_tiles(rows, scores), *time_tiles(rows)],
        lead=" ".join(interpret(scores)),
    )


def _roles(scores: Scores) -> str:
    shown = {name: s for i, (name, s) in enumerate(scores.items()) if s.taken and (i == 0 or name == RANDOM)}
    if not shown:
        return ""
    top = max(value for s in shown.values() for row in s.taken or [] for value in row)
    maps = "".join(_role_map(name, score, top, colours_of(scores)[name]) for name, score in shown.items())
    note = (
        "Tasks an episode that each agent takes, by type. A row coloured unlike the others is a role; bars of the "
        "same length are a balanced load."
    )
    return section("Who does what", note, f'<div class="pair">{maps}</div>')


def _role_map(name: str, score: Score, top: float, colour: str) -> str:
    taken = score.taken or []
    types = TASK_TYPES if len(taken[0]) == len(TASK_TYPES) else [f"type {i + 1}" for i in range(len(taken[0]))]
    agents = [f"agent {i + 1}" for i in range(len(taken))]
    measures = {METRICS[key][0]: score.metrics.get(key, math.nan) for key in ("specialisation", "load_balance")}
    told = ", ".join(f"{label} {percent(value)}" for label, value in measures.items())
    chart = heat_map(taken, rows=agents, columns=types, top=top, colour=colour, unit="tasks an episode")
    return f'<div><h3>{escape(name)} <span class="soft">{told}</span></h3><div class="scroll">{chart}</div></div>'


def _tendencies(tendencies: Mapping[str, Sequence[Tendency]], colours: Mapping[str, str]) -> str:
    panels: dict[tuple[str, str], list[Line]] = {}
    for name, found in tendencies.items():
        for t in found:
            line = Line(name=name, x=t.x, y=t.y, colour=colours[name], dots=True, faint=name == RANDOM)
            panels.setdefault((t.decision, t.state), []).append(line)
    if not panels:
        return ""
    keys = "".join(f'<span><i class="dot" style="--c:var({colours[n]})"></i>{escape(n)}</span>' for n in tendencies)
    charts = "".join(_tendency(*panel, lines) for panel, lines in panels.items())
    note = (
        "The mean decision of an agent against the state it decides in, counted where it matters: accepting while a "
        "task waits, allocating while one is in work."
    )
    body = f'<div class="legend">{keys}</div><div class="multiples">{charts}</div>'
    return section("What it does in which state", note, body)


def _tendency(decision: str, state: str, lines: Sequence[Line]) -> str:
    main = lines[0]
    tips = [(x, f"{escape(state)} {plain(x)}<br><b>{percent(y)}</b>") for x, y in zip(main.x, main.y, strict=True)]
    label = f"{decision}, by {state}"
    chart = line_chart(lines, label=label, tips=tips, y_range=(0, 1), x_format=plain, y_format=percent, size="small")
    return f"<div><h3>{escape(decision)}<span>by {escape(state)}</span></h3>{chart}</div>"
