"""Decisions for callers over HTTP, and what happened after them.

A decision opens a task: what was decided is written to disk before it is answered. The caller reports the outcome under
the signed id of the answer, and the task becomes a trajectory; without a report it becomes one when its time is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache, partial
from hashlib import blake2b
from random import Random
from time import monotonic
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from etude.contracts.bus import Message
from etude.contracts.decision import Amount, Decision, DecisionRequest, Expected, LoggedDecision, Name, Preferences
from etude.contracts.errors import DataError, EtudeError, EventError, RequestError
from etude.contracts.option import CHOICE
from etude.contracts.ports import Decider
from etude.contracts.serving import OpenRow, ServingState
from etude.contracts.subjects import subject_of
from etude.contracts.trajectory import Feedback, Id, Share, Stars, Time, Trajectory
from etude.experience.cleaning import check_id
from etude.experience.deciders import NoAnswer
from etude.experience.task import Collector, Offer, new_id, text_in
from etude.serving.config import ServingConfig
from etude.serving.ids import SignedIds, id_of_tenant
from etude.serving.journal import Done, Groups, Writer
from etude.serving.keys import Caller, Role
from etude.serving.parts import put_together
from etude.serving.runtime import Runtime

log = logging.getLogger("etude")

MAX_BATCH = 100
OFFERS, MAX_REMEMBERED, MANY = 64, 1 << 16, 500
"""Lists of options that are remembered as read, the maximum size in bytes of one, and the number of options above which
a list is read in a thread."""
LARGE = 1 << 15
"""Size in bytes of a request above which threads read and redact it: the event loop has others to answer."""
SWEEP = 500
"""Tasks without an outcome that are stored at a time."""
EXPIRE_S = 60.0
"""Seconds between two removals of what is kept for a day: each one syncs the disk, and decisions wait for it."""


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
    trajectory: Id | None = None
    """Id of the task, made by a caller who sends all of it to `/v1/trajectories` when it is over; null has the server
    make one."""
    at_ms: Amount = 0.0
    """Milliseconds since the task began."""
    conversation: Name | None = None
    """Conversation that the task belongs to: a release keeps all of it on one policy."""
    user: Name | None = None
    """User that the task is done for: an id that has no meaning elsewhere."""
    group: Name | None = None
    """Group of the user, for comparison between groups."""
    agent: Name | None = None
    """Name of the agent."""
    model: Name | None = None
    """Model that the agent uses, with its version."""
    timeout_ms: Annotated[float, Meta(gt=0, le=60_000)] | None = None
    """Milliseconds to wait for the policy; null is the server's setting."""
    record: bool = True
    """Whether the task is stored; without it, nothing can be learned from the decision."""
    explain: bool = False
    """Whether the answer says what is expected of each option."""
    log: bool = False
    """Whether the answer has its log entries, for a caller who keeps the log of the task."""


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
    cost_usd: Amount | None = None
    """Cost of deciding in USD, where a paid service was asked."""
    logged: tuple[LoggedDecision, ...] | None = None
    """What is logged of the decision, if `log` asks for it."""


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
    event: Id | None = None
    """Id of the rating, made by the caller: one that is sent again is stored once. Null has the server make one."""
    time: Time | None = None
    """Time of the rating; null is now."""

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
    """Of one event loop. What waits for a disk runs in threads, and so does a policy that is not quick."""

    config: ServingConfig
    collector: Collector
    state: ServingState
    ids: SignedIds
    fallback: Callable[[str], Decider | None]
    """The decider of a problem that decides where the policy cannot; None if there is none."""
    clean: Callable[[Sequence[Trajectory]], Sequence[bytes | EtudeError]]
    """Encodes and redacts what is stored."""
    clock: Callable[[], datetime]
    stored_of: Callable[[str, str | None], bool] = lambda trajectory, tenant: False
    """Whether a trajectory is stored that a tenant may see; null is every tenant."""
    decided: Callable[[str, str, str | None, float | None], None] = lambda *_: None
    """Called with the problem, policy, fallback and propensity of each decision that was made."""
    rng: Random = field(default_factory=Random)
    """Of ids and seeds: each call to the system for random numbers would be a turn of Python's lock."""
    runtime: Runtime = field(init=False)
    _opened: Groups[_Opened] = field(init=False)
    _closed: Groups[_Outcome] = field(init=False)
    _called: Groups[_Opened] = field(init=False)
    _offer: Callable[[bytes, Preferences], Offer] = field(init=False)
    _next_expiry: float = 0.0

    def __post_init__(self) -> None:
        self.runtime, self._offer = Runtime(self.collector.deciders), lru_cache(OFFERS)(_offer)
        opened = Writer()
        self._opened = Groups(self._open, opened, quick=True)
        self._called = Groups(self._open, opened, quick=False)  # streams of other calls go on meanwhile
        self._closed = Groups(self._close, Writer(), quick=False)

    async def decide(self, asked: DecisionAsked, caller: Caller, *, size: int = 0) -> DecisionGiven:
        """The decision, durable before it is returned; DataError says what is wrong with the request of this size in
        bytes."""
        now = self.clock()
        keeps = asked.record and self.collector.may_keep(asked.user)
        trajectory = await self._id(asked, caller, now, keeps=keeps)
        problem = self.collector.problem_of(asked.problem)
        decision, missing = await self.choose(_of_tenant(asked, caller), trajectory if keeps else None, size=size)
        if keeps:
            task = self._task(asked, caller, trajectory, now, decision)
            await self._write(self._opened, task, now + self._longer(asked), size)
        return DecisionGiven(
            id=self.ids.sign(trajectory, caller.tenant),
            problem=problem,
            action=decision.action,
            propensity=decision.propensity,
            policy=decision.policy,
            fallback=None if missing is None else missing.reason,
            expected=decision.expected if asked.explain else None,
            proposal=decision.proposal if asked.explain else None,
            cost_usd=decision.cost_usd or None,
            logged=decision.logged if asked.log else None,
        )

    async def _id(self, asked: DecisionAsked, caller: Caller, now: datetime, *, keeps: bool) -> str:
        """Id of the trajectory that a decision belongs to."""
        if asked.trajectory is not None:
            check_id("trajectory", asked.trajectory)
        if asked.id is None:
            named = id_of_tenant(asked.trajectory or new_id("t", now, self.rng), caller.tenant)
            if asked.trajectory and keeps and await asyncio.to_thread(self._is_of_others, named, caller):
                raise RequestError(f"the task id {named!r} is in use: make another", status=409)
            return named
        if asked.trajectory is not None:
            raise DataError("id and trajectory are given: the first continues a task, the second names your own")
        trajectory = self.ids.verify(asked.id, caller.tenant)
        if keeps and not await asyncio.to_thread(self.state.parts, trajectory, limit=1):
            raise RequestError(f"the task {trajectory!r} is over: leave id out to begin another", status=409)
        return trajectory

    def _longer(self, asked: DecisionAsked) -> timedelta:
        """How much longer than others a task waits whose caller sends all of it when it is over."""
        hours = 0.0 if asked.trajectory is None else self.config.task_hours - self.config.open_hours
        return timedelta(hours=max(0.0, hours))

    async def _decide(
        self, problem: str, asked: DecisionAsked, trajectory: str | None, size: int
    ) -> tuple[Decision, NoAnswer | None]:
        """The decision, and why the policy did not make it, if it did not."""
        timeout_s = (asked.timeout_ms or self.config.decide_timeout_ms) / 1e3
        if problem.startswith(CHOICE):
            offer = await self._offered(asked, size)
            request = offer.request(
                asked.context,
                trajectory=trajectory,
                conversation=asked.conversation,
                at_ms=asked.at_ms,
                explain=asked.explain,
                seed=self.rng.getrandbits(62),
            )
            answer = await self.runtime.ask(problem, request, timeout_s=timeout_s, is_large=size > LARGE)
            return self.collector.settled(problem, request, offer, answer)
        request = DecisionRequest(
            context=asked.context,
            options=None if asked.options is None else tuple(asked.options),
            preferences=asked.preferences,
            state=asked.state,
            at_ms=asked.at_ms,
            seed=self.rng.getrandbits(62),
            trajectory=trajectory,
            conversation=asked.conversation,
            explain=asked.explain,
        )
        answer = await self.runtime.ask(problem, request, timeout_s=timeout_s, is_large=size > LARGE)
        if isinstance(answer, Decision):
            return answer, None
        if isinstance(answer.error, DataError):
            raise answer.error
        other = await asyncio.to_thread(self.fallback, problem)
        if other is None:
            raise RequestError(f"no policy of {problem!r} decides now ({answer.why}): try again later", status=503)
        return await asyncio.to_thread(other.decide, request), answer

    async def _offered(self, asked: DecisionAsked, size: int) -> Offer:
        """The options of a choice, read once per list: agents offer the same ones again and again."""
        read = partial(Offer, asked.options, default=asked.default, preferences=asked.preferences)
        if size > LARGE or (asked.options is not None and len(asked.options) > MANY):
            return await asyncio.to_thread(read)
        key = msgspec.json.encode((asked.options, asked.default))
        return self._offer(key, asked.preferences) if len(key) <= MAX_REMEMBERED else read()

    def _task(
        self, asked: DecisionAsked, caller: Caller, trajectory: str, now: datetime, decision: Decision
    ) -> Trajectory:
        """The trajectory so far, or of a task that is open its next decisions alone."""
        return Trajectory(
            id=trajectory,
            time=now,
            task=asked.task if asked.task is not None else text_in(asked.context),
            problem=decision.logged[0].problem,
            policy=decision.policy,
            agent=asked.agent,
            model=asked.model,
            user=asked.user,
            group=asked.group,
            tenant=caller.tenant,
            decisions=decision.logged,
            metadata={"conversation": asked.conversation} if asked.conversation is not None else None,
        )

    async def _write(self, groups: Groups[_Opened], task: Trajectory, time: datetime, size: int) -> None:
        """Write a task; a large one is redacted by itself, in a thread."""
        body = await asyncio.to_thread(self.collector.clean, task) if size > LARGE else None
        await groups.add(_Opened(task, time, body))

    def _open(self, group: Sequence[_Opened]) -> Callable[[], Done]:
        """Write decisions; they are searched for personal data as one text."""
        cleaned = iter(self.clean([one.task for one in group if one.body is None]))
        bodies = [next(cleaned) if one.body is None else one.body for one in group]
        rows = [OpenRow(o.task.id, o.time, b) for o, b in zip(group, bodies, strict=True) if isinstance(b, bytes)]
        errors = [None if isinstance(body, bytes) else body for body in bodies]

        def write() -> Done:
            self.state.open(rows)
            return errors

        return write

    async def choose(
        self, asked: DecisionAsked, trajectory: str | None, *, size: int = 0
    ) -> tuple[Decision, NoAnswer | None]:
        """A decision, and why the policy did not make it; nothing is written."""
        problem = self.collector.problem_of(asked.problem)
        decision, missing = await self._decide(problem, asked, trajectory, size)
        self.decided(problem, decision.policy, None if missing is None else missing.reason, decision.propensity)
        return decision, missing

    async def open(self, task: Trajectory) -> None:
        """Write a call that was answered and waits for its outcome; StoreError if that is not possible."""
        await self._write(self._called, task, task.time, len(msgspec.json.encode(task)))

    async def add(self, part: Trajectory) -> bool:
        """Add what became known of a task; False if it is not open anymore."""
        body = await asyncio.to_thread(self.collector.clean, part)
        return await asyncio.to_thread(self.state.add, OpenRow(part.id, part.time, body))

    async def report(self, given: FeedbackGiven, caller: Caller) -> FeedbackStored:
        """Store the outcome or the rating of a task; RequestError if it is not the caller's, or known already."""
        if not given.outcome and not given.rates:
            raise DataError("nothing is reported: give success, quality, thumbs, stars or comment")
        if given.event is not None:
            check_id("event", given.event)
        trajectory, now = await self._named(given, caller), self.clock()
        if not given.rates:
            await self._closed.add(_Outcome(trajectory, given.outcome, now))
            return FeedbackStored(trajectory=trajectory, outcome=True, rating=False)
        rating = Feedback(
            id=id_of_tenant(given.event or new_id("f", now), caller.tenant),
            time=given.time or now,
            trajectory_id=trajectory,
            user=given.user,
            thumbs=given.thumbs,
            stars=given.stars,
            comment=given.comment,
        )
        sources, day = self._sources(rating, caller), f"{now:%Y-%m-%d}"
        await asyncio.to_thread(self._count, rating, sources, day)
        try:
            if given.outcome:
                await self._closed.add(_Outcome(trajectory, given.outcome, now))
            keeps = self.collector.may_keep(given.user)
            if keeps and not await asyncio.to_thread(self.collector.publish, rating):
                raise RequestError("nothing can be stored now: send it again later", status=503)
        except BaseException:  # it may come again
            await asyncio.to_thread(self.state.unrate, f"rating {rating.id}", sources, day)
            raise
        return FeedbackStored(trajectory=trajectory, outcome=bool(given.outcome), rating=keeps)

    async def _named(self, given: FeedbackGiven, caller: Caller) -> str:
        """The trajectory, by the signed id. What is stored may be rated under its own id by a key that may read it."""
        try:
            return self.ids.verify(given.id, caller.tenant)
        except RequestError:
            if given.outcome or not caller.may(Role.DECIDE):
                raise
            # As the tenant calls it, or as it is stored.
            for known in dict.fromkeys((id_of_tenant(given.id, caller.tenant), given.id)):
                if await asyncio.to_thread(self.stored_of, known, caller.tenant):
                    return known
            raise

    def close(self, trajectory: str, caller: Caller) -> None:
        """Close a task that the caller opened under an id of its own, since all of it was sent now."""
        if self.state.parts(trajectory, limit=1) and not self._is_of_others(trajectory, caller):
            self.state.close_tasks([trajectory])

    def _is_of_others(self, trajectory: str, caller: Caller) -> bool:
        """Whether a task is open that is not of the caller's tenant."""
        parts = self.state.parts(trajectory, limit=1)
        return bool(parts) and msgspec.json.decode(parts[0], type=Trajectory).tenant != caller.tenant

    def _sources(self, rating: Feedback, caller: Caller) -> dict[str, int]:
        """Whose influence a rating is, and how many ratings each may send per day: a user on this task, a user, and
        the API key, since its holder alone knows who the users are."""
        user = blake2b(f"{caller.key}\0{rating.user or ''}".encode(), digest_size=12).hexdigest()
        config = self.config
        return {
            f"{user} {rating.trajectory_id}": 1,
            user: config.max_ratings_per_day,
            f"key {caller.key}": config.max_ratings_per_key,
        }

    def _count(self, rating: Feedback, sources: Mapping[str, int], day: str) -> None:
        """RequestError for a source that sends too much, or rates a task twice."""
        full = self.state.rate(f"rating {rating.id}", sources, day)
        if full is None:
            return
        if full.endswith(f" {rating.trajectory_id}"):
            raise RequestError(f"{rating.trajectory_id!r} has a rating of this user from today: one counts", status=409)
        what = "this API key has" if full.startswith("key ") else "this user has"
        raise RequestError(f"{what} sent {sources[full]:,} ratings today: more do not count", status=429)

    def _close(self, group: Sequence[_Outcome]) -> Callable[[], Done]:
        """Publish tasks as trajectories, and close them."""
        return partial(self._store, group)

    def _store(self, group: Sequence[_Outcome]) -> Done:
        """All together, or if that fails each by itself."""
        found: list[Exception | None] = [None] * len(group)
        whole: dict[str, tuple[int, Trajectory]] = {}
        for place, one in enumerate(group):
            parts = self.state.parts(one.trajectory)
            if parts and one.trajectory not in whole:
                whole[one.trajectory] = place, put_together(parts, one.outcome, one.time)
            else:
                found[place] = RequestError(
                    f"the outcome of {one.trajectory!r} is known already, or its time of {self.config.open_hours:g} "
                    "hours is over: send ratings alone",
                    status=409,
                )
        try:
            self._publish([made for _, made in whole.values()])
        except EtudeError as error:
            if len(group) > 1:
                return [self._store([one])[0] for one in group]
            return [error]
        self.state.close_tasks(list(whole))
        return found

    def _publish(self, trajectories: Sequence[Trajectory]) -> None:
        """All of them or none, without those of users who opted out; EtudeError if that is not possible."""
        kept = [one for one in trajectories if self.collector.may_keep(one.user)]
        messages = list[Message]()
        for one, body in zip(kept, self.clean(kept), strict=True):
            if isinstance(body, EtudeError):
                raise body
            messages.append(Message(id=one.id, subject=subject_of(one), body=body))
        self.collector.bus.publish(messages)

    def close_old(self) -> int:
        """Store tasks whose time is over without an outcome; how many."""
        now, count = self.clock(), 0
        while old := self.state.waiting(now - timedelta(hours=self.config.open_hours), limit=SWEEP):
            found = self._store([_Outcome(trajectory, {}, now) for trajectory in old])
            for trajectory, error in zip(old, found, strict=True):
                if isinstance(error, EventError):
                    self._bury(trajectory, error)
                elif error is not None and not isinstance(error, RequestError):  # another process closed that one
                    raise error
            count += len(old)
        if monotonic() >= self._next_expiry:
            self._next_expiry = monotonic() + EXPIRE_S
            self.state.expire(now - timedelta(days=1))
        return count

    def _bury(self, trajectory: str, error: EventError) -> None:
        """A task that can never be stored becomes a dead letter: who reads the bus finds the same error in it."""
        log.error("the task %s cannot be stored and becomes a dead letter: %s", trajectory, error)
        parts = b"[%b]" % b",".join(self.state.parts(trajectory))
        self.collector.bus.publish([Message(id=trajectory, subject=subject_of(Trajectory), body=parts)])
        self.state.close_tasks([trajectory])


class _Opened(NamedTuple):
    """A task, or its next decisions."""

    task: Trajectory
    time: datetime
    """When it begins to wait for its outcome."""
    body: bytes | None
    """What is stored of it, if it was encoded and redacted before."""


class _Outcome(NamedTuple):
    """The end of a task."""

    trajectory: str
    outcome: dict[str, Any]
    """Empty where it is not known."""
    time: datetime


def _of_tenant(asked: DecisionAsked, caller: Caller) -> DecisionAsked:
    """Two tenants may give their conversations the same names: what a release assigns is a conversation of one."""
    if asked.conversation is None or caller.tenant is None:
        return asked
    return msgspec.structs.replace(asked, conversation=id_of_tenant(asked.conversation, caller.tenant))


def _offer(encoded: bytes, preferences: Preferences) -> Offer:
    options, default = msgspec.json.decode(encoded)
    return Offer(options, default=default, preferences=preferences)
