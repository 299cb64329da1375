"""How a candidate should be released, and how long that takes: traffic and risk in, a strategy and a forecast out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from etude.contracts.errors import ReleaseError

Strategy = Literal["direct", "canary", "experiment", "shadow"]
Risk = Literal["low", "high"]

HARM_UNITS = ((0.30, 320), (0.10, 2_200), (0.03, 11_900))
"""Units until a candidate that is worse by so much is rolled back, in the median (benchmarks/canary_statistics.py)."""
EQUAL_UNITS = 12_900
"""Units until a candidate that is as good as the incumbent is promoted, in the median."""


@dataclass(frozen=True, kw_only=True)
class StrategyRule:
    """The first rule that fits is taken."""

    strategy: Strategy
    """direct: promoted at once, with an approval; canary: a growing share, promoted on proof; experiment: a fixed
    share, for a person to judge; shadow: it answers and no one sees it."""
    incumbent: bool | None = None
    """Whether a policy serves already; null for both."""
    min_units_per_day: Annotated[float, Ge(0)] = 0.0
    """Traffic of the slot."""
    risk: Risk | None = None
    """Risk of the slot, as configured; null for both."""


DEFAULT_RULES = (
    StrategyRule(strategy="direct", incumbent=False),
    StrategyRule(strategy="canary", min_units_per_day=300.0),
    StrategyRule(strategy="experiment", min_units_per_day=50.0, risk="low"),
    StrategyRule(strategy="shadow"),
)


def choose_strategy(
    rules: Sequence[StrategyRule], *, incumbent: bool, units_per_day: float, risk: Risk
) -> tuple[Strategy, str]:
    """The strategy of the first rule that fits, and why."""
    for rule in rules:
        if rule.incumbent is not None and rule.incumbent != incumbent:
            continue
        if units_per_day < rule.min_units_per_day or (rule.risk is not None and rule.risk != risk):
            continue
        served = "a policy serves already" if incumbent else "no policy serves yet"
        return rule.strategy, f"{served}, {units_per_day:,.0f} units per day, {risk} risk"
    raise ReleaseError(
        f"release.canary.strategies: no rule fits {units_per_day:,.0f} units per day at {risk} risk: add one without "
        "conditions"
    )


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a canary takes at the traffic of now."""

    units_per_day: float
    days_if_equal: float | None
    """Days until an equal candidate is promoted, in the median; null without traffic."""
    units: float | None = None
    """Units within the wanted duration."""
    sentence: str = ""


def forecast(units_per_day: float, within_minutes: float | None = None, *, is_deadline: bool = False) -> Forecast:
    """`within_minutes` is the wanted duration; if it is a deadline, an undecided canary is held then."""
    if units_per_day <= 0:
        return Forecast(
            units_per_day=0.0,
            days_if_equal=None,
            sentence="no unit was logged in the last day: a canary proves nothing without traffic, and waits for it",
        )
    days = EQUAL_UNITS / units_per_day
    whole = f"a candidate as good as the incumbent takes about {EQUAL_UNITS:,} units, {duration(days)} at this traffic"
    if not within_minutes or days * 24 * 60 <= within_minutes:
        return Forecast(units_per_day=units_per_day, days_if_equal=days, sentence=whole)
    units = units_per_day * within_minutes / (24 * 60)
    shown = [harm for harm, needed in HARM_UNITS if needed <= units]
    proves = (
        f"the {units:,.0f} units of {duration(within_minutes / 24 / 60)} show a candidate that is worse by "
        f"{min(shown):.2f} or more"
        if shown
        else f"{duration(within_minutes / 24 / 60)} bring {units:,.0f} units, too few to show any harm"
    )
    after = "Undecided at the deadline, it is held and not promoted" if is_deadline else "It continues until proof"
    return Forecast(
        units_per_day=units_per_day,
        days_if_equal=days,
        units=units,
        sentence=f"{proves}; {whole}. {after}",
    )


def duration(days: float) -> str:
    if days >= 2:
        return f"{days:,.0f} days"
    return f"{days * 24:,.1f} hours" if days * 24 >= 1 else f"{days * 24 * 60:,.0f} minutes"
