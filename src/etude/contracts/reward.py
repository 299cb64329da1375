"""Rewards of trajectories: the numbers that policies learn from, with their components, version and confidence."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from etude.contracts.decision import Name
from etude.contracts.trajectory import Event, Id, Outcome, Share

Version = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class ExecutionReward(Struct, frozen=True, kw_only=True):
    """The source document's compute_reward: its weights, and the units that cost and latency are counted in."""

    success: float = 10.0
    cost: float = 0.1
    latency: float = 0.01
    subtask: float = 0.1
    cost_unit_usd: float = 0.01
    latency_unit_ms: float = 1000.0

    def __call__(self, outcome: Outcome) -> float:
        """The reward of an outcome; unknown values count as 0."""
        return (
            self.success * bool(outcome.success)
            - self.cost * (outcome.cost_usd or 0.0) / self.cost_unit_usd
            - self.latency * (outcome.latency_ms or 0.0) / self.latency_unit_ms
            + self.subtask * (outcome.subtasks_done or 0)
        )


class Baseline(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Numbers that a raw value was compared with."""

    method: Literal["none", "zscore", "minmax"]
    """Normalisation: by standard deviations from the mean, by the position between lowest and highest, or none."""
    count: Annotated[int, Meta(ge=0)] = 0
    """Number of earlier trajectories in the baseline."""
    mean: float = 0.0
    """Mean of the earlier trajectories."""
    std: float = 0.0
    """Their standard deviation."""
    low: float = 0.0
    """The lowest of them."""
    high: float = 0.0
    """The highest of them."""
    floor: Annotated[float, Meta(ge=0)] = 0.0
    """Minimum standard deviation, and half the minimum distance of lowest and highest, that is compared with."""


class Component(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a reward."""

    name: Name
    """Name, such as completion, efficiency, quality, feedback or execution."""
    raw: float | None = None
    """Value before normalisation; null if unknown."""
    value: float | None = None
    """Value after normalisation, from 0 to 1 unless the definition says otherwise; null if unknown."""
    weight: Share = 0.0
    """Share of the total; the weight of unknown components is divided among the others."""
    baseline: Baseline | None = None
    """Baseline that the raw value was compared with."""
    why: str = ""
    """How the value was computed, in words."""


class Reward(Event, frozen=True, kw_only=True, omit_defaults=True, tag="agent.rl.reward.v1"):
    """A reward of one trajectory under one version of the definition; a later `revision` replaces an earlier one."""

    trajectory_id: Id
    """Id of the trajectory."""
    version: Version
    """Version of the reward definition."""
    definition: Name
    """Hash of the reward definition."""
    revision: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """Number of the revision; late feedback increases it."""
    total: float
    """Number that policies learn from."""
    confidence: Share
    """Share of the definition's weight whose components are known."""
    components: tuple[Component, ...] = ()
    """All components, including unknown ones."""
    reason: Literal["ingested", "feedback", "rescored"] = "ingested"
    """Why the reward was computed."""
