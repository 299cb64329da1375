"""A run of the workflow planner for people: its folder and, where given, its comparison with other policies in; a
page out.

A run of phase 1 is told by epochs and by how near its plans are to the experts', one of phase 2 by the returns of its
workflows. Both show plans where the run kept some.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from etude.learning.charts import Line, line_chart
from etude.learning.comparison import interpret
from etude.learning.formats import duration, fixed, percent, plain, usd, whole
from etude.learning.report.page import (
    Measure,
    Row,
    header,
    multiples,
    read_rows,
    section,
    settings,
    tile,
    write_page,
)
from etude.learning.report.plans import plan_section
from etude.learning.report.returns import (
    STOPPED,
    Scores,
    health,
    learning_curve,
    return_histograms,
    return_tiles,
    score_table,
    time_tiles,
)
from etude.learning.runs import RunFolder
from etude.learning.showcase import read_plans

DIGITS = 2
"""Of a return after the point: a workflow that succeeds earns about ten."""

three = partial(fixed, digits=3)
NEARNESS = {
    "validation_score": Measure(label="validation score", about="the mean of the next three", form=three),
    "node_f1": Measure(label="node F1", about="subtasks in common with the expert’s", form=three),
    "link_f1": Measure(label="link F1", about="dependencies in common with the expert’s", form=three),
    "accuracy": Measure(label="accuracy", about="plans with the right subtasks", form=three),
}
LOSSES = {
    "loss": Measure(label="loss", about="What is learned from: the sum of the next four, weighted"),
    "type_loss": Measure(label="subtasks", about="Cross-entropy of the next task type or stop"),
    "link_loss": Measure(label="links", about="Cross-entropy of each dependency"),
    "worker_loss": Measure(label="workers", about="Cross-entropy of who does it"),
    "dag_loss": Measure(label="cycles", about="Self-loops and cycles of the soft adjacency matrix"),
    "grad_norm": Measure(label="gradient norm", about="Before it is clipped"),
    "lr_scale": Measure(label="learning rate", about="What is left of it"),
}
LOGS = {
    "estimate": Measure(label="estimated reward", about="On logs kept aside"),
    "ess": Measure(label="effective share", about="Of the logs, for the policy by then", form=percent),
    "kl_logged": Measure(label="distance from the logs", about="KL divergence, nats a decision"),
    "loss": Measure(label="loss", about="What the algorithm makes small"),
    "policy_loss": Measure(label="policy loss", about="What the algorithm makes small"),
    "entropy": Measure(label="entropy", about="How open its choices are, nats"),
    "accuracy": Measure(
        label="preferences shared", about="Pairs that it would order as their rewards do", form=percent
    ),
    "grad_norm": Measure(label="gradient norm", about="Before it is clipped"),
}
MEASURES = {
    "success": Measure(label="success", about="workflows whose every wanted subtask was done", form=percent),
    "subtasks": Measure(label="subtasks done", about="wanted subtasks done, a workflow", form=plain),
    "nodes": Measure(label="nodes", about="subtasks planned, repairs included", form=plain),
    "corrections": Measure(label="corrections", about="retries, switches, repairs and replans, a workflow", form=plain),
    "cost_usd": Measure(label="cost", about="of a workflow", form=usd),
    "latency_ms": Measure(label="time", about="of a workflow from start to end", form=lambda ms: duration(ms / 1000)),
}
PLANS = {
    1: "Instructions kept aside: it did not learn from them before it made these plans.",
    2: "Instructions kept aside: no phase learned from them.",
}
OWN_PLANS = "Instructions kept aside: phase 2 did not learn from them."
"""Of those that a user has given: phase 1 may have had them too."""
ENDED = STOPPED | {
    "epochs": "stopped: its epochs are used up",
    "early stop": "stopped: its plans no longer improved",
}


def write_workflow_report(folder: RunFolder, *, comparison: Scores | None = None, out: Path | None = None) -> Path:
    """Write the page, by default into the folder. The first entry of `comparison` is the run's own policy."""
    config, rows, scores = folder.config(), read_rows(folder), comparison or {}
    by = {1: lambda: _by_experts(rows), 3: lambda: _by_passes(rows, scores)}
    parts = by.get(config.get("phase", 2), lambda: _by_returns(config, rows, scores))()
    head = _headline(config, folder.summary(), rows, scores)
    about = OWN_PLANS if folder.scenarios.exists() else PLANS.get(config.get("phase", 0), "")
    plans = plan_section(read_plans(folder), about=about)
    body = [head, parts[0], plans, *parts[1:], settings(config)]
    return write_page(out or folder.report, f"{_title(config)} · {folder.path.name}", "".join(body))


def _title(config: Mapping[str, Any]) -> str:
    return (
        f"workflow · {config['algorithm']} from logs"
        if "algorithm" in config
        else f"workflow · phase {config.get('phase', '–')}"
    )


def _headline(config: Mapping[str, Any], summary: Mapping[str, Any] | None, rows: Sequence[Row], scores: Scores) -> str:
    phase = config.get("phase", 2)
    facts = [{1: "learned from experts", 3: "learned from logs"}.get(phase, "learned from what its workflows earned")]
    facts += [f"text read by {name}"] if (name := config.get("planner", {}).get("encoder")) else []
    facts += [f"seed {seed}"] if (seed := config.get("run", {}).get("seed")) is not None else []
    shares = {key: (m.label, m.about) for key, m in MEASURES.items() if m.form is percent}
    return header(
        _title(config),
        state=ENDED.get(str(summary.get("stopped")), "ended") if summary else "in progress",
        facts=facts,
        tiles={1: _epoch_tiles, 3: _pass_tiles}[phase](rows) if phase in (1, 3) else _world_tiles(rows, scores),
        lead=" ".join(interpret(scores, shares=shares, digits=DIGITS)),
    )


