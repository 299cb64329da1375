"""Workers that do as the test says, a policy that follows given plans and corrections, and where both meet.

Time is virtual: `carried_out` and `run_virtually` let hours pass in no time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import torch

from etude.contracts.trajectory import Trajectory
from etude.contracts.work import Fault, Reply, Subtask, Verdict, WorkerError
from etude.orchestrator.crew import Crew
from etude.orchestrator.executor import Orchestrator, Result
from etude.orchestrator.record import Attempt, Execution
from etude.orchestrator.trajectories import to_execution
from etude.orchestrator.virtual_time import run_virtually
from etude.problems.base import Action, Obs
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.decide import Chooser, Generator, WorkflowDecider
from etude.problems.workflow.grammar import Correction, Rules
from etude.problems.workflow.plan import Limits

TYPES = ("read", "draft", "review", "send")
READ, DRAFT, REVIEW, SEND = range(4)
A, B, C = range(3)
Node = tuple[int, Sequence[int], int]
"""Task type, nodes that it depends on, worker."""
Fix = Correction | tuple[Correction, int] | tuple[Correction, int, int]
"""A correction; a switch with its worker; a repair with its task type and worker."""
Behaviour = Callable[[Subtask], Awaitable[Reply]]


def reply(output: Any = None, *, usd: float | None = None, after_s: float = 0.0) -> Behaviour:
    """Without an output, the answer tells what was asked."""

    async def do(subtask: Subtask) -> Reply:
        await asyncio.sleep(after_s)
        return Reply(output=made(subtask) if output is None else output, cost_usd=usd)

    return do


def made(subtask: Subtask) -> str:
    return f"{subtask.task_type}({', '.join(str(given.output) for given in subtask.inputs)})"


def fault(
    what: Fault, *, usd: float | None = None, after_s: float = 0.0, retry_after_s: float | None = None
) -> Behaviour:
    async def do(subtask: Subtask) -> Reply:
        await asyncio.sleep(after_s)
        raise WorkerError(f"no: {what}", fault=what, cost_usd=usd, retry_after_s=retry_after_s)

    return do


def hang() -> Behaviour:
    """Ends when it is cancelled, and only then."""
    return reply(after_s=1e9)


def heedless(*, ends: asyncio.Event | None = None, then: Behaviour | None = None) -> Behaviour:
    """Swallows every cancellation until it is let go; then it answers, or does as the test says."""

    async def do(subtask: Subtask) -> Reply:
        end = ends or asyncio.Event()
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue
        return await (then or reply())(subtask)

    return do


def when_cancelled(then: Behaviour) -> Behaviour:
    """Does this instead of ending when it is cancelled."""

    async def do(subtask: Subtask) -> Reply:
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            return await then(subtask)
        raise AssertionError

    return do


def raises(error: BaseException, *, after_s: float = 0.0) -> Behaviour:
    async def do(subtask: Subtask) -> Reply:
        await asyncio.sleep(after_s)
        raise error

    return do


class ScriptedWorker:
    """A Worker: a behaviour for each call, in order or by task type; afterwards it answers at once."""

    def __init__(
        self,
        name: str,
        *script: Behaviour,
        by_type: Mapping[str, Sequence[Behaviour]] | None = None,
        max_usd: float | Exception | None = None,
    ) -> None:
        self.name, self.script, self.most = name, deque(script), max_usd
        self.by_type = {kind: deque(some) for kind, some in (by_type or {}).items()}
        self.asked: list[Subtask] = []
        self.asked_at_s: list[float] = []
        self.under_way = self.most_under_way = self.closed = 0

    async def check(self) -> None: ...

    def max_usd(self, subtask: Subtask) -> float | None:
        if isinstance(self.most, Exception):
            raise self.most
        return self.most

    async def do(self, subtask: Subtask) -> Reply:
        self.asked.append(subtask)
        self.asked_at_s.append(asyncio.get_running_loop().time())
        script = self.by_type.get(subtask.task_type, self.script)
        behaviour = script.popleft() if script else reply()
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await behaviour(subtask)
        finally:
            self.under_way -= 1

    async def close(self) -> None:
        self.closed += 1


class Says:
    """A Verifier that says this, or does it."""

    def __init__(self, verdict: Verdict | BaseException | Callable[[Subtask, object], Awaitable[Verdict]]) -> None:
        self.verdict = verdict
        self.asked: list[tuple[Subtask, object]] = []

    async def check(self) -> None: ...

    async def __call__(self, subtask: Subtask, output: object) -> Verdict:
        self.asked.append((subtask, output))
        if isinstance(self.verdict, BaseException):
            raise self.verdict
        return self.verdict if isinstance(self.verdict, Verdict) else await self.verdict(subtask, output)


class MemoryLog:
    """A Log in memory."""

    def __init__(self) -> None:
        self.executions: list[Execution] = []

    def append(self, trajectory: Trajectory) -> None:
        self.executions.append(to_execution(trajectory))


def entry(name: str, **more: Any) -> Worker:
    """Of a catalogue: 1 s and 0.01 USD per call unless it says otherwise."""
    return Worker(**{"name": name, "usd_per_call": 0.01, "latency_ms": 1000.0, **more})


def catalogue(*entries: Worker) -> Catalogue:
    """TYPES and these workers, else a and b."""
    return Catalogue(
        task_types=tuple(TaskType(name=name, description=f"to {name}") for name in TYPES),
        workers=entries or (entry("a"), entry("b")),
    )


def following(
    known: Catalogue,
    *plans: Sequence[Node],
    fixes: Sequence[Fix] = (),
    limits: Limits | None = None,
    version: str = "script",
) -> WorkflowDecider:
    """A policy that draws up these plans, one after each replan, and corrects so; then it aborts.

    Every workflow gets them from the first on. It chooses what is legal or fails.
    """

    def choosers(rules: Rules, instruction: str) -> Chooser:
        def choose(draft: Obs, rng: Generator) -> list[tuple[Action, float]]:
            if int(draft["failed"]) >= 0:
                done = int(draft["corrections"])
                actions = [corrected(rules, fixes[done] if done < len(fixes) else Correction.ABORT)]
            else:
                actions = [planned(rules, node) for node in (*plans[int(draft["replans"])], None)]
            for action in actions:
                assert is_legal(rules, draft, action), action
                draft = rules.grow(draft, action)[0]
            return [(action, 0.5) for action in actions]

        return choose

    return WorkflowDecider(version=version, catalogue=known, limits=limits or Limits(), choosers=choosers)


def planned(rules: Rules, node: Node | None) -> Action:
    """What adds this node, or stops."""
    kind, links, worker = node or (rules.types, (), 0)
    return _action(rules, Correction.ABORT, kind, links, worker)


def corrected(rules: Rules, fix: Fix) -> Action:
    correction, *rest = (fix,) if isinstance(fix, Correction) else fix
    kind = rest[0] if correction == Correction.REPAIR else rules.types
    return _action(rules, correction, kind, (), rest[-1] if rest else 0)


def _action(rules: Rules, correction: Correction, kind: int, links: Sequence[int], worker: int) -> Action:
    linked = torch.zeros((1, rules.nodes), dtype=torch.bool)
    linked[0, list(links)] = True
    one = {"correction": int(correction), "type": kind, "worker": worker}
    return {"links": linked, **{name: torch.tensor([value]) for name, value in one.items()}}


def is_legal(rules: Rules, d: Obs, action: Action) -> bool:
    correction, kind, links = action["correction"], action["type"], action["links"]
    return bool(
        rules.corrections(d)[0, correction]
        and rules.task_types(d, correction)[0, kind]
        and not (links & ~rules.dependencies(d, kind)).any()
        and rules.workers_for(d, correction, kind, links)[0, action["worker"]]
    )


def office(
    *workers: ScriptedWorker,
    plans: Sequence[Sequence[Node]] = (((DRAFT, (), A),),),
    fixes: Sequence[Fix] = (),
    limits: Limits | None = None,
    entries: Sequence[Worker] = (),
    **more: Any,
) -> Orchestrator:
    """An orchestrator of these workers with a policy that follows plans; what else is given goes where it belongs."""
    hands = {worker.name: worker for worker in workers}
    known = catalogue(*entries) if entries else catalogue(*(entry(name) for name in hands))
    of_crew = {k: more.pop(k) for k in ("verifiers", "judge", "concurrency", "timeout_s") if k in more}
    crew = Crew(known, hands, **of_crew)
    decider = more.pop("decider", None) or following(known, *plans, fixes=fixes, limits=limits)
    return Orchestrator(decider, crew, **more)


def carried_out(orchestrator: Orchestrator, instruction: str = "do it", **more: Any) -> Result:
    return run_virtually(orchestrator.execute(instruction, **more))


def attempts(result: Result) -> list[tuple[str, list[str | None]]]:
    """Of each node its type and the faults of its attempts."""
    return [(TYPES[node.task_type], [tried.fault for tried in node.attempts]) for node in result.execution.nodes]


def tries(result: Result) -> list[Attempt]:
    return [tried for node in result.execution.nodes for tried in node.attempts]
