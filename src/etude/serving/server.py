"""What the routes use: everything that one process of the server holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from etude.contracts.serving import ServingState
from etude.contracts.store import ExperienceStore
from etude.experience.deciders import NoAnswer
from etude.experience.task import Collector
from etude.serving.config import ServingConfig
from etude.serving.decisions import Decisions
from etude.serving.installation import Installation
from etude.serving.keys import Keys
from etude.serving.metrics import ProcessMetrics
from etude.serving.routing.proxy import Proxy
from etude.serving.sessions import Sessions
from etude.serving.steering import Steering
from etude.serving.telemetry import Telemetry
from etude.serving.watched import Watch


@dataclass(kw_only=True)
class Server:
    config: ServingConfig
    version: str
    keys: Keys
    collector: Collector
    store: ExperienceStore
    state: ServingState
    decisions: Decisions
    telemetry: Telemetry
    steering: Steering
    proxy: Proxy
    sessions: Sessions
    reward_version: int
    ingest: Callable[[], int]
    """Store what was published; the number of events."""
    clock: Callable[[], datetime]
    started: datetime
    answered: Counter[int] = field(default_factory=Counter)
    """Requests of this process by their status."""
    installation: Installation
    policies: Callable[[], Mapping[str, NoAnswer | None]] = dict
    """Of the problems that the settings name a policy for: why it does not decide, None where it does."""
    metrics: ProcessMetrics = field(default_factory=ProcessMetrics)
    watch: tuple[Watch, ...] = ()
    """Called for each request that has ended: its log line, its span."""
    with_loop: bool = False
    """Whether the loop should run next to this process."""
    phase: Literal["starting", "running", "stopping"] = "starting"
    worked_at: float = 0.0
    """When the background work last began, on the monotonic clock."""
    trouble: str = ""
    """Why the background work could not be done the last time."""