# Phase 1: by epochs, beside the experts


def _epoch_tiles(rows: Sequence[Row]) -> list[str]:
    scored = [row for row in rows if math.isfinite(row.get("validation_score", math.nan))]
    if not scored:
        return [tile("best validation score", "–", "no epoch is finished yet", kind="first")]
    best = max(scored, key=lambda row: row["validation_score"])
    # The best of several is chosen partly for its luck: the page says so instead of giving an interval.
    note = f"epoch {whole(best['step'])}, the best of {len(scored)}, so a little flattered"
    tiles = [tile("best validation score", three(best["validation_score"]), note, kind="first")]
    for key in ("node_f1", "link_f1", "accuracy"):
        tiles.append(tile(NEARNESS[key].label, three(best.get(key, math.nan)), NEARNESS[key].about))
    wall, final = rows[-1].get("wall_s", math.nan), len(rows) - len(scored)
    last = "the last" if final == 1 else f"the last {final}"
    note = f"{last} over all examples" if final else "each scored on examples kept aside"
    return [
        *tiles,
        tile("epochs", whole(len(rows)), note),
        tile("training time", duration(wall), f"{duration(wall / len(rows))} an epoch"),
    ]


def _by_experts(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return [section("Validation", "No epoch is finished yet.", "")]
    note = (
        "Plans for examples kept aside, beside the experts’, after each epoch. The final epochs go over all examples, "
    )
    note += "those kept aside too, and have no score."
    about = "One point an epoch: means over its gradient steps. The final epochs begin again from the best weights."
    told = {key: measure for key, measure in LOSSES.items() if any(row.get(key) for row in rows)}
    return [
        section("Validation", note, f'<div id="validation">{_validation(rows)}</div>'),
        section("Losses", about, f'<div id="losses">{multiples(rows, told, unit="epochs", x_unit=1)}</div>'),
    ]


def _validation(rows: Sequence[Row]) -> str:
    scored = [row for row in rows if any(key in row for key in NEARNESS)]
    epochs = [row["step"] for row in scored]
    colours = ("--policy", "--c1", "--c2", "--c3")
    lines = [
        Line(
            name=measure.label,
            x=epochs,
            y=[row.get(key, math.nan) for row in scored],
            colour=colour,
            dots=key == "validation_score",
        )
        for (key, measure), colour in zip(NEARNESS.items(), colours, strict=True)
    ]
    told = [
        "<br>".join(f"{m.label} <b>{three(row[key])}</b>" for key, m in NEARNESS.items() if key in row)
        for row in scored
    ]
    tips = [(row["step"], f"epoch {whole(row['step'])}<br>{text}") for row, text in zip(scored, told, strict=True)]
    label = f"Validation scores against epochs, {len(scored)} of them"
    return line_chart(lines[::-1], label=label, tips=tips, x_unit=1, x_format=whole, y_format=plain, x_name="epochs")


# From logs: by passes, beside the policy it began with


def _pass_tiles(rows: Sequence[Row]) -> list[str]:
    passes = [row for row in rows if row["step"] > 0 and "estimate" in row]
    if not passes:
        return [tile("estimate", "–", "no pass is finished yet", kind="first")]
    best, wall = max(passes, key=lambda row: row["estimate"]), rows[-1].get("wall_s", math.nan)
    before = next((row["estimate"] for row in rows if row["step"] == 0 and "estimate" in row), math.nan)
    return [
        tile("estimated reward", three(best["estimate"]), "on logs kept aside; not a trial", kind="first"),
        tile("before", three(before), "the policy it began with, on the same logs"),
        tile("effective", percent(passes[-1].get("ess", math.nan)), "of the logs, for the policy of the last pass"),
        tile("training time", duration(wall), f"{whole(len(passes))} passes"),
    ]


def _by_passes(rows: Sequence[Row], scores: Scores) -> list[str]:
    told = {key: measure for key, measure in LOGS.items() if any(key in row for row in rows)}
    about = "One point a pass over the logs, the first before any. What it really earns, only a trial can tell."
    charts = multiples(rows, told, unit="passes", x_unit=1)
    return [section("Passes", about, f'<div id="passes">{charts}</div>'), score_table(scores, MEASURES, digits=DIGITS)]


# Phase 2: by returns, in a world


def _world_tiles(rows: Sequence[Row], scores: Scores) -> list[str]:
    tiles = return_tiles(rows, scores, digits=DIGITS)
    evaluated = [row for row in rows if math.isfinite(row.get("eval_return", math.nan))]
    policy = next(iter(scores.values())).metrics if scores else {}
    success = policy.get("success", math.nan)
    if evaluated and not scores:
        success = max(evaluated, key=lambda row: row["eval_return"]).get("eval_success", math.nan)
    if math.isfinite(success):
        tiles.append(tile("success", percent(success), MEASURES["success"].about))
    return [*tiles, *time_tiles(rows)]


def _by_returns(config: Mapping[str, Any], rows: Sequence[Row], scores: Scores) -> list[str]:
    episodes = config.get("run", {}).get("eval_episodes", 0)
    evaluated = [
        {"step": row["step"]} | {key: row[f"eval_{key}"] for key in MEASURES if f"eval_{key}" in row}
        for row in rows
        if "eval_return" in row
    ]
    charts = multiples(evaluated, MEASURES, unit="steps")
    note = "Means of each evaluation, against steps."
    return [
        learning_curve(rows, scores, episodes=episodes, digits=DIGITS),
        section("What its workflows are like", note, f'<div id="workflows">{charts}</div>') if charts else "",
        score_table(scores, MEASURES, digits=DIGITS),
        return_histograms(scores, digits=DIGITS),
        health(rows),
    ]
