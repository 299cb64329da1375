"""Choices for people: what ways to choose earn and cost, who gets what and why, and whether expectations hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from etude.contracts.formats import fixed, percent, plain, signed, usd, whole
from etude.problems.choice.explain import Past
from etude.problems.choice.rows import SCORE
from etude.problems.choice.state import read_model
from etude.problems.choice.typical import Typical
from etude.reports.blocks import Section, Strong, Tile, View, table, view
from etude.reports.charts import Level, Line, Point, line_chart
from etude.reports.page import Page
from etude.reports.run import Contribution, RunContext

DIGITS = 3
"""Of a score after the point."""
FINDINGS = "findings.json"
"""The file of a run's folder that its page is made from."""
POLICY, AT_SINGLE, SINGLE = "policy", "policy at best_single's score", "best_single"
COLOURS = {SINGLE: "--c1", "cheapest": "--c3", "random": "--random", "oracle": "--c2"}
SHORT = {AT_SINGLE: "same score"}
"""Names of points, where they would cover the line."""
MAX_OPTIONS = 8
"""Options with a column of their own."""
SIMILAR = 3
"""Past decisions that are shown for a context."""
NB = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, kw_only=True)
class Picked:
    """The result of one way to choose on recorded contexts, with 95 % intervals."""

    score: float
    score_ci95: tuple[float, float]
    to_best_single_ci95: tuple[float, float]  # of the difference, paired by context
    cost_usd: float  # per choice
    cost_share: float  # of what the best single option costs


@dataclass(frozen=True, kw_only=True)
class Part:
    """One option in a group of contexts."""

    share: float  # of the group's contexts that it is chosen for
    score: float  # expected
    cost_usd: float  # expected


@dataclass(frozen=True, kw_only=True)
class Group:
    """Contexts of one kind: what is expected of each option there, and the recorded means of choices."""

    name: str
    rows: int
    options: Mapping[str, Part]
    score: float  # of the policy's choices
    single_score: float  # of the best single option
    cost_usd: float
    single_cost_usd: float


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Outcomes of which about the same score was expected."""

    expected: float
    recorded: float
    ci95: tuple[float, float]
    outcomes: int


@dataclass(frozen=True, kw_only=True)
class Findings:
    """A policy's choices for contexts whose outcomes are recorded, none of which its expectations were fitted to."""

    rows: int
    best_single: str
    quality_weight: float  # at which choices reach the score of the best single option
    choices: Mapping[str, Picked]  # by the way to choose
    curve: Sequence[tuple[float, float]]  # (cost, score) of the policy, from score alone to cost alone
    aiq: float
    has_costs: bool
    groups: Sequence[Group]
    calibration: Sequence[Bin]
    typical: Sequence[Typical] = ()


# Pages


def report(run: RunContext) -> Contribution:
    """The part of a run's page that shows choices, by folds that did not see the row."""
    file = run.folder.path / FINDINGS
    facts, title = [str(run.config.get("encoder")) + " encoder"], str(run.config.get("title", "choice"))
    if not file.exists():
        lead = (
            "This run continues another one, so it has no rows that are held out. To see its choices on other rows: "
            f"etude evaluate {run.folder.path} --replay FILE --plot page.html"
        )
        options = Section(title="Options", body=[_options(run)])
        return Contribution(title=title, facts=facts, lead=lead, tiles=[], learning=[], sections=[options])
    found = msgspec.convert(json.loads(file.read_bytes()), Findings)
    return Contribution(
        title=title,
        facts=[f"{whole(found.rows)} contexts, each judged by folds that did not see it", *facts],
        lead=verdict(found),
        tiles=tiles(found),
        learning=[],
        sections=[*sections(found), Section(title="Options", body=[_options(run)])],
    )


def write_curve(path: Path, found: Findings, *, run: str) -> Path:
    """The page of an evaluation on recorded outcomes."""
    page = Page(
        title=f"Choices of {run}",
        facts=[f"{whole(found.rows)} contexts with recorded outcomes", f"best_single is {found.best_single}"],
        tiles=tiles(found),
        lead=verdict(found),
        sections=sections(found),
    )
    return page.write(path)


def verdict(found: Findings) -> str:
    """The main result in words that follow from the numbers alone."""
    policy, single, cheap = (found.choices[name] for name in (POLICY, SINGLE, AT_SINGLE))
    low, high = policy.to_best_single_ci95
    sure = "" if low > 0 or high < 0 else ", which may be chance"
    text = (
        f"Its choices score {score(policy.score)}, the best single option, {found.best_single}, {score(single.score)}: "
        f"a difference of {signed(policy.score - single.score, DIGITS)} (95{NB}% interval {signed(low, DIGITS)} to "
        f"{signed(high, DIGITS)}){sure}"
    )
    if not found.has_costs:
        return f"{text}."
    return (
        f"{text}, for {percent(policy.cost_share)} of its cost. Set to that option’s score, they score "
        f"{score(cheap.score)} for {percent(cheap.cost_share)} of its cost."
    )


def tiles(found: Findings) -> list[Tile]:
    policy, single, cheap = (found.choices[name] for name in (POLICY, SINGLE, AT_SINGLE))
    low, high = policy.to_best_single_ci95
    per_choice = f"{usd(policy.cost_usd)} per choice" if found.has_costs else f"{whole(found.rows)} contexts"
    made = [
        Tile("score of its choices", score(policy.score), per_choice, kind="first"),
        Tile(
            f"compared with {found.best_single} alone ({score(single.score)})",
            signed(policy.score - single.score, DIGITS),
            f"{signed(low, DIGITS)} to {signed(high, DIGITS)} (95{NB}%)",
        ),
    ]
    if found.has_costs:
        note = f"of {found.best_single}’s cost, at a score of {score(cheap.score)}"
        made.append(Tile("the same score for", percent(cheap.cost_share), note))
        note = f"AIQ: mean best score within budgets from the cheapest option’s cost to {found.best_single}’s"
        made.append(Tile("score over all budgets", score(found.aiq), note))
    return made


