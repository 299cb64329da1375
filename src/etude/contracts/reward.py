"""What a trajectory was worth: the numbers learned from, computed by us, with their parts, version and confidence."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from etude.contracts.trajectory import Event, Id, Name, Share

Version = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Baseline(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a raw number was compared with."""

    method: Literal["none", "zscore", "minmax"]
    """How: by deviations from the mean, by the place between lowest and highest, or not at all."""
    count: Annotated[int, Meta(ge=0)] = 0
    """Trajectories before this one that it was made from."""
    mean: float = 0.0
    """Of the trajectories before."""
    std: float = 0.0
    """Their standard deviation."""
    low: float = 0.0
    """The lowest of them."""
    high: float = 0.0
    """The highest of them."""


class Component(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a reward."""

    name: Name
    """Such as completion, efficiency, quality, feedback, execution."""
    raw: float | None = None
    """As it was found; null where nothing is known of it."""
    value: float | None = None
    """After comparison with the baseline, from 0 to 1 unless the definition says otherwise."""
    weight: Share = 0.0
    """Its share of the total, after what is missing gave its share to the rest."""
    baseline: Baseline | None = None
    """What it was compared with."""
    why: str = ""
    """In words, where the number came from."""


class Reward(Event, frozen=True, kw_only=True, omit_defaults=True, tag="agent.rl.reward.v1"):
    """A reward of one trajectory under one version of the definition; a later `revision` replaces an earlier one."""

    trajectory_id: Id
    """Whose reward it is."""
    version: Version
    """Of the definition."""
    definition: Name
    """The definition's hash."""
    revision: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """Counts up when feedback comes late."""
    total: float
    """What is learned from."""
    confidence: Share
    """The share of the definition's weight that something is known of."""
    components: tuple[Component, ...] = ()
    """Its parts, those of which nothing is known included."""
    reason: Literal["ingested", "feedback", "rescored"] = "ingested"
    """Why it was computed."""
