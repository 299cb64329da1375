"""Wires the page of a release: a slot's record and the release's own ledger in, what the page shows out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from etude.contracts.errors import ReleaseError
from etude.contracts.release import ReleaseEntry
from etude.evidence.looks import looks
from etude.release.canary import entered, new_evidence
from etude.release.fairness import release_fairness
from etude.release.gates.gate import REPORT
from etude.release.registry import Registry
from etude.reports.release import ReleaseFacts


def release_facts(
    registry: Registry, slot: str, *, id: str | None = None, gates: Mapping[str, Mapping[str, Any]] | None = None
) -> ReleaseFacts:
    """Of a release by its id, or of the slot's current or last one; with the gates' newest report unless others are
    given."""
    history = registry.history(slot)
    wanted = id or next((e.evidence["release"] for e in reversed(history) if "release" in e.evidence), None)
    steps = [entry for entry in history if wanted is not None and entry.evidence.get("release") == wanted]
    if not steps:
        raise ReleaseError(
            f"{slot}: there is no release{f' {id!r}' if id else ''}: `etude canary start VERSION` begins one"
        )
    entries = registry.ledger(f"releases/{wanted}", ReleaseEntry).entries()
    spec = entries[0].spec
    assert spec is not None
    evidence = new_evidence(spec)
    units = [unit for entry in entries for unit in entered(entry)]
    decided = [step.evidence["units"] for step in steps if step.evidence.get("units")]
    if gates is None:
        kept = registry.attached(spec.candidate, REPORT)
        gates = {"": json.loads(kept)} if kept is not None else {}
    return ReleaseFacts(
        spec=spec,
        config=evidence.config,
        steps=steps,
        looks=looks(evidence, units, at=decided),
        gates=gates,
        fairness=release_fairness(entries),
    )
