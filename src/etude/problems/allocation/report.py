"""What allocation adds to the page of its run: which agent does what, and which decisions it makes in which state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from etude.contracts.formats import percent, plain
from etude.learning.comparison import RANDOM
from etude.problems.allocation import METRICS
from etude.problems.allocation.behaviour import Tendency
from etude.problems.allocation.world import TASK_TYPES
from etude.reports.blocks import Section, Strong, view
from etude.reports.charts import Line, line_chart
from etude.reports.page import Measure, Panel
from etude.reports.returns import Scores, colours_of
from etude.reports.run import Contribution, RunContext

MEASURES = {key: Measure(label, about, percent) for key, (label, about, _) in METRICS.items()}
ROLE_MEASURES = ("specialisation", "load_balance")
SIZES = {"agents": "agents", "slots": "places in the queue", "horizon": "steps per episode"}


def report(run: RunContext) -> Contribution:
    """`run.notes["tendencies"]` has by policy what it does in which state, where that was recorded."""
    world = run.config.get("allocation", {})
    tendencies: Mapping[str, Sequence[Tendency]] = run.notes.get("tendencies") or {}
    return Contribution(
        title=" · ".join(str(part) for part in (run.config.get("problem", "run"), world.get("variant")) if part),
        facts=["simulated agents and tasks", *(f"{world[key]} {word}" for key, word in SIZES.items() if key in world)],
        measures=MEASURES,
        sections=[*_roles(run.scores), *_tendencies(tendencies, colours_of(run.scores or tendencies))],
    )


def _roles(scores: Scores) -> list[Section]:
    compared = [name for i, name in enumerate(scores) if i == 0 or name == RANDOM]
    shown = {name: scores[name] for name in compared if scores[name].details.get("taken")}
    if not shown:
        return []
    maps = [
        {
            "name": name,
            "colour": colours_of(scores)[name],
            "taken": score.details.get("taken", []),
            "measures": {MEASURES[key].label: score.metrics.get(key, math.nan) for key in ROLE_MEASURES},
        }
        for name, score in shown.items()
    ]
    columns = max(len(row) for score in shown.values() for row in score.details.get("taken", []))
    types = TASK_TYPES if columns == len(TASK_TYPES) else [f"type {i + 1}" for i in range(columns)]
    note = (
        "Tasks per episode that each agent takes, by type. A row coloured unlike the others is a role; bars of the "
        "same length are a balanced load."
    )
    roles = view("etude.problems.allocation:roles.html.jinja", maps=maps, types=list(types))
    return [Section(title="Which agent does what", note=note, body=[roles])]


def _tendencies(tendencies: Mapping[str, Sequence[Tendency]], colours: Mapping[str, str]) -> list[Section]:
    lines: dict[tuple[str, str], list[Line]] = {}
    for name, found in tendencies.items():
        for t in found:
            line = Line(name=name, x=t.x, y=t.y, colour=colours[name], dots=True, faint=name == RANDOM)
            lines.setdefault((t.decision, t.state), []).append(line)
    if not lines:
        return []
    panels = [_tendency(decision, state, own) for (decision, state), own in lines.items()]
    note = (
        "The mean decision of an agent against the state it decides in, counted where it has an effect: accepting "
        "while a task waits, allocating while one is in progress."
    )
    charts = view("multiples", panels=panels, colours={name: colours[name] for name in tendencies})
    return [Section(title="Decisions by state", note=note, body=[charts])]


def _tendency(decision: str, state: str, lines: Sequence[Line]) -> Panel:
    main = lines[0]
    chart = line_chart(
        lines,
        label=f"{decision}, by {state}",
        tips=[(x, [f"{state} {plain(x)}\n", Strong(percent(y))]) for x, y in zip(main.x, main.y, strict=True)],
        y_range=(0, 1),
        x_format=plain,
        y_format=percent,
        size="small",
    )
    return Panel(title=decision, note=f"by {state}", chart=chart)
