"""Opens datasets for learners, without trajectories that were forgotten since they were made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct

from etude.bootstrap.clock import now
from etude.bootstrap.experience import config_here, existing_store, open_place
from etude.contracts.errors import CheckpointError, DatasetError, RunError
from etude.contracts.policy import SAMPLED
from etude.contracts.ports import Example, LoggedDataset
from etude.contracts.query import Where
from etude.contracts.store import ExperienceStore
from etude.contracts.trajectory import Trajectory
from etude.experience.datasets import Dataset
from etude.experience.datasets.create import request_hash
from etude.experience.forgetting import PolicyRecord, remember_policy
from etude.learning.run_folder import RunFolder, find_runs

MAX_JUDGED = 50_000
"""Trajectories of a policy that a candidate is judged on, at most."""


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


@dataclass(frozen=True, kw_only=True)
class PolicyLogs:
    """The trajectories that one policy decides, as a dataset with a test split alone that grows with the traffic."""

    store: ExperienceStore
    slot: str
    policy: str
    """Version of the behaviour policy, and of how it is used."""
    reward: int
    """Version of the reward."""
    since: datetime | None = None
    """Older ones are left out."""

    @property
    def problem(self) -> str:
        return self.slot

    @property
    def content(self) -> str:
        return f"the trajectories of {self.policy}"

    @property
    def facts(self) -> Mapping[str, str]:
        return {"id": "", "url": "", "reward": str(self.reward)}

    @property
    def splits(self) -> Mapping[str, int]:
        return {"test": self.store.stats(self._where, version=self.reward).trajectories}

    @property
    def policies(self) -> Mapping[str, int]:
        return {self.policy: self.splits["test"]}

    @property
    def _where(self) -> Where:
        return Where(problem=self.slot, policy=self.policy, since=self.since, min_confidence=0.0)

    def examples(self, split: str) -> Iterator[Sequence[Example]]:
        """The oldest first, so that what is judged later only adds to it."""
        if split == "test":
            rows = islice(self.store.scan(self._where, version=self.reward), MAX_JUDGED)
            yield [
                StoredExample(
                    trajectory=msgspec.json.decode(body, type=Trajectory),
                    reward=row.reward or 0.0,
                    context=request_hash(row, body),
                    rating=row.feedback,
                )
                for row, body in rows
            ]


class StoredExample(Struct, frozen=True, kw_only=True):
    """A trajectory as it is stored now."""

    trajectory: Trajectory
    reward: float
    context: str
    rating: float | None
    weight: float = 1.0


def logs_of(
    store: ExperienceStore, slot: str, version: str | None, *, reward: int, since: datetime | None = None
) -> PolicyLogs | None:
    """What the policy of a slot decided, greedy or exploring, whichever is more; None without a rewarded trajectory.

    Without a version, before a first policy serves, what decided most.
    """
    counts: Counter[str] = Counter()
    for group in store.stats(Where(problem=slot, since=since, min_confidence=0.0), version=reward).groups:
        if group.policy is not None and version in (None, group.policy.partition("+")[0]):
            counts[group.policy] += group.count
    return (
        PolicyLogs(store=store, slot=slot, policy=max(counts, key=lambda p: counts[p]), reward=reward, since=since)
        if counts
        else None
    )


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
