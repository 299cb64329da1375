"""`etude.task` for any agent loop: it records a task and publishes it as one trajectory to the outbox.

Published events are redacted, match their schema and are durable. Errors in this module are logged and counted, and
never reach the agent.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic, perf_counter
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from etude.contracts.bus import EventBus, Message
from etude.contracts.decision import Decision, DecisionRequest, LoggedDecision
from etude.contracts.errors import DataError, EtudeError
from etude.contracts.plain import plain
from etude.contracts.ports import Decider
from etude.contracts.subjects import subject_of
from etude.contracts.trajectory import Event, Feedback, Outcome, Rating, Trajectory, Turn
from etude.experience.cleaning import pseudonym

log = logging.getLogger("etude")


TASK = "task"
"""The problem of a task without decisions."""
REFRESH_S = 5.0
"""Seconds after which the users who opted out are read again."""


@dataclass(kw_only=True)
class Collector:
    """Publishes events to the bus."""

    bus: EventBus
    clean: Callable[[Event], bytes]
    """Encodes and redacts an event; EtudeError if it cannot be sent."""
    problem_of: Callable[[str], str]
    """The problem of a decision by name: the problem of that name, or choice:NAME for a choice of the user's own."""
    decider: Callable[[str], Decider]
    """Returns the policy of a problem."""
    opted_out: Callable[[], frozenset[str]]
    """Returns the users who opted out: none of their data is stored."""
    clock: Callable[[], datetime]
    failed: int = 0
    """Number of events that could not be published; the log says why."""

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
        metadata: Mapping[str, Any] | None = None,
        collect: bool = True,
        id: str | None = None,
    ) -> Task:
        """A task for a `with` statement. It is not stored without `collect` or if its user opted out.

        `problem` defaults to the problem of its first decision, or `task` without a decision.
        """
        now = self.clock()
        return Task(
            collector=self,
            task=task,
            user=user,
            group=group,
            tenant=tenant,
            agent=agent,
            model=model,
            problem=problem if problem in (None, TASK) else self.problem_of(_text(problem)),
            metadata=_snapshot(metadata or {}),
            collect=collect and self._may_keep(user),
            id=id or new_id("t", now),
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
        if thumbs is None and stars is None and comment is None:
            raise DataError("feedback is empty: give thumbs='up' or 'down', stars from 1 to 5, or a comment")
        if not self._may_keep(user):
            return False
        now = self.clock()
        given = {"thumbs": thumbs, "stars": stars, "comment": plain(comment), "user": plain(user)}
        try:
            event = msgspec.convert(
                {"type": subject_of(Feedback), "id": new_id("f", now), "time": now, "trajectory_id": trajectory_id}
                | {name: value for name, value in given.items() if value is not None},
                Feedback,
            )
        except msgspec.ValidationError as error:
            raise DataError(f"feedback is not valid: {error}") from error
        return self.publish(event)

    def publish(self, event: Event) -> bool:
        """Publish an event; return whether it is durable in the outbox."""
        with self.isolated(f"{type(event).__name__.lower()} {event.id}"):
            self.bus.publish([Message(id=event.id, subject=subject_of(event), body=self.clean(event))])
            return True
        return False

    @contextmanager
    def isolated(self, what: str) -> Iterator[None]:
        """Log and count any exception in the block, so that it never reaches the agent."""
        try:
            yield
        except Exception as error:  # any exception: values of any class are read
            self.failed += 1
            log.error("%s was not collected: %s", what, error if isinstance(error, EtudeError) else plain(error))

    def _may_keep(self, user: str | None) -> bool:
        """Whether data of this user may be stored; False while the opt-outs cannot be read."""
        if user is None:
            return True
        with self.isolated(f"a task or rating of {pseudonym(_text(user))}"):
            return user not in self.opted_out()
        return False


class OptOuts:
    """The users who opted out, read again every few seconds."""

    def __init__(self, read: Callable[[], frozenset[str]]) -> None:
        self._read, self._known, self._next = read, frozenset[str](), float("-inf")

    def __call__(self) -> frozenset[str]:
        if monotonic() >= self._next:
            self._known, self._next = self._read(), monotonic() + REFRESH_S
        return self._known


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

    def decide(
        self,
        problem: str,
        context: Any = None,
        *,
        options: Sequence[Any] | None = None,
        eligible: Sequence[Any] | None = None,
    ) -> Decision:
        """Ask the policy of a problem; its decision is logged with the options and its propensity.

        `problem` is a problem by name, or any name for a choice of your own among `options`, logged as choice:NAME.
        `eligible` is another name for `options`.
        """
        at_ms = self._ms()
        among = eligible if options is None else options
        request = DecisionRequest(
            context=context, options=None if among is None else tuple(among), at_ms=at_ms, seed=secrets.randbits(62)
        )
        decision = self.collector.decider(self.collector.problem_of(_text(problem))).decide(request)
        self._decisions += [msgspec.structs.replace(d, at_ms=at_ms + d.at_ms) for d in decision.logged]
        return decision

    def decided(
        self,
        problem: str,
        action: Any,
        *,
        policy: str,
        propensity: float | None = None,
        options: Sequence[Any] | None = None,
        eligible: Sequence[Any] | None = None,
        context: Any = None,
    ) -> None:
        """Log a decision that was made elsewhere."""
        if propensity is not None and not 0 < propensity <= 1:
            raise DataError(
                f"propensity is {propensity!r}: expected the probability of the action, above 0 and up to 1"
            )
        self._decisions.append(
            LoggedDecision(
                problem=self.collector.problem_of(_text(problem)),
                at_ms=self._ms(),
                context=_snapshot(context),
                eligible=_snapshot(eligible if options is None else options),
                action=_snapshot(action),
                propensity=propensity,
                policy=policy,
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
                error=None if error is None else _text(error),
                cost_usd=cost_usd,
                latency_ms=latency_ms,
            )
        )

    def outcome(
        self,
        *,
        success: bool | None = None,
        cost_usd: float | None = None,
        quality: Mapping[str, float] | None = None,
        subtasks: int | None = None,
        subtasks_done: int | None = None,
        error: str | None = None,
    ) -> None:
        """Set the outcome, as far as it is known. By default a block that ends without an exception succeeded."""
        known = {
            "success": success,
            "cost_usd": cost_usd,
            "quality": _snapshot(quality) or None,
            "subtasks": subtasks,
            "subtasks_done": subtasks_done,
            "error": None if error is None else _text(error),
        }
        self._outcome |= {name: value for name, value in known.items() if value is not None}

    def feedback(
        self, *, thumbs: Literal["up", "down"] | None = None, stars: int | None = None, comment: str | None = None
    ) -> None:
        """Add a rating before the task ends."""
        self._ratings.append(Rating(thumbs=thumbs, stars=stars, comment=comment))

    def __enter__(self) -> Self:
        self._began = perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.collect:
            with self.collector.isolated(f"trajectory {self.id}"):
                self.collected = self.collector.publish(self._trajectory(error))

    def _trajectory(self, error: BaseException | None) -> Trajectory:
        outcome = dict(self._outcome)
        if error is not None:
            stopped = not isinstance(error, Exception)  # by the user, by asyncio, or by a closed generator
            outcome = {"success": None if stopped else False, "ended": "cancelled" if stopped else "failed"} | outcome
            outcome.setdefault("error", f"{type(error).__name__}: {_text(error)}")
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


def _snapshot(value: Any) -> Any:
    """A copy in the types of JSON: later changes to the value have no effect."""
    try:
        return plain(value)
    except Exception:  # such as a mapping that another thread changes
        return f"<{type(value).__name__}>"


def _text(value: object) -> str:
    """The text of a value; its class name if it has none."""
    try:
        return str(plain(str(value)))
    except Exception:  # `__str__` of any class may raise
        return f"<{type(value).__name__}>"


def new_id(kind: str, now: datetime) -> str:
    """A unique id that sorts by time."""
    return f"{kind}-{int(now.timestamp() * 1e6):014x}-{secrets.token_hex(6)}"
