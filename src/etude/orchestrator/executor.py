"""Carries out workflows: from an instruction to the trajectory of its execution.

The policy makes a plan; subtasks whose dependencies are done run in parallel; outputs are passed along the edges. The
policy corrects failures, under the rules of its training, while other subtasks continue. Deadlines and budgets are
never exceeded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

from etude.contracts.errors import ConfigError, PlanError
from etude.contracts.ports import AsyncDecider
from etude.contracts.trajectory import Trajectory
from etude.contracts.work import Fault
from etude.orchestrator.flow import Event, Flow, Human, Log, PlanDecider, Question, Watch
from etude.orchestrator.inputs import Inputs, WorkflowInputs
from etude.orchestrator.instructions import inputs_of
from etude.orchestrator.log import same_ids
from etude.orchestrator.record import Execution
from etude.orchestrator.trajectories import to_execution
from etude.orchestrator.unsure import Unsure, with_fallback
from etude.orchestrator.workers_file import Workers, enlist
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.decisions import catalogue_id
from etude.problems.workflow.plan import Limits, Plan

__all__ = ["Event", "Human", "Orchestrator", "Question", "Result"]

GRACE_S = 1.0
"""Seconds for cancelled attempts to end at close."""


class Policy(Protocol):
    """A trained planner."""

    @property
    def catalogue(self) -> Catalogue: ...

    def decider(self, *, catalogue: Catalogue, limits: Limits | None) -> PlanDecider:
        """A decider for these task types and workers, under these limits or its own."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Result of a workflow."""

    trajectory: Trajectory
    """Record of the execution."""
    output: Any
    """Output of the last node, or outputs by node if several nodes are last."""
    refused: bool = False
    """Whether it was refused and not logged: a worker cannot be reached, or the plan is not probable enough."""

    @cached_property
    def execution(self) -> Execution:
        """The record as a line of the log."""
        return to_execution(self.trajectory)

    @property
    def success(self) -> bool:
        return bool(self.trajectory.outcome.success)

    @property
    def lacks_input(self) -> bool:
        """Whether it ended before its first attempt, since its plan lacks an input or a parameter."""
        return not self.success and not self.trajectory.turns and self.error.endswith(f"({Fault.WRONG_INPUT})")

    @property
    def error(self) -> str:
        return self.trajectory.outcome.error or ""

    @property
    def cost_usd(self) -> float:
        return self.trajectory.outcome.cost_usd or 0.0

    @property
    def latency_ms(self) -> float:
        return self.trajectory.outcome.latency_ms or 0.0


