"""All workers: their price, latency and success so far, and which of them are available.

The outcome of each attempt updates these numbers, so that the next decision sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from etude.contracts.errors import WorkersError
from etude.contracts.ports import Verifier, Worker
from etude.contracts.work import Fault
from etude.orchestrator.parameters import Needs
from etude.problems.catalogue import Catalogue
from etude.problems.catalogue import Worker as Entry
from etude.problems.workflow.faults import DOWN, NOT_THE_WORKERS
from etude.problems.workflow.grammar import UNKNOWN_SUCCESS
from etude.problems.workflow.office.world import MEMORY
from etude.problems.workflow.progress import Live

TIMEOUT_S = 60.0
"""Default timeout of an attempt, in seconds."""
MAX_DOWN_IN_A_ROW = 3
"""Consecutive times that a worker may be unavailable before it is paused."""
REST_S, MAX_REST_S = 1.0, 60.0


@dataclass(kw_only=True)
class Member:
    """A worker and its current numbers."""

    worker: Worker
    entry: Entry
    timeout_s: float = TIMEOUT_S
    concurrency: int | None = None  # concurrent calls; None is no limit
    calls: float | None = None  # left
    usd: float = 0.0
    latency_ms: float = 0.0
    success: float = UNKNOWN_SUCCESS
    down_in_a_row: int = 0
    down_until_s: float = 0.0
    _slots: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = field(default=None, repr=False)

    def slots(self) -> asyncio.Semaphore | None:
        """A semaphore of its concurrency for the running event loop."""
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
        """Update the numbers with the outcome of an attempt."""
        share = 1 / MEMORY
        if fault is None:
            self.usd += share * (usd - self.usd)
            self.latency_ms += (share if self.latency_ms else 1.0) * (latency_ms - self.latency_ms)
        if fault not in NOT_THE_WORKERS:
            self.success += share * ((fault is None) - self.success)
        self.down_in_a_row = self.down_in_a_row + 1 if fault in DOWN else 0
        if rest_s is None and self.down_in_a_row >= MAX_DOWN_IN_A_ROW:
            rest_s = REST_S * 2.0 ** min(self.down_in_a_row - MAX_DOWN_IN_A_ROW, 10)  # far above the maximum
        if rest_s is not None:
            self.down_until_s = now_s + min(rest_s, MAX_REST_S)


class Crew:
    """Workers by name, in the order of a catalogue, with the verifiers of their results."""

    def __init__(
        self,
        catalogue: Catalogue,
        workers: Mapping[str, Worker],
        *,
        verifiers: Mapping[str, Verifier] | None = None,  # by task type
        judge: Verifier | None = None,  # for a whole workflow
        concurrency: Mapping[str, int] | None = None,
        timeout_s: Mapping[str, float] | None = None,
        needs: Mapping[str, Needs] | None = None,  # by task type
    ) -> None:
        missing = [w.name for w in catalogue.workers if w.name not in workers]
        if missing or not catalogue.workers:
            raise WorkersError(
                f"no implementation for the catalogue's worker {missing[0]!r}: give one of that name"
                if missing
                else "there are no workers: nothing can be carried out, add one"
            )
        self.catalogue, self.workers, self.verifiers, self.judge = catalogue, workers, dict(verifiers or {}), judge
        self.needs = dict(needs or {})
        self.unreachable: dict[str, str] = {}  # reasons by name of worker; these get no subtasks
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
        """Called when a workflow starts."""

    def end(self, workflow: str) -> None:
        """Called when a workflow ends."""

    def live(self, workflow: str, *, now_s: float) -> tuple[Live, ...]:
        """The current numbers of all workers."""
        available = [self._is_available(m) for m in self.members]
        has_calls = [
            is_there and (m.calls is None or m.calls >= 1) for m, is_there in zip(self.members, available, strict=True)
        ]
        up = [m.down_until_s <= now_s for m in self.members]
        if not all(up):
            for able in self._able:  # an unavailable worker is better than none
                if not any(up[i] and has_calls[i] for i in able):
                    for i in able:
                        up[i] = True
        return tuple(
            Live(m.usd, m.latency_ms, m.success, is_there and is_up, m.calls)
            for m, is_there, is_up in zip(self.members, available, up, strict=True)
        )

    def _is_available(self, member: Member) -> bool:
        return member.entry.available and member.entry.name not in self.unreachable

    def check_reachable(self, task_types: Iterable[int]) -> None:
        """WorkersError if no reachable worker can do one of these task types."""
        for task_type in dict.fromkeys(task_types):
            able = [self.members[i] for i in self._able[task_type]]
            reasons = [why for m in able if (why := self.unreachable.get(m.entry.name)) and m.entry.available]
            if reasons and not any(self._is_available(member) for member in able):
                name = self.catalogue.task_types[task_type].name
                raise WorkersError(
                    f"{name!r} is needed, and no worker that can do it can be reached: {'; '.join(reasons)}"
                )

    async def close(self) -> None:
        """Close all workers, verifiers and models that fill parameters."""
        filled = (need.parameters for need in self.needs.values())
        for one in (*(m.worker for m in self.members), *self.verifiers.values(), self.judge, *filled):
            if close := getattr(one, "close", None):
                await close()
