"""The workers as a whole: who is there, how they are doing now, how many calls each takes at a time.

What becomes of each attempt is remembered, so that the next decision sees it: price, latency, success, and whether
somebody is out of order for the moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from etude.contracts.errors import WorkersError
from etude.contracts.ports import Verifier, Worker
from etude.contracts.work import Fault
from etude.orchestrator.corrections import DOWN, NOT_THE_WORKERS
from etude.problems.workflow.catalogue import Catalogue
from etude.problems.workflow.catalogue import Worker as Entry
from etude.problems.workflow.grammar import UNKNOWN_SUCCESS
from etude.problems.workflow.progress import Live
from etude.problems.workflow.world import MEMORY

if TYPE_CHECKING:
    from etude.orchestrator.workers_file import WorkersFile

TIMEOUT_S = 60.0
"""Of an attempt, where nothing else is said."""
PATIENCE = 3
"""Times in a row that a worker may be out of order before it is left alone."""
REST_S, LONGEST_REST_S = 1.0, 60.0


@dataclass(kw_only=True)
class Member:
    """A worker, and how it is doing."""

    worker: Worker
    entry: Entry
    timeout_s: float = TIMEOUT_S
    concurrency: int | None = None  # calls that it takes at a time; None is any number
    calls: float | None = None  # left
    usd: float = 0.0
    latency_ms: float = 0.0
    success: float = UNKNOWN_SUCCESS
    down_in_a_row: int = 0
    down_until_s: float = 0.0
    _slots: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = field(default=None, repr=False)

    def slots(self) -> asyncio.Semaphore | None:
        """As many as its concurrency, in the loop that runs: a semaphore serves one loop only."""
        if self.concurrency is None:
            return None
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:
            self._slots = (loop, asyncio.Semaphore(self.concurrency))
        return self._slots[1]

    def begin(self) -> None:
        if self.calls is not None:
            self.calls -= 1

    def learn(self, fault: Fault | None, *, usd: float, latency_ms: float, now_s: float, rest_s: float | None) -> None:
        """What became of an attempt."""
        share = 1 / MEMORY
        if fault is None:
            self.usd += share * (usd - self.usd)
            self.latency_ms += (share if self.latency_ms else 1.0) * (latency_ms - self.latency_ms)
        if fault not in NOT_THE_WORKERS:
            self.success += share * ((fault is None) - self.success)
        self.down_in_a_row = self.down_in_a_row + 1 if fault in DOWN else 0
        if rest_s is None and self.down_in_a_row >= PATIENCE:
            rest_s = REST_S * 2.0 ** min(self.down_in_a_row - PATIENCE, 10)  # far beyond the longest
        if rest_s is not None:
            self.down_until_s = now_s + min(rest_s, LONGEST_REST_S)


class Crew:
    """Workers by name, in the order of a catalogue, with what verifies their results."""

    def __init__(
        self,
        catalogue: Catalogue,
        workers: Mapping[str, Worker],
        *,
        verifiers: Mapping[str, Verifier] | None = None,  # by task type
        judge: Verifier | None = None,  # of a whole workflow
        concurrency: Mapping[str, int] | None = None,
        timeout_s: Mapping[str, float] | None = None,
    ) -> None:
        missing = [w.name for w in catalogue.workers if w.name not in workers]
        if missing or not catalogue.workers:
            raise WorkersError(
                f"the catalogue's worker {missing[0]!r} is nobody: give one of that name"
                if missing
                else "there are no workers: nothing can be carried out, add one"
            )
        self.catalogue, self.verifiers, self.judge = catalogue, dict(verifiers or {}), judge
        slots, limits = dict(concurrency or {}), dict(timeout_s or {})
        self.members = [
            Member(
                worker=workers[entry.name],
                entry=entry,
                timeout_s=limits.get(entry.name, TIMEOUT_S),
                concurrency=slots.get(entry.name),
                calls=entry.quota,
                usd=entry.cost_usd(),
                latency_ms=entry.latency_ms,
                success=UNKNOWN_SUCCESS if entry.success_rate is None else entry.success_rate,
            )
            for entry in catalogue.workers
        ]
        self._able = [
            [i for i, w in enumerate(catalogue.workers) if w.task_types is None or t.name in w.task_types]
            for t in catalogue.task_types
        ]

    def begin(self, workflow: str, instruction: str) -> None:
        """A workflow starts."""

    def end(self, workflow: str) -> None:
        """It is over."""

    def live(self, workflow: str, *, now_s: float) -> tuple[Live, ...]:
        """Everybody now, as far as is known."""
        there = [m.entry.available and (m.calls is None or m.calls >= 1) for m in self.members]
        up = [m.down_until_s <= now_s for m in self.members]
        if not all(up):
            for able in self._able:  # to ask somebody who is out of order is better than to ask nobody
                if not any(up[i] and there[i] for i in able):
                    for i in able:
                        up[i] = True
        return tuple(
            Live(m.usd, m.latency_ms, m.success, m.entry.available and is_up, m.calls)
            for m, is_up in zip(self.members, up, strict=True)
        )

    async def check(self) -> None:
        """The first reason why somebody could not work, if there is any."""
        asked: list[Worker | Verifier] = [*(m.worker for m in self.members), *self.verifiers.values()]
        asked += [self.judge] if self.judge else []
        await asyncio.gather(*(one.check() for one in asked))

    async def close(self) -> None:
        """Let go of what workers and verifiers hold."""
        for one in (*(m.worker for m in self.members), *self.verifiers.values(), self.judge):
            if close := getattr(one, "close", None):
                await close()


Workers = Crew | Path | str | Mapping[str, Worker | Callable[..., Any]]
"""A crew, a workers file, or workers and callables by name."""


def enlist(workers: Workers, catalogue: Catalogue) -> Crew:
    """A crew of these. Of workers by name, prices and descriptions are the catalogue's where it knows them."""
    if isinstance(workers, Crew):
        return workers
    if isinstance(workers, Path | str):
        from etude.orchestrator.workers_file import read_workers

        return crew_of(read_workers(Path(workers)))
    from etude.orchestrator.workers.callable import CallableWorker

    known = {entry.name: entry for entry in catalogue.workers}
    entries = tuple(known.get(name, Entry(name=name)) for name in workers)
    found = {
        name: cast(Worker, one) if hasattr(one, "do") else CallableWorker(name, one) for name, one in workers.items()
    }
    return Crew(msgspec.structs.replace(catalogue, workers=entries), found)


def crew_of(file: WorkersFile) -> Crew:
    """The workers that a file describes."""
    if file.catalogue is None:
        raise WorkersError(f"{file.source.path}: its workers are simulated: they are for `etude run` and `collect`")
    return Crew(
        file.catalogue,
        file.workers,
        verifiers=file.verifiers,
        judge=file.judge,
        concurrency=file.concurrency,
        timeout_s=file.timeout_s,
    )
