"""What the workflow planner adds to the page of its run: epochs and how near its plans are to the experts', what its
workflows are like, and plans where the run kept some.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from etude.contracts.formats import duration, fixed, percent, plain, usd, whole
from etude.problems.workflow.phase2 import SCENARIOS
from etude.problems.workflow.plan_report import plan_section
from etude.problems.workflow.showcase import read_plans
from etude.reports.blocks import Section, Strong, Tile
from etude.reports.charts import Chart, Line, line_chart
from etude.reports.page import Measure, Row, multiples
from etude.reports.returns import best_evaluation, return_tiles, time_tiles
from etude.reports.run import Contribution, RunContext

three = partial(fixed, digits=3)
NEARNESS = {
    "validation_score": Measure("validation score", "the mean of the next three", three),
    "node_f1": Measure("node F1", "subtasks in common with the expert’s", three),
    "link_f1": Measure("link F1", "dependencies in common with the expert’s", three),
    "accuracy": Measure("accuracy", "plans with the right subtasks", three),
}
LOSSES = {
    "loss": Measure("loss", "What is minimised: the weighted sum of the next four"),
    "type_loss": Measure("subtasks", "Cross-entropy of the next task type or stop"),
    "link_loss": Measure("links", "Cross-entropy of each dependency"),
    "worker_loss": Measure("workers", "Cross-entropy of the worker"),
    "dag_loss": Measure("cycles", "Self-loops and cycles of the soft adjacency matrix"),
    "grad_norm": Measure("gradient norm", "Before it is clipped"),
    "lr_scale": Measure("learning rate", "As a share of the first"),
}
MEASURES = {
    "success": Measure("success", "workflows with every wanted subtask done", percent),
    "subtasks": Measure("subtasks done", "wanted subtasks done per workflow", plain),
    "nodes": Measure("nodes", "subtasks planned per workflow, repairs included", plain),
    "corrections": Measure("corrections", "retries, switches, repairs and replans per workflow", plain),
    "cost_usd": Measure("cost", "per workflow", usd),
    "latency_ms": Measure("time", "per workflow, from start to end", lambda ms: duration(ms / 1000)),
}
SIMULATED = "Workers, their skills and all outcomes are simulated: no model was called and no money was spent."
METHODS = {1: "learned from experts", 2: "learned from the outcomes of its own workflows", 3: "learned from logs"}
PLANS = {
    1: "Held-out instructions: it did not learn from them before it made these plans.",
    2: "Held-out instructions: no phase learned from them.",
}
OWN_PLANS = "Held-out instructions: phase 2 did not learn from them."
"""Of those that a user has given: phase 1 may have had them too."""


def report(run: RunContext) -> Contribution:
    phase, encoder = run.config.get("phase", 2), run.config.get("planner", {}).get("encoder")
    about = OWN_PLANS if (run.folder.path / SCENARIOS).exists() else PLANS.get(phase, "")
    in_world = phase == 2
    how = f"{run.config.get('algorithm', 'trained')} from logs" if run.from_logs else f"phase {phase}"
    return Contribution(
        title=f"workflow · {how}",
        facts=[METHODS.get(phase, METHODS[2]), *([f"text read by {encoder}"] if encoder else [])],
        lead=SIMULATED if in_world or run.scores else "",
        measures=MEASURES,
        tiles=_epoch_tiles(run.rows) if phase == 1 else _world_tiles(run) if in_world else None,
        learning=_epochs(run.rows) if phase == 1 else None,
        sections=[
            *plan_section(read_plans(run.folder), about=about),
            *(evaluated_workflows(run.rows, title="What its workflows are like") if in_world else []),
        ],
    )


def _epoch_tiles(rows: Sequence[Row]) -> list[Tile]:
    scored = [row for row in rows if math.isfinite(row.get("validation_score", math.nan))]
    if not scored:
        return [Tile("best validation score", "–", "no epoch is finished yet", kind="first")]
    best = max(scored, key=lambda row: row["validation_score"])
    # The best of several is chosen partly for its noise: the page says so instead of giving an interval.
    note = f"epoch {whole(best['step'])}, the best of {len(scored)}, so slightly too high"
    wall, final = rows[-1].get("wall_s", math.nan), len(rows) - len(scored)
    last = f"the last{'' if final == 1 else f' {final}'} over all examples"
    return [
        Tile("best validation score", three(best["validation_score"]), note, kind="first"),
        *(
            Tile(NEARNESS[key].label, three(best.get(key, math.nan)), NEARNESS[key].about)
            for key in ("node_f1", "link_f1", "accuracy")
        ),
        Tile("epochs", whole(len(rows)), last if final else "each scored on held-out examples"),
        Tile("training time", duration(wall), f"{duration(wall / len(rows))} per epoch"),
    ]


def _epochs(rows: Sequence[Row]) -> list[Section]:
    if not rows:
        return [Section(title="Validation", note="No epoch is finished yet.")]
    validated = (
        "Plans for held-out examples, compared with the experts’, after each epoch. The final epochs go over all "
        "examples, those held out too, and have no score."
    )
    about = "One point per epoch: means over its gradient steps. The final epochs begin again from the best weights."
    used = {key: measure for key, measure in LOSSES.items() if any(row.get(key) for row in rows)}
    losses = multiples(rows, used, unit="epochs", x_unit=1)
    return [
        Section(title="Validation", name="validation", note=validated, body=[_validation(rows)]),
        Section(title="Losses", name="losses", note=about, body=losses),
    ]


def _validation(rows: Sequence[Row]) -> Chart:
    scored = [row for row in rows if any(key in row for key in NEARNESS)]
    lines = [
        Line(
            name=measure.label,
            x=[row["step"] for row in scored],
            y=[row.get(key, math.nan) for row in scored],
            colour=colour,
            dots=key == "validation_score",
        )
        for (key, measure), colour in zip(NEARNESS.items(), ("--policy", "--c1", "--c2", "--c3"), strict=True)
    ]
    tips = [
        (
            row["step"],
            [
                f"epoch {whole(row['step'])}",
                *(
                    part
                    for key, m in NEARNESS.items()
                    if key in row
                    for part in (f"\n{m.label} ", Strong(three(row[key])))
                ),
            ],
        )
        for row in scored
    ]
    label = f"Validation scores against epochs, {len(scored)} of them"
    return line_chart(lines[::-1], label=label, tips=tips, x_unit=1, x_format=whole, y_format=plain, x_name="epochs")


def _world_tiles(run: RunContext) -> list[Tile]:
    policy = next(iter(run.scores.values())).metrics if run.scores else {}
    best = best_evaluation(run.rows) or {}
    success = policy.get("success", math.nan) if run.scores else best.get("eval_success", math.nan)
    tiles = return_tiles(run.rows, run.scores, digits=run.digits)
    if math.isfinite(success):
        tiles.append(Tile("success", percent(success), MEASURES["success"].about))
    return [*tiles, *time_tiles(run.rows)]


def evaluated_workflows(rows: Sequence[Row], *, title: str) -> list[Section]:
    evaluated = [
        {"step": row["step"]} | {key: row[f"eval_{key}"] for key in MEASURES if f"eval_{key}" in row}
        for row in rows
        if "eval_return" in row
    ]
    charts = multiples(evaluated, MEASURES, unit="steps")
    note = "Means of each evaluation on held-out instructions, against steps."
    return [Section(title=title, name="workflows", note=note, body=charts)] if charts else []
