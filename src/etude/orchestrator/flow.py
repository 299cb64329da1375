"""One workflow in progress: it is planned, its subtasks run as soon as possible, and failures are corrected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TypeVar
from uuid import uuid4
from zlib import crc32

import msgspec

from etude.contracts.decision import Decision, DecisionRequest, LoggedDecision
from etude.contracts.errors import EtudeError, PlanError, UnsureError, WorkersError
from etude.contracts.ports import AsyncDecider, Decider, Verifier
from etude.contracts.reward import ExecutionReward
from etude.contracts.trajectory import Outcome, SuccessBy, Trajectory
from etude.contracts.work import Fault, Input, Subtask, Verdict, WorkerError
from etude.orchestrator.attempts import Attempts, End, Try, max_usd_to_ask
from etude.orchestrator.crew import TIMEOUT_S, Crew
from etude.orchestrator.inputs import WorkflowInputs
from etude.orchestrator.preparation import prepare
from etude.orchestrator.record import correction_of
from etude.orchestrator.trajectories import Nodes, final_nodes, planned_nodes, to_execution, turns, violations
from etude.orchestrator.unsure import Unsure, is_unsure
from etude.orchestrator.verifiers import kind_of
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.decide import named
from etude.problems.workflow.decisions import PROBLEM, Choice
from etude.problems.workflow.doubt import Proposal
from etude.problems.workflow.faults import CATEGORY, is_beyond
from etude.problems.workflow.grammar import Correction, Status
from etude.problems.workflow.plan import Limits, Plan
from etude.problems.workflow.progress import Live, Progress, Step, to_state

MARGIN_MS, EACH_MS = 20.0, 1.0
"""Time reserved before a deadline: to end in time, and per other running workflow, which may cause a delay."""
TICK_S = 1e-6
"""Seconds by which a timer may be early."""
WORKFLOW = "workflow"
"""Task type of the subtask for a judge."""
MAX_ERROR_CHARS = 1000
SEEDS = 1_000_003
"""Distance between the seeds of two workflows; the seeds of its decisions are in between."""
HUMAN = "human"
"""The policy of a decision that a person made."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The question to a person when the policy would abort."""

    instruction: str
    task_type: str
    worker: str
    fault: Fault
    message: str
    options: tuple[Correction, ...]  # corrections that need no further choice


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """An event of a workflow: deciding (where that takes time), planned, started, done, failed, corrected, ended."""

    kind: str
    workflow: str
    progress: Progress
    at_ms: float
    step: Step | None = None
    fault: Fault | None = None
    message: str = ""
    choice: Choice | None = None


class PlanDecider(Decider, Protocol):
    """A decider for workflows, with its task types, workers and limits."""

    @property
    def catalogue(self) -> Catalogue: ...
    @property
    def limits(self) -> Limits: ...


class Log(Protocol):
    """Stores trajectories."""

    def append(self, trajectory: Trajectory) -> None: ...


Human = Callable[[Question], Awaitable[Correction | None]]
"""Asks a person; None leaves the decision to the policy."""
Watch = Callable[[Event], None]


class Shared(Protocol):
    """What the workflows of an orchestrator share."""

    decider: PlanDecider
    crew: Crew
    limits: Limits
    catalogue_id: str
    log: Log | None
    human: Human | None
    unsure: Unsure | None
    watch: Watch | None
    seed: int
    left_behind: set[asyncio.Task[Any]]  # cancelled attempts that have not ended
    under_way: int  # workflows

    def deciding(self) -> asyncio.Lock:
        """The lock of the workflow that decides."""


