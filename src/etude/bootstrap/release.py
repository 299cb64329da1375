"""Wires release: makes registry, controller and served policies from the settings. No torch by itself."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict

from etude.bootstrap.clock import now, now_ns
from etude.bootstrap.experience import Experience, existing_store, experience
from etude.contracts.decision import DecisionRequest
from etude.contracts.errors import ReleaseError
from etude.contracts.policy import Manifest
from etude.contracts.ports import Decider
from etude.contracts.query import Where
from etude.contracts.store import ExperienceStore
from etude.experience.config import ExperienceConfig
from etude.experience.datasets import registered
from etude.experience.definitions import find_definition
from etude.problems.spec import ProblemSpec, resolve
from etude.problems.table import find_spec
from etude.release.canary import Controller
from etude.release.config import EMBEDDED, ReleaseConfig
from etude.release.registry import Registry, check_version
from etude.release.serving import ServedPolicy, decide_many
from etude.release.signing import Keys
from etude.release.start import CanaryConfig, Started, start_release
from etude.release.strategy import Strategy
from etude.settings.sources import FILE, Tree

log = logging.getLogger("etude")

WARM_UP = 8
"""Requests that a policy answers before it serves: the first ones import and allocate."""
RECENT = 1000
"""Newest tasks of a slot that say how long its tasks take."""
REGISTRY, KEYS, CACHE, ASSIGNMENTS = "registry", "keys", "policies", "assignments"
"""Folders below experience.folder."""


class ReleaseSettings(BaseModel):
    """The sections of the settings tree that release needs; they do not import torch."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    experience: ExperienceConfig = ExperienceConfig()
    release: ReleaseConfig = ReleaseConfig()


def settings_here(file: Path | None = None) -> ReleaseSettings:
    """Settings from `file` or ./etude.yaml, if there is one, and ETUDE_… variables of these sections."""
    return Tree(ReleaseSettings).read_own(file, os.environ)


def settings_with(config: ExperienceConfig) -> ReleaseSettings:
    """The settings in force, with these of experience."""
    return settings_here().model_copy(update={"experience": config})


def open_registry(settings: ReleaseSettings | None = None) -> Registry:
    from etude.adapters.objects import open_blobs

    chosen = settings or settings_here()
    folder, release = Path(chosen.experience.folder), chosen.release
    return Registry(
        blobs=open_blobs(folder / REGISTRY if release.registry == EMBEDDED else release.registry),
        keys=Keys(folder / KEYS, release.trusted_keys),
        cache=folder / CACHE,
        clock=now,
        require_approval=release.require_approval,
    )


def is_registered(slot: str, config: ExperienceConfig) -> bool:
    """Whether the embedded registry has this slot; another registry is asked only where the settings say `served`.

    A server asks again and again until there is a policy, so the settings, which take long to read, come last."""
    folder = Path(config.folder) / REGISTRY / "slots" / quote(slot, safe=":")
    return folder.is_dir() and settings_with(config).release.registry == EMBEDDED


@dataclass(frozen=True, kw_only=True)
class Release:
    """Registry and controller for the commands, with the experience that they judge by."""

    settings: ReleaseSettings
    experience: Experience
    registry: Registry
    controller: Controller

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Of the reward that releases rest on."""
        return find_definition(self.experience.store, self.settings.experience.reward_version).range

    def start(
        self,
        slot: str,
        candidate: str,
        *,
        by: str,
        canary: CanaryConfig | None = None,
        strategy: Strategy | None = None,
        split: float | None = None,
    ) -> Started:
        """Begin a release with the settings in force, or with other ones."""
        return start_release(
            self.controller,
            canary or self.settings.release.canary,
            slot=slot,
            candidate=candidate,
            units_per_day=self.units_per_day(slot),
            duration_s=self.duration_s(slot),
            reward_version=self.settings.experience.reward_version,
            bounds=self.bounds,
            by=by,
            strategy=strategy,
            split=split,
        )

    def compare(self, first: str, second: str, *, share: float, by: str) -> Started:
        """Begin an experiment: one of the two versions serves, and the second gets this share of the traffic."""
        slot = self.registry.slot_of(second)
        incumbent = self.registry.serving(slot).incumbent
        if incumbent not in (first, second):
            raise ReleaseError(f"{slot}: {incumbent} serves, and an experiment compares it with another: name it")
        candidate, of_candidate = (second, share) if incumbent == first else (first, 1 - share)
        return self.start(slot, candidate, by=by, strategy="experiment", split=of_candidate)

    def units_per_day(self, slot: str) -> float:
        """Trajectories of a slot in the last day."""
        return float(_count(self.experience.store, slot, self.settings.experience.reward_version))

    def duration_s(self, slot: str) -> float:
        """Seconds in which 99 % of a slot's newest tasks ended; 0 where none of them was timed."""
        version = self.settings.experience.reward_version
        rows = self.experience.store.page(Where(problem=slot), version=version, limit=RECENT).rows
        timed = sorted(row.latency_ms for row in rows if row.latency_ms is not None)
        return timed[int(0.99 * len(timed))] / 1000 if timed else 0.0


def _count(store: ExperienceStore, slot: str, version: int) -> int:
    where = Where(problem=slot, since=now() - timedelta(days=1))
    return store.stats(where, version=version).trajectories


