"""Simulated traffic on a real registry, store and journal, with a clock that only the test moves."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import msgspec

from etude.adapters.objects import FolderBlobs
from etude.adapters.sqlite import SqliteStore
from etude.contracts.decision import Decision, DecisionRequest, LoggedDecision
from etude.contracts.policy import Manifest
from etude.contracts.release import Action, Entry, Mode, ReleaseSpec
from etude.contracts.reward import Reward
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Outcome, Trajectory
from etude.learning.artefact import Artefact
from etude.learning.checkpoint import MANIFEST, write_folder
from etude.release.canary import Controller
from etude.release.registry import Registry
from etude.release.serving import ServedPolicy
from etude.release.signing import Keys
from etude.release.start import CanaryConfig, make_spec

SLOT = "choice:model"
FILE = "policy.txt"
START = datetime(2026, 11, 1, tzinfo=UTC)


def make_artefact(folder: Path, content: str, *, problem: str = "choice", catalogue: str | None = None) -> Artefact:
    """An artefact without tensors: its one file is its name."""
    about = make_manifest(content, problem=problem, catalogue=catalogue)
    write_folder(folder, {FILE: content.encode(), MANIFEST: about.encode()})
    return Artefact(folder)


def make_manifest(content: str, *, problem: str = "choice", catalogue: str | None = None) -> Manifest:
    hashes = {FILE: hashlib.sha256(content.encode()).hexdigest()}
    return Manifest(problem=problem, method="from-logs", step=0, code="0", catalogue=catalogue, files=hashes)


class Fixed:
    """A policy that always takes the same option."""

    problem = SLOT

    def __init__(self, version: str) -> None:
        self.version, self.broken, self.propensity = version, False, 1.0
        self.option, self.asked, self.fails_every = cast(Any, version), 0, 0

    def decide(self, request: DecisionRequest) -> Decision:
        self.asked += 1
        if self.broken or (self.fails_every and self.asked % self.fails_every == 0):
            raise RuntimeError("out of order")
        logged = LoggedDecision(problem=SLOT, action=self.version, propensity=1.0, policy=self.version)
        return Decision(action=self.option, propensity=self.propensity, policy=self.version, logged=(logged,))


class Traffic:
    """One slot with an incumbent and a candidate; each task succeeds with its policy's own probability."""

    def __init__(self, folder: Path, *, success: tuple[float, float] = (0.7, 0.7), seed: int = 0) -> None:
        self.folder, self.now, self.rng = folder, START, random.Random(seed)
        self.registry = self.open_registry()
        self.store = SqliteStore(folder / "experience.sqlite")
        self.versions = [
            self.registry.register(make_artefact(folder / name, name), SLOT, actor="test") for name in ("old", "new")
        ]
        self.success = dict(zip(self.versions, success, strict=True))
        self.policies = {version: Fixed(version) for version in self.versions}
        for version in self.versions:
            self.registry.record(SLOT, Action.GATES_PASSED, version, actor="test")
        self.registry.approve(SLOT, self.old, by="ada")
        self.registry.promote_directly(SLOT, self.old, by="ada", reason="the first policy")
        self.served = self.open_policy()
        self.tasks = 0
        self.served_by: dict[str, str] = {}  # trajectory → version

    @property
    def old(self) -> str:
        return self.versions[0]

    @property
    def new(self) -> str:
        return self.versions[1]

    def clock(self) -> datetime:
        return self.now

    def open_registry(self) -> Registry:
        """As another process has it."""
        keys = Keys(self.folder / "keys")
        blobs = FolderBlobs(self.folder / "registry")
        return Registry(blobs=blobs, keys=keys, cache=self.folder / "cache", clock=self.clock)

    def open_policy(self) -> ServedPolicy:
        return ServedPolicy(
            SLOT,
            follows=self.registry.follow(SLOT),
            load=lambda version: self.policies[version],
            journal=self.folder / "journal",
            clock_ns=lambda: int(self.now.timestamp() * 1e9),
        )

    def controller(self) -> Controller:
        return Controller(registry=self.registry, store=self.store, journal=self.folder / "journal", clock=self.clock)

    def spec(
        self,
        mode: Mode = Mode.CANARY,
        *,
        config: Mapping[str, Any] | None = None,
        duration_s: float = 0.0,
        **changes: Any,
    ) -> ReleaseSpec:
        settings = {"shadow_answers": 0, "over_minutes": 0.0, "window_s": 60.0} | dict(config or {})
        spec = make_spec(
            CanaryConfig(**settings),
            slot=SLOT,
            candidate=self.new,
            incumbent=self.old,
            mode=mode,
            reward_version=1,
            bounds=(0.0, 1.0),
            now=self.now,
            duration_s=duration_s,
        )
        own = f"r-{len(self.registry.history(SLOT))}"  # a fixed id: the same units get the same arms in every test run
        return msgspec.structs.replace(spec, **({"id": own} | changes))

    def start(self, mode: Mode = Mode.CANARY, **changes: Any) -> Entry:
        entry = self.controller().start(self.spec(mode, **changes), by="ada")
        self.served.prepare()
        return entry

    def serve(
        self,
        count: int,
        *,
        lost: frozenset[str] = frozenset(),
        error: Mapping[str, float] | None = None,
        latency_ms: Mapping[str, float] | None = None,
    ) -> None:
        """One task per second; those of versions in `lost` never arrive."""
        events = []
        for _ in range(count):
            self.tasks += 1
            self.now += timedelta(seconds=1)
            name = f"t-{self.tasks:06d}"
            decision = self.served.decide(DecisionRequest(trajectory=name))
            version = self.served_by[name] = decision.policy
            if version in lost:
                continue
            done = self.rng.random() < self.success[version]
            broke = self.rng.random() < (error or {}).get(version, 0.02)
            ms = (latency_ms or {}).get(version, 1.0)
            outcome = Outcome(success=done, error="broke" if broke else None, latency_ms=ms)
            task = Trajectory(id=name, time=self.now, task="t", problem=SLOT, policy=version, outcome=outcome)
            reward = Reward(
                id=f"r-{name}",
                time=self.now,
                trajectory_id=name,
                version=1,
                definition="d",
                total=float(done),
                confidence=1.0,
            )
            events += [task, reward]
        self.store.append([(event, encode(event)) for event in events])

    def until_decided(self, *, units: int = 40_000, step: int = 250, **how: Any) -> list[Entry]:
        """Serve and reconcile until nothing is exposed any more, or the traffic ends."""
        done: list[Entry] = []
        controller = self.controller()
        while self.tasks < units and self.registry.serving(SLOT).exposure is not None:
            self.serve(step, **how)
            done += controller.reconcile(SLOT)
        return done
