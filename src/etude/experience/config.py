"""Where experience goes, and what is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Gt, Le, MinLen

EMBEDDED = "embedded"


@dataclass(frozen=True, kw_only=True)
class ExperienceConfig:
    """Embedded as it is; three lines bring it to NATS, ClickHouse and S3."""

    folder: Annotated[str, MinLen(1)] = ".etude"
    """Where what is embedded lies: the outbox and the store."""
    bus: str = EMBEDDED
    """How events travel: `embedded`, or `nats://host:4222`."""
    store: str = EMBEDDED
    """Where trajectories are kept: `embedded`, or `clickhouse://user@host:8123/database`."""
    blobs: str = EMBEDDED
    """Where datasets are kept: `embedded`, in the folder that is given, or below `s3://bucket/prefix`."""
    reward_version: Annotated[int, Ge(1)] = 1
    """The definition that what comes in is rewarded by; `etude reward list` shows them."""
    retention_days: Annotated[float, Gt(0)] | None = None
    """Trajectories older than this are removed by `etude experience expire`; null keeps them."""
    max_ahead_s: Annotated[float, Ge(0)] = 3600.0
    """How far an event's clock may be ahead of ours; beyond that it becomes a dead letter."""
    keep_kinds: tuple[str, ...] = ()
    """Kinds of personal data and secrets that are not redacted, such as IP."""
    allow: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By tenant, `*` for all: values, @domains, networks and re:patterns that are left as they are."""
    policies: Mapping[str, str] = field(default_factory=lambda: {"workflow": "rules"})
    """By problem, who decides in `task.decide`: a run's folder, or a policy by name."""
    workers: str | None = None
    """The workers file that `task.decide("workflow", …)` plans for; null is the simulated office."""
    explore: Annotated[float, Ge(0), Le(1)] = 0.0
    """How often a lot decides instead of a policy that draws none; a run draws as in training if it is above 0."""
