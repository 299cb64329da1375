"""Who answers which query, for people: choices and what they cost in, a page with the cost–quality curve out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from etude.learning.charts import Level, Line, Point, bar, line_chart
from etude.learning.formats import fixed, percent, plain, signed, usd, whole
from etude.learning.report.page import header, section, tile, write_page
from etude.problems.workflow.replay import Curve

DIGITS = 4
"""Of a score after the point."""
SINGLE = "best_single"
COLOURS = {SINGLE: "--c1", "cheapest": "--c3", "random": "--random", "oracle": "--c2"}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What choosing in one way gives on recorded queries; intervals are of 95 %."""

    score: float
    score_ci95: tuple[float, float]
    to_best_single_ci95: tuple[float, float]  # of the difference, query by query
    cost_usd: float  # a query
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
    title = f"AIQ {fixed(aiq, DIGITS)} · cost and quality of {run}"
    first, policy = next(iter(choices.items()))
    single = choices[SINGLE]
    low, high = policy.to_best_single_ci95
    tiles = [
        tile(f"score of {first}", fixed(policy.score, DIGITS), f"at {usd(policy.cost_usd)} a query", kind="first"),
        tile(
            f"against best_single ({fixed(single.score, DIGITS)})",
            signed(policy.score - single.score, DIGITS),
            f"{signed(low, DIGITS)} to {signed(high, DIGITS)} (95\N{NO-BREAK SPACE}%)",
        ),
        tile("AIQ", fixed(aiq, DIGITS), "mean best score from the cheapest worker’s cost to the best single one’s"),
    ]
    facts = [f"{whole(queries)} queries", f"best_single is {best_single}"]
    note = (
        "Each point of the line chooses by score − weight · cost, from all for the cost to all for the score. Points "
        "are other ways to choose; an oracle knows the outcomes."
    )
    body = header(title, facts=facts, tiles=tiles)
    body += section("Cost and quality", note, f'<div id="curve">{_chart(choices, curve)}</div>')
    return write_page(path, title, body + _table(choices))


def _chart(choices: Mapping[str, Choice], curve: Curve) -> str:
    order = curve.cost_usd.argsort(stable=True)
    cost, score = curve.cost_usd[order].tolist(), curve.score[order].tolist()
    points = [
        Point(name=name, x=choice.cost_usd, y=choice.score, colour=COLOURS.get(name, "--policy"))
        for name, choice in choices.items()
    ]
    level = Level(name="", y=choices[SINGLE].score, colour=COLOURS[SINGLE])
    tips = [
        (x, f"<b>{fixed(y, DIGITS)}</b> for {usd(x)} a query")
        for x, y in dict(zip(cost, score, strict=True)).items()  # many weights choose the same
    ]
    return line_chart(
        [Line(name="", x=cost, y=score, colour="--policy")],
        label="Mean score against cost a query",
        levels=[level],
        points=points,
        tips=tips,
        x_from=0,
        x_format=usd,
        y_format=plain,
        x_name="cost a query",
    )


def _table(choices: Mapping[str, Choice]) -> str:
    heads = ("score", "95 % interval", "to best_single, paired", "cost a query", "of best_single’s cost")
    most = max(abs(choice.score) for choice in choices.values()) or 1.0
    body = "".join(
        f'<tr style="--c:var({COLOURS.get(name, "--policy")})"><th scope="row"><i class="dot"></i>{escape(name)}</th>'
        f'<td class="wide">{bar(choice.score / most, fixed(choice.score, DIGITS))}</td>'
        f"<td>{' to '.join(fixed(x, DIGITS) for x in choice.score_ci95)}</td>"
        f"<td>{'' if name == SINGLE else ' to '.join(signed(x, DIGITS) for x in choice.to_best_single_ci95)}</td>"
        f"<td>{usd(choice.cost_usd)}</td><td>{percent(choice.cost_share)}</td></tr>"
        for name, choice in sorted(choices.items(), key=lambda item: -item[1].score)
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    table = f'<table id="choices"><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>'
    note = "Means over the same queries; costs are in USD."
    return section("All ways to choose", note, f'<div class="scroll">{table}</div>')
