"""Opens datasets for learners, without trajectories that were forgotten since they were made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from etude.bootstrap.clock import now
from etude.bootstrap.experience import config_here, existing_store, open_place
from etude.contracts.errors import CheckpointError, DatasetError, RunError
from etude.contracts.policy import SAMPLED
from etude.contracts.ports import Example, LoggedDataset
from etude.experience.datasets import Dataset
from etude.experience.forgetting import PolicyRecord, remember_policy
from etude.learning.run_folder import RunFolder, find_runs


@dataclass(frozen=True)
class OpenedDataset:
    """A frozen dataset; its examples leave out trajectories that the store has forgotten."""

    frozen: Dataset
    config: Path | None

    @property
    def problem(self) -> str:
        return self.frozen.manifest.problem

    @property
    def content(self) -> str:
        return self.frozen.manifest.content

    @property
    def facts(self) -> Mapping[str, str]:
        manifest = self.frozen.manifest
        return {"id": manifest.id, "url": manifest.url, "reward": str(manifest.version)}

    @property
    def splits(self) -> Mapping[str, int]:
        return self.frozen.manifest.counts.splits

    @property
    def policies(self) -> Mapping[str, int]:
        return self.frozen.manifest.counts.policies

    def examples(self, split: str) -> Iterator[Sequence[Example]]:
        return self.frozen.shards(split, without=self._forgotten)

    def _forgotten(self, ids: Sequence[str]) -> set[str]:
        with existing_store(self.config) as store:
            return set() if store is None else store.forgotten(ids)


def open_dataset(place: str, config: Path | None = None) -> OpenedDataset:
    return OpenedDataset(Dataset(open_place(place, config_here(config))), config)


def find_behaviour(dataset: LoggedDataset, runs: Path) -> Path:
    """The run below a folder whose policy logged most of a dataset."""
    logged = sorted(dataset.policies.items(), key=lambda item: -item[1])
    found: dict[str, Path] = {}
    for run in find_runs(runs) if runs.is_dir() else ():
        try:
            version = run.policy().version
        except (RunError, CheckpointError):  # of an earlier Etude, or not trained far enough
            continue
        found |= {version: run.path, f"{version}{SAMPLED}": run.path}
    for version, _ in logged:
        if version in found:
            return found[version]
    most = ", ".join(version for version, _ in logged[:3])
    raise DatasetError(
        f"no run below {runs} has the policy that logged this dataset ({most}): name the policy to continue from as "
        "the checkpoint; where rules or people decided, train one to start with"
    )


def remember_lineage(folder: RunFolder, config: Path | None) -> None:
    """Record in the store that a run's policy learned from its dataset, so that `forget` can name it."""
    facts, problem = folder.config()["dataset"], folder.config()["problem"]
    with existing_store(config) as store:
        if store is not None:
            version = folder.policy().version
            record = PolicyRecord(
                version=version, problem=problem, dataset=facts["id"], run=str(folder.path), time=now()
            )
            remember_policy(store, record)