class Orchestrator:
    """Plans and carries out workflows, any number in parallel, in one event loop at a time."""

    def __init__(
        self,
        policy: PlanDecider | Policy,
        workers: Workers,
        *,
        limits: Limits | None = None,
        log: Log | None = None,
        human: Human | None = None,
        unsure: Unsure | None = None,
        watch: Watch | None = None,
        seed: int = 0,
        fallback: PlanDecider | Policy | None = None,
        min_probability: float | None = None,
    ) -> None:
        """`policy` is the result of `etude.load`, or a decider; `workers` a workers file, or workers by name.

        `unsure` says what to do about plans that are not probable enough; None carries out any plan. `fallback` is a
        short form of it: a policy that plans where the planner's own plan is less probable than `min_probability`, or,
        where that is None, than the fallback's workflows are right, by the verdicts on them.
        """
        crew = enlist(workers, policy.catalogue)
        decider = _decider(policy, crew.catalogue, limits)
        if fallback is not None:
            if unsure is not None:
                raise ConfigError("unsure and fallback are given: name the fallback in unsure, or leave unsure out")
            other = _decider(fallback, crew.catalogue, decider.limits)
            unsure = with_fallback(decider, other, min_probability=min_probability)
        if not same_ids(decider.catalogue, crew.catalogue):
            raise PlanError("the policy decides with another catalogue than the workers have: give it theirs")
        self.decider, self.crew, self.log, self.human, self.watch = decider, crew, log, human, watch
        self.unsure = unsure
        self.limits, self.seed, self.catalogue_id = decider.limits, seed, catalogue_id(crew.catalogue)
        self.left_behind: set[asyncio.Task[Any]] = set()  # cancelled attempts that have not ended
        self.under_way = 0  # number of running workflows
        self._deciding: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    async def execute(
        self,
        instruction: str,
        *,
        inputs: Inputs | None = None,
        plan: Plan | None = None,
        number: int | None = None,
        user: str | None = None,
    ) -> Result:
        """Carry out one workflow, with the policy's plan or a given one. If it is cancelled, it is logged first.

        `inputs` are texts, bytes, files (`Path`) or JSON values by name; DataError if one of them cannot be used.
        """
        given = WorkflowInputs({**inputs_of(instruction), **(inputs or {})}, instruction=instruction)
        flow = Flow(self, str(instruction), plan, number, user, given)
        trajectory, output = await flow.run()
        return Result(trajectory=trajectory, output=output, refused=flow.refused)

    def run(
        self, instruction: str, *, inputs: Inputs | None = None, plan: Plan | None = None, user: str | None = None
    ) -> Result:
        """Like `execute`, for callers without an event loop."""

        async def once() -> Result:
            try:
                return await self.execute(instruction, inputs=inputs, plan=plan, user=user)
            finally:
                await self.close()

        return asyncio.run(once())

    async def stream(
        self,
        instructions: Iterable[tuple[int, str]],
        *,
        concurrency: int = 16,
        user: str | None = None,
        inputs: Inputs | None = None,
    ) -> AsyncGenerator[Result]:
        """Carry out many numbered workflows with limited concurrency; yield results as they end.

        `inputs` are for all of them; the inputs of an `Instruction` itself come first.
        """
        waiting, running = iter(instructions), set[asyncio.Task[Result]]()
        try:
            while True:
                while len(running) < concurrency and (following := next(waiting, None)) is not None:
                    number, instruction = following
                    given = {**(inputs or {}), **inputs_of(instruction)}
                    work = self.execute(instruction, inputs=given, number=number, user=user)
                    running.add(asyncio.create_task(work))
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def execute_all(self, instructions: Sequence[str], *, concurrency: int = 16) -> list[Result]:
        """Carry out all instructions; results are in their order."""
        found: dict[int, Result] = {}
        async with aclosing(self.stream(enumerate(instructions), concurrency=concurrency)) as results:
            async for result in results:
                assert result.trajectory.metadata is not None
                found[result.trajectory.metadata["number"]] = result
        return [found[i] for i in range(len(instructions))]

    def deciding(self) -> asyncio.Lock:
        """The lock of the workflow that decides, for the running event loop."""
        loop = asyncio.get_running_loop()
        if self._deciding is None or self._deciding[0] is not loop:
            self._deciding = (loop, asyncio.Lock())
        return self._deciding[1]

    async def check(self) -> None:
        """Raises EndpointError if the policy or its fallback asks a service that cannot be reached."""
        for decider in self._services():
            await decider.check()

    async def close(self) -> None:
        """Close the workers and end cancelled attempts."""
        for task in self.left_behind:
            task.cancel()
        if self.left_behind:
            await asyncio.wait(self.left_behind, timeout=GRACE_S)
        for task in self.left_behind:  # these ignore cancellation: `asyncio.run` would wait for them for ever
            asyncio.tasks._unregister_task(task)
        await self.crew.close()
        for decider in self._services():
            await decider.close()

    def _services(self) -> list[AsyncDecider]:
        """The deciders that ask a service."""
        deciders = (self.decider, None if self.unsure is None else self.unsure.fallback)
        return [decider for decider in deciders if isinstance(decider, AsyncDecider)]


def _decider(policy: PlanDecider | Policy, catalogue: Catalogue, limits: Limits | None) -> PlanDecider:
    """A decider as it is; that of a trained planner or a language model for these task types and workers."""
    make: Callable[..., PlanDecider] | None = getattr(policy, "decider", None)
    return cast(PlanDecider, policy) if make is None else make(catalogue=catalogue, limits=limits)
