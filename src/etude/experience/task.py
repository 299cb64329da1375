"""`etude.task` for any agent loop: it records a task and publishes it as one trajectory to the outbox.

Published events are redacted, match their schema and are durable. Wrong arguments raise DataError at the call. Failures
of Etude itself are logged and counted, and never reach the agent: a choice gets its default option.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from queue import Empty, SimpleQueue
from random import Random, SystemRandom
from threading import Lock
from time import monotonic, perf_counter
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, cast

import msgspec
from msgspec import UNSET, UnsetType

from etude.contracts.arguments import (
    MAX_NAME_CHARS,
    read_context,
    read_count,
    read_name,
    read_number,
    read_preferences,
    shown,
    text_of,
    wrong,
)
from etude.contracts.bus import EventBus, Message
from etude.contracts.decision import (
    Decision,
    DecisionRequest,
    LoggedDecision,
    NoOptionError,
    Preferences,
    TaskFacts,
)
from etude.contracts.errors import DataError, EtudeError
from etude.contracts.option import CHOICE, option_name, read_options
from etude.contracts.plain import plain
from etude.contracts.subjects import subject_of
from etude.contracts.trajectory import Event, Feedback, Outcome, Rating, Trajectory, Turn
from etude.experience.arguments import (
    one_of,
    read_choice,
    read_flag,
    read_id,
    read_metadata,
    read_offer,
    read_propensity,
    read_quality,
    read_rating,
    read_required_name,
    read_text,
)
from etude.experience.chosen import chosen
from etude.experience.cleaning import pseudonym
from etude.experience.deciders import DEFAULT, Deciders, Default, NoAnswer
from etude.experience.forward import Forwarding

log = logging.getLogger("etude")


SYSTEM = SystemRandom()
TASK = "task"
"""The problem of a task without decisions."""
REFRESH_S = 5.0
"""Seconds after which the users who opted out are read again."""
GIVEN = {
    "loading": "the default is given while the policy is loaded",
    "missing": "the default is given because the policy cannot be loaded",
    "slow": "the default was given because the policy did not answer in time",
    "no option": "the default was given because the policy knows of no option within the limits of the request",
    "broken": "the default was given because the policy failed",
    "away": "the default was given because the server did not answer",
    "key": "the default was given because the server does not accept the API key",
    "refused": "the default was given because the server refused the request",
}
REMEDY = {
    "loading": "to wait for it, raise experience.decide_timeout_ms",
    "missing": "correct experience.policies",
    "slow": "raise experience.decide_timeout_ms, or use a smaller policy",
    "no option": "raise max_cost_usd or max_latency_ms, or offer another option",
    "broken": "train it again, or name another one in experience.policies",
    "away": "start `etude serve` there, or correct ETUDE_URL",
    "key": "set ETUDE_API_KEY to a key that `etude keys create --role decide` prints on the server",
    "refused": "correct what it names",
}
"""Of a policy that does not answer, by reason: what is done, and what to do."""


@dataclass(kw_only=True)
class Collector:
    """Publishes events to the bus."""

    bus: EventBus
    clean: Callable[[Event], bytes]
    """Encodes and redacts an event; EtudeError if it cannot be sent."""
    problem_of: Callable[[str], str]
    """The problem of a decision by name: the problem of that name, or choice:NAME for a choice of the user's own."""
    deciders: Deciders
    """The policies of problems and choices."""
    opted_out: Callable[[], frozenset[str]]
    """Returns the users who opted out: none of their data is stored."""
    clock: Callable[[], datetime]
    decide_timeout_s: float = 0.2
    """Seconds that a choice waits for its policy."""
    forwarding: Forwarding | None = None
    """What sends events from the bus to where they are stored, if that is elsewhere."""
    failed: int = 0
    """Number of events that could not be published; the log says why."""
    defaults: Counter[str] = field(default_factory=Counter)
    """Number of times, by problem, that a policy did not answer and the default was given; the log says why."""
    choices: dict[str, Task] = field(default_factory=dict)
    """Tasks of `etude.choose` that wait for their outcome, by id."""
    dropped: SimpleQueue[str] = field(default_factory=SimpleQueue)
    """Ids of those whose outcome can no longer be reported. Python drops objects in the middle of anything, so they
    are published by the next task, or at exit."""
    _warned: set[tuple[str, str]] = field(default_factory=set)
    _turn: Lock = field(default_factory=Lock)

    def task(
        self,
        task: str,
        *,
        user: str | None = None,
        group: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        problem: str | None = None,
        conversation: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        collect: bool = True,
        id: str | None = None,
    ) -> Task:
        """A task for a `with` statement. It is not stored without `collect` or if its user opted out.

        `problem` defaults to the problem of its first decision, or `task` without a decision. `conversation` is the id
        of the conversation that the task belongs to: a release may keep all of it on one policy.
        """
        self.end_dropped()
        now, named = self.clock(), read_name("problem", problem, such_as="tone")
        return Task(
            collector=self,
            task=read_text("task", task, "a text that says what is to be done"),
            user=(known := read_name("user", user, such_as="u1")),
            group=read_name("group", group),
            tenant=read_name("tenant", tenant),
            agent=read_name("agent", agent),
            model=read_name("model", model),
            problem=named if named in (None, TASK) else self.problem_of(named),
            conversation=read_name("conversation", conversation, such_as="c1"),
            metadata=_snapshot(read_metadata(metadata)),
            collect=bool(read_flag("collect", collect)) and self.may_keep(known),
            id=new_id("t", now) if id is None else read_id("id", id),
            time=now,
        )

    def feedback(
        self,
        trajectory_id: str,
        *,
        thumbs: Literal["up", "down"] | None = None,
        stars: int | None = None,
        comment: str | None = None,
        user: str | None = None,
    ) -> bool:
        """Publish a rating of a trajectory, now or days later; return whether it was published."""
        rating = read_rating(thumbs, stars, comment)
        rated, by = read_id("trajectory_id", trajectory_id), read_name("user", user, such_as="u1")
        if not self.may_keep(by):
            return False
        now = self.clock()
        return self.publish(Feedback(id=new_id("f", now), time=now, trajectory_id=rated, user=by, **rating))

    def publish(self, event: Event) -> bool:
        """Publish an event; return whether it is durable in the outbox."""
        with self.isolated(f"{type(event).__name__.lower()} {event.id}"):
            self.bus.publish([Message(id=event.id, subject=subject_of(event), body=self.clean(event))])
            return True
        return False

    def publish_all(self, events: Sequence[Event]) -> None:
        """Publish events, all of them or none, without those of users who opted out. EtudeError if one of them cannot
        be stored, or nothing can now."""
        kept = [event for event in events if self.may_keep(getattr(event, "user", None))]
        self.bus.publish([Message(id=e.id, subject=subject_of(e), body=self.clean(e)) for e in kept])

    def end_dropped(self) -> None:
        """Publish the choices that were dropped, without an outcome."""
        with suppress(Empty):
            while True:
                self._end_choice(self.dropped.get_nowait())

    def end(self, *, timeout_s: float) -> None:
        """Publish all choices that still wait, without an outcome; send what is left as far as there is time."""
        for id in list(self.choices):
            self._end_choice(id)
        if self.forwarding is not None:
            self.forwarding.end(timeout_s=timeout_s)

    def _end_choice(self, id: str) -> None:
        task = self.choices.pop(id, None)
        if task is not None:
            task.end(is_known=False)

    @contextmanager
    def isolated(self, what: str) -> Iterator[None]:
        """Log and count any exception in the block, so that it never reaches the agent."""
        try:
            yield
        except Exception as error:  # any exception: values of any class are read
            self.failed += 1
            log.error("%s was not collected: %s", what, error if isinstance(error, EtudeError) else plain(error))

    def choose(
        self, problem: str, request: DecisionRequest, offer: Offer, *, timeout_s: float | None = None
    ) -> tuple[Decision, NoAnswer | None, float]:
        """The answer of a choice's policy if there is one in time that is legal, else the default and why; with the
        seconds that loading the policy took."""
        loading_s = 0.0
        try:
            limit_s = self.decide_timeout_s if timeout_s is None else timeout_s
            answer, loading_s = self.answer(problem, request, timeout_s=limit_s)
        except Exception as error:  # such as a system that gives no more threads
            answer = NoAnswer("broken", text_of(error))
        return *self.settled(problem, request, offer, answer), loading_s

    def settled(
        self, problem: str, request: DecisionRequest, offer: Offer, answer: Any
    ) -> tuple[Decision, NoAnswer | None]:
        """The answer of a choice's policy if it is legal, else the default and why."""
        missing = None
        try:
            if not isinstance(answer, NoAnswer):
                answer = _legal(answer, problem, request, offer)
        except Exception as error:  # of an answer of any class
            answer = NoAnswer("broken", text_of(error))
        if isinstance(answer, NoAnswer):
            missing = answer
            self.defaulted(problem, answer)
            why = answer.error.expected if isinstance(answer.error, NoOptionError) else {}
            answer = msgspec.structs.replace(Default(problem).decide(request), expected=why)
        (entry,) = answer.logged
        if entry.at_ms != request.at_ms:
            answer = msgspec.structs.replace(answer, logged=(msgspec.structs.replace(entry, at_ms=request.at_ms),))
        return answer, missing

    def answer(self, problem: str, request: DecisionRequest, *, timeout_s: float) -> tuple[Decision | NoAnswer, float]:
        """The answer of a policy within the timeout, and the seconds that its loading took."""
        began = perf_counter()
        missing = self.deciders.loaded(problem, timeout_s=timeout_s)
        loading_s = perf_counter() - began
        return missing or self.deciders.decide(problem, request, timeout_s=timeout_s - loading_s), loading_s

    def defaulted(self, problem: str, missing: NoAnswer) -> None:
        """Count a default that was given since the policy did not answer; log the reason once for each problem.

        An API key that is not accepted is raised, too, the first time: it is a mistake of whoever set it.
        """
        of_key = missing.reason == "key"
        what = ("" if of_key else problem, missing.reason)
        with self._turn:
            self.defaults[problem] += 1
            known = what in self._warned
            self._warned.add(what)
        if not known and of_key and missing.error is not None:
            raise missing.error from None
        if not known:
            log.warning("%s: %s (%s): %s", problem, GIVEN[missing.reason], missing.why, REMEDY[missing.reason])

    def may_keep(self, user: str | None) -> bool:
        """Whether data of this user may be stored; False while the opt-outs cannot be read."""
        if user is None:
            return True
        with self.isolated(f"a task or rating of {pseudonym(user)}"):
            return user not in self.opted_out()
        return False


