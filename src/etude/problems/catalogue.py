"""The catalogue: a file in, the task types and workers that exist now out.

A catalogue is immutable: adding, withdrawing or updating an entry returns a new one, so it may change between any two
decisions. Names identify entries; policies read their descriptions.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from etude.contracts.errors import CatalogueError
from etude.contracts.suggestions import nearest

MAX_AMOUNT = 1e12
"""Maximum of a price, a latency or a quota, so that sums stay finite."""


class TaskType(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of subtask."""

    name: str
    description: str = ""


class Worker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An LLM, a tool, an agent or a person that does subtasks, with its price, latency and success rate."""

    name: str
    description: str = ""
    task_types: tuple[str, ...] | None = None  # the types it is able to do; null is all
    usd_per_call: float = 0.0
    usd_per_mtok_in: float = 0.0
    usd_per_mtok_out: float = 0.0
    latency_ms: float = 0.0  # of a typical call
    success_rate: float | None = None  # so far
    available: bool = True
    quota: int | None = None  # calls left; null is unlimited
    size: str = ""

    def cost_usd(self, *, tokens_in: float = 1000.0, tokens_out: float = 500.0) -> float:
        """The cost of one call; without token counts, of a typical call."""
        return self.usd_per_call + (tokens_in * self.usd_per_mtok_in + tokens_out * self.usd_per_mtok_out) / 1e6


class Catalogue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    task_types: tuple[TaskType, ...]
    workers: tuple[Worker, ...] = ()

    def __post_init__(self) -> None:
        types = _names("task_types", self.task_types)
        _names("workers", self.workers)
        for worker in self.workers:
            for name in worker.task_types or ():
                if name not in types:
                    raise CatalogueError(
                        f"worker {worker.name!r} is able to do {name!r}, which is no task type{nearest(name, types)}"
                    )
            _check_numbers(worker)

    def able(self, worker: Worker, task_type: str) -> bool:
        """Whether a worker can be assigned a subtask of this type now."""
        has_skill = worker.task_types is None or task_type in worker.task_types
        return has_skill and worker.available and worker.quota != 0

    def added(self, *entries: TaskType | Worker) -> Catalogue:
        types = [entry for entry in entries if isinstance(entry, TaskType)]
        workers = [entry for entry in entries if isinstance(entry, Worker)]
        return Catalogue(task_types=(*self.task_types, *types), workers=(*self.workers, *workers))

    def withdrawn(self, *names: str) -> Catalogue:
        """The catalogue without these task types and workers; a worker keeps its other task types."""
        known = {t.name for t in self.task_types} | {w.name for w in self.workers}
        for name in names:
            if name not in known:
                raise CatalogueError(f"{name!r} cannot be withdrawn: it is not in the catalogue{nearest(name, known)}")
        workers = [
            msgspec.structs.replace(w, task_types=tuple(t for t in w.task_types if t not in names))
            if w.task_types
            else w
            for w in self.workers
            if w.name not in names
        ]
        types = tuple(t for t in self.task_types if t.name not in names)
        return Catalogue(task_types=types, workers=tuple(workers))

    def updated(self, worker: str, **live: object) -> Catalogue:
        """The catalogue with changed fields of one worker: `available=False`, `success_rate=0.7`, `quota=12`."""
        if worker not in {w.name for w in self.workers}:
            raise CatalogueError(f"there is no worker {worker!r}{nearest(worker, [w.name for w in self.workers])}")
        for field in live:
            if field not in Worker.__struct_fields__:
                raise CatalogueError(
                    f"worker {worker!r} has no field {field!r}{nearest(field, Worker.__struct_fields__)}"
                )
        changed = (msgspec.structs.replace(w, **live) if w.name == worker else w for w in self.workers)
        return Catalogue(task_types=self.task_types, workers=tuple(changed))


def read_catalogue(path: Path) -> Catalogue:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CatalogueError(f"{path}: cannot be read ({error.strerror}): expected a catalogue file") from error
    return parse_catalogue(data, source=path)


def parse_catalogue(data: bytes, *, source: object) -> Catalogue:
    try:
        return msgspec.json.decode(data, type=Catalogue)
    except CatalogueError as error:
        raise CatalogueError(f"{source}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CatalogueError(
            f'{source}: {error}; expected {{"task_types": [{{"name", "description"}}…], "workers": [{{"name", …}}…]}}'
        ) from error


def _names(kind: str, entries: Iterable[TaskType | Worker]) -> set[str]:
    seen: set[str] = set()
    for i, entry in enumerate(entries):
        if not entry.name.strip():
            raise CatalogueError(f"{kind}[{i}] has no name: give it one, decisions are recorded by it")
        if entry.name in seen:
            raise CatalogueError(f"{kind}[{i}]: the name {entry.name!r} is used twice: give every entry its own name")
        seen.add(entry.name)
    return seen


def _check_numbers(worker: Worker) -> None:
    for field in ("usd_per_call", "usd_per_mtok_in", "usd_per_mtok_out", "latency_ms", "quota", "success_rate"):
        value, maximum = getattr(worker, field), 1.0 if field == "success_rate" else MAX_AMOUNT
        if value is None and field in ("quota", "success_rate"):
            continue
        if not (isinstance(value, int | float) and 0 <= value <= maximum):
            raise CatalogueError(
                f"worker {worker.name!r}: {field} is {value!r}, expected a number from 0 to {maximum:g}"
            )
