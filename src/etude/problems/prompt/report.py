"""What the prompt problem adds to the page of its run: which mutations the policy chooses, by kind and by defect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.contracts.formats import fixed, percent, whole
from etude.problems.prompt import OUTCOMES, SPEC
from etude.problems.prompt.behaviour import Share
from etude.problems.prompt.generated.gains import MENDS
from etude.problems.prompt.mutations import MUTATIONS
from etude.reports import blocks
from etude.reports.blocks import Section, Text, Tile
from etude.reports.charts import Line, line_chart
from etude.reports.page import Measure
from etude.reports.run import Contribution, RunContext

DEFECT_NAMES = {
    "failure": "says nothing of failures",
    "noise": "has too much around the task",
    "vague": "is vague",
    "open": "has no limits",
    "bundle": "has several tasks in one",
    "none": "no defect",
}
MENDED_BY = {defect: mutation for mutation, defect in MENDS.items()}
MEASURES = {
    "optimal": Measure("optimal", SPEC.metrics["optimal"].about, percent),
    "mutations": Measure("mutations", SPEC.metrics["mutations"].about, lambda value: fixed(value, 2)),
}


def report(run: RunContext) -> Contribution:
    """`run.notes["behaviour"]` has by group of prompts what the policy did."""
    behaviour: Mapping[str, Mapping[str, Sequence[Share]]] = run.notes.get("behaviour") or {}
    is_fit = run.config.get("method") == OUTCOMES
    return Contribution(
        facts=["generated prompts whose gains are known"] if run.scores else [],
        measures=MEASURES,
        sections=[section for name, found in behaviour.items() for section in _sections(name, found)],
        tiles=_fit_tiles(run) if is_fit else None,
        learning=[_fit(run)] if is_fit else None,
    )


def _sections(group: str, found: Mapping[str, Sequence[Share]]) -> list[Section]:
    note = f"Share of held-out prompts of {group} that got each mutation."
    return [
        Section(
            title=f"What the policy does about defects: {group}",
            note=f"{note} In bold the mutation that mends the defect; a prompt may have several.",
            body=[_table(found["defects"], lambda share: DEFECT_NAMES[share.name], MENDED_BY)],
        ),
        Section(
            title=f"What the policy does by kind: {group}",
            note=note,
            body=[_table(found["kinds"], lambda share: share.name, {})],
        ),
    ]


def _table(shares: Sequence[Share], name: Any, mended_by: Mapping[str, str]) -> blocks.View:
    def cell(share: Share, mutation: str) -> Text:
        text = percent(share.mutations[mutation])
        return [blocks.Strong(text)] if mended_by.get(share.name) == mutation else text

    rows: list[list[Text]] = [
        [name(share), whole(share.prompts), *(cell(share, mutation) for mutation in MUTATIONS)] for share in shares
    ]
    return blocks.table(["prompts", *MUTATIONS], rows)


def _fit_tiles(run: RunContext) -> list[Tile]:
    shares = [row["share_of_possible"] for row in run.rows if "share_of_possible" in row]
    best = percent(max(shares)) if shares else "–"
    return [Tile("of what single mutations may earn", best, "on prompts that are held out of learning")]


def _fit(run: RunContext) -> Section:
    x = [float(row["step"]) for row in run.rows if "share_of_possible" in row]
    y = [row["share_of_possible"] for row in run.rows if "share_of_possible" in row]
    note = "Share of what single mutations may earn, on prompts that are held out of learning, after each pass."
    if not x:
        return Section(title="Learning", note=note)
    lines = [Line(name="policy", x=x, y=y, colour="--policy", dots=True)]
    chart = line_chart(
        lines,
        label="share of what is possible, by pass",
        tips=[(a, [f"pass {whole(a)}\n", blocks.Strong(percent(b))]) for a, b in zip(x, y, strict=True)],
        y_range=(0, 1),
        x_format=whole,
        y_format=percent,
    )
    return Section(title="Learning", note=note, body=[chart])
