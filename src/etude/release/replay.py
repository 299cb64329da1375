"""Recomputes a step of a release from its ledger: the same units in the same order give the same e-values."""

from __future__ import annotations

from dataclasses import dataclass

from etude.contracts.errors import ReleaseError
from etude.contracts.release import Entry, ReleaseEntry
from etude.release.canary import open_release
from etude.release.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What was logged and what the ledger gives, as natural logarithms of e-values by name."""

    entry: Entry
    units: int
    logged: dict[str, float]
    computed: dict[str, float]

    @property
    def is_equal(self) -> bool:
        return self.logged == self.computed and self.units == self.entry.evidence.get("units")


def replay(registry: Registry, entry: Entry) -> Replay:
    """ReleaseError for a step that rests on no units, such as an approval."""
    facts = entry.evidence
    if "log_e_values" not in facts:
        raise ReleaseError(
            f"entry {entry.number} ({entry.action}) rests on no e-values: replay a step of a canary or an experiment"
        )
    ledger = registry.ledger(f"releases/{facts['release']}", ReleaseEntry)
    release = open_release(ledger, through=facts["through"])
    return Replay(
        entry=entry,
        units=release.evidence.count,
        logged=facts["log_e_values"],
        computed=release.evidence.e_values(),
    )