class OptOuts:
    """The users who opted out, read again every few seconds."""

    def __init__(self, read: Callable[[], frozenset[str]]) -> None:
        self._read, self._known, self._next = read, frozenset[str](), float("-inf")

    def __call__(self) -> frozenset[str]:
        if monotonic() >= self._next:
            self.refresh()
        return self._known

    def refresh(self) -> None:
        """Read them again."""
        self._known, self._next = self._read(), monotonic() + REFRESH_S


class _Unit(TypedDict, total=False):
    trajectory: str | None
    conversation: str | None
    about: TaskFacts | None


@dataclass(kw_only=True)
class Task:
    """A task in progress. Its trajectory is published when the `with` statement ends."""

    collector: Collector
    task: str
    user: str | None
    group: str | None
    tenant: str | None
    agent: str | None
    model: str | None
    problem: str | None
    conversation: str | None
    metadata: dict[str, Any]
    collect: bool
    id: str
    time: datetime
    collected: bool = False
    """Whether the trajectory was published; False until the task has ended."""
    _began: float = field(default_factory=perf_counter)
    _decisions: list[LoggedDecision] = field(default_factory=list)
    _turns: list[Turn] = field(default_factory=list)
    _ratings: list[Rating] = field(default_factory=list)
    _outcome: dict[str, Any] = field(default_factory=dict)

    @property
    def decisions(self) -> tuple[LoggedDecision, ...]:
        """The decisions that are logged so far."""
        return tuple(self._decisions)

    def decide(
        self,
        name: str,
        context: Any = None,
        *,
        options: Sequence[Any] | None = None,
        eligible: Sequence[Any] | None = None,
        default: Any = None,
        quality_weight: float | None = None,
        max_cost_usd: float | None = None,
        max_latency_ms: float | None = None,
        region: str | None = None,
        allowed: Sequence[str] | None = None,
    ) -> Any:
        """Make a choice of your own among `options`, or ask the policy of a problem; it is logged with its propensity.

        Any `name` that is not a problem is a choice of your own, logged as choice:NAME. Options are names, or mappings
        with a `name` and as far as they are known a `description`, numbers and words; what is returned equals the
        chosen option, and has its `propensity`, `policy`, `expected` and `decision`. If the policy does not answer in
        time, it is `default`, an option or its name, else the first one. The context is a text, a number, or a mapping
        of these. `quality_weight` (1 is quality alone, 0 cost alone), `max_cost_usd`, `max_latency_ms`, `region` and
        `allowed` say what is wanted this time. `eligible` is another name for `options`.

        For a problem such as `workflow` the `Decision` is returned.
        """
        at_ms = self._ms()
        problem = self._problem(name)
        offered, where = one_of(options, eligible)
        wanted = read_preferences(
            quality_weight=quality_weight,
            max_cost_usd=max_cost_usd,
            max_latency_ms=max_latency_ms,
            region=region,
            allowed=allowed,
        )
        if not problem.startswith(CHOICE):
            return self._ask(problem, context, offered, default, wanted, at_ms)
        offer = Offer(offered, default=default, preferences=wanted, where=where)
        request = offer.request(context, at_ms=at_ms, **self._unit())
        decision, _, loading_s = self.collector.choose(problem, request, offer)
        self._began += loading_s  # it is not part of the task's latency
        self._decisions += decision.logged
        return chosen(decision.action, decision)

    def _ask(
        self, problem: str, context: Any, options: Any, default: Any, wanted: Preferences, at_ms: float
    ) -> Decision:
        """The decision of a problem's policy. A `default` is no action of the policy, so it is not logged."""
        request = DecisionRequest(
            context=context,
            options=None if options is None else tuple(options),
            preferences=wanted,
            at_ms=at_ms,
            seed=secrets.randbits(62),
            **self._unit(),
        )
        if default is None:
            began = perf_counter()
            decider = self.collector.deciders.wait(problem)
            self._began += perf_counter() - began  # loading is not part of the task's latency
            decision = decider.decide(request)
        else:
            answer, loading_s = self.collector.answer(problem, request, timeout_s=self.collector.decide_timeout_s)
            self._began += loading_s
            if isinstance(answer, NoAnswer):
                if isinstance(answer.error, DataError):  # the request is wrong
                    raise answer.error
                self.collector.defaulted(problem, answer)
                answer = Decision(action=default, propensity=1.0, policy=DEFAULT, logged=())
            decision = answer
        self._decisions += [msgspec.structs.replace(d, at_ms=max(at_ms, d.at_ms)) for d in decision.logged]
        return decision

    def _unit(self) -> _Unit:
        """What a release assigns to a policy as a whole. A task that is not stored is no evidence: the incumbent
        decides."""
        if not self.collect:
            return {}
        about = TaskFacts(task=plain(self.task), user=self.user, group=self.group, agent=self.agent, model=self.model)
        return {"trajectory": self.id, "conversation": self.conversation, "about": about}

    def _problem(self, name: Any) -> str:
        """The problem of a decision by name."""
        problem = self.collector.problem_of(read_required_name("name", name, such_as="tone"))
        return read_required_name("name", problem, such_as="tone")  # its prefix counts

    def decided(
        self,
        name: str,
        action: Any,
        *,
        policy: str,
        propensity: float | None = None,
        options: Sequence[Any] | None = None,
        eligible: Sequence[Any] | None = None,
        context: Any = None,
    ) -> None:
        """Log a decision that was made elsewhere: of a choice, `action` is one of the options, or its name."""
        problem = self._problem(name)
        version = read_required_name("policy", policy, such_as="router-7")
        probability = read_propensity(propensity)
        among, where = one_of(options, eligible)
        if isinstance(action, Decision):
            action = action.action
        if problem.startswith(CHOICE):
            context = read_context(context)
            if among is not None:
                action = read_choice("action", action, read_options(among, where=where), where)
            elif not option_name(action):
                raise wrong("action", action, "the chosen option, or its name")
            else:
                action = option_name(action)
        elif isinstance(among, list | tuple) and _snapshot(action) not in _snapshot(among):
            raise wrong("action", action, f"one of the {where}")
        self._decisions.append(
            LoggedDecision(
                problem=problem,
                at_ms=self._ms(),
                context=_snapshot(context),
                eligible=_snapshot(among),
                action=_snapshot(action),
                propensity=probability,
                policy=version,
            )
        )

    def turn(
        self,
        *,
        observation: Any = None,
        action: Any = None,
        result: Any = None,
        error: str | None = None,
        cost_usd: float | None = None,
        latency_ms: float | None = None,
    ) -> None:
        """Record what the agent saw and did, and the result: any values, stored as JSON."""
        done = action.action if isinstance(action, Decision) else action
        self._turns.append(
            Turn(
                at_ms=self._ms(),
                observation=_snapshot(observation),
                action=_snapshot(done),
                result=_snapshot(result),
                error=None if error is None else text_of(error),
                cost_usd=read_number("cost_usd", cost_usd, unit=" USD"),
                latency_ms=read_number("latency_ms", latency_ms, unit=" milliseconds"),
            )
        )

    def outcome(
        self,
        *,
        success: bool | UnsetType | None = UNSET,
        cost_usd: float | None = None,
        quality: Mapping[str, float] | None = None,
        subtasks: int | None = None,
        subtasks_done: int | None = None,
        error: str | None = None,
    ) -> None:
        """Set the outcome, as far as it is known. By default a block that ends without an exception succeeded;
        `success=None` says that it is unknown."""
        stated = {} if success is UNSET else {"success": read_flag("success", success)}
        known = {
            "cost_usd": read_number("cost_usd", cost_usd, unit=" USD"),
            "quality": read_quality(quality) or None,
            "subtasks": read_count("subtasks", subtasks),
            "subtasks_done": read_count("subtasks_done", subtasks_done),
            "error": None if error is None else text_of(error),
        }
        self._outcome |= stated | {name: value for name, value in known.items() if value is not None}

    def feedback(
        self, *, thumbs: Literal["up", "down"] | None = None, stars: int | None = None, comment: str | None = None
    ) -> None:
        """Add a rating before the task ends."""
        self._ratings.append(Rating(**read_rating(thumbs, stars, comment)))

    def __enter__(self) -> Self:
        self._began = perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end(error)

    def end(self, error: BaseException | None = None, *, is_known: bool = True) -> bool:
        """Publish the trajectory, unless the task is not stored; without an outcome unless it `is_known`."""
        if self.collect:
            with self.collector.isolated(f"trajectory {self.id}"):
                made = self._trajectory(error)
                self.collected = self.collector.publish(
                    made if is_known else msgspec.structs.replace(made, outcome=Outcome())
                )
        return self.collected

    def _trajectory(self, error: BaseException | None) -> Trajectory:
        outcome = dict(self._outcome)
        if error is not None:
            stopped = not isinstance(error, Exception)  # by the user, by asyncio, or by a closed generator
            outcome = {"success": None if stopped else False, "ended": "cancelled" if stopped else "failed"} | outcome
            outcome.setdefault("error", f"{type(error).__name__}: {text_of(error)}")
        outcome.setdefault("success", True)
        costs = [turn.cost_usd for turn in self._turns if turn.cost_usd is not None]
        if costs:
            outcome.setdefault("cost_usd", sum(costs))
        return Trajectory(
            id=self.id,
            time=self.time,
            task=plain(self.task),
            problem=self.problem or (self._decisions[0].problem if self._decisions else TASK),
            policy=self._decisions[-1].policy if self._decisions else None,
            agent=self.agent,
            model=self.model,
            user=plain(self.user),
            group=self.group,
            tenant=self.tenant,
            decisions=tuple(self._decisions),
            turns=tuple(self._turns),
            outcome=Outcome(latency_ms=self._ms(), **outcome),
            feedback=tuple(self._ratings),
            metadata=_snapshot(self.metadata) or None,
        )

    def _ms(self) -> float:
        return (perf_counter() - self._began) * 1e3


