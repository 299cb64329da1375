"""A workflow carried out: an instruction in, the record of what happened out.

The policy plans; what depends on nothing that is still to come runs, all at once; results go along the edges. What
fails is corrected as the policy says, under the rules that it learned with, while the rest goes on. Nothing outlives
its deadline: an attempt that does not end is left behind, whatever it does. Money is set aside before it is spent, at
its upper bound, so that no budget is exceeded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Protocol, TypeVar
from uuid import uuid4
from zlib import crc32

import msgspec

from etude.contracts.decision import Choice, Decision
from etude.contracts.errors import EtudeError, PlanError
from etude.contracts.ports import Verifier
from etude.contracts.work import Fault, Input, Subtask, Verdict, WorkerError
from etude.orchestrator.account import node_records, planner_outputs, violations
from etude.orchestrator.corrections import CATEGORY, NOT_CHARGED, is_beyond
from etude.orchestrator.crew import TIMEOUT_S, Crew, Member, Workers, enlist
from etude.orchestrator.record import Attempt, Execution, ExecutionResult, PlannerOutputs
from etude.problems.workflow.catalogue import Catalogue
from etude.problems.workflow.decide import Decider, Deliberation, named
from etude.problems.workflow.grammar import Correction, Status
from etude.problems.workflow.plan import SLACK, Limits, Plan
from etude.problems.workflow.progress import Live, Progress, Step
from etude.problems.workflow.world import Rewards

MARGIN_MS, EACH_MS = 20.0, 1.0
"""Before a deadline: what it takes to end in time, and what each other workflow under way may hold that up."""
TICK_S = 1e-6
"""By which a timer may be early."""
GRACE_S = 1.0
"""For what was left behind to end, when all is over."""
WORKFLOW = "workflow"
"""What a judge is told for a task type."""
T = TypeVar("T")


class Policy(Protocol):
    """A trained planner."""

    @property
    def catalogue(self) -> Catalogue: ...

    def decider(self, *, catalogue: Catalogue, limits: Limits | None) -> Decider:
        """What decides with these task types and workers, within these limits or its own."""


class Log(Protocol):
    """Keeps records."""

    def append(self, execution: Execution) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What a person is asked when the policy would give up."""

    instruction: str
    task_type: str
    worker: str
    fault: Fault
    message: str
    options: tuple[Correction, ...]  # those that need no further choice


Human = Callable[[Question], Awaitable[Correction | None]]
"""An answer among the options; None leaves it to the policy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something happened in a workflow: planned, started, done, failed, corrected, ended."""

    kind: str
    workflow: str
    progress: Progress
    at_ms: float
    step: Step | None = None
    fault: Fault | None = None
    message: str = ""
    choice: Choice | None = None


