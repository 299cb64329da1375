"""The versions of a registry as people look at them: their states and history, and what differs between two."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from etude.contracts.release import Entry, State
from etude.contracts.trajectory import Time
from etude.learning.run_folder import leaves
from etude.release.registry import Registry


class VersionRow(Struct, frozen=True, kw_only=True):
    """A version in its slot, with the last step about it."""

    slot: str
    version: str
    state: State
    since: Time
    by: str
    """Who took the step."""
    reason: str


def version_rows(registry: Registry, slot: str | None = None) -> list[VersionRow]:
    """Of every slot, or of one: in the order in which the versions were registered."""
    slots = registry.slots() if slot is None else [slot]
    heads = {name: head for name in slots if (head := registry.head(name)) is not None}
    return [version_row(registry, name, version) for name, head in heads.items() for version in head.states]


def version_row(registry: Registry, slot: str, version: str) -> VersionRow:
    head, last = registry.head(slot), steps_of(registry, slot, version)[-1]
    assert head is not None
    return VersionRow(
        slot=slot,
        version=version,
        state=head.states[version],
        since=last.time,
        by=last.actor,
        reason=last.reason,
    )


def steps_of(registry: Registry, slot: str, version: str) -> list[Entry]:
    """What happened to a version, oldest first."""
    return [entry for entry in registry.history(slot) if entry.version == version]


def differences(registry: Registry, version: str, other: str) -> dict[str, list[Any]]:
    """What the manifests of two versions say differently: dotted field → both values, null where one has none."""
    sides = [dict(leaves(msgspec.to_builtins(registry.artefact(one).manifest))) for one in (version, other)]
    values = {key: [side.get(key) for side in sides] for key in sorted(sides[0].keys() | sides[1].keys())}
    return {key: pair for key, pair in values.items() if pair[0] != pair[1]}
