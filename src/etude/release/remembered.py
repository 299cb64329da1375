"""The units that a process remembers of a release: marks of units in, what they were assigned out, in a fixed space."""

from __future__ import annotations

from array import array
from typing import NamedTuple

WAYS = 16
"""Places in which a unit may be. Of the units that share them, the oldest is forgotten first."""
SETS = 1 << 13


class Remembered(NamedTuple):
    share: float
    """Probability of the candidate when the unit was assigned."""
    trajectory: int
    """Mark of the unit's last trajectory."""


class Units:
    """At most WAYS * SETS of them, by marks of 64 bits, which have to be random. It takes 3 MB, full or empty: a dict
    would grow to ten times that while a canary goes on."""

    def __init__(self) -> None:
        self._marks, self._trajectories = (array("Q", bytes(8 * WAYS * SETS)) for _ in range(2))
        self._shares = array("d", bytes(8 * WAYS * SETS))
        self._next = bytearray(SETS)
        """Of each set, the place that is taken next."""

    def find(self, mark: int) -> Remembered | None:
        place = self._place(mark)
        return None if place is None else Remembered(self._shares[place], self._trajectories[place])

    def keep(self, mark: int, known: Remembered) -> None:
        place = self._place(mark)
        if place is None:
            own = mark % SETS
            place = own * WAYS + self._next[own]
            self._next[own] = (self._next[own] + 1) % WAYS
        self._marks[place], self._shares[place], self._trajectories[place] = mark, known.share, known.trajectory

    def _place(self, mark: int) -> int | None:
        start = mark % SETS * WAYS
        try:
            return self._marks.index(mark, start, start + WAYS)
        except ValueError:
            return None
