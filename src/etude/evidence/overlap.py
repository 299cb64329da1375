"""Whether logs can judge a policy: importance weights and estimates in, a verdict with its reasons out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import ArrayLike

from etude.evidence.intervals import Estimate, estimate_mean

ROUNDING = 1e-3
"""How far a mean weight may be from 1 without a spread: probabilities are rounded, networks run on other machines."""


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    CANNOT_TELL = "cannot tell"


class Cause(StrEnum):
    """Why logs cannot judge a policy."""

    SAMPLE_SIZE = "effective sample size"
    MEAN_WEIGHT = "mean weight"
    DISAGREEMENT = "estimators disagree"
    HEAVY_TAIL = "heavy weights"


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """When logs are enough to judge a policy."""

    min_ess: Annotated[float, Ge(1)] = 100.0
    """Effective sample size, at least."""
    deviations: Annotated[float, Gt(0)] = 4.0
    """Standard errors by which the mean weight may be away from 1."""
    heavy: Annotated[float, Gt(1)] = 20.0
    """Weights above this are heavy."""
    max_heavy_share: Annotated[float, Ge(0), Le(1)] = 0.05
    """Share of the total weight that heavy ones may carry."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """What the check found."""

    verdict: Verdict  # PASS or CANNOT_TELL
    reasons: Mapping[Cause, str]  # a sentence each
    count: int  # samples
    ess: float
    mean_weight: float
    heavy_share: float  # of the total weight

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": str(self.verdict),
            "reasons": {str(cause): sentence for cause, sentence in self.reasons.items()},
            "count": self.count,
            "ess": self.ess,
            "mean_weight": self.mean_weight,
            "heavy_share": self.heavy_share,
        }


def effective_sample_size(weight: ArrayLike) -> float:
    """(Σw)²/Σw²: how many samples without weights would be as precise (Kish, 1965); 0 where all weights are 0."""
    w = np.asarray(weight, float)
    top = float(w.max(initial=0.0))
    if top == 0:
        return 0.0
    w = w / top  # their squares may be beyond any float
    return float(w.sum() ** 2 / np.square(w).sum())


def heavy_share(weight: ArrayLike, heavy: float) -> float:
    """Share of the total that weights above `heavy` carry."""
    w = np.asarray(weight, float)
    return float(w[w > heavy].sum() / w.sum()) if w.sum() > 0 else 0.0


def check_overlap(
    weight: ArrayLike,
    estimates: Mapping[str, Estimate],
    thresholds: Thresholds,
    *,
    groups: ArrayLike | None = None,
    ratios: tuple[ArrayLike, ArrayLike | None] | None = None,
) -> Overlap:
    """Whether samples with these weights can judge a policy, and whether its estimates (DM, SNIPS, DR) agree.

    Where a sample has several decisions, `ratios` are those of single decisions with their groups: their mean is 1
    as well, and shows wrong propensities sooner than that of products.
    """
    t = thresholds
    mean, ess, heavy = estimate_mean(weight, groups), effective_sample_size(weight), heavy_share(weight, t.heavy)
    found: dict[Cause, str] = {}
    if ess < t.min_ess:
        advice = "log more" if mean.count < 2 * t.min_ess else "log with a policy that explores more or is more alike"
        found[Cause.SAMPLE_SIZE] = (
            f"the effective sample size is {ess:.1f} of {mean.count:,}, below {t.min_ess:g}: the logs say too little "
            f"about what this policy does; {advice}"
        )
    means = {"importance weight": mean} | ({} if ratios is None else {"ratio per decision": estimate_mean(*ratios)})
    for name, m in means.items():
        rare = t.deviations**2 / (2 * max(m.count, 1))  # what no sample shows, but may be (Bernstein)
        if not abs(m.mean - 1) <= t.deviations * m.error + rare + ROUNDING:
            found[Cause.MEAN_WEIGHT] = (
                f"the mean {name} is {m.mean:.3f} ± {m.error:.3f}, and correct propensities give 1: the logged "
                "propensities are not those that the actions were sampled with, or exclude what this policy does"
            )
    pair = disagreement(estimates)
    if pair:
        found[Cause.DISAGREEMENT] = (
            f"the 95 % intervals of {' and '.join(pair)} do not overlap: the reward model or the weights are wrong"
        )
    if heavy > t.max_heavy_share:
        found[Cause.HEAVY_TAIL] = (
            f"weights above {t.heavy:g} carry {heavy:.0%} of the total, more than {t.max_heavy_share:.0%}: a few "
            "samples decide"
        )
    return Overlap(
        verdict=Verdict.CANNOT_TELL if found else Verdict.PASS,
        reasons=found,
        count=mean.count,
        ess=ess,
        mean_weight=mean.mean,
        heavy_share=heavy,
    )


def disagreement(estimates: Mapping[str, Estimate]) -> Sequence[str]:
    """The two estimates with the largest gap between their 95 % intervals; empty if all intervals overlap."""
    known = {name: e for name, e in estimates.items() if math.isfinite(e.mean)}
    if not known:
        return ()
    lower, upper = min(known, key=lambda name: known[name].high), max(known, key=lambda name: known[name].low)
    return (lower, upper) if known[lower].high < known[upper].low else ()
