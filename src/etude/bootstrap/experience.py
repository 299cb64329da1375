"""Wires experience: makes outbox, broker, store, blobs, collector and ingest from the settings. No torch."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

from pydantic import BaseModel, ConfigDict

from etude.bootstrap.clock import now
from etude.contracts.blobs import BlobStore
from etude.contracts.bus import EventBus
from etude.contracts.errors import ConfigError, EtudeError
from etude.contracts.option import CHOICE
from etude.contracts.ports import Decider
from etude.contracts.services import mask_url
from etude.contracts.store import ExperienceStore
from etude.contracts.subjects import TRAJECTORIES
from etude.experience.cleaning import make_cleaner
from etude.experience.config import EMBEDDED, ExperienceConfig
from etude.experience.deciders import DEFAULT, UNIFORM, Deciders, Default, Start, ToLoad, Uniform
from etude.experience.definitions import add_definition, find_definition
from etude.experience.forward import Forwarding
from etude.experience.ingest import BASELINES, Counts, Ingest, consume, publisher
from etude.experience.ingest import GROUP as INGEST
from etude.experience.per_process import PerProcess
from etude.experience.rewards import Rewarder
from etude.experience.task import Collector, OptOuts
from etude.files.durable import make_folder
from etude.problems.spec import resolve
from etude.problems.table import find_spec, names
from etude.settings.sources import Tree

OUTBOX, STORE = "outbox.sqlite", "experience.sqlite"
SERVED = "served"
"""Name of a policy in the settings: the one that the registry's serving pointer names."""
LEARNED = CHOICE.removesuffix(":")
"""The problem whose policies learn choices of a user's own."""
URL, API_KEY = "ETUDE_URL", "ETUDE_API_KEY"
"""Variables that name the server which decides and stores in place of this process."""
EXIT_TIMEOUT_S = 2.0
"""Seconds for which the end of a process may wait for its last events to be forwarded."""