Watch = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a caller gets; `execution` is what the log has."""

    execution: Execution
    output: Any  # of the last node, or of the several that nothing follows, by node

    @property
    def success(self) -> bool:
        return self.execution.success

    @property
    def cost_usd(self) -> float:
        return self.execution.cost

    @property
    def latency_ms(self) -> float:
        return self.execution.latency_ms


class Orchestrator:
    """Plans and carries out. One may carry out any number of workflows at once, in one event loop at a time."""

    def __init__(
        self,
        policy: Decider | Policy,
        workers: Workers,
        *,
        limits: Limits | None = None,
        log: Log | None = None,
        human: Human | None = None,
        watch: Watch | None = None,
        rewards: Rewards | None = None,
        seed: int = 0,
    ) -> None:
        """`policy` is what `etude.load` gives, or a Decider; `workers` a workers file, or workers by name."""
        crew = enlist(workers, policy.catalogue)
        decider = policy if isinstance(policy, Decider) else policy.decider(catalogue=crew.catalogue, limits=limits)
        names = [
            ([t.name for t in c.task_types], [w.name for w in c.workers]) for c in (decider.catalogue, crew.catalogue)
        ]
        if names[0] != names[1]:
            raise PlanError("the policy decides with another catalogue than the workers have: give it theirs")
        self.decider, self.crew, self.log, self.human, self.watch = decider, crew, log, human, watch
        self.limits, self.rewards, self.seed = decider.limits, rewards or Rewards(), seed
        self.left_behind: set[asyncio.Task[Any]] = set()  # attempts that were given up and have not ended
        self.under_way = 0  # workflows
        self._thinking: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    async def execute(self, instruction: str, *, plan: Plan | None = None, number: int | None = None) -> Result:
        """One workflow, with the policy's plan or with this one. If it is cancelled, what happened is logged first."""
        return await _Flow(self, instruction, plan, number).run()

    def run(self, instruction: str, *, plan: Plan | None = None) -> Result:
        """The same for callers without an event loop."""

        async def once() -> Result:
            try:
                return await self.execute(instruction, plan=plan)
            finally:
                await self.close()

        return asyncio.run(once())

    async def stream(self, instructions: Iterable[tuple[int, str]], *, concurrency: int = 16) -> AsyncGenerator[Result]:
        """Many numbered workflows, so many at a time, as they end."""
        waiting, running = iter(instructions), set[asyncio.Task[Result]]()
        try:
            while True:
                while len(running) < concurrency and (following := next(waiting, None)) is not None:
                    running.add(asyncio.create_task(self.execute(following[1], number=following[0])))
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
        """All of these, in their order."""
        found: dict[int, Result] = {}
        async with aclosing(self.stream(enumerate(instructions), concurrency=concurrency)) as results:
            async for result in results:
                assert result.execution.number is not None
                found[result.execution.number] = result
        return [found[i] for i in range(len(instructions))]

    def thinking(self) -> asyncio.Lock:
        """Whose turn it is to think, in the loop that runs: a lock serves one loop only."""
        loop = asyncio.get_running_loop()
        if self._thinking is None or self._thinking[0] is not loop:
            self._thinking = (loop, asyncio.Lock())
        return self._thinking[1]

    async def close(self) -> None:
        """Let go of workers and of what was left behind."""
        for task in self.left_behind:
            task.cancel()
        if self.left_behind:
            await asyncio.wait(self.left_behind, timeout=GRACE_S)
        for task in self.left_behind:  # these heed nothing: `asyncio.run` would wait for them without end
            asyncio.tasks._unregister_task(task)
        await self.crew.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class _End:
    """What became of an attempt."""

    output: Any = None
    usd: float | None = None  # nobody says
    fault: Fault | None = None
    message: str = ""
    rest_s: float | None = None
    by_worker: bool = True  # it says something about the worker


@dataclass(eq=False, slots=True)
class _Try:
    """One attempt: under way until it has an end."""

    step: Step
    member: Member
    most_usd: float
    started_ms: float = 0.0
    ended_ms: float = 0.0
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None  # since its worker was asked
    slots: asyncio.Semaphore | None = None  # where it has a place
    end: _End | None = None

    @property
    def typical_usd(self) -> float:
        """What it is taken to cost where nobody says."""
        return min(self.most_usd, self.member.entry.cost_usd())