def sections(found: Findings) -> list[Section]:
    made = [
        Section(
            title="All ways to choose",
            note="Means over the same contexts. best_single takes the option with the highest mean score, always; an "
            "oracle knows the outcomes, which no policy can.",
            body=[view(f"{__package__}:choices.html.jinja", choices=found.choices, colours=COLOURS, digits=DIGITS)],
        ),
        _who_gets_what(found),
        *([_what_speaks(found.typical)] if found.typical else []),
        _calibration(found.calibration),
    ]
    return [*([_curve(found)] if found.has_costs else []), *made]


def score(value: float) -> str:
    return fixed(value, DIGITS)


# Sections


def _curve(found: Findings) -> Section:
    points = sorted(set(map(tuple, found.curve)))  # many weights choose the same
    chart = line_chart(
        [Line(name="", x=[x for x, _ in points], y=[y for _, y in points], colour="--policy")],
        label="Mean score against cost per choice",
        levels=[Level(name="", y=found.choices[SINGLE].score, colour=COLOURS[SINGLE])],
        points=[
            Point(name=SHORT.get(name, name), x=choice.cost_usd, y=choice.score, colour=COLOURS.get(name, "--policy"))
            for name, choice in found.choices.items()
        ],
        tips=[(x, [Strong(score(y)), f" for {usd(x)} per choice"]) for x, y in points],
        x_from=0,
        x_format=usd,
        y_format=plain,
        x_name="cost per choice",
    )
    note = (
        "The line is the policy at every weight of score against cost: further left is cheaper, further up is better. "
        "Points are other ways to choose; an oracle knows the outcomes."
    )
    return Section(title="Cost and quality", name="curve", note=note, body=[chart])


def _who_gets_what(found: Findings) -> Section:
    share = {
        name: sum(group.rows * group.options[name].share for group in found.groups) / found.rows
        for name in found.groups[0].options
    }
    names = sorted(share, key=lambda name: -share[name])[:MAX_OPTIONS]
    note = (
        "For each kind of context: how often each option is chosen and, below, what is expected of it there. On the "
        "right, the recorded scores of these choices and of the best single option."
    )
    if found.has_costs:
        note += " Costs are in USD per 1,000 choices."
    if len(share) > len(names):
        note += f" The {len(names)} options that are chosen most are shown, of {len(share)}."
    body = view(f"{__package__}:groups.html.jinja", found=found, names=names, share=share, digits=DIGITS)
    return Section(title="Who gets what, and why", name="groups", note=note, body=[body])


def _what_speaks(typical: Sequence[Typical]) -> Section:
    note = (
        "Contexts for which the policy chooses an option, in the middle of the kinds that it is chosen for most, and "
        "what speaks for it and not for the next best: the number is by how much the difference of the two utilities "
        "falls without a word, or with an average in place of a category or number. Past decisions are the most "
        "similar ones that it learned from, with the scores of the two options."
    )
    body = view(f"{__package__}:typical.html.jinja", typical=typical, visible=_visible, similar=_similar, digits=DIGITS)
    return Section(title="What speaks for an option?", name="typical", note=note, body=[body])


def _visible(effects: Mapping[str, float]) -> dict[str, float]:
    """Without those that are shown as 0."""
    return {name: effect for name, effect in effects.items() if round(effect, DIGITS)}


def _similar(one: Typical) -> list[str]:
    """The most similar past decisions besides the row itself."""
    others = [past for past in one.why.similar if past.source != one.source][:SIMILAR]
    return [f"{past.source}: {_scores(past)}" for past in others]


def _scores(past: Past) -> str:
    return ", ".join(f"{name} {score(known[SCORE])}" for name, known in past.outcomes.items() if SCORE in known)


def _calibration(bins: Sequence[Bin]) -> Section:
    x = [one.expected for one in bins]
    ends = [min(x), max(x)]
    chart = line_chart(
        [
            Line(name="as expected", x=ends, y=ends, colour="--random", faint=True),
            Line(
                name="recorded",
                x=x,
                y=[one.recorded for one in bins],
                colour="--policy",
                band=([one.ci95[0] for one in bins], [one.ci95[1] for one in bins]),
                dots=True,
            ),
        ],
        label="Recorded score against expected score",
        tips=[(one.expected, [Strong(score(one.recorded)), _about(one)]) for one in bins],
        x_format=plain,
        y_format=plain,
        x_name="expected score",
    )
    miss = sum(one.outcomes * abs(one.recorded - one.expected) for one in bins) / sum(one.outcomes for one in bins)
    note = (
        f"Outcomes in {len(bins)} parts by the score that was expected of them, and the mean score that was recorded, "
        f"with its 95{NB}% interval. On average the two differ by {score(miss)}."
    )
    return Section(title="Do expectations hold?", name="calibration", note=note, body=[chart])


def _about(one: Bin) -> str:
    return f" recorded\n{score(one.expected)} expected\n{whole(one.outcomes)} outcomes"


def _options(run: RunContext) -> View:
    """A table of the options that the policy has learned about."""
    model = read_model(run.folder.policy())
    part = model.outcomes.parts[0]
    rows = [
        [option.name, whole(part.count[i]), score(part.mean[i]), option.description or "–"]
        for i, option in enumerate(model.table.options)
    ]
    return table(["outcomes", "mean score", "description"], rows, name="options")