class Offer:
    """The options of a choice, read; what is found once serves all requests that offer the same."""

    def __init__(self, offered: Any, *, default: Any, preferences: Preferences, where: str = "options") -> None:
        """DataError if it is wrong; `where` is what the caller calls the options."""
        self.among: Mapping[str, Any] = read_offer(offered, where, preferences)
        """The options that the preferences do not rule out by what they say of themselves, by name."""
        self.default = (
            None if default is None else read_choice("default", default, read_options(offered, where=where), where)
        )
        self.options, self.preferences = tuple(offered), preferences
        self.eligible: Mapping[str, Any] = {name: plain(option) for name, option in self.among.items()}
        """The same in the types of JSON."""
        self.all_eligible = list(self.eligible.values())
        self._listed: tuple[Any, Collection[str]] = (None, self.among.keys())

    def request(
        self,
        context: Any,
        *,
        at_ms: float = 0.0,
        trajectory: str | None = None,
        conversation: str | None = None,
        about: TaskFacts | None = None,
        explain: bool = True,
        seed: int | None = None,
    ) -> DecisionRequest:
        """A request for a choice among them; DataError if the context is none."""
        return DecisionRequest(
            context=read_context(context),
            options=self.options,
            default=self.default,
            preferences=self.preferences,
            at_ms=at_ms,
            seed=secrets.randbits(62) if seed is None else seed,
            trajectory=trajectory,
            conversation=conversation,
            about=about,
            explain=explain,
        )

    def names(self, listed: Any) -> Collection[str]:
        """The names of the options that a policy lists as eligible; of all, where it lists none."""
        if not isinstance(listed, list | tuple):
            return self.among.keys()
        last, names = self._listed
        if listed is not last:  # policies list the same ones again and again
            names = [option_name(one) for one in listed]
            self._listed = (listed, names)
        return names

    def listed(self, names: Collection[str]) -> list[Any]:
        """Those of the eligible options that have these names, in the types of JSON."""
        if all(name in names for name in self.eligible):
            return self.all_eligible
        return [option for name, option in self.eligible.items() if name in names]


