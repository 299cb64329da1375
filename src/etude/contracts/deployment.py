"""Which policies decide which share of the decisions, and how a candidate is released."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from etude.contracts.decision import Amount, Name
from etude.contracts.trajectory import Event, PolicyVersion, Share


class CanaryStage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a canary."""

    share: Share
    """Share of the decisions that the candidate makes."""
    minutes: Amount
    """Minimum duration of the stage."""


class Check(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A gate before the release."""

    name: Name
    """Name of the check."""
    verdict: Literal["passed", "failed", "inconclusive"]
    """Verdict; inconclusive does not count as passed."""
    value: float | None = None
    """Measured value."""
    bound: float | None = None
    """Bound that the value was compared with."""
    detail: str = ""
    """Explanation in words."""


class Platform(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the policy serves."""

    kind: Literal["embedded", "http", "tensorzero"] = "embedded"
    """Kind of platform: the same process, an HTTP server, or a TensorZero gateway."""
    url: str | None = None
    """URL of the service, if there is one."""
    replicas: Annotated[int, Meta(ge=1)] = 1
    """Number of replicas."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further settings of the platform."""


DOCUMENT_SCHEDULE = tuple(CanaryStage(share=share, minutes=80) for share in (0.10, 0.25, 0.50))
"""10 → 25 → 50 → 100 % over four hours."""


class ModelDeployed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="agent.rl.model.deployed.v1"):
    """A change in which policies decide."""

    problem: Name
    """Name of the problem."""
    policy: PolicyVersion
    """The candidate's version."""
    stage: Literal["shadow", "canary", "hold", "experiment", "full", "rolled_back"]
    """Stage of the release. Shadow: its decisions are only logged. Canary: it makes a growing share. Hold: its share is
    constant until a person decides. Experiment: fixed shares, for comparison. Full: it makes all decisions. Rolled
    back: it makes none."""
    traffic: dict[PolicyVersion, Share]
    """Share of decisions by policy version."""
    replaces: PolicyVersion | None = None
    """Version of the incumbent, which makes the other decisions and which a rollback returns to."""
    canary: tuple[CanaryStage, ...] = DOCUMENT_SCHEDULE
    """Stages in which the candidate's share grows."""
    canary_stage: Annotated[int, Meta(ge=0)] | None = None
    """Index of the current canary stage, from 0, in the stages canary and hold."""
    validation: tuple[Check, ...] = ()
    """Checks before the release."""
    platform: Platform = Platform()
    """Where the policy serves."""
    dataset: str | None = None
    """Hash of the dataset that the policy learned from."""
    reason: str = ""
    """Reason for the change, for the audit."""