@dataclass(eq=False)
class Flow:
    at: Shared
    instruction: str
    given: Plan | None
    number: int | None
    user: str | None
    inputs: WorkflowInputs = field(default_factory=WorkflowInputs)
    id: str = field(default_factory=lambda: uuid4().hex)
    decisions: list[LoggedDecision] = field(default_factory=list)
    corrected: dict[int, Step] = field(default_factory=dict)  # by decision: the step that had failed
    first: Nodes | None = None  # the plan as it was first made
    ended: Literal["done", "failed", "aborted", "cancelled", "deadline"] = "done"
    error: str = ""
    success_by: SuccessBy | None = "self"  # None where the judge could not be asked
    proposal: Proposal | None = None  # the policy's first plan, where it says how sure it is
    min_probability: float | None = None  # required of it
    fallback: Decider | None = None  # plans instead
    revised: bool = False  # its plan was changed
    refused: bool = False  # before the first attempt: workers cannot be reached, or the policy is unsure of its plan
    requests: int = 0  # decisions asked for
    logged_live: Any = None  # the workers' numbers as they were last logged

    async def run(self) -> tuple[Trajectory, Any]:
        """Carry out the workflow; return its trajectory, logged unless it was refused, and its output."""
        self.loop, now = asyncio.get_running_loop(), datetime.now(UTC)
        self.time = now.replace(microsecond=now.microsecond // 1000 * 1000)  # as in a line of the log
        self.progress, limit_ms = Progress(instruction=self.instruction), self.at.limits.max_time_ms
        self.attempts = attempts = Attempts(
            workflow=self.id,
            instruction=self.instruction,
            progress=self.progress,
            crew=self.at.crew,
            limits=self.at.limits,
            loop=self.loop,
            began_s=self.loop.time(),
            left_behind=self.at.left_behind,
            notify=self._notify,
            inputs=self.inputs,
        )
        self.at.under_way += 1
        attempts.deadline_s = None if limit_ms is None else self._deadline_s(limit_ms)
        self.alarm = None if limit_ms is None else self.loop.call_later(limit_ms / 2000, self._set_alarm, limit_ms)
        self.at.crew.begin(self.id, self.instruction)
        try:
            await self._plan()
            await self._carry_out()
            attempts.stop()
            success = await self._judge()
        except EtudeError as error:  # no plan can be made, or it lacks an input or a parameter
            self.ended, self.error, success = "deadline" if self._is_late() else "failed", str(error), False
            self.progress.spent_usd += error.cost_usd if isinstance(error, PlanError) else 0.0
            self.refused = isinstance(error, WorkersError | UnsureError)
        except BaseException as error:
            self.ended, self.error = "failed", f"{type(error).__name__}: {error}"
            if isinstance(error, asyncio.CancelledError):
                self.ended, self.error = "cancelled", "cancelled while it was carried out"
            attempts.stop()
            self._record(success=False)
            raise
        finally:
            attempts.stop()
            self.at.under_way -= 1
            if self.alarm is not None:
                self.alarm.cancel()
            self.at.crew.end(self.id)
            self.inputs.close()
        return self._record(success=success), self._output()

    def _deadline_s(self, limit_ms: float) -> float:
        margin_ms = MARGIN_MS + EACH_MS * (self.at.under_way - 1)
        return self.attempts.began_s + max(limit_ms - margin_ms, limit_ms * 0.9) / 1000

    def _set_alarm(self, limit_ms: float) -> None:
        """Set the alarm before the deadline, and again half-way, when the number of other workflows is known better."""
        self.attempts.deadline_s = self._deadline_s(limit_ms)
        self.alarm = self.loop.call_at(self.attempts.deadline_s, self.attempts.woken.set)

    async def _plan(self) -> None:
        crew = self.at.crew
        if self.given is None or not self.instruction.strip():  # which the policy refuses
            await self._take_turn()
            live, unsure = self._live(), self.at.unsure
            self.min_probability = None if unsure is None else unsure.threshold()
            if crew.unreachable:
                await self._check_reachable(live)
            planned = await self._decide(live)
            if unsure is not None and self._is_unsure(self.proposal):
                planned = await self._plan_unsure(unsure, planned, live)
            self._add_steps(planned, live, at_ms=0.0)
        else:
            self.given.check(crew.catalogue, self.at.limits)
            lay_down(self.given, self.progress, crew)
            crew.check_reachable(step.task_type for step in self.progress.steps)
        self.first = planned_nodes(self.progress.steps)
        self._notify("planned")
        await prepare(self.attempts)

    async def _plan_unsure(
        self, unsure: Unsure, planned: Sequence[LoggedDecision], live: Sequence[Live]
    ) -> Sequence[LoggedDecision]:
        """What is carried out in place of a plan that is not probable enough; UnsureError if nothing is."""
        proposal = self.proposal
        assert proposal is not None
        if unsure.then == "fallback":
            self.decisions, self.logged_live, self.fallback = [], None, unsure.fallback
            planned = await self._decide(live, unsure.fallback)
            share = max(unsure.verdicts.share, self.min_probability or 0.0)  # whoever sets a minimum trusts it so far
            if (revised := self._revised(planned, live, share)) is not None:
                self.revised, self.decisions = True, list(revised.logged)
                return revised.logged
            if reassign := getattr(self.at.decider, "reassign", None):
                planned = self.decisions = list(reassign(self._next_request(live), planned))
            return planned
        asked = unsure.ask if unsure.then == "ask" else None
        plan = None if asked is None else await self._in_time(asked(proposal), self._time_left_s())
        if plan is None:
            self.decisions = []
            raise unsure.refusal(proposal)
        if plan == proposal.plan:
            return planned
        self.decisions = []  # a person chose: there is no propensity
        lay_down(plan, self.progress, self.at.crew)
        return ()

    def _revised(self, planned: Sequence[LoggedDecision], live: Sequence[Live], share: float) -> Decision | None:
        """The policy's own plan near that of the fallback, which is right in a `share` of cases; None if it is that."""
        revise = getattr(self.at.decider, "revise", None)
        return None if revise is None else revise(self._next_request(live), planned, share)

    async def _check_reachable(self, live: Sequence[Live]) -> None:
        """WorkersError if the plan needs a task type that no reachable worker can do."""
        everybody, unsure = [worker._replace(available=True) for worker in live], self.at.unsure
        decision = await self._request(everybody, self.at.decider)
        if unsure is not None and unsure.then == "fallback" and self._is_unsure(decision.proposal):
            decision = await self._request(everybody, unsure.fallback or self.at.decider)
        planned = decision.logged
        self.at.crew.check_reachable(
            decision.action["task_type"] for decision in planned if "task_type" in decision.action
        )

    def _is_unsure(self, proposal: Proposal | None) -> bool:
        """Whether a plan is not probable enough, by the minimum as it was when the workflow was first planned."""
        return self.min_probability is not None and is_unsure(proposal, self.min_probability)

    async def _take_turn(self) -> None:
        """Wait for the turn to decide, until the deadline at most. Between decisions the event loop handles other work.

        Otherwise, while many workflows decide in sequence, answers would wait unread and deadlines would pass.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self.attempts.deadline_s):
                await self.at.deciding().acquire()
                self.loop.call_soon(self.at.deciding().release)

    async def _decide(self, live: Sequence[Live], decider: Decider | None = None) -> Sequence[LoggedDecision]:
        """The decision of the policy, or of another. Live numbers are logged if they changed since the previous one."""
        decision = await self._request(live, decider or self.at.decider)
        self.proposal = self.proposal or decision.proposal
        first, *others = decision.logged
        context = dict(first.context or {})
        if context.get("live") == self.logged_live:
            context.pop("live", None)
        self.logged_live = context.get("live", self.logged_live)
        logged = [msgspec.structs.replace(first, context=context or None), *others]
        self.decisions += logged
        return logged

    async def _request(self, live: Sequence[Live], decider: Decider) -> Decision:
        """Ask a decider. Nothing else happens meanwhile, unless it waits for a service: then until the deadline."""
        request = self._next_request(live)
        self.requests += 1
        if isinstance(decider, AsyncDecider):
            self._notify("deciding")
            decision = await self._in_time(decider.adecide(request), self._time_left_s())
            if decision is None:
                raise PlanError(
                    f"{decider.version} made no plan within {self.at.limits.max_time_ms:g} ms, the time limit"
                )
        else:
            decision = decider.decide(request)
        self.progress.spent_usd += decision.cost_usd
        return decision

    def _next_request(self, live: Sequence[Live]) -> DecisionRequest:
        progress = self.progress
        base = crc32(self.id.encode()) if self.number is None else self.number
        return DecisionRequest(
            context={"instruction": self.instruction, "live": live},
            state=to_state(progress) if progress.steps or progress.replans or progress.spent_usd else None,
            at_ms=self.attempts.now_ms() if self.first is not None else 0.0,
            seed=SEEDS * (self.at.seed + base) + self.requests,
            trajectory=self.id,
        )

    def _add_steps(self, planned: Sequence[LoggedDecision], live: Sequence[Live], at_ms: float) -> None:
        for decision in planned:
            choice = msgspec.convert(decision.action, Choice)
            if choice.task_type is not None:
                assert choice.worker is not None
                needs = [self.progress.steps[j] for j in choice.dependencies or ()]
                self.progress.add(choice.task_type, needs, choice.worker, live[choice.worker], at_ms)

    async def _carry_out(self) -> None:
        """Start, settle and correct attempts until there is nothing left to do."""
        attempts = self.attempts
        while True:
            attempts.settle()
            ready = self.progress.ready()
            if not (ready or attempts.failures or attempts.running) or self._is_late():
                return
            for step in ready:
                attempts.begin(step)
            if attempts.finished:  # refused at once
                continue
            if attempts.failures:
                await self._take_turn()
                if self._is_late() or not await self._correct(*attempts.failures.popleft()):
                    return
            else:
                await attempts.wait()

    def _is_late(self) -> bool:
        """Whether the time is used up; then the workflow ends with `deadline`."""
        if self.attempts.deadline_s is None or self.loop.time() < self.attempts.deadline_s - TICK_S:
            return False
        self.ended, self.error = "deadline", f"its time, {self.at.limits.max_time_ms:g} ms, is used up"
        return True

    async def _correct(self, this: Try, end: End) -> bool:
        """Correct a failed step as the policy decides; False if that ends the workflow."""
        assert end.fault is not None
        step, progress, live = this.step, self.progress, self._live()
        progress.fail(step, CATEGORY[end.fault], unable=is_beyond(end.fault))
        if not end.repeatable:  # which makes a retry illegal
            live = tuple(one._replace(available=one.available and i != step.worker) for i, one in enumerate(live))
        (decision,) = await self._decide(live)
        self.corrected[len(self.decisions) - 1] = step
        if correction_of(decision) == named(Correction.ABORT):
            self.decisions[-1] = decision = await self._ask(decision, this, end)
        choice = msgspec.convert(decision.action, Choice)
        assert choice.correction is not None
        correction = Correction[choice.correction.upper()]
        self._notify("corrected", step, choice=choice)
        if correction == Correction.REPLAN:
            await self._drain()
            await self._take_turn()
            if self._is_late():
                return False
            live = self._live()
        progress.amend(
            correction,
            live,
            now_ms=self.attempts.now_ms(),
            task_type=-1 if choice.task_type is None else choice.task_type,
            worker=-1 if choice.worker is None else choice.worker,
        )
        if correction == Correction.REPLAN:
            self.attempts.failures.clear()
            planned = await self._decide(live)
            self._add_steps(planned, live, planned[0].at_ms)
            self._notify("planned")
        if correction in (Correction.REPLAN, Correction.REPAIR):
            await prepare(self.attempts)
        if correction == Correction.ABORT:
            task_type = self.at.crew.catalogue.task_types[step.task_type].name
            self.ended, self.error = "aborted", f"{task_type}: {end.message} ({end.fault})"
        return correction != Correction.ABORT

    async def _drain(self) -> None:
        """Wait for the running attempts and keep their results."""
        while self.attempts.running:
            self.attempts.settle()
            if self._is_late():
                return
            if self.attempts.running:
                await self.attempts.wait()

    async def _ask(self, decision: LoggedDecision, this: Try, end: End) -> LoggedDecision:
        """A person's decision in place of the policy's, if a person is asked and answers."""
        free = (Correction.RETRY, Correction.REPLAN, Correction.SKIP, Correction.ABORT)
        options = tuple(c for c in free if named(c) in decision.eligible["corrections"])
        if self.at.human is None or options == (Correction.ABORT,):
            return decision
        question = Question(
            instruction=self.instruction,
            task_type=self.at.crew.catalogue.task_types[this.step.task_type].name,
            worker=this.member.entry.name,
            fault=end.fault or Fault.UNKNOWN,
            message=end.message,
            options=options,
        )
        answer = await self._in_time(self.at.human(question), self._time_left_s())
        if answer is None or answer not in options:
            return decision
        action = {"correction": named(answer)}
        return msgspec.structs.replace(decision, action=action, propensity=None, policy=HUMAN)

    async def _judge(self) -> bool:
        """Whether the workflow succeeded: as the judge says, or without a judge, if every subtask is done."""
        steps, judge, types = self.progress.steps, self.at.crew.judge, self.at.crew.catalogue.task_types
        if judge is None:
            left = [f"{types[s.task_type].name} was {s.status.name.lower()}" for s in steps if s.status != Status.DONE]
            self.error = self.error or ", ".join(left)
            return self.ended == "done" and not left
        made = [Input(task_type=types[s.task_type].name, output=s.output) for s in steps if s.status == Status.DONE]
        limit_s = self.attempts.time_for(TIMEOUT_S)
        subtask = Subtask(
            workflow=self.id,
            node=-1,
            attempt=1,
            instruction=self.instruction,
            task_type=WORKFLOW,
            inputs=tuple(made),
            workflow_inputs=self.inputs,
            timeout_s=limit_s,
        )
        said: tuple[Verdict, SuccessBy | None] | None
        if refusal := self.attempts.over_budget(max_usd_to_ask(judge, subtask, self._output())):
            said = _not_asked(refusal)
        else:
            said = await self._in_time(_judged(judge, subtask, self._output()), limit_s)
        verdict, self.success_by = said or _not_asked(f"no answer within {limit_s:g} s")
        self.attempts.judge_usd += verdict.cost_usd
        if not verdict.ok and not self.error:
            self.error = verdict.reason
        return verdict.ok

    def _time_left_s(self) -> float | None:
        return None if self.attempts.deadline_s is None else self.attempts.time_for(float("inf"))

    async def _in_time(self, work: Awaitable[T], limit_s: float | None) -> T | None:
        """The result of an awaitable; None if it does not end in time, then it is cancelled."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=limit_s)
        finally:
            self.attempts.leave(task)
        return task.result() if task.done() else None

    def _live(self) -> tuple[Live, ...]:
        return self.at.crew.live(self.id, now_s=self.loop.time())

    def _output(self) -> Any:
        """The output of the last step, or outputs by number if several steps are last."""
        steps = self.progress.steps
        followed = {id(before) for step in steps if step.status == Status.DONE for before in step.dependencies}
        last = {i: s.output for i, s in enumerate(steps) if s.status == Status.DONE and id(s) not in followed}
        return next(iter(last.values())) if len(last) == 1 else last

    def _notify(self, kind: str, step: Step | None = None, **more: Any) -> None:
        if self.at.watch is not None:
            at_ms = self.attempts.now_ms()
            self.at.watch(Event(kind=kind, workflow=self.id, progress=self.progress, at_ms=at_ms, step=step, **more))

    def _record(self, *, success: bool) -> Trajectory:
        progress, crew = self.progress, self.at.crew
        done = sum(step.status == Status.DONE for step in progress.steps)
        outcome = Outcome(
            success=success,
            success_by=self.success_by,
            ended=self.ended,
            error=self.error[:MAX_ERROR_CHARS] or None,
            cost_usd=progress.spent_usd + self.attempts.judge_usd,
            latency_ms=self.attempts.now_ms(),
            subtasks=len(progress.steps),
            subtasks_done=done,
        )
        known: dict[str, Any] = {
            "catalogue": self.at.catalogue_id,
            "execution_reward": ExecutionReward()(outcome),
            "plan": self.first,
            "nodes": final_nodes(progress),
        }
        if self.number is not None:
            known["number"] = self.number
        if self.proposal is not None:
            known["probability"] = self.proposal.probability_with_links
            known |= {} if self.min_probability is None else {"min_probability": self.min_probability}
        if self.fallback is not None:
            known["fallback"] = self.fallback.version
            known |= {"revised": True} if self.revised else {}
        if self.inputs:
            known["inputs"] = self.inputs.described()
        if broken := violations(progress, outcome, self.at.limits, crew):
            known["violations"] = broken
        trajectory = Trajectory(
            id=self.id,
            time=self.time,
            task=self.instruction,
            problem=PROBLEM,
            policy=self._policy(),
            user=self.user,
            decisions=self._numbered(),
            turns=turns(progress, crew.catalogue, self.attempts.parameters),
            outcome=outcome,
            metadata=known,
        )
        if self.at.log is not None and not self.refused:
            self.at.log.append(trajectory)
        if self.fallback is not None and self.at.unsure is not None and not self.refused:
            self.at.unsure.learn([to_execution(trajectory)], judged=crew.judge is not None)
        self._notify("ended", message=self.ended)
        return trajectory

    def _policy(self) -> str:
        """The version that decided: a release may give each workflow another one than the policy that serves."""
        other = None if self.fallback is None else self.fallback.version
        own = [decision.policy for decision in self.decisions if decision.policy not in (None, other)]
        return own[-1] or self.at.decider.version if own else self.at.decider.version

    def _numbered(self) -> tuple[LoggedDecision, ...]:
        """Decisions with the failed step renumbered as in the record, since a replan may have moved it."""
        place = {id(step): i for i, step in enumerate((*self.progress.steps, *self.progress.dropped))}
        decisions = list(self.decisions)
        for k, step in self.corrected.items():
            context = (decisions[k].context or {}) | {"failed": place[id(step)]}
            decisions[k] = msgspec.structs.replace(decisions[k], context=context)
        return tuple(decisions)


async def _judged(judge: Verifier, subtask: Subtask, output: Any) -> tuple[Verdict, SuccessBy | None]:
    """The verdict of a judge, and which kind of judge it is; a failing judge counts as a no."""
    try:
        return await judge(subtask, output), kind_of(judge)
    except (Exception, asyncio.CancelledError) as error:
        why = str(error) if isinstance(error, WorkerError) else f"{type(error).__name__}: {error}"
        usd = (error.cost_usd or 0.0) if isinstance(error, WorkerError) else 0.0
        return _not_asked(why, usd)


def _not_asked(why: str, usd: float = 0.0) -> tuple[Verdict, None]:
    return Verdict(ok=False, reason=f"the judge could not be asked: {why}", cost_usd=usd), None


def lay_down(plan: Plan, progress: Progress, crew: Crew) -> None:
    """Set a given plan as the steps of a workflow."""
    types = {t.name: i for i, t in enumerate(crew.catalogue.task_types)}
    workers = {w.name: i for i, w in enumerate(crew.catalogue.workers)}
    for node in plan.nodes:
        assert node.worker is not None  # `Plan.check` ensures it
        member = crew.members[workers[node.worker]]
        live = Live(member.usd, member.latency_ms, member.success, True, member.calls)
        needs = [progress.steps[j] for j in node.dependencies]
        progress.add(types[node.task_type], needs, workers[node.worker], live, 0.0)
