"""The attempts of one workflow: started, timed, verified and paid for.

The maximum cost is reserved before an attempt starts, so that no budget is exceeded. An attempt that does not end in
time is cancelled and no longer waited for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from etude.contracts.ports import Verifier
from etude.contracts.work import Fault, Input, Subtask, WorkerError, WorkflowInput
from etude.orchestrator.crew import Crew, Member
from etude.orchestrator.parameters import Needs
from etude.orchestrator.record import Attempt
from etude.problems.workflow.faults import CATEGORY, NOT_CHARGED
from etude.problems.workflow.grammar import Status
from etude.problems.workflow.plan import SLACK, Limits
from etude.problems.workflow.progress import Progress, Step

MAX_MESSAGE_CHARS = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How an attempt ended."""

    output: Any = None
    usd: float | None = None  # None: not known
    fault: Fault | None = None
    message: str = ""
    rest_s: float | None = None
    by_worker: bool = True  # it counts for the worker's statistics
    repeatable: bool = True  # False: the same worker would fail again
    verified: bool = False  # a verifier of the task type checked the output


@dataclass(eq=False, slots=True)
class Try:
    """One attempt; it runs until it has an end."""

    step: Step
    member: Member
    max_usd: float
    started_ms: float = 0.0
    ended_ms: float = 0.0
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None  # started with the call of the worker
    slots: asyncio.Semaphore | None = None  # whose slot it holds
    end: End | None = None

    @property
    def typical_usd(self) -> float:
        """The assumed cost, if the worker reports none."""
        return min(self.max_usd, self.member.entry.cost_usd())