@dataclass(eq=False)
class _Flow:
    """One workflow while it is carried out."""

    at: Orchestrator
    instruction: str
    given: Plan | None
    number: int | None
    id: str = field(default_factory=lambda: uuid4().hex)
    running: dict[Step, _Try] = field(default_factory=dict)
    ended: deque[_Try] = field(default_factory=deque)
    failures: deque[tuple[_Try, _End]] = field(default_factory=deque)
    decisions: list[Decision] = field(default_factory=list)
    corrected: dict[int, Step] = field(default_factory=dict)  # by decision: what had failed
    first: PlannerOutputs | None = None
    how: str = "done"
    error: str = ""
    judge_usd: float = 0.0
    in_doubt_usd: float = 0.0  # what attempts may have cost beyond what they are taken to, where nobody says

    async def run(self) -> Result:
        self.loop, self.timestamp = asyncio.get_running_loop(), datetime.now(UTC)
        self.began_s, self.woken = self.loop.time(), asyncio.Event()
        self.progress, limit_ms = Progress(instruction=self.instruction), self.limits.max_time_ms
        self.at.under_way += 1
        self.deadline_s = None if limit_ms is None else self._deadline_s(limit_ms)
        self.alarm = None if limit_ms is None else self.loop.call_later(limit_ms / 2000, self._set_alarm, limit_ms)
        self.at.crew.begin(self.id, self.instruction)
        try:
            await self._plan()
            await self._carry_out()
            self._stop()
            success = await self._judge()
        except EtudeError as error:  # no plan can be made of it
            self.how, self.error, success = "failed", str(error), False
        except BaseException as error:
            self.how, self.error = "failed", f"{type(error).__name__}: {error}"
            if isinstance(error, asyncio.CancelledError):
                self.how, self.error = "cancelled", "cancelled while it was carried out"
            self._stop()
            self._log(success=False)
            raise
        finally:
            self._stop()
            self.at.under_way -= 1
            if self.alarm is not None:
                self.alarm.cancel()
            self.at.crew.end(self.id)
        return Result(execution=self._log(success=success), output=self._output())

    def _deadline_s(self, limit_ms: float) -> float:
        margin_ms = MARGIN_MS + EACH_MS * (self.at.under_way - 1)
        return self.began_s + max(limit_ms - margin_ms, limit_ms * 0.9) / 1000

    def _set_alarm(self, limit_ms: float) -> None:
        """Half-way, when it is known better how many others there are: many that began at once will end at once."""
        self.deadline_s = self._deadline_s(limit_ms)
        self.alarm = self.loop.call_at(self.deadline_s, self.woken.set)

    @property
    def limits(self) -> Limits:
        return self.at.limits

    @cached_property
    def mind(self) -> Deliberation:
        """Reads the instruction when it is first asked: about a given plan, on which nothing fails, it never is."""
        seed = self.at.seed + (crc32(self.id.encode()) if self.number is None else self.number)
        return self.at.decider.about(self.instruction, seed=seed)

    async def _turn(self) -> None:
        """Wait to think, until the deadline at most. One workflow thinks, and all else goes on before the next does.

        Otherwise, while many think one after the other, answers would lie unread and deadlines pass.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self.deadline_s):
                await self.at.thinking().acquire()
                self.loop.call_soon(self.at.thinking().release)

    async def _plan(self) -> None:
        if self.given is None or not self.instruction.strip():  # which it refuses
            await self._turn()
            self.decisions += self.mind.plan(self.progress, self._live())
        else:
            self.given.check(self.at.crew.catalogue, self.limits)
            lay_down(self.given, self.progress, self.at.crew)
        self.first = planner_outputs(self.progress.steps)
        self._tell("planned")

    async def _carry_out(self) -> None:
        """Begin what can begin, settle what has ended, correct what has failed, until there is nothing to do."""
        while True:
            while self.ended:
                self._settle(self.ended.popleft())
            ready = self.progress.ready()
            if not (ready or self.failures or self.running) or self._is_late():
                return
            elif ready:
                for step in ready:
                    self._begin(step)
            elif self.failures:
                await self._turn()
                if self._is_late() or not await self._correct(*self.failures.popleft()):
                    return
            else:
                await self._wait()

    def _is_late(self) -> bool:
        """Whether the time is used up, which is then how it ends."""
        if self.deadline_s is None or self.loop.time() < self.deadline_s - TICK_S:
            return False
        self.how, self.error = "deadline", f"its time, {self.limits.max_time_ms:g} ms, is used up"
        return True

    async def _wait(self) -> None:
        await self.woken.wait()
        self.woken.clear()

    def _begin(self, step: Step) -> None:
        member, now_ms = self.at.crew.members[step.worker], self._now_ms()
        step.begun, step.ready_ms = True, now_ms
        this = self.running[step] = _Try(step, member, 0.0, now_ms)
        subtask = self._subtask(step, member)
        try:
            bound = member.worker.most_usd(subtask)
        except Exception as error:
            self._over(this, _End(usd=0.0, fault=Fault.UNKNOWN, message=f"{type(error).__name__}: {error}"))
            return
        this.most_usd = max(step.cost_usd, member.entry.cost_usd()) if bound is None else bound
        refusal = self._too_dear(this.most_usd, this)
        if member.calls is not None and member.calls < 1:
            refusal = f"{member.entry.name} has no calls left"
        if refusal:
            this.most_usd = 0.0
            self._over(this, _End(usd=0.0, fault=Fault.BUDGET, message=refusal, by_worker=False))
            return
        member.begin()
        this.task = self.loop.create_task(self._attempt(this, subtask))

    def _too_dear(self, usd: float, this: _Try | None = None) -> str:
        """Why so much cannot be spent on this, beside what others may spend; "" where it can."""
        most = self.limits.max_cost_usd
        if most is None:
            return ""
        others = sum(other.most_usd for other in self.running.values() if other is not this)
        taken = self.progress.spent_usd + self.judge_usd + self.in_doubt_usd + others
        if taken + usd <= most * (1 + SLACK):
            return ""
        return f"it may cost {usd:.4g} USD, and {max(0.0, most - taken):.4g} of {most:g} are left"

    def _subtask(self, step: Step, member: Member) -> Subtask:
        types = self.at.crew.catalogue.task_types
        return Subtask(
            workflow=self.id,
            node=self.progress.steps.index(step),
            attempt=step.attempts,
            instruction=self.instruction,
            task_type=types[step.task_type].name,
            description=types[step.task_type].description,
            inputs=tuple(
                Input(task_type=types[before.task_type].name, output=before.output)
                for before in step.dependencies
                if before.status == Status.DONE
            ),
            timeout_s=self._time_for(member.timeout_s),
        )

    def _time_for(self, timeout_s: float) -> float:
        """What is left of this before the deadline."""
        return timeout_s if self.deadline_s is None else max(0.0, min(timeout_s, self.deadline_s - self.loop.time()))

    async def _attempt(self, this: _Try, subtask: Subtask) -> None:
        member, end = this.member, _End(fault=Fault.UNKNOWN)
        try:
            slots = member.slots()
            if slots is not None:
                await slots.acquire()
                this.slots = slots
                subtask = replace(subtask, timeout_s=self._time_for(member.timeout_s))  # what waiting has left
            this.started_ms = this.step.ready_ms = self._now_ms()
            this.timer = self.loop.call_later(member.timeout_s, self._expire, this)
            self._tell("started", this.step)
            reply = await member.worker.do(subtask)
            paid_usd = this.typical_usd if reply.cost_usd is None else reply.cost_usd
            end = await self._verified(this, subtask, reply.output, paid_usd)
        except WorkerError as error:
            free = error.cost_usd is None and error.fault in NOT_CHARGED
            usd = 0.0 if free else error.cost_usd
            end = _End(usd=usd, fault=error.fault, message=str(error), rest_s=error.retry_after_s)
        except asyncio.CancelledError:  # a worker that cancels itself; or it was given up, then it has ended before
            end = _End(fault=Fault.UNKNOWN, message="it was cancelled by itself")
        except Exception as error:  # whatever a worker raises, the workflow goes on
            end = _End(fault=Fault.UNKNOWN, message=f"{type(error).__name__}: {error}")
        finally:
            self._over(this, end)

    async def _verified(self, this: _Try, subtask: Subtask, output: Any, usd: float) -> _End:
        """What the verifier makes of an answer that cost so much. Where it fails itself, the worker did not."""
        verifier = self.at.crew.verifiers.get(subtask.task_type)
        if verifier is None:
            return _End(output=output, usd=usd)
        try:
            this.most_usd = usd + most_to_ask(verifier, subtask, output)
            if refusal := self._too_dear(this.most_usd, this):
                return _End(usd=usd, fault=Fault.BUDGET, message=f"to verify it: {refusal}", by_worker=False)
            verdict = await verifier(subtask, output)
            if verdict.ok:
                return _End(output=output, usd=usd + verdict.cost_usd)
            why = verdict.reason or "the verifier says no"
            return _End(usd=usd + verdict.cost_usd, fault=verdict.fault, message=why)
        except WorkerError as error:
            return _End(usd=usd + (error.cost_usd or 0.0), fault=error.fault, message=str(error), by_worker=False)
        except Exception as error:
            return _End(usd=usd, fault=Fault.UNKNOWN, message=f"{type(error).__name__}: {error}", by_worker=False)

    def _expire(self, this: _Try) -> None:
        """An attempt took too long: it is given up, whether it ends or not."""
        if this.end is None:
            self._give_up(this, f"no answer within {this.member.timeout_s:g} s", by_worker=True)

    def _give_up(self, this: _Try, why: str, *, by_worker: bool) -> None:
        """It may have been paid for, if it had begun."""
        usd = 0.0 if this.timer is None else None
        self._over(this, _End(usd=usd, fault=Fault.TIMEOUT, message=why, by_worker=by_worker))
        if this.task is not None:
            self._leave(this.task)

    def _over(self, this: _Try, end: _End) -> None:
        """An attempt has ended, once."""
        if this.end is not None:
            return
        this.end, this.ended_ms = end, self._now_ms()
        if this.timer is not None:
            this.timer.cancel()
        if this.slots is not None:
            this.slots.release()
        self.ended.append(this)
        self.woken.set()

    def _leave(self, task: asyncio.Task[Any]) -> None:
        if not task.done():
            task.cancel()
            self.at.left_behind.add(task)
            task.add_done_callback(self.at.left_behind.discard)

    def _settle(self, this: _Try) -> None:
        """Write down what became of an attempt."""
        step, end = this.step, this.end
        assert end is not None
        usd = end.usd
        if usd is None:
            usd = this.typical_usd
            self.in_doubt_usd += this.most_usd - usd
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
                message=end.message[:500],
            )
        )
        if end.by_worker:
            now_s, latency_ms = self.loop.time(), step.latency_ms
            this.member.learn(end.fault, usd=usd, latency_ms=latency_ms, now_s=now_s, rest_s=end.rest_s)
        if end.fault is None:
            step.status, step.output = Status.DONE, end.output
            self._tell("done", step)
        else:
            step.status = Status.FAILED
            self.failures.append((this, end))
            self._tell("failed", step, fault=end.fault, message=end.message)

    async def _correct(self, this: _Try, end: _End) -> bool:
        """Do what the policy says about a failed step; False where that ends the workflow."""
        assert end.fault is not None
        step, progress, live = this.step, self.progress, self._live()
        progress.fail(step, CATEGORY[end.fault], unable=is_beyond(end.fault))
        decision = self.mind.correct(progress, live, now_ms=self._now_ms())
        if decision.choice.correction == named(Correction.ABORT):
            decision = await self._ask(decision, this, end, live)
        self.corrected[len(self.decisions)] = this.step
        self.decisions.append(decision)
        choice = decision.choice
        assert choice.correction is not None
        correction = Correction[choice.correction.upper()]
        self._tell("corrected", step, choice=choice)
        if correction == Correction.REPLAN:
            await self._drain()
            await self._turn()
            if self._is_late():
                return False
            live = self._live()
        progress.amend(
            correction,
            live,
            now_ms=self._now_ms(),
            task_type=-1 if choice.task_type is None else choice.task_type,
            worker=-1 if choice.worker is None else choice.worker,
        )
        if correction == Correction.REPLAN:
            self.failures.clear()
            self.decisions += self.mind.plan(progress, live, now_ms=self._now_ms())
            self._tell("planned")
        if correction == Correction.ABORT:
            task_type = self.at.crew.catalogue.task_types[step.task_type].name
            self.how, self.error = "aborted", f"{task_type}: {end.message} ({end.fault})"
        return correction != Correction.ABORT

    async def _drain(self) -> None:
        """Wait for what is under way: what it makes is not thrown away."""
        while self.running:
            while self.ended:
                self._settle(self.ended.popleft())
            if self._is_late():
                return
            if self.running:
                await self._wait()

    async def _ask(self, decision: Decision, this: _Try, end: _End, live: Sequence[Live]) -> Decision:
        """A person's answer in place of the policy's, where one is asked and gives one."""
        step = this.step
        free = (Correction.RETRY, Correction.REPLAN, Correction.SKIP, Correction.ABORT)
        legal = self.mind.options(self.progress, live, now_ms=self._now_ms())
        options = tuple(c for c in legal if c in free)
        if self.at.human is None or options == (Correction.ABORT,):
            return decision
        question = Question(
            instruction=self.instruction,
            task_type=self.at.crew.catalogue.task_types[step.task_type].name,
            worker=this.member.entry.name,
            fault=end.fault or Fault.UNKNOWN,
            message=end.message,
            options=options,
        )
        answer = await self._in_time(_awaited(self.at.human(question)), self._left_s())
        if answer is None or answer not in options:
            return decision
        changed: Mapping[str, Any] = {"choice": Choice(correction=named(answer)), "propensity": None, "policy": "human"}
        return msgspec.structs.replace(decision, **changed)

    async def _judge(self) -> bool:
        """Whether what was asked for is done: as the judge says, else if every subtask is."""
        steps, judge, types = self.progress.steps, self.at.crew.judge, self.at.crew.catalogue.task_types
        if judge is None:
            left = [f"{types[s.task_type].name} was {s.status.name.lower()}" for s in steps if s.status != Status.DONE]
            self.error = self.error or ", ".join(left)
            return self.how == "done" and not left
        made = [Input(task_type=types[s.task_type].name, output=s.output) for s in steps if s.status == Status.DONE]
        limit_s = self._time_for(TIMEOUT_S)
        subtask = Subtask(
            workflow=self.id,
            node=-1,
            attempt=1,
            instruction=self.instruction,
            task_type=WORKFLOW,
            inputs=tuple(made),
            timeout_s=limit_s,
        )
        verdict: Verdict | None
        if refusal := self._too_dear(most_to_ask(judge, subtask, self._output())):
            verdict = Verdict(ok=False, reason=f"the judge could not be asked: {refusal}")
        else:
            verdict = await self._in_time(_judged(judge, subtask, self._output()), limit_s)
        if verdict is None:
            verdict = Verdict(ok=False, reason=f"the judge could not be asked: no answer within {limit_s:g} s")
        self.judge_usd += verdict.cost_usd
        if not verdict.ok and not self.error:
            self.error = verdict.reason
        return verdict.ok

    async def _in_time(self, work: Coroutine[Any, Any, T], limit_s: float | None) -> T | None:
        """What it gives; None where it does not end in time, and then it is left behind."""
        task = self.loop.create_task(work)
        try:
            await asyncio.wait({task}, timeout=limit_s)
        finally:
            self._leave(task)
        return task.result() if task.done() else None

    def _left_s(self) -> float | None:
        return None if self.deadline_s is None else self._time_for(float("inf"))

    def _stop(self) -> None:
        """Nothing goes on after this."""
        for this in list(self.running.values()):
            if this.end is None:
                self._give_up(this, "the workflow ended before it did", by_worker=False)
        while self.ended:
            self._settle(self.ended.popleft())
        self.failures.clear()

    def _live(self) -> tuple[Live, ...]:
        return self.at.crew.live(self.id, now_s=self.loop.time())

    def _now_ms(self) -> float:
        return (self.loop.time() - self.began_s) * 1000

    def _output(self) -> Any:
        """Of what nothing that is done follows: of one step as it is, of several by their numbers."""
        steps = self.progress.steps
        followed = {id(before) for step in steps if step.status == Status.DONE for before in step.dependencies}
        last = {i: s.output for i, s in enumerate(steps) if s.status == Status.DONE and id(s) not in followed}
        return next(iter(last.values())) if len(last) == 1 else last

    def _tell(self, kind: str, step: Step | None = None, **more: Any) -> None:
        if self.at.watch is not None:
            now_ms = self._now_ms()
            self.at.watch(Event(kind=kind, workflow=self.id, progress=self.progress, at_ms=now_ms, step=step, **more))

    def _numbered(self) -> tuple[Decision, ...]:
        """Decisions that name what failed as the record does: a replan has moved it since."""
        place = {id(step): i for i, step in enumerate((*self.progress.steps, *self.progress.dropped))}
        renamed = {
            k: msgspec.structs.replace(self.decisions[k], failed=place[id(s)]) for k, s in self.corrected.items()
        }
        return tuple(renamed.get(k, decision) for k, decision in enumerate(self.decisions))

    def _log(self, *, success: bool) -> Execution:
        progress, rewards = self.progress, self.at.rewards
        cost, latency_ms = progress.spent_usd + self.judge_usd, self._now_ms()
        done = {str(i): s.output for i, s in enumerate(progress.steps) if s.status == Status.DONE}
        reward = rewards.alpha * success - rewards.beta * 100 * cost - rewards.gamma_latency * latency_ms / 1000
        execution = Execution(
            timestamp=self.timestamp.isoformat(timespec="milliseconds"),
            instruction=self.instruction,
            success=success,
            cost=cost,
            latency_ms=latency_ms,
            planner_outputs=self.first,
            execution_result=ExecutionResult(
                success=success, outputs=done, total_cost=cost, total_latency_ms=latency_ms
            ),
            id=self.id,
            number=self.number,
            policy=self.at.decider.version,
            reward=reward + rewards.shaped_reward * len(done),
            ended=self.how,
            error=self.error[:1000],
            decisions=self._numbered(),
            nodes=node_records(progress),
            violations=tuple(violations(progress, cost, latency_ms, self.limits, self.at.crew)),
        )
        if self.at.log is not None:
            self.at.log.append(execution)
        self._tell("ended", message=self.how)
        return execution


async def _awaited(answer: Awaitable[T]) -> T:
    return await answer


def most_to_ask(verifier: Verifier, subtask: Subtask, output: Any) -> float:
    """What asking a verifier can cost; most cost nothing and do not say so."""
    bound = getattr(verifier, "most_usd", None)
    return 0.0 if bound is None else float(bound(subtask, output))


async def _judged(judge: Verifier, subtask: Subtask, output: Any) -> Verdict:
    """What a judge says; a no where it fails, whatever it raises."""
    try:
        return await judge(subtask, output)
    except (Exception, asyncio.CancelledError) as error:
        why = str(error) if isinstance(error, WorkerError) else f"{type(error).__name__}: {error}"
        usd = (error.cost_usd or 0.0) if isinstance(error, WorkerError) else 0.0
        return Verdict(ok=False, reason=f"the judge could not be asked: {why}", cost_usd=usd)


def lay_down(plan: Plan, progress: Progress, crew: Crew) -> None:
    """A plan that was made elsewhere, as steps."""
    types = {t.name: i for i, t in enumerate(crew.catalogue.task_types)}
    workers = {w.name: i for i, w in enumerate(crew.catalogue.workers)}
    for node in plan.nodes:
        assert node.worker is not None  # `Plan.check` has seen to it
        member = crew.members[workers[node.worker]]
        live = Live(member.usd, member.latency_ms, member.success, True, member.calls)
        needs = [progress.steps[j] for j in node.dependencies]
        progress.add(types[node.task_type], needs, workers[node.worker], live, 0.0)
