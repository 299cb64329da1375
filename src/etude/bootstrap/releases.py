"""Wires the loop's releases: what its coordinator asks, answered by registry, gates and controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.bootstrap.datasets import logs_of
from etude.bootstrap.gates import judge_again, learned_from
from etude.bootstrap.release import Release
from etude.contracts.errors import EtudeError
from etude.contracts.release import Entry, Serving
from etude.evidence.overlap import Verdict
from etude.learning.run_folder import find_policy

COORDINATOR = "coordinator"
ATTACHED = ("metrics.jsonl", "summary.json", "config.json")
"""Files of a run that are kept with its policy."""


@dataclass(frozen=True, kw_only=True)
class RegistryReleases:
    """`loop.coordinator.Releases` over the registry of this installation."""

    release: Release
    config: Path | None = None

    def slots(self) -> Sequence[str]:
        return self.release.registry.slots()

    def register(self, run_folder: Path, slot: str, lineage: Mapping[str, Any]) -> str:
        registry = self.release.registry
        version = registry.register(find_policy(run_folder), slot, actor=COORDINATOR, evidence={"lineage": lineage})
        for name in ATTACHED:
            if (run_folder / name).is_file():
                registry.attach(version, name, (run_folder / name).read_bytes())
        return version

    def gate(self, version: str, slot: str) -> Verdict:
        """On what the incumbent decided and the version did not learn from: with the traffic it becomes more, so that
        gates that could not tell can tell later. The e-value of the off-policy gate is valid at every such look. What
        is older than anything the version may have learned from is of another world, and does not judge it."""
        serving, release = self.release.registry.serving(slot).incumbent, self.release
        reward = release.settings.experience.reward_version
        learned = learned_from(self.release.registry.artefact(version), None, self.config)
        since = None if learned is None else learned.frozen.manifest.where.since
        logs = logs_of(release.experience.store, slot, serving, reward=reward, since=since)
        return judge_again(version, slot=slot, dataset=logs, config=self.config, actor=COORDINATOR).verdict

    def start(self, version: str, slot: str) -> str:
        return self.release.start(slot, version, by=COORDINATOR).sentence

    def reconcile(self, slot: str) -> Sequence[Entry]:
        return self.release.controller.reconcile(slot)

    def serving(self, slot: str) -> Serving:
        return self.release.registry.serving(slot)

    def history(self, slot: str, *, after: int = 0) -> Sequence[Entry]:
        return self.release.registry.slot_ledger(slot).entries(after=after)

    def folder(self, version: str) -> Path | None:
        try:
            return self.release.registry.artefact(version).path
        except EtudeError:
            return None
