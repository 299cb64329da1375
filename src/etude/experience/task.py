"""A few lines in any agent loop: a task and what happens in it in, one trajectory in the outbox out.

What leaves here is redacted, fits its schema and is durable. Whatever goes wrong with that is logged and counted, and
never reaches the agent.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from time import perf_counter
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import msgspec
from msgspec import Struct

from etude.contracts.bus import EventBus, Message
from etude.contracts.errors import DataError, EtudeError
from etude.contracts.plain import plain
from etude.contracts.subjects import subject_of
from etude.contracts.trajectory import Event, Feedback, LoggedDecision, Outcome, Said, Trajectory, Turn

log = logging.getLogger("etude")


class Choice(Struct, frozen=True, kw_only=True):
    """What was decided: do `action`."""

    problem: str
    action: Any
    """What to do; of a workflow, its plan."""
    propensity: float | None
    """How probable it was, all its parts together."""
    policy: str
    """The version that decided."""
    decisions: tuple[LoggedDecision, ...]
    """As they are logged."""


class Chooser(Protocol):
    """Decides about one problem."""

    def __call__(self, context: Any, eligible: Sequence[Any] | None) -> Choice: ...


@dataclass(kw_only=True)
class Collector:
    """Hands events over to the bus."""

    bus: EventBus
    clean: Callable[[Event], bytes]
    """An event as bytes, redacted; EtudeError where it cannot be sent."""
    chooser: Callable[[str], Chooser]
    """Who decides about a problem."""
    opted_out: Callable[[], frozenset[str]]
    """Users of whom nothing is kept."""
    clock: Callable[[], datetime]
    failed: int = 0
    """Events that could not be handed over; the log says why."""

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
        """A task to be used in a `with` statement. Nothing of it is kept without `collect` or if its user opted out.

        Its `problem` is what was decided first, unless told.
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
            problem=problem,
            metadata=_kept(metadata or {}),
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
        """What somebody says of a trajectory, now or days later; whether it was handed over."""
        if thumbs is None and stars is None and comment is None:
            raise DataError("feedback says nothing: give thumbs='up' or 'down', stars from 1 to 5, or a comment")
        if not self._may_keep(user):
            return False
        now = self.clock()
        said = {"thumbs": thumbs, "stars": stars, "comment": plain(comment), "user": plain(user)}
        try:
            event = msgspec.convert(
                {"type": subject_of(Feedback), "id": new_id("f", now), "time": now, "trajectory_id": trajectory_id}
                | {name: value for name, value in said.items() if value is not None},
                Feedback,
            )
        except msgspec.ValidationError as error:
            raise DataError(f"this is no feedback: {error}") from error
        return self.hand_over(event)

    def hand_over(self, event: Event) -> bool:
        """Whether it is durable now."""
        with self.apart(f"{type(event).__name__.lower()} {event.id}"):
            self.bus.publish([Message(id=event.id, subject=subject_of(event), body=self.clean(event))])
            return True
        return False

    @contextmanager
    def apart(self, what: str) -> Iterator[None]:
        """Whatever goes wrong in here is logged and counted, and never reaches the agent."""
        try:
            yield
        except Exception as error:  # also what is no error of ours: values of any class are looked at
            self.failed += 1
            log.error("%s was not collected: %s", what, error if isinstance(error, EtudeError) else plain(error))

    def _may_keep(self, user: str | None) -> bool:
        """Not while nobody can say who opted out."""
        if user is None:
            return True
        with self.apart(f"what user {user!r} does"):
            return user not in self.opted_out()
        return False


