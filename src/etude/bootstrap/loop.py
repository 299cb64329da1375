"""Wires the loop: makes its queue, runner and coordinator from the settings. No torch by itself."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec as find_package
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from etude.adapters.jobs import SqliteJobs
from etude.bootstrap.clock import now
from etude.bootstrap.experience import Experience, existing_store, experience, open_place
from etude.contracts.query import Where
from etude.evidence.drift import DriftThresholds
from etude.experience.config import ExperienceConfig
from etude.files.durable import make_folder
from etude.loop.config import LoopConfig
from etude.loop.coordinator import Coordinator, Releases
from etude.loop.drift import DriftWatch
from etude.loop.notify import Notices
from etude.loop.runner import ProcessRunner, train_command
from etude.loop.summary import Render
from etude.loop.triggers import check_schedule
from etude.settings.sources import Tree

JOBS, LOGS, REPORTS = "jobs.sqlite", "jobs", "reports"
"""The queue, the output of jobs, and the reports, below experience.folder."""


class LoopSettings(BaseModel):
    """The sections of the settings tree that the loop needs; they do not import torch."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    experience: ExperienceConfig = ExperienceConfig()
    loop: LoopConfig = LoopConfig()


def settings_here(file: Path | None = None) -> LoopSettings:
    """Settings from `file` or ./etude.yaml, if there is one, and ETUDE_… variables of these sections.

    ConfigError also if the schedule cannot be parsed.
    """
    settings = Tree(LoopSettings).read_own(file, os.environ)
    check_schedule(settings.loop)
    return settings


@contextmanager
def open_jobs(settings: LoopSettings) -> Iterator[SqliteJobs]:
    folder = Path(settings.experience.folder)
    make_folder(folder)
    queue = SqliteJobs(folder / JOBS, retries=settings.loop.retries, backoff_s=settings.loop.backoff_s, clock=now)
    try:
        yield queue
    finally:
        queue.close()


@contextmanager
def open_loop(file: Path | None = None) -> Iterator[Coordinator]:
    settings = settings_here(file)
    folder = Path(settings.experience.folder)
    with experience(file, catch_up=False) as opened, open_jobs(settings) as queue:
        yield Coordinator(
            config=settings.loop,
            reward_version=settings.experience.reward_version,
            bus=opened.bus,
            store=opened.store,
            queue=queue,
            leader=queue,
            runner=ProcessRunner(settings.loop, logs=folder / LOGS, command=train_command(file)),
            releases=open_releases(opened, file),
            notices=Notices(opened.store, settings.loop.webhooks),
            datasets=lambda place: open_place(place, settings.experience),
            ingest=lambda: _ingest(opened),
            reports=folder / REPORTS,
            render=_render(),
            owner=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}",
            clock=now,
            drift=DriftWatch(
                store=opened.store,
                reward_version=settings.experience.reward_version,
                thresholds=DriftThresholds(),
            ),
        )


def open_releases(opened: Experience, file: Path | None) -> Releases | None:
    """Releases of the registry; without the extra `release` the loop only trains."""
    if find_package("cryptography") is None:
        return None
    from etude.bootstrap.release import with_experience
    from etude.bootstrap.releases import RegistryReleases

    return RegistryReleases(release=with_experience(opened, file), config=file)


def collected_slots(file: Path | None = None) -> list[str]:
    """Slots with experience."""
    with existing_store(file) as store:
        if store is None:
            return []
        groups = store.stats(Where(), version=settings_here(file).experience.reward_version).groups
    return sorted({group.problem for group in groups})


def _ingest(opened: Experience) -> int:
    counts = opened.catch_up()
    return sum(counts.stored.values()) + counts.buried


def _render() -> Render | None:
    """Pages need the template engine of the extra `train`."""
    if find_package("jinja2") is None:
        return None
    from etude.reports.jobs import loop_page

    return loop_page
