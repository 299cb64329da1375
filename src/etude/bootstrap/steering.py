"""Wires what the server reads and steers besides decisions: releases, jobs, datasets, operations, the live stream."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec as find_package
from pathlib import Path

from etude.adapters.live import SqliteLive
from etude.bootstrap.clock import now
from etude.bootstrap.experience import Experience, open_place
from etude.bootstrap.loop import open_jobs
from etude.bootstrap.loop import settings_here as loop_settings
from etude.bootstrap.release import learned_from, lineage_of, with_experience
from etude.contracts.errors import MissingExtraError
from etude.contracts.query import Where
from etude.contracts.release import Entry
from etude.experience.config import EMBEDDED
from etude.experience.datasets import Manifest, registered
from etude.experience.datasets.manifest import read_manifest
from etude.experience.per_process import PerProcess
from etude.loop.notify import Notices
from etude.problems.catalogue import Catalogue
from etude.serving.config import ServingConfig
from etude.serving.live import Live, job_source, notice_source, operation_source, step_source
from etude.serving.operations import Operations
from etude.serving.steering import Releases, Steering

LIVE, LOGS, DATASETS = "live.sqlite", "operations", "datasets"
"""The live stream and operations, what operations print, and datasets, below experience.folder."""


@contextmanager
def open_steering(opened: Experience, config: ServingConfig, file: Path | None) -> Iterator[Steering]:
    folder, settings = Path(opened.config.folder), loop_settings(file)
    with ExitStack() as stack:
        jobs = PerProcess(lambda: stack.enter_context(open_jobs(settings)))
        releases = PerProcess(lambda: _releases(opened, file))
        state = SqliteLive(folder / LIVE)
        stack.callback(state.close)
        notices = Notices(opened.store, settings.loop.webhooks)
        operations = Operations(
            state, command=lambda given: _command(given, file), logs=folder / LOGS, nice=settings.loop.nice, clock=now
        )
        stack.callback(operations.close)
        sources = [job_source(jobs, now), notice_source(notices), operation_source(state)]
        if find_package("cryptography") is not None:
            sources.append(step_source(lambda: _histories(releases())))
        yield Steering(
            releases=releases,
            jobs=jobs,
            slots=lambda: _slots(opened),
            notices=notices,
            operations=operations,
            live=Live(state, sources, clock=now),
            catalogue=PerProcess(lambda: _catalogue(opened.config.workers)),
            dataset_place=lambda name: _place(name, opened, config),
            dataset_named=lambda name: _named(name, opened, config),
            datasets=lambda: registered(opened.store),
        )


def _releases(opened: Experience, file: Path | None) -> Releases:
    if find_package("cryptography") is None:
        raise MissingExtraError(needs="cryptography", extra="release")
    release = with_experience(opened, file)
    registry = release.registry
    return Releases(
        registry=registry,
        controller=release.controller,
        canary=release.settings.release.canary,
        starts=release,
        lineage=lambda version: lineage_of(registry, version, file),
        learned_from=lambda trajectory: learned_from(registry, trajectory, file),
    )


def _histories(releases: Releases) -> Iterable[tuple[str, Sequence[Entry]]]:
    registry = releases.registry
    return [(slot, registry.history(slot)) for slot in registry.slots()]


def _slots(opened: Experience) -> list[str]:
    groups = opened.store.stats(Where(), version=opened.config.reward_version).groups
    return sorted({group.problem for group in groups})


def _catalogue(workers: str | None) -> Catalogue:
    from etude.orchestrator.workplace import make_workplace

    return make_workplace(Path(workers) if workers else None).crew.catalogue


def _place(name: str, opened: Experience, config: ServingConfig) -> str:
    if opened.config.blobs != EMBEDDED:
        return f"{config.datasets or DATASETS}/{name}"
    return str(Path(config.datasets or Path(opened.config.folder) / DATASETS) / name)


def _named(name: str, opened: Experience, config: ServingConfig) -> Manifest | None:
    place = _place(name, opened, config)
    if opened.config.blobs == EMBEDDED and not Path(place).is_dir():
        return None
    return read_manifest(open_place(place, opened.config))


def _command(given: Sequence[str], file: Path | None) -> list[str]:
    named = [] if file is None else [f"--config={file}"]
    return [sys.executable, "-m", "etude.cli", *given, *named]
