"""Experience wired: settings to outbox, broker, store and blobs; what collects and what ingests. No torch."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from pydantic import BaseModel, ConfigDict

from etude.adapters.memory_bus import MemoryBus
from etude.contracts.blobs import BlobStore
from etude.contracts.bus import EventBus
from etude.contracts.errors import BusError, ConfigError, EtudeError
from etude.contracts.store import ExperienceStore
from etude.contracts.subjects import TRAJECTORIES
from etude.experience.cleaning import Cleaner
from etude.experience.config import EMBEDDED, ExperienceConfig
from etude.experience.definitions import add_definition, find_definition
from etude.experience.forward import GROUP as FORWARD
from etude.experience.forward import forward
from etude.experience.ingest import BASELINES, Counts, Ingest, consume, publisher
from etude.experience.ingest import GROUP as INGEST
from etude.experience.redact import RedactionConfig
from etude.experience.redaction.found import KINDS
from etude.experience.rewards import Rewarder
from etude.experience.task import Chooser, Collector
from etude.settings.sources import FILE, PREFIX, Tree

OUTBOX, STORE = "outbox.sqlite", "experience.sqlite"
PATIENCE_S = 2.0
"""How long the end of a process may wait for its last events to be sent on."""
REFRESH_S = 5.0
"""After which it is looked up anew who opted out."""

log = logging.getLogger("etude")


class ExperienceSettings(BaseModel):
    """The section of the settings tree that is read here; it brings no torch."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    experience: ExperienceConfig = ExperienceConfig()


def read_config(file: Path | None = None, *, environ: Mapping[str, str] | None = None) -> ExperienceConfig:
    """Of `file` or ./etude.yaml, if there is one, and ETUDE_EXPERIENCE__… variables. Other sections are left alone."""
    tree = Tree(ExperienceSettings)
    path = file or (Path(FILE) if Path(FILE).exists() else None)
    variables = {k: v for k, v in (environ or {}).items() if k.startswith(f"{PREFIX}EXPERIENCE")}
    found = [*(tree.from_file(path) if path else ()), *tree.from_environment(variables)]
    own = [assignment for assignment in found if assignment.key.partition(".")[0] == "experience"]
    return tree.build(own).settings.experience


def config_here(file: Path | None = None) -> ExperienceConfig:
    """What is in force in this process."""
    return read_config(file, environ=os.environ)


def open_outbox(config: ExperienceConfig) -> EventBus:
    """Where events are handed over, whatever else there is."""
    from etude.adapters.outbox import Outbox

    return Outbox(_folder(config) / OUTBOX)


def open_bus(config: ExperienceConfig) -> EventBus:
    """From where events are taken: the broker, or the outbox where there is none."""
    if config.bus == EMBEDDED:
        return open_outbox(config)
    if _scheme(config.bus) not in ("nats", "tls"):
        raise ConfigError(f"experience.bus is {config.bus!r}: expected `embedded` or nats://host:4222")
    from etude.adapters.nats import NatsBus

    return NatsBus(config.bus)


def open_store(config: Path | ExperienceConfig | None = None) -> ExperienceStore:
    chosen = config if isinstance(config, ExperienceConfig) else config_here(config)
    if chosen.store == EMBEDDED:
        from etude.adapters.sqlite import SqliteStore

        return SqliteStore(_folder(chosen) / STORE)
    if _scheme(chosen.store) not in ("clickhouse", "clickhouses"):
        raise ConfigError(
            f"experience.store is {chosen.store.partition('@')[2] or chosen.store!r}: expected `embedded` or "
            "clickhouse://user@host:8123/database"
        )
    from etude.adapters.clickhouse import ClickHouseStore

    return ClickHouseStore(chosen.store)


@contextmanager
def existing_store(file: Path | None = None) -> Iterator[ExperienceStore | None]:
    """The store of these settings; None where it is embedded and nothing was ever collected."""
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
    """Where a dataset is or goes: a folder or URL as it is given; below experience.blobs, where that is elsewhere."""
    from etude.adapters.objects import open_blobs

    if config.blobs == EMBEDDED or "://" in place or Path(place).is_absolute():
        return open_blobs(place)
    return open_blobs(config.blobs, place)


def _scheme(url: str) -> str:
    return url.partition("://")[0]


def _folder(config: ExperienceConfig) -> Path:
    folder = Path(config.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"experience.folder is {config.folder!r}: cannot be made ({error.strerror}): set another one"
        ) from error
    return folder


def make_cleaner(config: ExperienceConfig) -> Cleaner:
    unknown = set(config.keep_kinds) - set(KINDS)
    if unknown:
        raise ConfigError(f"experience.keep_kinds holds {min(unknown)!r}: expected some of {', '.join(sorted(KINDS))}")
    kinds = tuple(kind for kind in KINDS if kind not in config.keep_kinds)
    return Cleaner(RedactionConfig(kinds=kinds), allow=config.allow)


