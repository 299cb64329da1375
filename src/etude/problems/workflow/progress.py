"""How far one workflow is, and what a policy reads of it: plain Python while it is carried out, a draft to decide by.

An execution changes these objects; `to_draft` writes them down as `Rules` want them, with what is known by now: what
was spent and when it ended instead of what was expected. `amend` is `Rules.amend` for one workflow, without tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from etude.problems.base import Obs
from etude.problems.catalogue import Worker
from etude.problems.workflow.decisions import ReplacedState, State, StepState
from etude.problems.workflow.grammar import UNKNOWN_SUCCESS, UNLIMITED, Correction, Rules, Status
from etude.problems.workflow.plan import topological_order

PLANNED, NOT_OVER = Status.PLANNED, (Status.PLANNED, Status.FAILED)


class Live(NamedTuple):
    """A worker now."""

    usd: float  # of a typical call
    latency_ms: float  # of a typical call
    success: float  # share of calls that succeeded so far
    available: bool
    calls: float | None  # left; None is unlimited


def live_of(worker: Worker) -> Live:
    """By the catalogue alone."""
    success = UNKNOWN_SUCCESS if worker.success_rate is None else worker.success_rate
    return Live(worker.cost_usd(), worker.latency_ms, success, worker.available, worker.quota)


@dataclass(kw_only=True, slots=True, eq=False)
class Step:
    """A node: what it is, and how far."""

    task_type: int
    worker: int
    dependencies: list[Step]
    status: Status = Status.PLANNED
    attempts: int = 1  # given out, the one that is planned included
    begun: bool = False  # the attempt that is planned is under way
    cost_usd: float = 0.0  # of the last attempt: what is expected, then what it was
    ready_ms: float = 0.0  # before which it cannot start; when it started, once it has
    latency_ms: float = 0.0  # expected, then what it was
    error: int = 0  # an ErrorCategory, of the last attempt; 0 where it did not fail
    output: Any = None
    tries: list[Any] = field(default_factory=list)  # what an execution keeps of each attempt


@dataclass(kw_only=True, slots=True)
class Progress:
    """One workflow. Times are ms since it began."""

    instruction: str
    steps: list[Step] = field(default_factory=list)
    dropped: list[Step] = field(default_factory=list)  # replanned away
    replaced: list[Step] = field(default_factory=list)  # those of them that the last replan dropped
    spent_usd: float = 0.0  # by attempts that have ended
    clock_ms: float = 0.0  # before which nothing new can start
    failed: Step | None = None  # what is to be corrected
    error: int = 0  # an ErrorCategory, of the failed one
    corrections: int = 0
    replans: int = 0
    beyond: dict[int, set[int]] = field(default_factory=dict)  # by task type: workers that proved unable to do it
    tried: set[int] = field(default_factory=set)  # those of the step that failed last

    def fail(self, step: Step, error: int, *, unable: bool) -> None:
        """A step is to be corrected next; `unable` where that is a matter of who tried."""
        if unable:
            self.beyond.setdefault(step.task_type, set()).add(step.worker)
        step.error = error
        self.failed, self.error, self.tried = step, error, self.beyond.get(step.task_type, set())

    @property
    def reserved_usd(self) -> float:
        """What is planned or under way is expected to cost."""
        return sum(step.cost_usd for step in self.steps if step.status == Status.PLANNED)

    def ready(self) -> list[Step]:
        """What can begin: nothing that it depends on is still to be done or to be corrected."""
        found = []
        for step in self.steps:
            if not step.begun and step.status == PLANNED:
                for before in step.dependencies:
                    if before.status in NOT_OVER:
                        break
                else:
                    found.append(step)
        return found

    def add(self, task_type: int, dependencies: Sequence[Step], worker: int, live: Live, ready_ms: float) -> Step:
        step = Step(
            task_type=task_type,
            worker=worker,
            dependencies=list(dependencies),
            cost_usd=live.usd,
            latency_ms=live.latency_ms,
            ready_ms=ready_ms,
        )
        self.steps.append(step)
        return step

    def amend(
        self, correction: Correction, live: Sequence[Live], *, now_ms: float, task_type: int = -1, worker: int = -1
    ) -> None:
        """The failed step after its correction. A replan drops what is not done; planning on is another matter."""
        step = self.failed
        assert step is not None
        self.failed, self.error = None, 0
        if correction == Correction.ABORT:
            return
        self.corrections += 1
        if correction == Correction.SKIP:
            step.status = Status.SKIPPED
        elif correction == Correction.REPLAN:
            self.replaced = [s for s in self.steps if s.status != Status.DONE]
            self.dropped += self.replaced
            self.steps = [s for s in self.steps if s.status == Status.DONE]
            for kept in self.steps:
                kept.dependencies = [s for s in kept.dependencies if s.status == Status.DONE]
            self.replans, self.clock_ms = self.replans + 1, now_ms
        else:
            if correction == Correction.REPAIR:
                step.dependencies.append(self.add(task_type, step.dependencies, worker, live[worker], now_ms))
            elif correction == Correction.SWITCH:
                step.worker = worker
            step.status, step.begun, step.attempts = Status.PLANNED, False, step.attempts + 1
            step.cost_usd, step.latency_ms, step.ready_ms = live[step.worker].usd, live[step.worker].latency_ms, now_ms


OF_PROGRESS = ("spent_usd", "clock_ms", "corrections", "replans", "error")
OF_STEP = ("task_type", "worker", "attempts", "begun", "cost_usd", "ready_ms", "latency_ms")
"""Fields that a `State` and a `StepState` have as they are."""


def to_state(progress: Progress) -> State:
    """What is logged of it with a decision: `from_state` gives it back, as far as policies read it."""
    place = {id(step): i for i, step in enumerate(progress.steps)}
    steps = []
    for step in progress.steps:
        own: dict[str, Any] = {name: getattr(step, name) for name in OF_STEP}
        needs = tuple(place[id(before)] for before in step.dependencies)
        steps.append(StepState(**own, dependencies=needs, status=int(step.status)))
    failed = None if progress.failed is None else place[id(progress.failed)]
    place |= {id(step): i for i, step in enumerate(progress.replaced, start=len(steps))}
    replaced = []
    for step in progress.replaced if progress.failed is None else ():  # it matters to what is planned in its place
        needs = tuple(place[id(before)] for before in step.dependencies if id(before) in place)
        replaced.append(ReplacedState(step.task_type, needs, step.error))
    same: dict[str, Any] = {name: getattr(progress, name) for name in OF_PROGRESS}
    tried = tuple(sorted(progress.tried))
    return State(**same, steps=tuple(steps), failed=failed, tried=tried, replaced=tuple(replaced))


def from_state(state: State) -> Progress:
    same: dict[str, Any] = {name: getattr(state, name) for name in OF_PROGRESS}
    progress = Progress(instruction="", tried=set(state.tried), **same)
    for s in state.steps:
        own: dict[str, Any] = {name: getattr(s, name) for name in OF_STEP}
        progress.steps.append(Step(**own, dependencies=[], status=Status(s.status)))
    for step, s in zip(progress.steps, state.steps, strict=True):
        step.dependencies = [progress.steps[j] for j in s.dependencies]
    progress.replaced = [Step(task_type=s.task_type, worker=-1, dependencies=[], error=s.error) for s in state.replaced]
    known = [*progress.steps, *progress.replaced]
    for step, dropped in zip(progress.replaced, state.replaced, strict=True):
        step.dependencies = [known[j] for j in dropped.dependencies]
    progress.failed = None if state.failed is None else progress.steps[state.failed]
    return progress


def to_draft(rules: Rules, progress: Progress, live: Sequence[Live], *, now_ms: float = 0.0) -> Obs:
    """One draft, (1, …) tensors, about instruction 0."""
    d, steps = rules.begin(1), progress.steps
    place = {id(step): i for i, step in enumerate(steps)}
    needs = [[place[id(before)] for before in step.dependencies] for step in steps]
    finish = _finish(steps, needs, now_ms)
    if live:
        reserved = Counter(step.worker for step in steps if step.status == Status.PLANNED and not step.begun)
        left = (UNLIMITED if worker.calls is None else worker.calls for worker in live)
        crew = [w._replace(calls=calls - reserved[i]) for i, (w, calls) in enumerate(zip(live, left, strict=True))]
        write_live(d, slice(0, 1), [crew])
    for i, earlier in enumerate(needs):
        d["links"][0, i, earlier] = True
    k = len(steps)
    names = {"types": "task_type", "workers": "worker", "cost": "cost_usd", "duration": "latency_ms"}
    names |= {"ready": "ready_ms", "status": "status", "attempts": "attempts"}
    for name, field_name in names.items():
        d[name][0, :k] = torch.tensor([getattr(step, field_name) for step in steps], dtype=d[name].dtype)
    d["finish"][0, :k] = torch.tensor(finish, dtype=torch.float64)
    d["length"][0], d["spent"][0] = k, progress.spent_usd + progress.reserved_usd
    d["clock"][0], d["corrections"][0], d["replans"][0] = progress.clock_ms, progress.corrections, progress.replans
    if progress.failed is not None:
        d["failed"][0], d["error"][0] = place[id(progress.failed)], progress.error
    d["tried"][0, list(progress.tried)] = True
    return d | {"instruction": torch.zeros(1, dtype=torch.long)}


def write_live(drafts: Obs, rows: Sequence[int] | slice, crews: Sequence[Sequence[Live]]) -> None:
    """Write the workers' numbers now into these rows of drafts, a crew each."""
    names = {"price": "usd", "latency": "latency_ms", "success": "success", "available": "available"}
    for name, own in names.items():
        values = [[getattr(worker, own) for worker in crew] for crew in crews]
        drafts[name][rows] = torch.tensor(values, dtype=drafts[name].dtype)
    calls = [[UNLIMITED if worker.calls is None else float(worker.calls) for worker in crew] for crew in crews]
    drafts["calls"][rows] = torch.tensor(calls, dtype=torch.float64)


def _finish(steps: Sequence[Step], needs: Sequence[Sequence[int]], now_ms: float) -> list[float]:
    """When each step ended or will end, as things stand."""
    finish = [0.0] * len(steps)
    for i in topological_order(needs):
        step = steps[i]
        start = max([step.ready_ms, *(finish[j] for j in needs[i])])
        if step.status != Status.PLANNED:  # it started then and took so long
            start = step.ready_ms
        finish[i] = start + step.latency_ms
        if step.begun and step.status == Status.PLANNED:
            finish[i] = max(finish[i], now_ms)
    return finish