def _legal(answer: Any, problem: str, request: DecisionRequest, offer: Offer) -> Decision | NoAnswer:
    """The answer of a policy to a choice, with the option as it was offered and one log entry; why not, if not
    legal."""
    if not isinstance(answer, Decision):
        return NoAnswer("broken", f"it answered {shown(answer)} in place of a Decision")
    version: Any = answer.policy  # of any type: the policy is somebody's own code
    name, chance = option_name(answer.action), cast(Any, answer.propensity)
    if not isinstance(version, str) or not 0 < len(version) <= MAX_NAME_CHARS:
        return NoAnswer("broken", f"its version is {shown(version)}")
    if name not in offer.among:
        return NoAnswer("broken", f"{version} chose {name!r}, which is not eligible")
    if chance is not None and not (isinstance(chance, float) and 0 < chance <= 1):
        return NoAnswer("broken", f"{version} chose {name!r} with the propensity {chance!r}")
    names = offer.names(answer.logged[0].eligible if answer.logged else None)
    if name not in names:
        return NoAnswer("broken", f"{version} chose {name!r}, which it does not list as eligible")
    entry = LoggedDecision(
        problem=problem,
        at_ms=request.at_ms,
        context=request.context,
        eligible=offer.listed(names),
        action=name,
        propensity=chance,
        policy=version,
    )
    found: Decision = msgspec.structs.replace(answer, action=offer.among[name], logged=(entry,))
    return found


def _snapshot(value: Any) -> Any:
    """A copy in the types of JSON: later changes to the value have no effect."""
    try:
        return plain(value)
    except Exception:  # such as a mapping that another thread changes
        return f"<{type(value).__name__}>"


def new_id(kind: str, now: datetime, rng: Random = SYSTEM) -> str:
    """A unique id that sorts by time."""
    return f"{kind}-{int(now.timestamp() * 1e6):014x}-{rng.getrandbits(48):012x}"


def text_in(context: Any) -> str:
    """What a context says, as the description of a task."""
    if isinstance(context, str):
        return context
    if isinstance(context, Mapping):
        for name in ("text", "instruction", "task"):
            if isinstance(context.get(name), str):
                return str(context[name])
    return ""