@dataclass(eq=False, kw_only=True)
class Attempts:
    workflow: str
    instruction: str
    progress: Progress
    crew: Crew
    limits: Limits
    loop: asyncio.AbstractEventLoop
    began_s: float
    left_behind: set[asyncio.Task[Any]]  # cancelled attempts that have not ended
    notify: Callable[..., None]  # with the kind of every event, and its step
    inputs: Mapping[str, WorkflowInput] = field(default_factory=dict)  # of the workflow, by name
    parameters: dict[int, Mapping[str, Any]] = field(default_factory=dict)  # by task type
    deadline_s: float | None = None
    judge_usd: float = 0.0
    in_doubt_usd: float = 0.0  # possible extra cost of attempts whose cost is unknown
    running: dict[Step, Try] = field(default_factory=dict)
    finished: deque[Try] = field(default_factory=deque)  # to be settled
    failures: deque[tuple[Try, End]] = field(default_factory=deque)  # to be corrected
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, step: Step) -> None:
        member, now_ms = self.crew.members[step.worker], self.now_ms()
        step.begun, step.ready_ms = True, now_ms
        this = self.running[step] = Try(step, member, 0.0, now_ms)
        subtask = self._subtask(step, member)
        try:
            self.check_input(step)
            self.check_subtask(step)
        except WorkerError as error:
            end = End(usd=0.0, fault=error.fault, message=str(error), by_worker=False, repeatable=False)
            self._finish(this, end)
            return
        try:
            bound = member.worker.max_usd(subtask)
        except Exception as error:
            self._finish(this, End(usd=0.0, fault=Fault.UNKNOWN, message=f"{type(error).__name__}: {error}"))
            return
        this.max_usd = max(step.cost_usd, member.entry.cost_usd()) if bound is None else bound
        refusal = self.over_budget(this.max_usd, this)
        if member.calls is not None and member.calls < 1:
            refusal = f"{member.entry.name} has no calls left"
        if refusal:
            this.max_usd = 0.0
            self._finish(this, End(usd=0.0, fault=Fault.BUDGET, message=refusal, by_worker=False))
            return
        member.begin()
        this.task = self.loop.create_task(self._attempt(this, subtask))

    def over_budget(self, usd: float, this: Try | None = None) -> str:
        """Why this cost is over budget, given what other attempts may spend; "" if it is not."""
        limit = self.limits.max_cost_usd
        if limit is None:
            return ""
        others = sum(other.max_usd for other in self.running.values() if other is not this)
        taken = self.progress.spent_usd + self.judge_usd + self.in_doubt_usd + others
        if taken + usd <= limit * (1 + SLACK):
            return ""
        return f"it may cost {usd:.4g} USD, and {max(0.0, limit - taken):.4g} of {limit:g} are left"

    def check_input(self, step: Step, *, outputs_are_known: bool = True) -> None:
        """WorkerError if a subtask needs an input and has none."""
        name = self.crew.catalogue.task_types[step.task_type].name
        worker = self.crew.members[step.worker].worker
        needed = self.crew.needs.get(name, Needs()).input
        if needed is None:
            needed = bool(ask(name)) if (ask := getattr(worker, "needs_input", None)) else False
        if needed and not (self._inputs(step) or (step.dependencies and not outputs_are_known)):
            why = "and no earlier subtask has an output for it" if step.dependencies else "and the workflow has none"
            raise WorkerError(
                f"it needs an input, {why}: give the workflow an input, or put the text into the instruction after a "
                "colon or in quotes",
                fault=Fault.WRONG_INPUT,
                cost_usd=0.0,
            )

    def check_subtask(self, step: Step) -> None:
        """WorkerError if the worker of a subtask cannot be given it."""
        member = self.crew.members[step.worker]
        if check := getattr(member.worker, "check_subtask", None):
            check(self._subtask(step, member))

    def _inputs(self, step: Step) -> tuple[Input, ...]:
        """Outputs of the subtasks that a subtask depends on; the inputs of the workflow if it depends on none."""
        if not step.dependencies:
            return tuple(Input(name=name, output=given.value) for name, given in self.inputs.items())
        types = self.crew.catalogue.task_types
        done = [before for before in step.dependencies if before.status == Status.DONE]
        return tuple(Input(task_type=types[before.task_type].name, output=before.output) for before in done)

    def _subtask(self, step: Step, member: Member) -> Subtask:
        types = self.crew.catalogue.task_types
        return Subtask(
            workflow=self.workflow,
            node=self.progress.steps.index(step),
            attempt=step.attempts,
            instruction=self.instruction,
            task_type=types[step.task_type].name,
            description=types[step.task_type].description,
            inputs=self._inputs(step),
            workflow_inputs=self.inputs,
            parameters=self.parameters.get(step.task_type, {}),
            timeout_s=self.time_for(member.timeout_s),
        )

    def time_for(self, timeout_s: float) -> float:
        """The timeout, limited by the deadline."""
        return timeout_s if self.deadline_s is None else max(0.0, min(timeout_s, self.deadline_s - self.loop.time()))

    async def _attempt(self, this: Try, subtask: Subtask) -> None:
        member, end = this.member, End(fault=Fault.UNKNOWN)
        try:
            slots = member.slots()
            if slots is not None:
                await slots.acquire()
                this.slots = slots
                subtask = replace(subtask, timeout_s=self.time_for(member.timeout_s))  # the time left after waiting
            this.started_ms = this.step.ready_ms = self.now_ms()
            this.timer = self.loop.call_later(member.timeout_s, self._expire, this)
            self.notify("started", this.step)
            reply = await member.worker.do(subtask)
            paid_usd = this.typical_usd if reply.cost_usd is None else reply.cost_usd
            end = await self._verified(this, subtask, reply.output, paid_usd)
        except WorkerError as error:
            free = error.cost_usd is None and error.fault in NOT_CHARGED
            usd = 0.0 if free else error.cost_usd
            end = End(usd=usd, fault=error.fault, message=str(error), rest_s=error.retry_after_s)
        except asyncio.CancelledError:  # the worker cancelled itself; or it was given up, and has ended before
            end = End(fault=Fault.UNKNOWN, message="it was cancelled by itself")
        except Exception as error:  # any error of a worker: the workflow continues
            end = End(fault=Fault.UNKNOWN, message=f"{type(error).__name__}: {error}")
        finally:
            self._finish(this, end)

    async def _verified(self, this: Try, subtask: Subtask, output: Any, usd: float) -> End:
        """Verify an answer. If the verifier itself fails, that does not count against the worker."""
        verifier = self.crew.verifiers.get(subtask.task_type)
        if verifier is None:
            return End(output=output, usd=usd)
        try:
            this.max_usd = usd + max_usd_to_ask(verifier, subtask, output)
            if refusal := self.over_budget(this.max_usd, this):
                return End(usd=usd, fault=Fault.BUDGET, message=f"to verify it: {refusal}", by_worker=False)
            verdict = await verifier(subtask, output)
            if verdict.ok:
                return End(output=output, usd=usd + verdict.cost_usd, verified=True)
            why = verdict.reason or "the verifier says no"
            return End(usd=usd + verdict.cost_usd, fault=verdict.fault, message=why, verified=True)
        except WorkerError as error:
            return End(usd=usd + (error.cost_usd or 0.0), fault=error.fault, message=str(error), by_worker=False)
        except Exception as error:
            return End(usd=usd, fault=Fault.UNKNOWN, message=f"{type(error).__name__}: {error}", by_worker=False)

    def _expire(self, this: Try) -> None:
        """Give up an attempt that took too long."""
        if this.end is None:
            self._give_up(this, f"no answer within {this.member.timeout_s:g} s", by_worker=True)

    def _give_up(self, this: Try, why: str, *, by_worker: bool) -> None:
        """Give up an attempt; it may have cost money if it had started."""
        usd = 0.0 if this.timer is None else None
        self._finish(this, End(usd=usd, fault=Fault.TIMEOUT, message=why, by_worker=by_worker))
        if this.task is not None:
            self.leave(this.task)

    def _finish(self, this: Try, end: End) -> None:
        """Record the end of an attempt; later ends are ignored."""
        if this.end is not None:
            return
        this.end, this.ended_ms = end, self.now_ms()
        if this.timer is not None:
            this.timer.cancel()
        if this.slots is not None:
            this.slots.release()
        self.finished.append(this)
        self.woken.set()

    def leave(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task without waiting for its end."""
        if not task.done():
            task.cancel()
            self.left_behind.add(task)
            task.add_done_callback(self.left_behind.discard)

    async def wait(self) -> None:
        """Wait until an attempt has finished, or the deadline."""
        await self.woken.wait()
        self.woken.clear()

    def settle(self) -> None:
        """Record the outcome of finished attempts."""
        while self.finished:
            self._settle(self.finished.popleft())

    def _settle(self, this: Try) -> None:
        step, end = this.step, this.end
        assert end is not None
        usd = end.usd
        if usd is None:
            usd = this.typical_usd
            self.in_doubt_usd += this.max_usd - usd
        del self.running[step]
        step.begun, step.cost_usd, step.latency_ms = False, usd, this.ended_ms - this.started_ms
        self.progress.spent_usd += usd
        step.tries.append(
            Attempt(
                worker=step.worker,
                started_ms=this.started_ms,
                latency_ms=step.latency_ms,
                cost_usd=usd,
                fault=None if end.fault is None else end.fault.value,
                message=end.message[:MAX_MESSAGE_CHARS],
                verified=end.verified,
            )
        )
        if end.by_worker:
            now_s, latency_ms = self.loop.time(), step.latency_ms
            this.member.learn(end.fault, usd=usd, latency_ms=latency_ms, now_s=now_s, rest_s=end.rest_s)
        if end.fault is None:
            step.status, step.output = Status.DONE, end.output
            self.notify("done", step)
        else:
            step.status, step.error = Status.FAILED, int(CATEGORY[end.fault])
            self.failures.append((this, end))
            self.notify("failed", step, fault=end.fault, message=end.message)

    def stop(self) -> None:
        """Give up all running attempts."""
        for this in list(self.running.values()):
            if this.end is None:
                self._give_up(this, "the workflow ended before it did", by_worker=False)
        self.settle()
        self.failures.clear()

    def now_ms(self) -> float:
        return (self.loop.time() - self.began_s) * 1000


def max_usd_to_ask(verifier: Verifier, subtask: Subtask, output: Any) -> float:
    """Maximum cost of a verification; 0 for a verifier without a price."""
    bound = getattr(verifier, "max_usd", None)
    return 0.0 if bound is None else float(bound(subtask, output))
