"""Two registered versions of a slot on a server, and what a release of the second needs."""

from __future__ import annotations

from pathlib import Path

from etude.contracts.release import Action
from etude.release.registry import Registry
from tests.unit.release.traffic import SLOT, make_artefact
from tests.unit.serving.server import Served


def registry_of(served: Served) -> Registry:
    return served.server.steering.releases().registry


def register(served: Served, folder: Path, *names: str, passed: bool = True) -> list[str]:
    """Versions of the slot `choice:model`, as candidates that passed their gates."""
    registry = registry_of(served)
    versions = [registry.register(make_artefact(folder / name, name), SLOT, actor="test") for name in names]
    for version in versions if passed else ():
        registry.record(SLOT, Action.GATES_PASSED, version, actor="test")
    return versions
