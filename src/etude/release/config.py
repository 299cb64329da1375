"""Settings of release: where policies are registered, and how candidates are released."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Gt

from etude.release.gates.gate import GateConfig
from etude.release.start import CanaryConfig

EMBEDDED = "embedded"


@dataclass(frozen=True, kw_only=True)
class ReleaseConfig:
    """Where policies are registered and how they reach users."""

    registry: str = EMBEDDED
    """Registry of policies: `embedded`, in the folder `registry` of experience.folder, another folder, or
    `s3://bucket/prefix`."""
    retention_days: Annotated[float, Gt(0)] = 90.0
    """Age in days from which the files of a version are deleted that neither serves nor can be rolled back to."""
    trusted_keys: tuple[str, ...] = ()
    """Public keys of other installations whose policies may serve here, in hexadecimal; `etude models key` shows the
    key of this one."""
    require_approval: bool = False
    """Whether a person has to approve a version before it is promoted."""
    gates: GateConfig = field(default_factory=GateConfig)
    """What a version has to pass before it is exposed."""
    canary: CanaryConfig = field(default_factory=CanaryConfig)
    """How a candidate is exposed."""
