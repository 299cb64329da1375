"""The page of a release: its settings, its steps and its evidence in, sections with curves and tables out.

The evidence is recomputed from the release's own ledger, so the page shows what the controller decided by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etude.contracts.formats import compact, fixed, percent, plural, signed, whole
from etude.contracts.release import Action, Entry, Mode, ReleaseSpec
from etude.evidence.eprocess import EvidenceConfig
from etude.evidence.fairness import Fairness
from etude.evidence.intervals import Estimate
from etude.evidence.looks import Look
from etude.reports.blocks import Block, Section, Strong, Text, Tile, code, table, view
from etude.reports.charts import Chart, Level, Line, line_chart
from etude.reports.page import Page

LOWEST, HIGHEST = -2.0, 8.0
"""Powers of ten between which e-values are drawn: below the one there is no evidence, above the other it is plenty."""
HARM, CHANGE, ERRORS = "--bad", "--c1", "--c2"
SAFE = ("--c3", "--policy", "--c5", "--c4")
POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
DONE = {
    Action.STARTED: "started",
    Action.ADVANCED: "next stage",
    Action.PAUSED: "paused",
    Action.RESUMED: "resumed",
    Action.HELD: "held",
    Action.STOPPED: "ended",
    Action.PROMOTED: "promoted",
    Action.ROLLED_BACK: "rolled back",
    Action.APPROVED: "approved",
}
ENDS = (Action.ROLLED_BACK, Action.PROMOTED, Action.HELD, Action.STOPPED)


@dataclass(frozen=True, kw_only=True)
class ReleaseFacts:
    """Everything that the page of one release shows."""

    spec: ReleaseSpec
    config: EvidenceConfig
    steps: Sequence[Entry]
    """The release's entries of the slot's ledger, oldest first."""
    looks: Sequence[Look]
    gates: Mapping[str, Mapping[str, Any]]
    """Reports of gates on the candidate as JSON, by what they were judged on."""
    fairness: Mapping[str, Fairness]
    """Differences between groups on the candidate and on the incumbent; empty without groups."""

    @property
    def decision(self) -> Entry:
        """The step that decided the release, or the last one so far."""
        decisive = (step for step in self.steps if step.action in ENDS)
        return next(decisive, self.steps[-1])

    @property
    def state(self) -> str:
        exposure = self.steps[-1].serving.exposure
        if self.decision.action in ENDS:
            return DONE[self.decision.action]
        return f"{exposure.mode}, {exposure.status}" if exposure is not None else "ended"

    def at_decision(self) -> Look | None:
        """The evidence when it was decided; None before the first unit."""
        units = self.decision.evidence.get("units") or math.inf
        return next((look for look in self.looks if look.units >= units), self.looks[-1] if self.looks else None)


def release_page(facts: ReleaseFacts) -> Page:
    spec = facts.spec
    return Page(
        title=f"Release of {spec.candidate}",
        state=facts.state,
        facts=[spec.slot, f"compared with {spec.incumbent}", str(spec.mode), spec.id],
        tiles=release_tiles(facts),
        lead=decision_text(facts),
        sections=release_sections(facts),
        footer=code(f"Recompute a decision: `etude audit replay '{spec.slot}#{facts.decision.number}'`"),
    )


def release_tiles(facts: ReleaseFacts) -> list[Tile]:
    look = facts.at_decision()
    if look is None:
        return [Tile("units", "0", "no unit has closed yet")]
    effect, share = look.effect, look.candidates / look.units
    return [
        Tile("units until the decision", whole(look.units), "closed, in the order of assignment", "first"),
        Tile("on the candidate", whole(look.candidates), f"{percent(share)} of them"),
        Tile(
            "reward", f"{fixed(look.mean_candidate, 2)}", f"of the candidate; {fixed(look.mean_control, 2)} without it"
        ),
        Tile(
            "difference", signed(effect.mean, 3), f"{signed(effect.low, 2)} to {signed(effect.high, 2)}, at every look"
        ),
    ]


def decision_text(facts: ReleaseFacts) -> str:
    """What was decided, by whom and why."""
    step = facts.decision
    if step.action not in ENDS:
        return f"Undecided so far, since {step.time:%d %B %Y, %H:%M}."
    who = f"by {step.actor}, {step.time:%d %B %Y, %H:%M}"
    return f"{facts.spec.candidate} was {DONE[step.action]} {who}: {step.reason}."


def release_sections(facts: ReleaseFacts, *, name: str = "") -> list[Block]:
    """`name` begins the ids and titles of its sections, where a page shows several releases."""
    prefix, said = (f"{name.replace(' ', '-')}-", f"{name}: ") if name else ("", "")

    def section(id: str, title: str, note: str, *body: Block) -> Section:
        title = f"{said}{title[0].lower()}{title[1:]}" if said else title
        return Section(title=title[0].upper() + title[1:], name=f"{prefix}{id}", note=note, body=body)

    found: list[Block] = [section("steps", "What was exposed when", "", _steps(facts))]
    if facts.looks:
        found += [
            section("harm", "Evidence of harm", _about_harm(facts.config), _harm(facts)),
            section("safety", "Evidence of safety", _about_safety(facts.config), _safety(facts)),
            section(
                "effect", "Share and difference", _ABOUT_EFFECT, view("pair", blocks=[_share(facts), _effect(facts)])
            ),
        ]
    if facts.fairness:
        found.append(section("groups", "Groups of users", _ABOUT_GROUPS, _groups(facts.fairness)))
    for judged_on, report in facts.gates.items():
        title = f"gates, {judged_on}" if judged_on else "gates"
        found.append(section(f"gates-{len(found)}", f"{title}: {report['verdict']}", "", gates_table(report)))
    return found


def _steps(facts: ReleaseFacts) -> Block:
    rows: list[list[Text]] = []
    for step in facts.steps:
        exposure = step.serving.exposure
        serves = step.serving.incumbent == facts.spec.candidate
        share = ("100\N{NO-BREAK SPACE}%" if serves else "none") if exposure is None else percent(exposure.share)
        if exposure is not None and exposure.mode is Mode.SHADOW:
            share = "shadow"
        rows.append(
            [
                f"{step.time:%a %d %b, %H:%M}",
                Strong(DONE.get(step.action, str(step.action))),
                step.actor,
                f"{share}, the rest is its holdback" if exposure and exposure.mode is Mode.HOLDBACK else share,
                whole(step.evidence.get("units", 0)),
                step.reason,
            ]
        )
    return table(("step", "by", "candidate’s share after it", "units", "why"), rows)


def _about_harm(config: EvidenceConfig) -> str:
    return (
        f"A bet against “the candidate is no worse”. At {_odds(1 / config.alpha_rollback)} it is rolled back: without "
        f"harm that happens in at most {percent(config.alpha_rollback)} of releases, however often one looks. A second "
        f"detector finds harm after a good start, at {_odds(config.horizon / config.alpha_hard)}. Errors count early, "
        "where they have a window of their own."
    )


def _about_safety(config: EvidenceConfig) -> str:
    margins = ", ".join(f"{margin:g}" for margin in config.margins)
    return (
        f"Bets against “the candidate loses {margins} of reward” and, in the last stage, against “it has "
        f"{config.fine_ratio:g} times the errors, and {percent(config.error_margin)} more”. A stage is passed at "
        f"{_odds(1 / config.alpha_promote)}: a candidate that is worse by the margin passes in at most "
        f"{100 * config.alpha_promote:.1f} % of releases."
    )


_ABOUT_EFFECT = (
    "The difference of rewards between both policies has a 95 % confidence sequence: it holds at all looks at once. It "
    "is for people; the e-values decide."
)


_ABOUT_GROUPS = (
    "The reward of each group compared with that of the rest, with 95 % confidence sequences, on the candidate and on "
    "the incumbent. The verdict is on the candidate; it cannot tell below 200 units of the group or of the rest. It is "
    "for people: only harm to a group that the release watches rolls it back."
)


def _harm(facts: ReleaseFacts) -> Chart:
    config = facts.config
    thresholds = {"rollback": 1 / config.alpha_rollback, "detector": config.horizon / config.alpha_hard}
    named = {"rollback": ("harm", HARM), "detector": ("change", CHANGE)}
    if facts.spec.early_window_s is not None and config.error_weight:
        named["early_errors"] = ("early errors", ERRORS)
        thresholds["early_errors"] = 1 / (config.error_weight * config.alpha_rollback)
    return _e_values(facts, named, thresholds, "evidence of harm against units")


def _safety(facts: ReleaseFacts) -> Chart:
    names = [f"safe_{j}" for j in range(len(facts.config.margins))]
    named = {
        name: (f"loss < {margin:g}", SAFE[j % len(SAFE)])
        for j, (name, margin) in enumerate(zip(names, facts.config.margins, strict=True))
    }
    named["fine"] = (f"errors < {facts.config.fine_ratio:g}×", ERRORS)
    return _e_values(facts, named, {"needed": 1 / facts.config.alpha_promote}, "evidence of safety against units")


def _e_values(
    facts: ReleaseFacts, named: Mapping[str, tuple[str, str]], thresholds: Mapping[str, float], label: str
) -> Chart:
    """Powers of ten of e-values; `thresholds` are those of the named ones, or one for all."""
    units = [look.units for look in facts.looks]
    lines = [
        Line(name=shown, x=units, y=[_power(look.e_values[name]) for look in facts.looks], colour=colour)
        for name, (shown, colour) in named.items()
    ]
    levels = [
        Level(name=f"needed: {compact(odds)}", y=math.log10(odds), colour=named.get(name, ("", "--soft"))[1])
        for name, odds in thresholds.items()
    ]
    return line_chart(
        lines,
        label=label,
        levels=levels,
        events=_events(facts),
        tips=[(look.units, _tip(look, named)) for look in facts.looks],
        x_from=0,
        x_unit=1,
        y_range=(LOWEST, HIGHEST),
        y_unit=1,
        x_format=compact,
        y_format=power_of_ten,
        x_name="units",
    )


def _power(log: float) -> float:
    return min(max(log / math.log(10), LOWEST), HIGHEST)


def _tip(look: Look, named: Mapping[str, tuple[str, str]]) -> Text:
    lines = [f"\n{shown}: {_odds(math.exp(min(look.e_values[name], 700)))}" for name, (shown, _) in named.items()]
    return [Strong(plural(look.units, "unit")), *lines]


def power_of_ten(power: float) -> str:
    """A tick of a logarithmic axis."""
    return whole(10**power) if 0 <= power <= 3 else f"10{str(round(power)).translate(POWERS)}"


def _odds(x: float) -> str:
    if x < 10:
        return fixed(x, 2)
    return compact(x) if x < 1e9 else power_of_ten(math.log10(x))


def _events(facts: ReleaseFacts) -> list[tuple[float, str]]:
    """Where the share changed, or the release was decided."""
    found = []
    for step in facts.steps:
        exposure = step.serving.exposure
        if step.action is Action.ADVANCED and exposure is not None:
            found.append((float(step.evidence.get("units", 0)), percent(exposure.share)))
        elif step.action in ENDS:
            found.append((float(step.evidence.get("units", 0)), DONE[step.action]))
    return found


def _share(facts: ReleaseFacts) -> Block:
    """The share is constant between two looks, or nearly."""
    units = [0, *(look.units for look in facts.looks)]
    share = [facts.looks[0].share, *(look.share for look in facts.looks)]
    return _small(
        [Line(name="", x=units, y=share, colour="--policy")],
        "the candidate’s share against units",
        tips=[(u, [Strong(percent(s)), f"\n{plural(u, 'unit')}"]) for u, s in zip(units, share, strict=True)],
        y_range=(0.0, 1.0),
        y_format=percent,
    )


def _effect(facts: ReleaseFacts) -> Block:
    looks, most = facts.looks, 0.5
    ends = [(max(look.effect.low, -most), min(look.effect.high, most)) for look in looks]
    line = Line(
        name="",
        x=[look.units for look in looks],
        y=[min(max(look.effect.mean, -most), most) for look in looks],
        colour="--policy",
        band=([low for low, _ in ends], [high for _, high in ends]),
    )

    def tip(look: Look) -> Text:
        effect = look.effect
        ends = f"{signed(effect.low, 3)} to {signed(effect.high, 3)}"
        return [Strong(signed(effect.mean, 3)), f"\n{ends}\n{plural(look.units, 'unit')}"]

    return _small(
        [line],
        "difference of rewards against units",
        tips=[(look.units, tip(look)) for look in looks],
        levels=[Level(name="", y=0.0, colour="--soft")],
        y_range=(-most, most),
        y_format=lambda y: signed(y, 1) if y else "0",
    )


def _small(
    lines: Sequence[Line],
    label: str,
    *,
    tips: Sequence[tuple[float, Text]],
    y_range: tuple[float, float],
    y_format: Callable[[float], str],
    levels: Sequence[Level] = (),
) -> Block:
    chart = line_chart(
        lines,
        label=label,
        levels=levels,
        tips=tips,
        x_from=0,
        x_unit=1,
        y_range=y_range,
        x_format=compact,
        y_format=y_format,
        x_name="units",
        size="half",
    )
    return view("titled", title=f"{label[0].upper()}{label[1:]}", block=chart)


def _groups(fairness: Mapping[str, Fairness]) -> Block:
    before = {one.group: _ends(one.difference) for one in fairness["incumbent"].groups}
    rows = [
        [
            one.group,
            whole(one.count),
            _ends(one.difference),
            before.get(one.group, "–"),
            Strong(one.verdict),
            one.reason,
        ]
        for one in fairness["candidate"].groups
    ]
    return table(("units", "difference on the candidate", "on the incumbent", "verdict", "why"), rows)


def _ends(difference: Estimate) -> str:
    low, high = (signed(end, 2) for end in difference.interval)
    return f"{signed(difference.mean, 3)} ({low} to {high})" if math.isfinite(difference.mean) else "–"


def gates_table(report: Mapping[str, Any]) -> Block:
    rows = [[one["name"], Strong(one["verdict"]), one["reason"]] for one in report["results"]]
    return table(("verdict", "why"), rows)
