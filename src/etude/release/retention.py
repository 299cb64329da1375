"""Deletes the files of old versions; never of one that serves, is exposed, or can be rolled back to."""

from __future__ import annotations

from datetime import timedelta

from etude.contracts.release import Action, Entry
from etude.release.registry import KEPT, Registry


def expired(history: list[Entry], *, now_after: timedelta, registry: Registry) -> list[str]:
    """Versions whose last step is older, in the order in which they came."""
    if not history:
        return []
    states, gone = history[-1].states, {entry.version for entry in history if entry.action is Action.DELETED}
    last = {entry.version: entry.time for entry in history if entry.version is not None}
    limit = registry.clock() - now_after
    return [
        version
        for version, time in last.items()
        if time < limit and states[version] not in KEPT and version not in gone
    ]


def expire(registry: Registry, slot: str, *, days: float, actor: str) -> list[str]:
    """Delete what is older than so many days, and return the versions."""
    old = expired(registry.history(slot), now_after=timedelta(days=days), registry=registry)
    for version in old:
        registry.delete_files(slot, version, actor=actor, reason=f"older than {days:g} days")
    return old
