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
from etude.bootstrap.steering import open_steering
from etude.contracts.ports import Decider
from etude.experience.cleaning import make_cleaner
from etude.experience.config import ExperienceConfig
from etude.problems.spec import resolve
from etude.problems.table import find_spec
from etude.serving.config import ServingConfig
from etude.serving.decisions import Decisions
from etude.serving.ids import SignedIds
from etude.serving.keys import Keys
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
    with (
        experience(file, catch_up=False) as opened,
        open_steering(opened, settings.serving, file) as steering,
    ):
        collector, state = make_collector(settings.experience), SqliteServingState(folder / STATE)
        ids = SignedIds(folder / KEYS)
        try:
            yield Server(
                config=settings.serving,
                version=etude.__version__,
                keys=_keys(opened, settings.serving),
                collector=collector,
                store=opened.store,
                state=state,
                decisions=Decisions(
                    config=settings.serving,
                    collector=collector,
                    state=state,
                    ids=ids,
                    fallback=cache(lambda problem: _fallback(problem, settings.experience)),
                    clock=now,
                    stored_of=lambda trajectory, tenant: _stored_of(opened, trajectory, tenant),
                ),
                telemetry=Telemetry(
                    publish=collector.publish_all,
                    redact=make_cleaner(settings.experience).unknown,
                    unmapped=folder / UNMAPPED,
                    max_bytes=settings.serving.max_body_bytes,
                ),
                steering=steering,
                reward_version=settings.experience.reward_version,
                ingest=lambda: sum(opened.catch_up().stored.values()),
                clock=now,
                started=now(),
            )
        finally:
            state.close()


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
    if spec.decider is None:
        return None
    found: Decider = resolve(spec.decider)(None, config)
    return found
