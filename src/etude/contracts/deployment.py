"""A policy begins to decide, for some or for all; or stops."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from etude.contracts.trajectory import Amount, Event, Name, Share


class CanaryStage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of the way to all decisions."""

    share: Share
    """Of the decisions that the candidate makes."""
    minutes: Amount
    """How long at least."""


class Check(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that had to hold before."""

    name: Name
    """What was checked."""
    verdict: Literal["passed", "failed", "inconclusive"]
    """Undecided is not passed."""
    value: float | None = None
    """What was measured."""
    bound: float | None = None
    """What it was compared with."""
    detail: str = ""
    """In words."""


class Platform(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where it serves."""

    kind: Literal["embedded", "http", "tensorzero"] = "embedded"
    """In the same process, by HTTP, or through a TensorZero gateway."""
    url: str | None = None
    """Of the service, where there is one."""
    replicas: Annotated[int, Meta(ge=1)] = 1
    """How many serve."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Anything else it needs."""


DOCUMENT_SCHEDULE = tuple(CanaryStage(share=share, minutes=80) for share in (0.10, 0.25, 0.50))
"""10 → 25 → 50 → 100 % over four hours."""


class ModelDeployed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="agent.rl.model.deployed.v1"):
    """Which policy decides from now on."""

    problem: Name
    """What it decides."""
    policy: Name
    """The version."""
    stage: Literal["shadow", "canary", "full", "rolled_back"]
    """Shadow decides for nobody, canary for some, full for all; rolled back is over."""
    traffic: dict[str, Share]
    """Share of decisions by policy version."""
    replaces: Name | None = None
    """The version that decided before."""
    canary: tuple[CanaryStage, ...] = DOCUMENT_SCHEDULE
    """How the share grows, up to all of it."""
    validation: tuple[Check, ...] = ()
    """What was checked before."""
    platform: Platform = Platform()
    """Where it serves."""
    dataset: str | None = None
    """Hash of the dataset it learned from."""
    reason: str = ""
    """Why, for the audit."""
