"""The course of a release: its units in, the evidence after many of them out, for charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from etude.evidence.eprocess import EarlyError, Evidence, Unit
from etude.evidence.intervals import Estimate

MAX_LOOKS = 240


@dataclass(frozen=True, kw_only=True)
class Look:
    """The evidence after a number of units."""

    units: int
    candidates: int  # of them on the candidate
    share: float  # of the candidate, when the last of them was assigned
    e_values: Mapping[str, float]  # natural logarithms
    effect: Estimate  # its interval holds at all looks at once
    mean_control: float
    mean_candidate: float


def looks(
    evidence: Evidence, units: Sequence[Unit | EarlyError], *, at: Iterable[int] = (), most: int = MAX_LOOKS
) -> list[Look]:
    """The evidence in equal steps, at most `most`, and after the numbers of closed units `at`, such as those of
    decisions; `units` are in the order in which they entered it."""
    total = sum(isinstance(unit, Unit) for unit in units)
    step = max(1, -(-total // most))
    wanted = {*at, total, *range(step, total, step)}
    found: dict[int, Look] = {}
    for unit in units:
        evidence.add(unit)
        if evidence.count in wanted and evidence.count:
            found[evidence.count] = _look(evidence, unit.share)
    return list(found.values())


def _look(evidence: Evidence, share: float) -> Look:
    return Look(
        units=evidence.count,
        candidates=evidence.candidates,
        share=share,
        e_values=evidence.e_values(),
        effect=evidence.interval(),
        mean_control=evidence.mean_control,
        mean_candidate=evidence.mean_candidate,
    )