@dataclass(kw_only=True)
class Task:
    """One task while it is done. Its trajectory is handed over when the `with` statement ends."""

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
    """Whether it was handed over; False until it has ended."""
    _began: float = field(default_factory=perf_counter)
    _decisions: list[LoggedDecision] = field(default_factory=list)
    _turns: list[Turn] = field(default_factory=list)
    _said: list[Said] = field(default_factory=list)
    _outcome: dict[str, Any] = field(default_factory=dict)

    def decide(self, problem: str, context: Any = None, *, eligible: Sequence[Any] | None = None) -> Choice:
        """Ask the policy of a problem; its decision is logged with what else could be chosen and how probable it was.

        `eligible` is for problems of your own: what there is to choose from.
        """
        at_ms = self._ms()
        choice = self.collector.chooser(problem)(context, eligible)
        self._decisions += [msgspec.structs.replace(d, at_ms=at_ms + d.at_ms) for d in choice.decisions]
        return choice

    def decided(
        self,
        problem: str,
        action: Any,
        *,
        policy: str,
        propensity: float | None = None,
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
                problem=problem,
                at_ms=self._ms(),
                context=_kept(context),
                eligible=_kept(eligible),
                action=_kept(action),
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
        """What the agent saw, did, and what came of it: any values, kept as JSON."""
        done = action.action if isinstance(action, Choice) else action
        self._turns.append(
            Turn(
                at_ms=self._ms(),
                observation=_kept(observation),
                action=_kept(done),
                result=_kept(result),
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
        """How it ended, as far as that is known. Told nothing, a block that ends without an exception succeeded."""
        told = {
            "success": success,
            "cost_usd": cost_usd,
            "quality": _kept(quality) or None,
            "subtasks": subtasks,
            "subtasks_done": subtasks_done,
            "error": None if error is None else _text(error),
        }
        self._outcome |= {name: value for name, value in told.items() if value is not None}

    def feedback(
        self, *, thumbs: Literal["up", "down"] | None = None, stars: int | None = None, comment: str | None = None
    ) -> None:
        """What somebody says of it before it ends."""
        self._said.append(Said(thumbs=thumbs, stars=stars, comment=comment))

    def __enter__(self) -> Self:
        self._began = perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.collect:
            with self.collector.apart(f"trajectory {self.id}"):
                self.collected = self.collector.hand_over(self._trajectory(error))

    def _trajectory(self, error: BaseException | None) -> Trajectory:
        told = dict(self._outcome)
        if error is not None:
            stopped = not isinstance(error, Exception)  # by hand, by asyncio, or by who no longer listens
            told = {"success": None if stopped else False, "ended": "cancelled" if stopped else "failed"} | told
            told.setdefault("error", f"{type(error).__name__}: {_text(error)}")
        told.setdefault("success", True)
        costs = [turn.cost_usd for turn in self._turns if turn.cost_usd is not None]
        if costs:
            told.setdefault("cost_usd", sum(costs))
        return Trajectory(
            id=self.id,
            time=self.time,
            task=plain(self.task),
            problem=self.problem or (self._decisions[0].problem if self._decisions else "workflow"),
            policy=self._decisions[-1].policy if self._decisions else None,
            agent=self.agent,
            model=self.model,
            user=plain(self.user),
            group=self.group,
            tenant=self.tenant,
            decisions=tuple(self._decisions),
            turns=tuple(self._turns),
            outcome=Outcome(latency_ms=self._ms(), **told),
            feedback=tuple(self._said),
            metadata=_kept(self.metadata) or None,
        )

    def _ms(self) -> float:
        return (perf_counter() - self._began) * 1e3


def _kept(value: Any) -> Any:
    """As JSON has it now: what becomes of the value later is another matter."""
    try:
        return plain(value)
    except Exception:  # a mapping that another thread changes, or one that cannot be read
        return f"<{type(value).__name__}>"


def _text(value: object) -> str:
    """In its own words, if it has any."""
    try:
        return str(plain(str(value)))
    except Exception:  # of whatever class it may be
        return f"<{type(value).__name__}>"


def new_id(kind: str, now: datetime) -> str:
    """Sorts by time; never met twice."""
    return f"{kind}-{int(now.timestamp() * 1e6):014x}-{secrets.token_hex(6)}"