class ExperienceSettings(BaseModel):
    """The section of the settings tree that experience needs; it does not import torch."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    experience: ExperienceConfig = ExperienceConfig()


def read_config(file: Path | None = None, *, environ: Mapping[str, str] | None = None) -> ExperienceConfig:
    """Settings from `file` or ./etude.yaml, if there is one, and ETUDE_EXPERIENCE__… variables; others are ignored."""
    return Tree(ExperienceSettings).read_own(file, environ or {}).experience


def config_here(file: Path | None = None) -> ExperienceConfig:
    """The settings in force in this process."""
    return read_config(file, environ=os.environ)


def open_outbox(config: ExperienceConfig, name: str = OUTBOX) -> EventBus:
    """The outbox, to which all events are published."""
    from etude.adapters.outbox import Outbox

    return Outbox(_folder(config) / name)


def open_bus(config: ExperienceConfig) -> EventBus:
    """The bus from which events are consumed: the broker, or the outbox if there is none."""
    if config.bus == EMBEDDED:
        return open_outbox(config)
    if _scheme(config.bus) not in ("nats", "tls"):
        raise ConfigError(f"experience.bus is {mask_url(config.bus)!r}: expected `embedded` or nats://host:4222")
    from etude.adapters.nats import NatsBus

    return NatsBus(config.bus)


def open_store(config: Path | ExperienceConfig | None = None) -> ExperienceStore:
    chosen = config if isinstance(config, ExperienceConfig) else config_here(config)
    if chosen.store == EMBEDDED:
        from etude.adapters.sqlite import SqliteStore

        return SqliteStore(_folder(chosen) / STORE)
    if _scheme(chosen.store) not in ("clickhouse", "clickhouses"):
        raise ConfigError(
            f"experience.store is {mask_url(chosen.store)!r}: expected `embedded` or "
            "clickhouse://user@host:8123/database"
        )
    from etude.adapters.clickhouse import ClickHouseStore

    return ClickHouseStore(chosen.store)


@contextmanager
def existing_store(file: Path | None = None) -> Iterator[ExperienceStore | None]:
    """The store of these settings; None if it is embedded and nothing was ever collected."""
    config = config_here(file)
    if config.store == EMBEDDED and not (Path(config.folder) / STORE).exists():
        yield None
        return
    store = open_store(config)
    try:
        yield store
    finally:
        store.close()


def open_place(place: str, config: ExperienceConfig) -> BlobStore:
    """The blob store of a dataset: the given folder or URL, below experience.blobs if that is not embedded."""
    from etude.adapters.objects import open_blobs

    if config.blobs == EMBEDDED or "://" in place or Path(place).is_absolute():
        return open_blobs(place)
    return open_blobs(config.blobs, place)


def _scheme(url: str) -> str:
    return url.partition("://")[0]


def _folder(config: ExperienceConfig) -> Path:
    folder = Path(config.folder)
    try:
        make_folder(folder)
    except OSError as error:
        raise ConfigError(
            f"experience.folder is {config.folder!r}: cannot be made ({error.strerror}): set another one"
        ) from error
    return folder


def make_ingest(config: ExperienceConfig, store: ExperienceStore, bus: EventBus | None) -> Ingest:
    """An Ingest with the stored baselines."""
    definition = find_definition(store, config.reward_version)
    add_definition(store, definition)  # a later Etude may have another built-in one
    kept = store.documents(BASELINES).get(str(definition.version))
    rewarder = Rewarder(definition) if kept is None else Rewarder.from_state(definition, kept)
    return Ingest(
        store=store,
        cleaner=None if config.bus == EMBEDDED else make_cleaner(config),
        rewarder=rewarder,
        clock=now,
        max_ahead_s=config.max_ahead_s,
        rewarded=publisher(bus) if bus is not None else None,
    )


@dataclass(kw_only=True)
class Experience:
    """Bus, store and ingest for the commands. When opened, it ingests the events of an embedded outbox."""

    config: ExperienceConfig
    bus: EventBus
    store: ExperienceStore
    caught_up: Counts = field(default_factory=Counts)

    @property
    def is_embedded(self) -> bool:
        return self.config.bus == EMBEDDED

    def ingest(self) -> Ingest:
        return make_ingest(self.config, self.store, self.bus)

    def catch_up(self) -> Counts:
        """Ingest the pending messages of the bus."""
        if not self.bus.pending(TRAJECTORIES, INGEST):
            return Counts()
        return consume(self.bus, self.ingest(), stop=threading.Event(), until_empty=True)


@contextmanager
def experience(file: Path | None = None, *, catch_up: bool = True) -> Iterator[Experience]:
    config = config_here(file)
    bus = open_bus(config)
    try:
        store = open_store(config)
        try:
            opened = Experience(config=config, bus=bus, store=store)
            if catch_up and opened.is_embedded:
                opened.caught_up = opened.catch_up()
            yield opened
        finally:
            store.close()
    finally:
        bus.close()


def collector() -> Collector:
    """The collector of this process, made on first use.

    If it cannot be made, the agent continues with one that stores nothing, and the next task tries again.
    """
    server_here()  # a URL or key that is none is raised, as any wrong argument
    try:
        return _collector()
    except EtudeError as error:
        return _unable(error)


def _unable(error: EtudeError) -> Collector:
    """A collector that stores nothing; it logs the reason for each task."""

    def refuse(_: object) -> NoReturn:
        raise error

    return Collector(
        bus=cast(EventBus, SimpleNamespace(publish=refuse)),
        clean=refuse,
        problem_of=problem_of,
        deciders=_deciders(),
        opted_out=frozenset,
        clock=now,
    )


def _make_deciders() -> Deciders:
    if (server := server_here()) is not None:
        return _remote_deciders(config_here(), server)
    return Deciders(lambda problem: make_decider(problem, config_here()))


_deciders = PerProcess(_make_deciders)


def server_here() -> Any:
    """The `HttpServer` that the environment names, to decide and store in place of this process; None without one."""
    url, key = os.environ.get(URL), os.environ.get(API_KEY)
    if not url:
        return None
    if not key:
        raise ConfigError(f"{URL} is set and {API_KEY} is not: set it to a key that `etude keys create` prints there")
    from etude.adapters.http import HttpServer

    try:
        return HttpServer(url, key)
    except ConfigError as error:
        raise ConfigError(f"{URL} and {API_KEY} cannot be used: {error}") from error


def _remote_deciders(config: ExperienceConfig, server: Any) -> Deciders:
    """The policies of a server; all of them share what is known about whether it is away."""
    from etude.adapters.http import FIRST_S, Breaker, HttpDecider

    breaker, timeout_s = Breaker(), config.decide_timeout_ms / 1e3
    return Deciders(
        lambda p: HttpDecider(server=server, problem=p, timeout_s=timeout_s, breaker=breaker), first_s=FIRST_S
    )


def make_remote_collector(config: ExperienceConfig) -> Collector:
    """The server decides. Events go to an outbox of this server, and a thread sends them from there."""
    from etude.adapters.http import HttpEvents

    server = server_here()
    outbox = open_outbox(config, f"outbox-{blake2b(server.url.encode(), digest_size=4).hexdigest()}.sqlite")
    made = Collector(
        bus=outbox,
        clean=make_cleaner(config),
        problem_of=problem_of,
        deciders=_remote_deciders(config, server),
        decide_timeout_s=config.decide_timeout_ms / 1e3,
        opted_out=frozenset,  # the server leaves them out
        clock=now,
        forwarding=Forwarding(outbox, lambda: HttpEvents(server)),
    )
    _until_exit(made)
    return made


def _until_exit(made: Collector) -> None:
    """What is left when the process ends is published, and sent as far as there is time."""
    process = os.getpid()

    def end() -> None:
        if os.getpid() == process:  # a forked child has the exit functions of its parent, too
            made.end(timeout_s=EXIT_TIMEOUT_S)

    atexit.register(end)


def make_collector(config: ExperienceConfig, *, swap_when_loaded: bool = False) -> Collector:
    """Events go to the outbox; where there is a broker, a thread forwards them from there. With `swap_when_loaded`,
    policies of the registry decide until the next one is loaded."""
    outbox = open_outbox(config)
    forwarding = None if config.bus == EMBEDDED else Forwarding(outbox, lambda: open_bus(config))
    store = cache(lambda: open_store(config))
    deciders = Deciders(lambda problem: make_decider(problem, config, swap_when_loaded=swap_when_loaded))
    for name in config.policies:
        deciders.prepare(problem_of(name))
    made = Collector(
        bus=outbox,
        clean=make_cleaner(config),
        problem_of=problem_of,
        deciders=deciders,
        decide_timeout_s=config.decide_timeout_ms / 1e3,
        # At scale the consumer leaves out users who opted out.
        opted_out=OptOuts(lambda: store().opted_out()) if config.store == EMBEDDED else frozenset,
        clock=now,
        forwarding=forwarding,
    )
    _until_exit(made)
    return made


def _make_here() -> Collector:
    config = config_here()
    return make_collector(config) if server_here() is None else make_remote_collector(config)


_collector = PerProcess(_make_here)


def problem_of(name: str) -> str:
    """The problem of a decision by name."""
    return name if name in names() - {LEARNED} or name.startswith(CHOICE) else f"{CHOICE}{name}"


def make_decider(problem: str, config: ExperienceConfig, *, swap_when_loaded: bool = False) -> Decider | ToLoad:
    """The policy that the settings name for a problem, to be loaded; a user's own choice can start without one."""
    name = problem.removeprefix(CHOICE)
    policy = config.policies.get(problem, config.policies.get(name))
    if not problem.startswith(CHOICE):
        if policy == SERVED:
            return ToLoad(problem, lambda: _served(problem, config, swap_when_loaded))
        return ToLoad(policy or f"the policy of {problem}", lambda: _loaded(problem, policy, config))
    if policy == SERVED or (policy is None and _is_registered(problem, config)):
        return ToLoad(problem, lambda: _served(problem, config, swap_when_loaded))
    if policy is None:
        return Start(problem, explore=config.explore)
    if policy == UNIFORM:
        return Uniform(problem)
    if policy == DEFAULT:
        return Default(problem)
    return ToLoad(policy, lambda: _named(_loaded(LEARNED, policy, config), problem))


