"""What can be done and by whom, now: a catalogue file in, task types and workers out.

A catalogue is a value: adding, withdrawing or updating an entry gives another one, so it may change between any two
decisions. Names identify; descriptions are what a policy reads.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import Struct

from etude.contracts.errors import CatalogueError

LARGEST = 1e12
"""Of a price, a latency or a quota: what is added up stays finite."""


class TaskType(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of subtask."""

    name: str
    description: str = ""


class Worker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What carries subtasks out: an LLM, a tool, an agent, a person; what it costs and how it does."""

    name: str
    description: str = ""
    task_types: tuple[str, ...] | None = None  # what it is able to do; null is everything
    usd_per_call: float = 0.0
    usd_per_mtok_in: float = 0.0
    usd_per_mtok_out: float = 0.0
    latency_ms: float = 0.0  # of a typical call
    success_rate: float | None = None  # so far
    available: bool = True
    quota: int | None = None  # calls left; null is unlimited
    size: str = ""

    def cost_usd(self, *, tokens_in: float = 1000.0, tokens_out: float = 500.0) -> float:
        """Of one call; without counts, of a typical one."""
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
                        f"worker {worker.name!r} is able to do {name!r}, which is no task type{_nearest(name, types)}"
                    )
            _check_numbers(worker)

    def able(self, worker: Worker, task_type: str) -> bool:
        """Whether a worker may be given such a subtask now."""
        has_skill = worker.task_types is None or task_type in worker.task_types
        return has_skill and worker.available and worker.quota != 0

    def added(self, *entries: TaskType | Worker) -> Catalogue:
        types = [entry for entry in entries if isinstance(entry, TaskType)]
        workers = [entry for entry in entries if isinstance(entry, Worker)]
        return Catalogue(task_types=(*self.task_types, *types), workers=(*self.workers, *workers))

    def withdrawn(self, *names: str) -> Catalogue:
        """Without these task types and workers; a worker able to do a withdrawn type keeps its others."""
        known = {t.name for t in self.task_types} | {w.name for w in self.workers}
        for name in names:
            if name not in known:
                raise CatalogueError(f"{name!r} cannot be withdrawn: it is not there{_nearest(name, known)}")
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
        """With what changed of one worker: `available=False`, `success_rate=0.7`, `quota=12`."""
        if worker not in {w.name for w in self.workers}:
            raise CatalogueError(f"there is no worker {worker!r}{_nearest(worker, [w.name for w in self.workers])}")
        for field in live:
            if field not in Worker.__struct_fields__:
                raise CatalogueError(
                    f"worker {worker!r} has no field {field!r}{_nearest(field, Worker.__struct_fields__)}"
                )
        changed = (msgspec.structs.replace(w, **live) if w.name == worker else w for w in self.workers)
        return Catalogue(task_types=self.task_types, workers=tuple(changed))


def read_catalogue(path: Path) -> Catalogue:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Catalogue)
    except OSError as error:
        raise CatalogueError(f"{path}: cannot be read ({error.strerror}): expected a catalogue file") from error
    except CatalogueError as error:
        raise CatalogueError(f"{path}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CatalogueError(
            f'{path}: {error}; expected {{"task_types": [{{"name", "description"}}…], "workers": [{{"name", …}}…]}}'
        ) from error


def _names(kind: str, entries: Iterable[TaskType | Worker]) -> set[str]:
    seen: set[str] = set()
    for i, entry in enumerate(entries):
        if not entry.name.strip():
            raise CatalogueError(f"{kind}[{i}] has no name: give it one, decisions are recorded by it")
        if entry.name in seen:
            raise CatalogueError(f"{kind}[{i}]: the name {entry.name!r} stands there twice: names identify")
        seen.add(entry.name)
    return seen


def _check_numbers(worker: Worker) -> None:
    for field in ("usd_per_call", "usd_per_mtok_in", "usd_per_mtok_out", "latency_ms", "quota", "success_rate"):
        value, most = getattr(worker, field), 1.0 if field == "success_rate" else LARGEST
        if value is None and field in ("quota", "success_rate"):
            continue
        if not (isinstance(value, int | float) and 0 <= value <= most):
            raise CatalogueError(f"worker {worker.name!r}: {field} is {value!r}, expected a number from 0 to {most:g}")


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f": did you mean {close[0]!r}?" if close else ""
