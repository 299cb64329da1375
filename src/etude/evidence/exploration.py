"""Exploration health: what was logged with each decision in, named warnings out.

Logs of a policy that does not explore can judge no other policy; these numbers show it while it can still be changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Gt, Le

from etude.contracts.errors import DataError

DAY = timedelta(days=1)


class Concern(StrEnum):
    """What is wrong with the exploration of a policy."""

    CERTAIN = "decisions without exploration"
    PROPENSITY = "small propensity"
    SAMPLE_SIZE = "effective sample size of the uniform policy"
    UNTRIED = "options not tried"


class TakenOption(NamedTuple):
    """A logged decision: which option was taken among which, and with what probability."""

    time: datetime
    option: str
    options: Sequence[str]
    propensity: float


@dataclass(frozen=True, kw_only=True)
class ExplorationThresholds:
    """When exploration is too little."""

    certain_entropy: Annotated[float, Gt(0)] = 0.01
    """A decision with less entropy, in nats, is certain."""
    max_certain_share: Annotated[float, Ge(0), Le(1)] = 0.5
    """Share of certain decisions, at most."""
    min_propensity: Annotated[float, Gt(0), Le(1)] = 0.001
    """Smallest propensity of an action taken, at least: its weight is at most the inverse."""
    min_ess: Annotated[float, Ge(0), Le(1000)] = 100.0
    """Effective sample size of the uniform policy per 1,000 decisions, at least."""
    max_untried_days: Annotated[float, Gt(0)] = 7.0
    """Days since an option was last tried, at most."""


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """What the check found; NaN-free: without decisions that have a choice, all numbers are 0."""

    count: int  # decisions with two options or more
    certain_share: float
    least_propensity: float
    uniform_ess: float  # per 1,000 decisions
    untried: tuple[str, ...]
    warnings: Mapping[Concern, str]  # a sentence each

    def __str__(self) -> str:
        return (
            f"{self.count:,} decisions, {self.certain_share:.0%} without exploration, smallest propensity "
            f"{self.least_propensity:.2g}, effective sample size of the uniform policy {self.uniform_ess:.0f} per 1,000"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "certain_share": self.certain_share,
            "least_propensity": self.least_propensity,
            "uniform_ess": self.uniform_ess,
            "untried": list(self.untried),
            "warnings": {str(name): sentence for name, sentence in self.warnings.items()},
        }


def check_exploration(decisions: Iterable[TakenOption], thresholds: ExplorationThresholds) -> Exploration:
    """Checks decisions in the order of time, in one pass; those with a single option are left out.

    An option is untried since it was last taken, or first offered. Options that were not offered on the last day are
    gone.
    """
    count = certain = 0
    total = squares = 0.0  # of the uniform policy's weights
    least = 1.0
    since, offered, last = dict[str, datetime](), dict[str, datetime](), None
    for time, option, options, p in decisions:
        if not 0 < p <= 1:
            raise DataError(f"the propensity of {option!r} is {p:g}: expected a probability in (0, 1]")
        if len(options) < 2:
            continue
        count, least, last, weight = count + 1, min(least, p), time, 1 / (len(options) * p)
        certain += largest_entropy(p, len(options)) < thresholds.certain_entropy
        total, squares = total + weight, squares + weight * weight
        offered.update(dict.fromkeys(options, time))
        for name in options:
            since.setdefault(name, time)
        if option in since:  # else it was taken without being offered
            since[option] = time
    if last is None:
        return Exploration(count=0, certain_share=0.0, least_propensity=0.0, uniform_ess=0.0, untried=(), warnings={})
    longest = thresholds.max_untried_days * DAY
    untried = sorted(name for name, time in since.items() if last - time > longest and last - offered[name] <= DAY)
    share, ess = certain / count, 1000 * total**2 / squares / count
    return Exploration(
        count=count,
        certain_share=share,
        least_propensity=least,
        uniform_ess=ess,
        untried=tuple(untried),
        warnings=_warnings(count, share, least, ess, untried, thresholds),
    )


def largest_entropy(propensity: float, options: int) -> float:
    """The largest entropy in nats that a decision can have had: only the option taken has a logged probability.

    It is that of a policy that gives all others the same: exact for two options, and nearly so for one that is almost
    certain.
    """
    rest = 1 - propensity
    return -propensity * math.log(propensity) - (rest * math.log(rest / (options - 1)) if rest > 0 else 0.0)


def _warnings(
    count: int, certain: float, least: float, ess: float, untried: Sequence[str], thresholds: ExplorationThresholds
) -> dict[Concern, str]:
    t, found = thresholds, dict[Concern, str]()
    if certain > t.max_certain_share:
        found[Concern.CERTAIN] = (
            f"{certain:.0%} of {count:,} decisions have an entropy below {t.certain_entropy:g}, more than "
            f"{t.max_certain_share:.0%}: raise the exploration"
        )
    if least < t.min_propensity:
        found[Concern.PROPENSITY] = (
            f"the smallest propensity logged is {least:.2g}, below {t.min_propensity:g}: one decision weighs as much "
            f"as {1 / least:,.0f}; raise the smallest probability of an option"
        )
    if ess < t.min_ess:
        found[Concern.SAMPLE_SIZE] = (
            f"1,000 decisions judge the uniform policy like {ess:.0f}, below {t.min_ess:g}: the logs say too little "
            "about other policies"
        )
    if untried:
        found[Concern.UNTRIED] = (
            f"{len(untried)} options were not tried for more than {t.max_untried_days:g} days: {', '.join(untried[:5])}"
            + (" …" if len(untried) > 5 else "")
        )
    return found
