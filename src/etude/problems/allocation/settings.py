"""The sections of etude.yaml that allocation reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from etude.problems.allocation.network import NetworkConfig
from etude.problems.allocation.world import AllocationConfig


@dataclass(frozen=True, kw_only=True)
class AllocationSettings:
    allocation: AllocationConfig = field(default_factory=AllocationConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
