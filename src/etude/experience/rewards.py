"""Computes rewards: from a trajectory and its ratings to the number to learn from, with an explanation.

The weight of unknown components is divided among the others, and the confidence is the known share. A component of
weight 0 is held out: no policy learns from it, so it shows when the others are gamed (`reward_checks`).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import msgspec
from msgspec import Struct

from etude.contracts.errors import ConfigError, StoreError
from etude.contracts.query import Where
from etude.contracts.reward import Component, Reward
from etude.contracts.store import ExperienceStore, Stored, TrajectoryDetail
from etude.contracts.subjects import decode, encode, subject_of
from etude.contracts.trajectory import Feedback, Rating, Trajectory, rating_scores
from etude.experience.baselines import MAX_MAGNITUDE, Baselines, certainty, compared
from etude.experience.definitions import (
    ComponentDefinition,
    RewardDefinition,
    Source,
    add_definition,
    source_of,
)

BATCH = 500
"""Number of rewards per append while history is rescored."""
MAX_ID_CHARS = 128


class Rewarder:
    """Computes rewards under one definition in sequence: equal trajectories in equal order give equal rewards."""

    def __init__(self, definition: RewardDefinition, baselines: Baselines | None = None) -> None:
        self.definition = definition
        self.baselines = Baselines() if baselines is None else baselines
        self._parts = [(component, source_of(component.source)) for component in definition.components]

    def reward(self, trajectory: Trajectory, feedback: Sequence[Feedback], *, time: datetime) -> Reward:
        """The reward relative to earlier trajectories; the trajectory is then added to the baselines."""
        return self._first(trajectory, mean_rating(trajectory.feedback, feedback), time=time, reason="ingested")

    def revise(
        self, reward: Reward, trajectory: Trajectory, feedback: Sequence[Feedback], *, time: datetime
    ) -> Reward | None:
        """The reward revised by all ratings so far; None if nothing changes.

        Only the feedback component is computed again: the others and their baselines stay unchanged.
        """
        if reward.definition != self.definition.hash:
            raise ConfigError(
                f"reward {reward.id!r} was computed by the definition {reward.definition}, not {self.definition.hash}: "
                f"`etude reward rescore --version {self.definition.version}` computes it by this one"
            )
        rating = mean_rating(trajectory.feedback, feedback)
        before = {component.name: component for component in reward.components}
        parts = [
            self._component(component, source, trajectory, rating)
            if component.source == "feedback"
            else before[component.name]
            for component, source in self._parts
        ]
        revised = self._weighed(trajectory.id, parts, revision=reward.revision + 1, time=time, reason="feedback")
        return None if revised.components == reward.components else revised

    def state(self) -> bytes:
        """The state that later rewards depend on, as JSON."""
        kept = _State(definition=self.definition.hash, baselines=msgspec.Raw(self.baselines.state()))
        return msgspec.json.encode(kept)

    @classmethod
    def from_state(cls, definition: RewardDefinition, state: bytes) -> Rewarder:
        try:
            kept = msgspec.json.decode(state, type=_State)
        except msgspec.DecodeError as error:
            raise StoreError(f"the kept state of rewards cannot be read ({error}): remove it to start again") from error
        if kept.definition != definition.hash:
            raise ConfigError(
                f"the kept state is of the reward definition {kept.definition}, not {definition.hash}: "
                "begin with the one it was kept for"
            )
        return cls(definition, Baselines.from_state(bytes(kept.baselines)))

    def _first(
        self, trajectory: Trajectory, rating: float | None, *, time: datetime, reason: Literal["ingested", "rescored"]
    ) -> Reward:
        parts = [self._component(component, source, trajectory, rating) for component, source in self._parts]
        return self._weighed(trajectory.id, parts, revision=0, time=time, reason=reason)

    def _component(
        self, component: ComponentDefinition, source: Source, trajectory: Trajectory, rating: float | None
    ) -> Component:
        raw, why, measured = source(trajectory, rating, component.terms)
        if raw is None:
            return Component(name=component.name, why=why)
        if not -MAX_MAGNITUDE <= raw <= MAX_MAGNITUDE:
            return Component(name=component.name, why=f"{why}: {raw:g} is no number to learn from")
        if component.normalise == "none":
            return Component(name=component.name, raw=raw, value=raw, why=why)
        alike = (getattr(trajectory, field) for field in component.per)
        key = (component.name, measured, *alike)
        baseline = self.baselines.take(
            key, raw, method=component.normalise, size=component.window, floor=component.floor
        )
        return Component(name=component.name, raw=raw, value=compared(raw, baseline), baseline=baseline, why=why)

    def _weighed(
        self,
        trajectory_id: str,
        parts: Sequence[Component],
        *,
        revision: int,
        time: datetime,
        reason: Literal["ingested", "feedback", "rescored"],
    ) -> Reward:
        shares, definition = self.definition.shares, self.definition
        known = math.fsum(shares[part.name] for part in parts if part.value is not None)
        components = [
            msgspec.structs.replace(part, weight=min(1.0, shares[part.name] / known))
            if part.value is not None and known > 0
            else part
            for part in parts
        ]
        return Reward(
            id=reward_id(trajectory_id, definition.version, revision),
            time=time,
            trajectory_id=trajectory_id,
            version=definition.version,
            definition=definition.hash,
            revision=revision,
            total=math.fsum(part.weight * part.value for part in components if part.value is not None),
            confidence=min(1.0, math.fsum(shares[c.name] * certainty(c.baseline) for c in components if c.weight > 0)),
            components=tuple(components),
            reason=reason,
        )


class _State(Struct, frozen=True, kw_only=True):
    definition: str
    baselines: msgspec.Raw


def mean_rating(*ratings: Iterable[Rating | Feedback]) -> float | None:
    """Mean of thumbs and stars, from 0 to 1; None without ratings."""
    scores = [score for some in ratings for rating in some for score in rating_scores(rating)]
    return math.fsum(scores) / len(scores) if scores else None


def reward_id(trajectory_id: str, version: int, revision: int) -> str:
    """A deterministic id, so that computing the reward again changes nothing; a long trajectory id is hashed."""
    end = f":r{version}.{revision}"
    if len(trajectory_id) + len(end) > MAX_ID_CHARS:
        trajectory_id = hashlib.sha256(trajectory_id.encode()).hexdigest()
    return trajectory_id + end


@dataclass(frozen=True, kw_only=True)
class Rescored:
    """The result of rescoring a history."""

    definition: RewardDefinition
    trajectories: int
    stored: Mapping[Stored, int]
    """Number of rewards by how they were stored; those in conflict keep their earlier reward of this version."""
    mean: float
    confidence: float
    state: bytes
    """State of the baselines, with which rewarding continues on new trajectories."""


def rescore(
    store: ExperienceStore,
    definition: RewardDefinition,
    *,
    where: Where = Where(),  # noqa: B008 (frozen)
    progress: Callable[[int], None] | None = None,
) -> Rescored:
    """Reward the history under this version too, oldest first, with fresh baselines; other versions stay.

    An interrupted call can be repeated: the time of a reward is the end of its trajectory (its time and latency), so
    the same history gives the same bytes, and stored rewards are duplicates.
    """
    if where.min_reward is not None or where.max_reward is not None or where.min_confidence is not None:
        raise ConfigError(f"{where}: what is to be rewarded cannot be chosen by its reward: leave that condition out")
    add_definition(store, definition)
    rewarder, stored = Rewarder(definition), Counter[Stored]()
    totals = confidences = 0.0
    batch: list[tuple[Reward, bytes]] = []

    def keep() -> None:
        stored.update(store.append(batch))
        if progress is not None:
            progress(len(batch))
        batch.clear()

    subject = subject_of(Trajectory)
    for row in store.scan(where, version=definition.version):
        trajectory = decode(row.body, subject=subject)
        assert isinstance(trajectory, Trajectory)
        rating, ended = row.summary.feedback, _end(trajectory)
        reward = rewarder._first(trajectory, rating, time=ended, reason="rescored")
        totals, confidences = totals + reward.total, confidences + reward.confidence
        batch.append((reward, encode(reward)))
        if len(batch) == BATCH:
            keep()
    if batch:
        keep()
    n = stored.total()
    return Rescored(
        definition=definition,
        trajectories=n,
        stored=stored,
        mean=totals / max(n, 1),
        confidence=confidences / max(n, 1),
        state=rewarder.state(),
    )


def _end(trajectory: Trajectory) -> datetime:
    try:
        return trajectory.time + timedelta(milliseconds=trajectory.outcome.latency_ms or 0.0)
    except OverflowError:  # a latency of ages
        return trajectory.time


class Part(Struct, frozen=True, kw_only=True):
    """A component and its contribution to the total."""

    component: Component
    weight_before: float | None
    """Weight before that of unknown components was divided; null if the definition is no longer known."""
    contribution: float
    """Contribution to the total."""


class Revision(Struct, frozen=True, kw_only=True):
    revision: int
    time: datetime
    reason: str
    total: float
    confidence: float


class Explanation(Struct, frozen=True, kw_only=True):
    """A reward with all details."""

    reward: Reward
    parts: tuple[Part, ...]
    missing: dict[str, str]
    """Unknown components, and why they are unknown."""
    history: tuple[Revision, ...]
    versions: tuple[int, ...]
    """Versions under which this trajectory has rewards."""


def explain(
    detail: TrajectoryDetail, known: Mapping[int, RewardDefinition], *, version: int | None = None
) -> Explanation:
    """Explain the last revision under this version, by default the highest one."""
    versions = tuple(sorted({reward.version for reward in detail.rewards}))
    if not versions or (version is not None and version not in versions):
        wanted = "no reward" if version is None else f"no reward of version {version}"
        rewarded = f" (there are {', '.join(map(str, versions))})" if versions else ""
        raise ConfigError(
            f"trajectory {detail.trajectory.id!r} has {wanted}{rewarded}: "
            f"`etude reward rescore --version {version or 1}` computes it"
        )
    version = versions[-1] if version is None else version
    rewards = sorted((r for r in detail.rewards if r.version == version), key=lambda r: r.revision)
    reward, definition = rewards[-1], known.get(version)
    shares = definition.shares if definition is not None and definition.hash == reward.definition else {}
    return Explanation(
        reward=reward,
        parts=tuple(
            Part(component=c, weight_before=shares.get(c.name), contribution=c.weight * (c.value or 0.0))
            for c in reward.components
        ),
        missing={c.name: c.why for c in reward.components if c.value is None},
        history=tuple(
            Revision(revision=r.revision, time=r.time, reason=r.reason, total=r.total, confidence=r.confidence)
            for r in rewards
        ),
        versions=versions,
    )
