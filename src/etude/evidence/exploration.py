"""Exploration health: what was logged with each decision in, named warnings out.

Logs of a policy that does not explore can judge no other policy; these numbers show it while it can still be changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import ArrayLike

from etude.contracts.errors import DataError
from etude.evidence.overlap import effective_sample_size


class Concern(StrEnum):
    """What is wrong with the exploration of a policy."""

    CERTAIN = "decisions without exploration"
    PROPENSITY = "small propensity"
    SAMPLE_SIZE = "effective sample size of the uniform policy"
    UNTRIED = "options not tried"


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

    def to_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "certain_share": self.certain_share,
            "least_propensity": self.least_propensity,
            "uniform_ess": self.uniform_ess,
            "untried": list(self.untried),
            "warnings": {str(name): sentence for name, sentence in self.warnings.items()},
        }


def check_exploration(
    propensity: ArrayLike,
    entropy: ArrayLike,
    options: ArrayLike,
    untried_days: Mapping[str, float],
    thresholds: ExplorationThresholds,
) -> Exploration:
    """Checks decisions, (decisions,) each: propensity of the action taken, entropy in nats, number of eligible options.

    Decisions with a single option are left out. `untried_days` has the days since each option was last tried.
    """
    p, h, k = (np.asarray(x, float) for x in (propensity, entropy, options))
    if len(p) and not (p.min() > 0 and p.max() <= 1):
        raise DataError(f"propensities are {p.min():g} … {p.max():g}: expected all in (0, 1]")
    t, choice = thresholds, k >= 2
    p, h, k = p[choice], h[choice], k[choice]
    count = len(p)
    certain = float((h < t.certain_entropy).mean()) if count else 0.0
    least = float(p.min()) if count else 0.0
    ess = 1000 * effective_sample_size(1 / (k * p)) / count if count else 0.0
    untried = tuple(sorted(name for name, days in untried_days.items() if days > t.max_untried_days))
    found: dict[Concern, str] = {}
    if certain > t.max_certain_share:
        found[Concern.CERTAIN] = (
            f"{certain:.0%} of {count:,} decisions have an entropy below {t.certain_entropy:g}, more than "
            f"{t.max_certain_share:.0%}: raise the exploration"
        )
    if count and least < t.min_propensity:
        found[Concern.PROPENSITY] = (
            f"the smallest propensity logged is {least:.2g}, below {t.min_propensity:g}: one decision weighs as much "
            f"as {1 / least:,.0f}; raise the smallest probability of an option"
        )
    if count and ess < t.min_ess:
        found[Concern.SAMPLE_SIZE] = (
            f"1,000 decisions judge the uniform policy like {ess:.0f}, below {t.min_ess:g}: the logs say too little "
            "about other policies"
        )
    if untried:
        found[Concern.UNTRIED] = (
            f"{len(untried)} options were not tried for more than {t.max_untried_days:g} days: {', '.join(untried[:5])}"
            + (" …" if len(untried) > 5 else "")
        )
    return Exploration(
        count=count, certain_share=certain, least_propensity=least, uniform_ess=ess, untried=untried, warnings=found
    )
