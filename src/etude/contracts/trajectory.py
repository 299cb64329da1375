"""One task from start to end, as an event: its turns, its decisions, its outcome and its ratings.

A trajectory is written once, when its task is over; feedback may follow days later. Fields that a later version of
Etude adds to an event are ignored and kept: stores hold the original bytes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from etude.contracts.decision import Amount, LoggedDecision, Name

Id = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@+-]*$")]
"""Unique among events of its kind; an event that is sent again has the same id."""
PolicyVersion = Annotated[
    str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*(\+[A-Za-z0-9_.-]+)?$")
]
"""Version of a policy: the 16 hexadecimal digits of its artefact, with +SUFFIX for how it is used, or the name of a
policy without an artefact, such as `rules`. It is not a path or URL."""
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of a file, in hexadecimal."""
Time = Annotated[datetime, Meta(tz=True)]
Share = Annotated[float, Meta(ge=0, le=1)]
Stars = Annotated[int, Meta(ge=1, le=5)]
SuccessBy = Literal["verifier", "judge", "person", "self"]
"""Who said whether a task succeeded: a verifier of the whole task, a language model as its judge, a person, or `self`:
the agent's own report, since all subtasks of its own plan ended well."""


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """The fields that all events have; `type` is the subject of an event."""

    id: Id
    """Id of this event: a second event with this id changes nothing if its content is equal, else it is refused."""
    time: Time
    """Time of the event, with its time zone."""


class Turn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One interaction of the agent with its environment."""

    at_ms: Amount = 0.0
    """Milliseconds since the trajectory began."""
    observation: Any = None
    """What the agent saw."""
    action: Any = None
    """What the agent did."""
    result: Any = None
    """Result of the action."""
    error: str | None = None
    """Error message, if the action failed."""
    cost_usd: Amount | None = None
    """Cost in USD; null if unknown."""
    latency_ms: Amount | None = None
    """Duration in milliseconds; null if unknown."""


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the task ended."""

    success: bool | None = None
    """Whether the task succeeded; null if unknown."""
    success_by: SuccessBy | None = None
    """Who said so: verifier, judge, person, or self (all subtasks of its own plan ended well); null if unknown."""
    ended: Literal["done", "failed", "aborted", "cancelled", "deadline"] = "done"
    """Why the task ended."""
    error: str | None = None
    """Error message, if the task did not end normally."""
    cost_usd: Amount | None = None
    """Cost of the whole task in USD; null if unknown."""
    latency_ms: Amount | None = None
    """Duration of the whole task in milliseconds; null if unknown."""
    subtasks: Annotated[int, Meta(ge=0)] | None = None
    """Number of subtasks."""
    subtasks_done: Annotated[int, Meta(ge=0)] | None = None
    """Number of subtasks that were done."""
    quality: dict[str, Share] | None = None
    """Scores of the result by name, such as tests passed, linter or judge."""


class Rating(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person's opinion of a result."""

    thumbs: Literal["up", "down"] | None = None
    """Good or bad."""
    stars: Stars | None = None
    """From 1, bad, to 5, very good."""
    comment: str | None = None
    """Comment in words."""


class Trajectory(Event, frozen=True, kw_only=True, omit_defaults=True, tag="agent.rl.trajectory.v1"):
    """A task from start to end; `time` is its start."""

    task: str
    """Description of the task, in words."""
    problem: Name
    """Problem of its first decision: its name, choice:NAME for a choice of your own, `task` without a decision."""
    policy: Name | None = None
    """Version of the policy that decided, if any."""
    agent: Name | None = None
    """Name of the agent."""
    model: Name | None = None
    """Model that the agent uses, with its version."""
    user: Name | None = None
    """User that the task was done for: an id that has no meaning elsewhere."""
    group: Name | None = None
    """Group of the user, for comparison between groups."""
    tenant: Name | None = None
    """Tenant whose redaction rules apply."""
    decisions: tuple[LoggedDecision, ...] = ()
    """Decisions in the order in which they were made."""
    turns: tuple[Turn, ...] = ()
    """Turns in order."""
    outcome: Outcome = Outcome()
    """How it ended."""
    feedback: tuple[Rating, ...] = ()
    """Ratings given before the task ended."""
    redacted: dict[str, int] | None = None
    """Number of values per kind that redaction replaced by placeholders."""
    metadata: dict[str, Any] | None = None
    """Any other names and values."""


class Feedback(Event, frozen=True, kw_only=True, omit_defaults=True, tag="agent.rl.feedback.v1"):
    """A person's rating of a trajectory, after it ended."""

    trajectory_id: Id
    """Id of the trajectory that is rated."""
    user: Name | None = None
    """User who gave the rating."""
    thumbs: Literal["up", "down"] | None = None
    """Good or bad."""
    stars: Stars | None = None
    """From 1, bad, to 5, very good."""
    comment: str | None = None
    """Comment in words."""


def rating_scores(rating: Rating | Feedback) -> list[float]:
    """Thumbs and stars as scores, each from 0, bad, to 1, very good."""
    thumbs = [] if rating.thumbs is None else [float(rating.thumbs == "up")]
    return thumbs if rating.stars is None else [*thumbs, (rating.stars - 1) / 4]
