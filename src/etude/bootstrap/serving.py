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
    with experience(file, catch_up=False) as opened:
        collector = make_collector(settings.experience, swap_when_loaded=True)
        state = SqliteServingState(folder / STATE)
        ids, cleaner = SignedIds(folder / KEYS), make_cleaner(settings.experience)
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
                    clean=cleaner.clean_all,
                    fallback=cache(lambda problem: _fallback(problem, settings.experience)),
                    clock=now,
                ),
                telemetry=Telemetry(
                    publish=collector.publish_all,
                    redact=cleaner.unknown,
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


def _keys(opened: Experience, config: ServingConfig) -> Keys:
    return Keys(opened.store, clock=now, requests_per_s=config.requests_per_s)


def _fallback(problem: str, config: ExperienceConfig) -> Decider | None:
    """What a problem decides with where no policy is named: its rules."""
    spec = find_spec(problem)
    if spec.decider is None:
        return None
    found: Decider = resolve(spec.decider)(None, config)
    return found
