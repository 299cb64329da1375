"""Which worker answers which query, for people: choices and their costs in, a page with the cost–quality curve out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from etude.contracts.formats import fixed, plain, signed, usd, whole
from etude.problems.routing.replay import Curve
from etude.reports.blocks import Section, Strong, Tile, view
from etude.reports.charts import Chart, Level, Line, Point, line_chart
from etude.reports.page import Page

DIGITS = 4
"""Of a score after the point."""
TABLE = "etude.problems.routing:choices.html.jinja"
SINGLE = "best_single"
COLOURS = {SINGLE: "--c1", "cheapest": "--c3", "random": "--random", "oracle": "--c2"}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The result of one way to choose on recorded queries, with 95 % intervals."""

    score: float
    score_ci95: tuple[float, float]
    to_best_single_ci95: tuple[float, float]  # of the difference, paired by query
    cost_usd: float  # per query
    cost_share: float  # of what the best single worker costs


def write_curve(
    path: Path,
    *,
    run: str,
    queries: int,
    choices: Mapping[str, Choice],
    curve: Curve,
    aiq: float,
    best_single: str,
) -> Path:
    """The first of the `choices` is the policy for the best score; `best_single` is that worker's name."""
    first, policy = next(iter(choices.items()))
    single = choices[SINGLE]
    low, high = policy.to_best_single_ci95
    page = Page(
        title=f"AIQ {fixed(aiq, DIGITS)} · cost and quality of {run}",
        facts=[f"{whole(queries)} queries", f"best_single is {best_single}"],
        tiles=[
            Tile(
                f"score of {first}", fixed(policy.score, DIGITS), f"at {usd(policy.cost_usd)} per query", kind="first"
            ),
            Tile(
                f"compared with best_single ({fixed(single.score, DIGITS)})",
                signed(policy.score - single.score, DIGITS),
                f"{signed(low, DIGITS)} to {signed(high, DIGITS)} (95\N{NO-BREAK SPACE}%)",
            ),
            Tile("AIQ", fixed(aiq, DIGITS), "mean best score from the cheapest worker’s cost to the best single one’s"),
        ],
        sections=[
            Section(
                title="Cost and quality",
                name="curve",
                note="Each point of the line chooses by score − weight · cost, from cost alone to score alone. Points "
                "are other ways to choose; an oracle knows the outcomes.",
                body=[_chart(choices, curve)],
            ),
            Section(
                title="All ways to choose",
                note="Means over the same queries; costs are in USD.",
                body=[view(TABLE, choices=choices, colours=COLOURS, digits=DIGITS)],
            ),
        ],
    )
    return page.write(path)


def _chart(choices: Mapping[str, Choice], curve: Curve) -> Chart:
    order = curve.cost_usd.argsort(stable=True)
    cost, score = curve.cost_usd[order].tolist(), curve.score[order].tolist()
    return line_chart(
        [Line(name="", x=cost, y=score, colour="--policy")],
        label="Mean score against cost per query",
        levels=[Level(name="", y=choices[SINGLE].score, colour=COLOURS[SINGLE])],
        points=[
            Point(name=name, x=choice.cost_usd, y=choice.score, colour=COLOURS.get(name, "--policy"))
            for name, choice in choices.items()
        ],
        tips=[
            (x, [Strong(fixed(y, DIGITS)), f" for {usd(x)} per query"])
            for x, y in dict(zip(cost, score, strict=True)).items()  # many weights choose the same
        ],
        x_from=0,
        x_format=usd,
        y_format=plain,
        x_name="cost per query",
    )
