"""Fairness during a release: its closed units in, the difference of each group to the rest under either policy out.

It is for people: harm to a group rolls a candidate back only where the release watches that group.
"""

from __future__ import annotations

from collections.abc import Iterable

from etude.contracts.release import ReleaseEntry
from etude.evidence.fairness import Fairness, FairnessThresholds, check_fairness


def release_fairness(entries: Iterable[ReleaseEntry]) -> dict[str, Fairness]:
    """How groups fare on the candidate and on the incumbent; empty with fewer than two groups."""
    units = [unit for entry in entries for unit in entry.units]
    if len({unit.group for unit in units if unit.group is not None}) < 2:
        return {}
    arms = {"candidate": [u for u in units if u.candidate], "incumbent": [u for u in units if not u.candidate]}
    return {
        arm: check_fairness([u.score for u in own], [u.group for u in own], FairnessThresholds())
        for arm, own in arms.items()
    }
