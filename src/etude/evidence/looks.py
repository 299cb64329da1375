"""The course of a release: its units in, the evidence after many of them out, for charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from etude.evidence.eprocess import Evidence, EvidenceConfig, Unit
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
    units: Sequence[Unit], config: EvidenceConfig, *, at: Iterable[int] = (), most: int = MAX_LOOKS
) -> list[Look]:
    """The evidence in equal steps, at most `most`, and after the numbers of units `at`, such as those of decisions."""
    evidence, step = Evidence(config), max(1, -(-len(units) // most))
    wanted = {*at, len(units), *range(step, len(units), step)}
    found = []
    for number, unit in enumerate(units, 1):
        evidence.update(unit)
        if number in wanted:
            found.append(_look(evidence, unit.share))
    return found


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
