"""What a user should know about the rows a choice is fitted to, and about the fit: rows in, sentences out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.contracts.option import Option
from etude.evidence.overlap import Cause, Thresholds, check_overlap
from etude.learning.outcome_model import FEW
from etude.problems.choice.rows import KINDS, Row

Floats = NDArray[np.float64]
CHANCE = 1e-6
"""Probability below which an option is missing from the first or last rows for a reason, not by chance."""
SHOWN = 5
"""Maximum number of options that a remark names."""
CANNOT_JUDGE = (
    f"Its choices cannot be judged by cross-validation: that needs at least {FEW} rows, and more than one context."
)


@dataclass(kw_only=True, slots=True)
class Occurrence:
    """Where an option occurs: it is offered, or its outcome is known."""

    option: Option
    rows: int = 0
    first: int = -1  # number of the row
    last: int = -1
    first_source: str = ""
    last_source: str = ""

    def add(self, number: int, source: str) -> None:
        if not self.rows:
            self.first, self.first_source = number, source
        self.rows, self.last, self.last_source = self.rows + 1, number, source


def on_rows(rows: Sequence[Row], names: Sequence[str], shares: Floats) -> list[str]:
    """What rows with partial outcomes do not say about these options, or say wrongly; `shares` (K,) of the rows without
    propensities have an outcome of the option."""
    found, logged = [], [row for row in rows if row.propensity is not None]
    if len(logged) < len(rows) and not bool((shares >= 1).all()):
        least = int(shares.argmin())
        found.append(
            f"Not every option has an outcome in every row ({names[least]}: {shares[least]:.1%}), and the rows have no "
            "propensities: which were tried is taken to be independent of the context."
        )
    if logged and all(row.propensity == 1 for row in logged):
        found.append(
            "All propensities are 1: nothing was explored, or they are not those that the options were sampled with. "
            "What an option would have done where it was not chosen is a guess; log decisions of a policy that samples."
        )
    elif logged:
        found += _wrong_propensities(logged, names)
    return found


def _wrong_propensities(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """About the option whose propensities are furthest from how often it was sampled, if there is one."""
    found = dict[str, tuple[float, str]]()
    offers = [None if row.options is None else {option.name for option in row.options} for row in rows]
    for name in names:
        own = [row for row, offer in zip(rows, offers, strict=True) if offer is None or name in offer]
        weight = np.array([1 / (row.propensity or 1) if name in row.outcomes else 0.0 for row in own])
        if np.count_nonzero(weight) < FEW:
            continue
        overlap = check_overlap(weight, {}, Thresholds(), groups=[row.group for row in own])
        if Cause.MEAN_WEIGHT in overlap.reasons:
            found[name] = abs(overlap.mean_weight - 1), overlap.reasons[Cause.MEAN_WEIGHT]
    if not found:
        return []
    worst = max(found, key=lambda name: found[name][0])
    others = [name for name in found if name != worst]
    same = f" Nor do those of {_listed(others)}." if others else ""
    return [f"The propensities do not fit: for a policy that always chooses {worst}, {found[worst][1]}.{same}"]


def on_few_outcomes(names: Sequence[str], count: Floats, rows: int) -> list[str]:
    """About options of which little is known; `count` (K,) is the effective number of outcomes."""
    few = [f"{name} ({count[i]:.0f})" for i, name in enumerate(names) if count[i] < FEW]
    if not few or rows < FEW:
        return []
    return [
        f"Fewer than {FEW} outcomes are known of {_listed(few)}: unless the policy explores, it chooses such an option "
        "only if it is expected to be better by more than a standard error."
    ]


def on_changes(offered: Mapping[str, Occurrence], total: int) -> list[str]:
    """About options that occur only from some row on, or only up to one."""
    found: dict[str, list[str]] = {}
    for name, one in offered.items():
        rate = (one.rows - 1) / max(1, one.last - one.first)
        gaps = {f"not before {one.first_source}": one.first, f"not after {one.last_source}": total - 1 - one.last}
        for where, gap in gaps.items():
            if min(gap, one.rows) >= FEW and (1 - rate) ** gap < CHANCE:
                found.setdefault(where, []).append(name)
    changes = "; ".join(f"{_listed(names)} {where}" for where, names in found.items())
    return [f"The options change within the rows. These occur: {changes}."] if found else []


def on_new_kinds(rows: Sequence[Row], kinds: Sequence[str]) -> list[str]:
    """About kinds of outcome that the continued policy, which knows `kinds`, cannot learn."""
    new = [
        kind for kind in KINDS if kind not in kinds and any(kind in o for row in rows for o in row.outcomes.values())
    ]
    if not new:
        return []
    return [
        f"The earlier policy has not learned {' and '.join(new)}, and does not learn it from these rows: to learn it, "
        "train a new policy on all rows."
    ]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
