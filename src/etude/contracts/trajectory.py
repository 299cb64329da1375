"""One task from start to end, as it travels: its turns, its decisions, what came of it, what people said of it.

A trajectory is written once, when its task is over; feedback may follow days later. What a later version of Etude adds
to an event, this one ignores and keeps: stores hold events as they came.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Id = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@+-]*$")]
"""Unique among events of its kind; whoever sends an event again sends it with the same id."""
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Time = Annotated[datetime, Meta(tz=True)]
Share = Annotated[float, Meta(ge=0, le=1)]
Amount = Annotated[float, Meta(ge=0)]
Propensity = Annotated[float, Meta(gt=0, le=1)]
Stars = Annotated[int, Meta(ge=1, le=5)]


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What all events have; `type` is the subject an event travels on."""

    id: Id
    """Of this event: a second event with the same id and content changes nothing, one with other content is refused."""
    time: Time
    """When it happened, with its time zone."""


class LoggedDecision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything a later policy needs to be judged on a decision."""

    problem: Name
    """What kind of decision: workflow, allocation, prompt, or your own."""
    at_ms: Amount = 0.0
    """When, since the trajectory began."""
    context: Any = None
    """What was known when it was made, beyond the task."""
    eligible: Any = None
    """What could be chosen: a list of actions, or what the problem says instead."""
    action: Any = None
    """What was."""
    propensity: Propensity | None = None
    """How probable that was; null where nobody knows, as when a person chose."""
    policy: Name
    """The version that decided."""


class Turn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One exchange with the world."""

    at_ms: Amount = 0.0
    """When, since the trajectory began."""
    observation: Any = None
    """What the agent saw."""
    action: Any = None
    """What it did."""
    result: Any = None
    """What came of it."""
    error: str | None = None
    """What went wrong, if something did."""
    cost_usd: Amount | None = None
    """What it cost; null where nobody knows."""
    latency_ms: Amount | None = None
    """How long it took; null where nobody knows."""


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the task ended."""

    success: bool | None = None
    """Whether it was done; null where nobody knows."""
    ended: Literal["done", "failed", "aborted", "cancelled", "deadline"] = "done"
    """How it came to its end."""
    error: str | None = None
    """Why it did not end as it should."""
    cost_usd: Amount | None = None
    """What all of it cost; null where nobody knows."""
    latency_ms: Amount | None = None
    """From start to end; null where nobody knows."""
    subtasks: Annotated[int, Meta(ge=0)] | None = None
    """How many there were."""
    subtasks_done: Annotated[int, Meta(ge=0)] | None = None
    """How many of them were done."""
    quality: dict[str, Share] | None = None
    """Scores of the result by name, such as tests passed, linter, judge."""


class Said(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person said of a result."""

    thumbs: Literal["up", "down"] | None = None
    """Good or bad."""
    stars: Stars | None = None
    """From 1, bad, to 5, very good."""
    comment: str | None = None
    """In words."""


class Trajectory(Event, frozen=True, kw_only=True, omit_defaults=True, tag="agent.rl.trajectory.v1"):
    """A task from start to end; `time` is when it began."""

    task: str
    """What was to be done, in words."""
    problem: Name = "workflow"
    """The kind of decision it is about first of all."""
    policy: Name | None = None
    """The version that decided, where one did."""
    agent: Name | None = None
    """Which agent did it."""
    model: Name | None = None
    """The model that the agent speaks with, and its version."""
    user: Name | None = None
    """For whom: a name that means nothing elsewhere."""
    group: Name | None = None
    """The kind of user, for comparison between groups."""
    tenant: Name | None = None
    """Whose rules of redaction hold."""
    decisions: tuple[LoggedDecision, ...] = ()
    """In the order in which they were made."""
    turns: tuple[Turn, ...] = ()
    """In order."""
    outcome: Outcome = Outcome()
    """How it ended."""
    feedback: tuple[Said, ...] = ()
    """What was said of it before it ended."""
    redacted: dict[str, int] | None = None
    """How many values of each kind were replaced by placeholders before this was written."""
    metadata: dict[str, Any] | None = None
    """Anything else, as names and values."""


class Feedback(Event, frozen=True, kw_only=True, omit_defaults=True, tag="agent.rl.feedback.v1"):
    """What a person said of a trajectory, after it ended."""

    trajectory_id: Id
    """What it is about."""
    user: Name | None = None
    """Who says so."""
    thumbs: Literal["up", "down"] | None = None
    """Good or bad."""
    stars: Stars | None = None
    """From 1, bad, to 5, very good."""
    comment: str | None = None
    """In words."""