@contextmanager
def release(file: Path | None = None) -> Iterator[Release]:
    with experience(file) as opened:
        yield with_experience(opened, file)


def with_experience(opened: Experience, file: Path | None = None) -> Release:
    settings = settings_here(file)
    registry = open_registry(settings)
    controller = Controller(
        registry=registry,
        store=opened.store,
        journal=Path(settings.experience.folder) / ASSIGNMENTS,
        clock=now,
    )
    return Release(settings=settings, experience=opened, registry=registry, controller=controller)


def served_policy(
    slot: str,
    settings: ReleaseSettings | None = None,
    *,
    first: Decider | None = None,
    swap_when_loaded: bool = False,
) -> ServedPolicy:
    """The policy that serves a slot now and later: as its problem loads it, or as it decides in `task.decide`."""
    chosen = settings or settings_here()
    registry = open_registry(chosen)
    spec = find_spec(slot.partition(":")[0])

    def load(version: str) -> Any:
        artefact = registry.artefact(version).under(settings_in_force(spec))
        policy = resolve(spec.load)(artefact)
        if chosen.experience.explore and hasattr(policy, "sampled"):
            policy = policy.sampled()
        policy = policy.named(slot) if hasattr(policy, "named") else policy
        if swap_when_loaded and spec.requests is not None:
            warm_up(policy, resolve(spec.requests)(artefact, (), WARM_UP, 0))
        return policy

    return ServedPolicy(
        slot,
        follows=registry.follow(slot),
        load=load,
        journal=Path(chosen.experience.folder).absolute() / ASSIGNMENTS,
        first=first,
        swap_when_loaded=swap_when_loaded,
        clock_ns=now_ns,
    )


def settings_in_force(spec: ProblemSpec, file: Path | None = None) -> dict[str, Any]:
    """By key, the settings of now that hold for policies that serve, whatever they learned with; from `file` or
    ./etude.yaml, if there is one, and ETUDE_… variables."""
    if not spec.in_force:
        return {}
    tree, path = Tree(ReleaseSettings), file or Path(FILE)
    found = [*(tree.from_file(path) if path.exists() else ()), *tree.from_environment(os.environ)]
    return {one.key: one.value for one in found if one.key in spec.in_force}


def warm_up(policy: Decider, requests: Sequence[DecisionRequest]) -> None:
    """Let a policy answer requests, one by one and together. What it raises, it will raise again when it serves."""
    try:
        for request in requests:
            policy.decide(request)
        decide_many(policy, requests)
    except Exception as error:  # whatever a policy of any package raises
        log.warning("%s could not answer a typical request before it served: %s", policy.version, error)


def lineage_of(registry: Registry, version: str, file: Path | None = None) -> dict[str, Any]:
    """A version and those it continues, each with its datasets; and the versions that continue it."""
    with existing_store(file) as store:
        datasets = {} if store is None else {m.content: m for m in registered(store).values()}
    manifests = _manifests(registry)
    chain: list[dict[str, Any]] = []
    current: str | None = version
    while current in manifests and len(chain) < len(manifests):
        manifest = manifests[current]
        used = [datasets[content] for content in manifest.data if content in datasets]
        facts = [{"id": m.id, "content": m.content, "trajectories": m.counts.trajectories, "url": m.url} for m in used]
        chain.append({"version": current, "data": list(manifest.data), "datasets": facts})
        current = manifest.parent
    children = sorted(other for other, manifest in manifests.items() if manifest.parent == version)
    return {"versions": chain, "children": children}


def learned_from(registry: Registry, trajectory: str, file: Path | None = None) -> dict[str, Any] | None:
    """The datasets that a trajectory is in, and the versions that learned from them, with their states; None for an
    unknown trajectory."""
    with existing_store(file) as store:
        if store is None or store.detail(trajectory) is None:
            return None
        used = {m.content: m.id for m in registered(store).values() if m.id in store.datasets_of([trajectory])}
    states = {
        v: (slot, state) for slot in registry.slots() if (h := registry.head(slot)) for v, state in h.states.items()
    }
    found = [
        {"version": version, "slot": states[version][0], "state": str(states[version][1])}
        for version, manifest in _manifests(registry).items()
        if used.keys() & set(manifest.data)
    ]
    return {"trajectory": trajectory, "datasets": sorted(used.values()), "versions": found}


def states_of(settings: ReleaseSettings) -> dict[str, str]:
    """Slot and state of every registered version, in words."""
    if settings.release.registry == EMBEDDED and not (Path(settings.experience.folder) / REGISTRY).is_dir():
        return {}
    registry = open_registry(settings)
    heads = {slot: head for slot in registry.slots() if (head := registry.head(slot)) is not None}
    return {version: f", {state} in {slot}" for slot, head in heads.items() for version, state in head.states.items()}


def _manifests(registry: Registry) -> dict[str, Manifest]:
    """Of all registered versions whose files are there."""
    found = {}
    for slot in registry.slots():
        head = registry.head(slot)
        for version in {} if head is None else head.states:
            try:
                found[version] = registry.artefact(version).manifest
            except ReleaseError:  # its files were deleted by retention
                continue
    return found


def load_version(version: str, **options: Any) -> Any:
    """The policy of a registered version, verified."""
    registry = open_registry()
    artefact = registry.artefact(check_version(version))
    return resolve(find_spec(artefact.manifest.problem).load)(artefact, **options)