def make_ingest(config: ExperienceConfig, store: ExperienceStore, bus: EventBus | None) -> Ingest:
    """With the baselines as they were kept."""
    definition = find_definition(store, config.reward_version)
    add_definition(store, definition)  # whatever a later Etude has built in
    kept = store.documents(BASELINES).get(str(definition.version))
    rewarder = Rewarder(definition) if kept is None else Rewarder.from_state(definition, kept)
    return Ingest(
        store=store,
        cleaner=None if config.bus == EMBEDDED else make_cleaner(config),
        rewarder=rewarder,
        clock=lambda: now(),
        max_ahead_s=config.max_ahead_s,
        rewarded=publisher(bus) if bus is not None else None,
    )


def now() -> datetime:
    return datetime.now(UTC)


@dataclass(kw_only=True)
class Experience:
    """What the commands work with. Opened, it has taken in whatever the outbox holds, where that is embedded."""

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
        """Take in what waits on the bus."""
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


_turn = threading.Lock()
_collectors: dict[int, Collector] = {}


def collector() -> Collector:
    """This process's own, made when it is first asked for; a forked child makes its own.

    Where none can be made the agent goes on with one that keeps nothing, and the next task asks again.
    """
    with _turn:
        if os.getpid() not in _collectors:
            try:
                _collectors[os.getpid()] = make_collector(config_here())
            except EtudeError as error:
                return _unable(error)
        return _collectors[os.getpid()]


def _forked() -> None:
    """Of a child: whoever held the lock is not in it."""
    global _turn
    _turn = threading.Lock()


os.register_at_fork(after_in_child=_forked)


def _unable(error: EtudeError) -> Collector:
    """Its tasks are done; the log says of each why nothing of it is kept."""

    def refuse(_: object) -> NoReturn:
        raise error

    return Collector(
        bus=MemoryBus(),
        clean=refuse,
        chooser=lambda problem: _Choosers(config_here())(problem),
        opted_out=frozenset,
        clock=lambda: now(),
    )


def make_collector(config: ExperienceConfig) -> Collector:
    """Events go to the outbox; where there is a broker, a thread of its own sends them on from there."""
    outbox = open_outbox(config)
    if config.bus != EMBEDDED:
        forwarding = Forwarding(config, outbox)
        atexit.register(forwarding.end, patience_s=PATIENCE_S)
    return Collector(
        bus=outbox,
        clean=make_cleaner(config),
        chooser=_Choosers(config),
        opted_out=_opted_out(config),
        clock=lambda: now(),
    )


class Forwarding:
    """A thread that sends on what is in the outbox, for as long as this process lives."""

    def __init__(self, config: ExperienceConfig, outbox: EventBus) -> None:
        self._config, self._outbox, self._stop = config, outbox, threading.Event()
        self._thread = threading.Thread(target=self._run, name="etude-forward", daemon=True)
        self._thread.start()

    def end(self, *, patience_s: float = 0.0) -> None:
        """After so long at most. What is left in the outbox is sent on by whoever opens it next."""
        deadline = time.monotonic() + patience_s
        with suppress(BusError):  # nobody is left who could be told
            while time.monotonic() < deadline and self._outbox.pending(TRAJECTORIES, FORWARD):
                time.sleep(0.01)
        self._stop.set()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        try:
            broker = open_bus(self._config)
        except EtudeError as error:
            log.error("events wait in the outbox and are not sent on: %s", error)
            return
        try:
            forward(self._outbox, broker, stop=self._stop)
        finally:
            broker.close()


def _opted_out(config: ExperienceConfig) -> Callable[[], frozenset[str]]:
    """Looked up in the embedded store, every few seconds; at scale it is the consumer who leaves them out."""
    if config.store != EMBEDDED:
        return frozenset
    known: tuple[float, frozenset[str]] = (-REFRESH_S, frozenset())
    store: ExperienceStore | None = None

    def users() -> frozenset[str]:
        nonlocal known, store
        if time.monotonic() - known[0] >= REFRESH_S:
            store = store or open_store(config)
            known = time.monotonic(), store.opted_out()
        return known[1]

    return users


class _Choosers:
    """Who decides about each problem, made when it is first asked for."""

    def __init__(self, config: ExperienceConfig) -> None:
        self.config, self._made, self._turn = config, dict[str, Chooser](), threading.Lock()

    def __call__(self, problem: str) -> Chooser:
        with self._turn:
            if problem not in self._made:
                self._made[problem] = self._make(problem)
            return self._made[problem]

    def _make(self, problem: str) -> Chooser:
        if problem == "workflow":
            from etude.bootstrap.deciding import workflow_chooser

            return workflow_chooser(self.config)
        policy = self.config.policies.get(problem, "uniform")
        if policy != "uniform":
            raise ConfigError(
                f"experience.policies.{problem} is {policy!r}: for problems of your own there is the policy `uniform`; "
                "log what decides elsewhere with task.decided(…)"
            )
        from etude.experience.uniform import Uniform

        return Uniform(problem)
