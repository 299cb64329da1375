"""One table: event ↔ subject ↔ JSON Schema ↔ stream ↔ retention; it encodes and decodes events.

A subject ends in its version. Within a version events only gain fields, which older readers ignore. Another version is
another subject: `MIGRATIONS` brings events of older versions up to the current one. Events of newer versions are
refused with that reason, kept as dead letters, and can be replayed after an upgrade.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from etude.contracts.deployment import ModelDeployed
from etude.contracts.errors import EventError
from etude.contracts.reward import Reward
from etude.contracts.training import TrainingRequest, TrainingStatus
from etude.contracts.trajectory import Event, Feedback, Trajectory

TRAJECTORIES, REWARDS, TRAINING = "AGENT_RL_TRAJECTORIES", "AGENT_RL_REWARDS", "AGENT_RL_TRAINING"
DEAD_LETTERS = "AGENT_RL_DEAD_LETTERS"
MAX_BYTES = 16 << 20
"""Maximum size of an event; a larger one is refused."""


@dataclass(frozen=True, kw_only=True)
class Topic:
    event: type[Event]
    schema: str  # the file, and where in it
    stream: str
    retention_days: int

    @property
    def subject(self) -> str:
        return subject_of(self.event)


TOPICS: tuple[Topic, ...] = (
    Topic(event=Trajectory, schema="trajectory.v1.schema.json", stream=TRAJECTORIES, retention_days=30),
    Topic(event=Feedback, schema="trajectory.v1.schema.json#/$defs/Feedback", stream=TRAJECTORIES, retention_days=30),
    Topic(event=Reward, schema="reward.v1.schema.json", stream=REWARDS, retention_days=30),
    Topic(event=TrainingRequest, schema="training.request.v1.schema.json", stream=TRAINING, retention_days=7),
    Topic(event=TrainingStatus, schema="training.status.v1.schema.json", stream=TRAINING, retention_days=7),
    Topic(event=ModelDeployed, schema="model.deployed.v1.schema.json", stream=TRAINING, retention_days=7),
)
STREAMS: Mapping[str, int] = {topic.stream: topic.retention_days for topic in TOPICS} | {DEAD_LETTERS: 30}
"""Days for which each stream keeps its events; unacknowledged events are kept for longer."""
STORED_FIRST = frozenset({REWARDS})
"""Streams whose events are stored before they are published: they expire even if no consumer exists."""

Migration = Callable[[dict[str, Any]], dict[str, Any]]
MIGRATIONS: dict[str, Migration] = {}
"""Subject of an older version → function from its JSON to the JSON of the next version."""


def subject_of(event: type[Event] | Event) -> str:
    kind = event if isinstance(event, type) else type(event)
    tag = kind.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def stream_of(subject: str) -> str:
    """Versions of a subject share a stream."""
    family = _family(subject)[0]
    for topic in TOPICS:
        if _family(topic.subject)[0] == family:
            return topic.stream
    raise EventError(f"subject {subject!r} is unknown: expected one of {', '.join(_EVENTS)}")


def encode(event: Event) -> bytes:
    try:
        return _encoder.encode(event)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EventError(f"{subject_of(event)} {event.id!r} cannot be written as JSON ({error})") from error


def decode(body: bytes, *, subject: str | None = None, migrations: Mapping[str, Migration] = MIGRATIONS) -> Event:
    """An event from its JSON. EventError says what is wrong with it; whatever the bytes, nothing else is raised."""
    return to_event(read_json(body), subject=subject, migrations=migrations)


def read_json(body: bytes) -> Any:
    """The JSON value in the bytes of an event; EventError as `decode`."""
    if len(body) > MAX_BYTES:
        raise EventError(f"has {len(body):,} bytes: an event has at most {MAX_BYTES:,}; leave large outputs out of it")
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EventError(f"not valid JSON: {error}") from error
    except RecursionError as error:
        raise EventError("nested too deeply to be read: flatten it, or leave that part out") from error


def to_event(raw: Any, *, subject: str | None = None, migrations: Mapping[str, Migration] = MIGRATIONS) -> Event:
    """An event from its JSON value; EventError as `decode`."""
    try:
        found = msgspec.convert(raw, _Head).type if subject is None else subject
        if found not in _EVENTS:
            found, raw = _migrated(found, raw, migrations)
        return msgspec.convert(raw, _EVENTS[found])
    except msgspec.ValidationError as error:
        raise EventError(f"not what its schema says: {error}") from error


def _migrated(subject: str, raw: Any, migrations: Mapping[str, Migration]) -> tuple[str, Any]:
    """The subject and the JSON of the event, brought up to the version that this Etude reads."""
    family, version = _family(subject)
    known = next((s for s in _EVENTS if _family(s)[0] == family), None)
    if known is None or version is None:
        raise EventError(f"subject {subject!r} is unknown: expected one of {', '.join(_EVENTS)}")
    newest = _family(known)[1]
    assert newest is not None
    if version > newest:
        raise EventError(
            f"{subject} is a newer version than this Etude knows ({known}): upgrade it, then "
            "`etude experience replay-dead-letters`"
        )
    for older in range(version, newest):
        step = migrations.get(f"{family}.v{older}")
        if step is None:
            raise EventError(f"{subject} is an older version that this Etude has no migration for: expected {known}")
        raw = step(raw)
    return known, raw | {"type": known}


def _family(subject: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(.+)\.v(\d{1,6})", subject)
    return (match[1], int(match[2])) if match else (subject, None)


class _Head(msgspec.Struct):
    type: str


_encoder = msgspec.json.Encoder()
_EVENTS: dict[str, type[Event]] = {topic.subject: topic.event for topic in TOPICS}
