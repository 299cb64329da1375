"""Wires the server: its state, keys and decisions from the settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from functools import cache
from importlib.util import find_spec as find_package
from pathlib import Path

import msgspec
from msgspec import Struct
from pydantic import BaseModel, ConfigDict

import etude
from etude.adapters.serving_state import SqliteServingState
from etude.bootstrap.clock import now
from etude.bootstrap.experience import Experience, experience, make_collector, problem_of
from etude.bootstrap.loop import open_jobs
from etude.bootstrap.loop import settings_here as loop_settings
from etude.bootstrap.release import KEYS, open_registry, settings_with
from etude.bootstrap.steering import open_steering
from etude.contracts.ports import Decider
from etude.contracts.serving import ServingState
from etude.contracts.session import Session
from etude.experience.cleaning import make_cleaner
from etude.experience.config import ExperienceConfig
from etude.experience.task import Collector
from etude.learning.artefact import Artefact
from etude.problems.spec import resolve
from etude.problems.table import find_spec, names, specs
from etude.serving.config import ServingConfig
from etude.serving.decisions import Decisions
from etude.serving.ids import SignedIds
from etude.serving.installation import Installation
from etude.serving.keys import Keys
from etude.serving.logs import logging_as
from etude.serving.metrics import ProcessMetrics
from etude.serving.routing.checks import Checks, load_verifiers
from etude.serving.routing.config import RoutingConfig
from etude.serving.routing.conversations import Conversations
from etude.serving.routing.models import Models
from etude.serving.routing.proxy import Proxy
from etude.serving.routing.upstreams import make_upstreams
from etude.serving.server import Server
from etude.serving.sessions import Sessions
from etude.serving.steering import Steering
from etude.serving.telemetry import Telemetry
from etude.serving.tracing import tracing_to
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
    build_types()
    settings = settings_here(file)
    folder = Path(settings.experience.folder)
    with (
        experience(file, catch_up=False) as opened,
        open_steering(opened, settings.serving, file) as steering,
    ):
        collector = make_collector(settings.experience, swap_when_loaded=True)
        state = SqliteServingState(folder / STATE)
        ids, cleaner = SignedIds(folder / KEYS), make_cleaner(settings.experience)
        metrics = ProcessMetrics(version=etude.__version__)
        named = [problem_of(name) for name in settings.experience.policies]
        decisions = Decisions(
            config=settings.serving,
            collector=collector,
            state=state,
            ids=ids,
            clean=cleaner.clean_all,
            fallback=cache(lambda problem: _fallback(problem, settings.experience)),
            clock=now,
            stored_of=lambda trajectory, tenant: _stored_of(opened, trajectory, tenant),
            decided=metrics.decided,
        )
        with closing(state), _installation(opened, collector, state, file) as own:
            yield Server(
                config=settings.serving,
                version=etude.__version__,
                keys=_keys(opened, settings.serving),
                collector=collector,
                store=opened.store,
                state=state,
                decisions=decisions,
                proxy=_proxy(settings.routing, decisions),
                sessions=_sessions(settings.serving, steering),
                telemetry=Telemetry(
                    publish=collector.publish_all,
                    redact=cleaner.unknown,
                    unmapped=folder / UNMAPPED,
                    max_bytes=settings.serving.max_body_bytes,
                ),
                steering=steering,
                reward_version=settings.experience.reward_version,
                ingest=lambda: sum(opened.catch_up().stored.values()),
                clock=now,
                started=now(),
                installation=own,
                policies=lambda: {name: collector.deciders.state(name) for name in named},
                metrics=metrics,
            )


def build_types() -> None:
    """Have msgspec read the fields of every type of ours, before there are threads: two of them that decode a type for
    the first time, such as those that load policies, end the process with a segmentation fault (msgspec 0.22)."""
    waiting: list[type[Struct]] = [Struct]
    while waiting:
        below = waiting.pop().__subclasses__()
        waiting += below
        for one in below:
            if one.__module__.startswith("etude."):
                msgspec.json.Decoder(one)


@contextmanager
def watched(server: Server, file: Path | None = None) -> Iterator[None]:
    """The log of this process, and the spans of its requests, as the settings say."""
    config, redact = server.config, make_cleaner(settings_here(file).experience).text
    with ExitStack() as opened:
        lines = opened.enter_context(logging_as(config.log_format, redact))
        server.watch = () if lines is None else (lines,)
        if config.otel_endpoint:
            server.watch += (opened.enter_context(tracing_to(config.otel_endpoint, server.version)),)
        yield


@contextmanager
def _installation(
    opened: Experience, collector: Collector, state: ServingState, file: Path | None
) -> Iterator[Installation]:
    config, loop = opened.config, loop_settings(file)
    with open_jobs(loop) as jobs:
        made = Installation(
            store=opened.store,
            state=state,
            bus=collector.bus if opened.is_embedded else opened.bus,
            outbox=collector.bus,
            jobs=jobs,
            leader=jobs,
            registry=open_registry(settings_with(config)) if find_package("cryptography") else None,
            problems=names(),
            named=frozenset({problem_of(name) for name in config.policies} | set(loop.loop.slots)),
            reward_version=config.reward_version,
            folder=Path(config.folder),
            clock=now,
        )
        with closing(made):
            yield made


def _sessions(config: ServingConfig, steering: Steering) -> Sessions:
    spec = next(spec for spec in specs().values() if spec.session is not None)

    def begin(policy: Artefact | None) -> Session:
        assert spec.session is not None
        made: Session = resolve(spec.session)(policy)
        return made

    return Sessions(
        spec=spec,
        open=begin,
        releases=steering.releases,
        limit=config.max_sessions,
        idle=timedelta(hours=config.session_idle_hours),
        clock=now,
    )


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


def _stored_of(opened: Experience, trajectory: str, tenant: str | None) -> bool:
    """Whether a trajectory is stored that a tenant may see, also if it arrived just now."""
    found = opened.store.detail(trajectory)
    if found is None and opened.is_embedded:
        opened.catch_up()
        found = opened.store.detail(trajectory)
    if found is None:  # with a broker it may be on its way, and a rating waits for it
        return tenant is None and not opened.is_embedded
    return tenant in (None, found.trajectory.tenant)


def _fallback(problem: str, config: ExperienceConfig) -> Decider | None:
    """What a problem decides with where no policy is named: its rules."""
    spec = find_spec(problem)
    if spec.rules is not None:
        rules: Decider = resolve(spec.rules)()
        return rules
    if spec.decider is None:
        return None
    found: Decider = resolve(spec.decider)(None, config)
    return found