def _is_registered(slot: str, config: ExperienceConfig) -> bool:
    """Whether the embedded registry has a policy for this slot, without reading it."""
    from etude.bootstrap.release import is_registered

    return is_registered(slot, config)


def _served(slot: str, config: ExperienceConfig, swap_when_loaded: bool) -> Decider:
    """The policy that serves a slot; before the first one, as if the settings named none."""
    from etude.bootstrap.release import served_policy, settings_with

    first = Start(slot, explore=config.explore) if slot.startswith(CHOICE) else None
    return served_policy(slot, settings_with(config), first=first, swap_when_loaded=swap_when_loaded)


def _named(decider: Any, problem: str) -> Decider:
    """The policy under the name of a choice, where it takes one."""
    named: Decider = decider.named(problem) if hasattr(decider, "named") else decider
    return named


def _loaded(problem: str, policy: str | None, config: ExperienceConfig) -> Decider:
    """The policy of a run, or by a name that the problem knows; it samples if `experience.explore` is above 0."""
    spec = find_spec(problem)
    if spec.decider is not None:
        named: Decider = resolve(spec.decider)(policy, config)
        return named
    if policy is None:
        raise ConfigError(f"experience.policies.{spec.name} is not set: name the run whose policy decides")
    from etude.learning.run_folder import find_policy

    artefact = find_policy(Path(policy))
    if artefact.manifest.problem != spec.name:
        raise ConfigError(f"{policy} is a policy of {artefact.manifest.problem!r}: expected one of {spec.name!r}")
    loaded = resolve(spec.load)(artefact)
    if not hasattr(loaded, "decide"):
        raise ConfigError(f"the problem {spec.name!r} does not decide in task.decide: log with task.decided(…)")
    decider: Decider = loaded.sampled() if config.explore and hasattr(loaded, "sampled") else loaded
    return decider
