"""Fairness between groups: scores with their groups in, the difference of each group to the rest and a verdict out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import ArrayLike, NDArray

from etude.contracts.errors import DataError
from etude.evidence.intervals import Array, Estimate, estimate_mean
from etude.evidence.ope import lower_bound, snips
from etude.evidence.overlap import Verdict
from etude.evidence.sequences import empirical_bernstein

Mask = NDArray[np.bool_]
MAX_GROUPS = 50


@dataclass(frozen=True, kw_only=True)
class FairnessThresholds:
    """When a group counts as disadvantaged."""

    max_loss: Annotated[float, Ge(0), Le(1)] = 0.05
    """A group may score this much less than the rest."""
    alpha: Annotated[float, Gt(0), Lt(1)] = 0.05
    """1 less the level of each confidence sequence."""
    min_count: Annotated[int, Ge(1)] = 200
    """Units in a group, at least."""


@dataclass(frozen=True, kw_only=True)
class GroupDifference:
    """One group compared with all others."""

    group: str
    count: int  # units of the group
    difference: Estimate  # mean of the group less mean of the rest
    verdict: Verdict
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "count": self.count,
            "difference": self.difference.to_json(),
            "verdict": str(self.verdict),
            "reason": self.reason,
        }


@dataclass(frozen=True, kw_only=True)
class Fairness:
    """All groups. One that fails makes the whole fail; else one that cannot be judged makes it cannot tell."""

    verdict: Verdict
    groups: tuple[GroupDifference, ...]

    def to_json(self) -> dict[str, Any]:
        return {"verdict": str(self.verdict), "groups": [group.to_json() for group in self.groups]}


def check_fairness(
    score: ArrayLike, groups: Sequence[str | None], thresholds: FairnessThresholds, *, weight: ArrayLike | None = None
) -> Fairness:
    """Whether each group's success is as good as that of the rest, for scores in [0, 1] in the order of assignment.

    In a canary the units are the candidate's. Off-policy, `weight` is π(a|x)/μ(a|x). Units of no group (None) and of
    any but the largest MAX_GROUPS groups are in the rest alone.
    """
    y, names = np.asarray(score, float), np.array(groups, object)
    if len(y) and not (y.min() >= 0 and y.max() <= 1):
        raise DataError(f"scores are {y.min():g} … {y.max():g}: expected all in [0, 1]")
    w = None if weight is None else np.asarray(weight, float)
    largest = Counter(group for group in groups if group is not None).most_common(MAX_GROUPS)
    found = tuple(_compare(group, y, w, names == group, thresholds) for group in sorted(dict(largest)))
    verdicts = {group.verdict for group in found}
    order = (Verdict.FAIL, Verdict.CANNOT_TELL, Verdict.PASS)
    return Fairness(verdict=next((v for v in order if v in verdicts), Verdict.CANNOT_TELL), groups=found)


def _compare(group: str, y: Array, w: Array | None, own: Mask, thresholds: FairnessThresholds) -> GroupDifference:
    count, rest = int(own.sum()), int((~own).sum())
    a, b = (
        estimate_success(y[part], None if w is None else w[part], alpha=thresholds.alpha / 2) for part in (own, ~own)
    )
    low, high = a.low - b.high, a.high - b.low
    error = math.hypot(a.error, b.error)
    difference = Estimate(count=len(y), mean=a.mean - b.mean, error=error, low=low, high=high)
    if min(count, rest) < thresholds.min_count:
        verdict = Verdict.CANNOT_TELL
        reason = f"{count:,} units in the group and {rest:,} outside: expected {thresholds.min_count:,} of each"
    elif high < -thresholds.max_loss:
        verdict = Verdict.FAIL
        reason = f"the group scores {-high:.3f} to {-low:.3f} less than the rest; allowed is {thresholds.max_loss:g}"
    else:
        verdict, reason = Verdict.PASS, f"no proof that the group scores {thresholds.max_loss:g} less than the rest"
    return GroupDifference(group=group, count=count, difference=difference, verdict=verdict, reason=reason)


def estimate_success(y: Array, w: Array | None, *, alpha: float) -> Estimate:
    """Mean of scores in [0, 1] with its confidence sequence; weighted, that of the policy the weights lead to.

    Weights have no bound, so their ends are bets: E[w] = 1 makes E[w·y] = 1 − E[w·(1 − y)], which gives both.
    """
    if not len(y):
        return Estimate(count=0, mean=math.nan, error=math.nan, low=math.nan, high=math.nan)
    if w is None:
        low, high = (float(end[-1]) for end in empirical_bernstein(y, alpha=alpha))
        return Estimate(count=len(y), mean=float(y.mean()), error=estimate_mean(y).error, low=low, high=high)
    low, high = lower_bound(w * y, delta=alpha / 2), 1 - lower_bound(w * (1 - y), delta=alpha / 2)
    value = snips(w, y)
    return Estimate(count=len(y), mean=value.mean, error=value.error, low=low, high=high)
