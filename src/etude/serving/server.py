"""What the routes use: everything that one process of the server holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from etude.contracts.serving import ServingState
from etude.contracts.store import ExperienceStore
from etude.experience.task import Collector
from etude.serving.config import ServingConfig
from etude.serving.decisions import Decisions
from etude.serving.keys import Keys
from etude.serving.routing.proxy import Proxy
from etude.serving.telemetry import Telemetry


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
    proxy: Proxy
    reward_version: int
    ingest: Callable[[], int]
    """Store what was published; the number of events."""
    clock: Callable[[], datetime]
    started: datetime
    answered: Counter[int] = field(default_factory=Counter)
    """Requests of this process by their status."""
