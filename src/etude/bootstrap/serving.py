"""Wires the server: its state, keys and decisions from the settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

import etude
from etude.adapters.serving_state import SqliteServingState
from etude.bootstrap.clock import now
from etude.bootstrap.experience import Experience, experience, make_collector
from etude.bootstrap.release import KEYS
from etude.contracts.ports import Decider
from etude.experience.cleaning import make_cleaner
from etude.experience.config import ExperienceConfig
from etude.problems.spec import resolve
from etude.problems.table import find_spec
from etude.serving.config import ServingConfig
from etude.serving.decisions import Decisions
from etude.serving.ids import SignedIds
from etude.serving.keys import Keys
from etude.serving.routing.checks import Checks, load_verifiers
from etude.serving.routing.config import RoutingConfig
from etude.serving.routing.conversations import Conversations
from etude.serving.routing.models import Models
from etude.serving.routing.proxy import Proxy
from etude.serving.routing.upstreams import make_upstreams
from etude.serving.server import Server
from etude.serving.telemetry import Telemetry
from etude.settings.sources import Tree

STATE, UNMAPPED = "serving.sqlite", "unmapped.jsonl"
"""What waits for an outcome, and what of OTLP requests could not be mapped, below experience.folder."""


class ServingSettings(BaseModel):
    """The sections of the settings tree that the server needs."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    experience: ExperienceConfig = ExperienceConfig()
    serving: ServingConfig = ServingConfig()
    routing: RoutingConfig = RoutingConfig()


def settings_here(file: Path | None = None) -> ServingSettings:
    return Tree(ServingSettings).read_own(file, os.environ)


@contextmanager
def open_keys(file: Path | None = None) -> Iterator[Keys]:
    with experience(file, catch_up=False) as opened:
        yield _keys(opened, settings_here(file).serving)


@contextmanager
def open_server(file: Path | None = None) -> Iterator[Server]:
    settings = settings_here(file)
    folder = Path(settings.experience.folder)
    with experience(file, catch_up=False) as opened:
        collector, state = make_collector(settings.experience), SqliteServingState(folder / STATE)
        ids = SignedIds(folder / KEYS)
        decisions = Decisions(
            config=settings.serving,
            collector=collector,
            state=state,
            ids=ids,
            fallback=cache(lambda problem: _fallback(problem, settings.experience)),
            clock=now,
        )
        try:
            yield Server(
                config=settings.serving,
                version=etude.__version__,
                keys=_keys(opened, settings.serving),
                collector=collector,
                store=opened.store,
                state=state,
                decisions=decisions,
                proxy=_proxy(settings.routing, decisions),
                telemetry=Telemetry(
                    publish=collector.publish_all,
                    redact=make_cleaner(settings.experience).unknown,
                    unmapped=folder / UNMAPPED,
                    max_bytes=settings.serving.max_body_bytes,
                ),
                reward_version=settings.experience.reward_version,
                ingest=lambda: sum(opened.catch_up().stored.values()),
                clock=now,
                started=now(),
            )
        finally:
            state.close()


def _proxy(config: RoutingConfig, decisions: Decisions) -> Proxy:
    upstreams = make_upstreams(config, os.environ)
    return Proxy(
        config=config,
        upstreams=upstreams,
        models=Models(config=config, upstreams=upstreams),
        decisions=decisions,
        conversations=Conversations(
            state=decisions.state, hours=config.affinity_hours, limit=config.max_conversations, clock=now
        ),
        checks=Checks(
            config=config, upstreams=upstreams, add=decisions.add, verifiers=load_verifiers(config.verifiers)
        ),
        clock=now,
    )


def _keys(opened: Experience, config: ServingConfig) -> Keys:
    return Keys(opened.store, clock=now, requests_per_s=config.requests_per_s)


def _fallback(problem: str, config: ExperienceConfig) -> Decider | None:
    """What a problem decides with where no policy is named: its rules."""
    spec = find_spec(problem)
    if spec.decider is None:
        return None
    found: Decider = resolve(spec.decider)(None, config)
    return found
