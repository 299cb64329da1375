"""Decisions for callers over HTTP, and what happened after them.

A decision opens a task: what was decided is written to disk before it is answered. The caller reports the outcome under
the signed id of the answer, and the task becomes a trajectory; without a report it becomes one when its time is over.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from etude.contracts.decision import Amount, Decision, DecisionRequest, Expected, Name, Preferences
from etude.contracts.errors import DataError, RequestError
from etude.contracts.option import CHOICE
from etude.contracts.ports import Decider
from etude.contracts.serving import OpenRow, ServingState
from etude.contracts.trajectory import Feedback, Id, Share, Stars, Trajectory
from etude.experience.deciders import NoAnswer
from etude.experience.task import Collector, choice_request, new_id
from etude.serving.config import ServingConfig
from etude.serving.ids import SignedIds
from etude.serving.keys import Caller
from etude.serving.parts import put_together

MAX_BATCH = 100
SWEEP = 100
"""Tasks without an outcome that are stored at a time."""


class DecisionAsked(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request for a decision."""

    problem: Name
    """`choice:NAME` for a choice of your own, or a problem: `workflow`, `allocation`."""
    context: Any = None
    """What is known: a text, numbers, or an object of these; of a workflow its instruction, of an allocation the
    observation."""
    options: list[Any] | None = None
    """Of a choice: names, or objects with `name` and as far as known `description`, prices and other numbers."""
    default: Any = None
    """Option to take if the policy does not answer in time; null is the first one."""
    preferences: Preferences = Preferences()
    """What is wanted this time: weights and limits of cost and latency."""
    state: Any = None
    """Progress of a workflow; null at its start."""
    task: str | None = None
    """What is to be done, in words; null is the text of the context."""
    id: str | None = None
    """Id of an earlier answer: another decision of the same task."""
    conversation: Name | None = None
    """Conversation that the task belongs to: a release keeps all of it on one policy."""
    user: Name | None = None
    """User that the task is done for: an id that has no meaning elsewhere."""
    group: Name | None = None
    """Group of the user, for comparison between groups."""
    agent: Name | None = None
    """Name of the agent."""
    timeout_ms: Annotated[float, Meta(gt=0, le=60_000)] | None = None
    """Milliseconds to wait for the policy; null is the server's setting."""
    record: bool = True
    """Whether the task is stored; without it, nothing can be learned from the decision."""
    explain: bool = False
    """Whether the answer says what is expected of each option."""


