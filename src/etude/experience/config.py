"""Settings of experience: where it is stored, and what is redacted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Gt, Le, MinLen

EMBEDDED = "embedded"


@dataclass(frozen=True, kw_only=True)
class ExperienceConfig:
    """Where experience is stored. It is embedded by default; three lines select NATS, ClickHouse and S3."""

    folder: Annotated[str, MinLen(1)] = ".etude"
    """Folder of the embedded outbox and store."""
    bus: str = EMBEDDED
    """Event bus: `embedded`, or `nats://host:4222`."""
    store: str = EMBEDDED
    """Store of trajectories: `embedded`, or `clickhouse://user@host:8123/database`."""
    blobs: str = EMBEDDED
    """Store of datasets: `embedded`, in the folder given to the command, or `s3://bucket/prefix`."""
    reward_version: Annotated[int, Ge(1)] = 1
    """Reward definition for ingested trajectories; `etude reward list` shows them."""
    retention_days: Annotated[float, Gt(0)] | None = None
    """Age in days from which `etude experience expire` removes trajectories; null keeps them."""
    max_ahead_s: Annotated[float, Ge(0)] = 3600.0
    """Seconds by which the time of an event may be ahead of the local clock; beyond that it becomes a dead letter."""
    keep_kinds: tuple[str, ...] = ()
    """Kinds of personal data and secrets that are not redacted, such as IP."""
    allow: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values, @domains, networks and re:patterns that are not redacted, by tenant; `*` is for all tenants."""
    policies: Mapping[str, str] = field(default_factory=dict)
    """Policy of `task.decide` by problem or choice: the folder of a run, a name such as `uniform` or `default`, or
    `served`, the policy that serves in the registry. Choices that are registered there need no entry."""
    decide_timeout_ms: Annotated[float, Gt(0), Le(3_600_000)] = 200.0
    """Milliseconds that `task.decide` waits for the policy of a choice, loading included; then it gives the default."""
    workers: str | None = None
    """Workers file for the plans of `task.decide`; null is the simulated office."""
    explore: Annotated[float, Ge(0), Le(1)] = 0.0
    """Share of random decisions of a deterministic policy; above 0 a trained policy samples as in training."""