class DecisionGiven(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A decision."""

    id: str
    """Signed id of the task: give it with the outcome, and with further decisions of the task."""
    problem: str
    action: Any
    """What to do: the chosen option as it was offered, or the action of the problem."""
    propensity: float | None
    """Probability of the action; null where it is unknown."""
    policy: str
    """Version of the policy that decided."""
    fallback: str | None = None
    """Why the policy did not decide: loading, missing, slow, broken or no option; absent if it did."""
    expected: dict[str, Expected] | None = None
    proposal: Any = None
    """Of a plan: its probability, doubts and alternatives, where they are known."""


class DecisionsAsked(Struct, kw_only=True, forbid_unknown_fields=True):
    decisions: Annotated[list[DecisionAsked], Meta(min_length=1, max_length=MAX_BATCH)]


class DecisionsGiven(Struct, kw_only=True, frozen=True):
    decisions: list[DecisionGiven]


class FeedbackGiven(Struct, kw_only=True, forbid_unknown_fields=True):
    """The outcome of a task, a rating of it, or both."""

    id: Annotated[str, Meta(min_length=1, max_length=256)]
    """Signed id of the answer."""
    success: bool | UnsetType | None = UNSET
    """Whether the task succeeded; null says that it is over and not known."""
    cost_usd: Amount | None = None
    """Cost of the whole task in USD."""
    latency_ms: Amount | None = None
    """Duration of the whole task in milliseconds."""
    quality: dict[str, Share] | None = None
    """Scores of the result by name, from 0 to 1."""
    error: str | None = None
    """Error message, if the task failed."""
    thumbs: Literal["up", "down"] | None = None
    """A person's rating: good or bad."""
    stars: Stars | None = None
    """A person's rating from 1, bad, to 5, very good."""
    comment: str | None = None
    user: Name | None = None
    """User who gave the rating."""

    @property
    def outcome(self) -> dict[str, Any]:
        """The parts of the outcome that are given."""
        named = ("cost_usd", "latency_ms", "quality", "error")
        found = {name: value for name in named if (value := getattr(self, name)) is not None}
        return found if self.success is UNSET else found | {"success": self.success}

    @property
    def rates(self) -> bool:
        return self.thumbs is not None or self.stars is not None or self.comment is not None


class FeedbackStored(Struct, kw_only=True, frozen=True):
    """What was stored; nothing of users who opted out."""

    trajectory: Id
    outcome: bool
    rating: bool


@dataclass(kw_only=True)
class Decisions:
    """All calls but those that wait for a disk or a policy are quick; those run in threads."""

    config: ServingConfig
    collector: Collector
    state: ServingState
    ids: SignedIds
    fallback: Callable[[str], Decider | None]
    """The decider of a problem that decides where the policy cannot; None if there is none."""
    clock: Callable[[], datetime]
    _journal: Journal = field(init=False)

    def __post_init__(self) -> None:
        self._journal = Journal(self.state)

    async def decide(self, asked: DecisionAsked, caller: Caller) -> DecisionGiven:
        """The decision, durable before it is returned; DataError says what is wrong with the request."""
        now = self.clock()
        trajectory = new_id("t", now) if asked.id is None else self.ids.verify(asked.id, caller.tenant)
        decision, missing, body = await asyncio.to_thread(self._decide, asked, caller, trajectory, now)
        if body is not None:
            await self._journal.append(OpenRow(trajectory, now, body))
        return DecisionGiven(
            id=self.ids.sign(trajectory, caller.tenant),
            problem=self.collector.problem_of(asked.problem),
            action=decision.action,
            propensity=decision.propensity,
            policy=decision.policy,
            fallback=None if missing is None else missing.reason,
            expected=decision.expected if asked.explain else None,
            proposal=decision.proposal,
        )

    def _decide(
        self, asked: DecisionAsked, caller: Caller, trajectory: str, now: datetime
    ) -> tuple[Decision, NoAnswer | None, bytes | None]:
        """The decision, why the policy did not make it, and what is written: nothing of users who opted out."""
        keeps = asked.record and self.collector.may_keep(asked.user)
        if keeps and asked.id is not None and not self.state.parts(trajectory):
            raise RequestError(f"the task {trajectory!r} is over: leave id out to begin another", status=409)
        decision, missing = self._ask(asked, trajectory if keeps else None)
        return decision, missing, self._part(asked, caller, trajectory, now, decision) if keeps else None

    def _ask(self, asked: DecisionAsked, trajectory: str | None) -> tuple[Decision, NoAnswer | None]:
        problem = self.collector.problem_of(asked.problem)
        timeout_s = (asked.timeout_ms or self.config.decide_timeout_ms) / 1e3
        if problem.startswith(CHOICE):
            choice, among = choice_request(
                asked.context,
                asked.options,
                default=asked.default,
                preferences=asked.preferences,
                trajectory=trajectory,
                conversation=asked.conversation,
            )
            decision, missing, _ = self.collector.choose(problem, choice, among, timeout_s=timeout_s)
            return decision, missing
        request = DecisionRequest(
            context=asked.context,
            options=None if asked.options is None else tuple(asked.options),
            preferences=asked.preferences,
            state=asked.state,
            seed=secrets.randbits(62),
            trajectory=trajectory,
            conversation=asked.conversation,
        )
        answer, _ = self.collector.answer(problem, request, timeout_s=timeout_s)
        if isinstance(answer, Decision):
            return answer, None
        if isinstance(answer.error, DataError):
            raise answer.error
        other = self.fallback(problem)
        if other is None:
            raise RequestError(f"no policy of {problem!r} decides now ({answer.why}): try again later", status=503)
        return other.decide(request), answer

    def _part(self, asked: DecisionAsked, caller: Caller, trajectory: str, now: datetime, decision: Decision) -> bytes:
        """Redacted: the trajectory so far, or of a task that is open its next decisions alone."""
        made = Trajectory(
            id=trajectory,
            time=now,
            task=asked.task if asked.task is not None else _text_of(asked.context),
            problem=decision.logged[0].problem,
            policy=decision.policy,
            agent=asked.agent,
            user=asked.user,
            group=asked.group,
            tenant=caller.tenant,
            decisions=decision.logged,
            metadata={"conversation": asked.conversation} if asked.conversation is not None else None,
        )
        return self.collector.clean(made)

    async def choose(self, asked: DecisionAsked, trajectory: str | None) -> tuple[Decision, NoAnswer | None]:
        """A decision, and why the policy did not make it; nothing is written."""
        return await asyncio.to_thread(self._ask, asked, trajectory)

    async def open(self, task: Trajectory) -> None:
        """Write a task that waits for its outcome; StoreError if that is not possible."""
        body = await asyncio.to_thread(self.collector.clean, task)
        await self._journal.append(OpenRow(task.id, task.time, body))

    async def add(self, part: Trajectory) -> bool:
        """Add what became known of a task; False if it is not open anymore."""
        body = await asyncio.to_thread(self.collector.clean, part)
        return await asyncio.to_thread(self.state.add, OpenRow(part.id, part.time, body))

    async def report(self, given: FeedbackGiven, caller: Caller) -> FeedbackStored:
        """Store the outcome or the rating of a task; RequestError if it is not the caller's, or known already."""
        trajectory = self.ids.verify(given.id, caller.tenant)
        if not given.outcome and not given.rates:
            raise DataError("nothing is reported: give success, quality, thumbs, stars or comment")
        return await asyncio.to_thread(self._report, trajectory, given, caller)

    def _report(self, trajectory: str, given: FeedbackGiven, caller: Caller) -> FeedbackStored:
        now = self.clock()
        self._count(trajectory, given, caller, f"{now:%Y-%m-%d}")
        if given.outcome:
            parts = self.state.parts(trajectory)
            if not parts:
                raise RequestError(
                    f"the outcome of {trajectory!r} is known already, or its time of {self.config.open_hours:g} hours "
                    "is over: send ratings alone",
                    status=409,
                )
            self._store(parts, given.outcome, now)
        rates = given.rates and self.collector.may_keep(given.user)
        if rates:
            rating = Feedback(
                id=new_id("f", now),
                time=now,
                trajectory_id=trajectory,
                user=given.user,
                thumbs=given.thumbs,
                stars=given.stars,
                comment=given.comment,
            )
            self._publish(rating)
        return FeedbackStored(trajectory=trajectory, outcome=bool(given.outcome), rating=rates)

    def _count(self, trajectory: str, given: FeedbackGiven, caller: Caller, day: str) -> None:
        """RequestError for a source that sends too much, or rates a task twice."""
        source = blake2b(f"{caller.key}\0{given.user or ''}".encode(), digest_size=12).hexdigest()
        limit = self.config.max_ratings_per_day
        if given.rates and self.state.rate(f"{source} {trajectory}", day) > 1:
            raise RequestError(f"{trajectory!r} has a rating of this user from today: one counts", status=409)
        if given.rates and self.state.rate(source, day) > limit:
            raise RequestError(f"this user has sent {limit:,} ratings today: more do not count", status=429)

    def _store(self, parts: list[bytes], outcome: dict[str, Any], now: datetime) -> None:
        """Publish a task as a trajectory, and close it."""
        whole = put_together(parts, outcome, now)
        self._publish(whole)
        self.state.close_task(whole.id)

    def _publish(self, event: Trajectory | Feedback) -> None:
        if not self.collector.publish(event):
            raise RequestError("nothing can be stored now: send it again later", status=503)

    def close_old(self) -> int:
        """Store tasks whose time is over without an outcome; how many."""
        now = self.clock()
        old = self.state.waiting(now - timedelta(hours=self.config.open_hours), limit=SWEEP)
        for trajectory in old:
            if parts := self.state.parts(trajectory):  # another process may have been faster
                self._store(parts, {}, now)
        self.state.expire(now - timedelta(days=1))
        return len(old)


class Journal:
    """Writes rows in groups: those that arrive while a group is written are the next one, and share its sync."""

    def __init__(self, state: ServingState) -> None:
        self._state = state
        self._waiting: list[tuple[OpenRow, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def append(self, row: OpenRow) -> None:
        """Return when the row is on disk; StoreError if it cannot be written."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((row, written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        await written

    async def _write(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._state.open, [row for row, _ in group])
            except Exception as error:  # each caller gets it
                for _, written in group:
                    if not written.done():
                        written.set_exception(error)
            else:
                for _, written in group:
                    if not written.done():
                        written.set_result(None)


def _text_of(context: Any) -> str:
    """What a context says, as the task of its trajectory."""
    if isinstance(context, str):
        return context
    if isinstance(context, dict):
        for name in ("text", "instruction", "task"):
            if isinstance(context.get(name), str):
                return str(context[name])
    return ""
