"""Spans of a trace in, one trajectory out; what cannot be mapped comes back with the reason."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

import msgspec

from etude.contracts.errors import EventError
from etude.contracts.subjects import MAX_BYTES, encode
from etude.contracts.trajectory import Outcome, Trajectory, Turn
from etude.experience.task import TASK
from etude.serving.genai import (
    USER,
    Direction,
    Evaluation,
    Message,
    Span,
    messages_of,
    structured,
    text,
    tokens,
    trajectory_id,
    user_text,
)

Signal = Literal["traces", "logs"]
DIRECTIONS: tuple[Direction, ...] = ("input", "output")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Reason(StrEnum):
    """Why a span, an event of a span or a log record is not part of a trajectory."""

    NOT_GENAI = "not a GenAI span"
    OTHER_EVENT = "neither an evaluation result nor a message of a model call"
    INVALID_IDS = "without a valid trace id and span id"
    NO_START = "without a start time"
    INVALID_EVALUATION = "evaluation result without a name, or without a score and a label"
    SCORE_RANGE = "evaluation score that is not a number from 0 to 1"
    NO_SPAN = "message of a span that did not arrive"
    TOO_LARGE = "trace that is larger than an event may be"
    LATE = "arrived after its trace was mapped"
    OVER_LIMIT = "more than may be gathered at a time"


INVALID = frozenset(
    {Reason.INVALID_IDS, Reason.NO_START, Reason.INVALID_EVALUATION, Reason.SCORE_RANGE, Reason.TOO_LARGE}
)
"""Reasons that the sender is warned of; the others are no error of the sender."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unmapped:
    """A span, an event of a span or a log record that is not part of a trajectory."""

    reason: Reason
    kind: Literal["span", "event", "record"]
    raw: bytes
    """As it was sent, in protobuf; `otlp.to_json` converts it."""
    detail: str = ""
    """What is wrong with which value."""
    service: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """The content of a request."""

    signal: Signal
    spans: tuple[Span, ...] = ()
    messages: tuple[Message, ...] = ()
    """Messages that came as log records."""
    evaluations: tuple[Evaluation, ...] = ()
    unmapped: tuple[Unmapped, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Mapped:
    """What became events, and what did not."""

    signal: Signal = "traces"
    trajectories: tuple[Trajectory, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    """Evaluation results of trajectories that are not among `trajectories`: `evaluated` adds them later."""
    unmapped: tuple[Unmapped, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Number of spans, events and log records that could not be mapped, by reason."""
        return {reason.value: count for reason, count in Counter(one.reason for one in self.unmapped).items()}


def map_received(received: Received, *, tenant: str | None) -> Mapped:
    """The trajectories of a request. Spans of one trace form one trajectory, or a part of it: see `gathering.py`."""
    spans, messages, evaluations = defaultdict(list), defaultdict(list), defaultdict(list)
    for span in received.spans:
        spans[span.trace_id].append(span)
    for message in received.messages:
        messages[message.trace_id].append(message)
    for evaluation in received.evaluations:
        evaluations[evaluation.trace_id].append(evaluation)
    made: list[Trajectory] = []
    unmapped = list(received.unmapped)
    for trace_id, found in spans.items():
        trajectory, left = to_trajectory(
            found, messages.pop(trace_id, ()), evaluations.get(trace_id, ()), tenant=tenant
        )
        unmapped += left
        if trajectory is not None:
            made.append(trajectory)
            evaluations.pop(trace_id, None)
    for homeless in messages.values():
        unmapped += _not_mapped(Reason.NO_SPAN, homeless)
    return Mapped(
        signal=received.signal,
        trajectories=tuple(made),
        evaluations=tuple(one for several in evaluations.values() for one in several),
        unmapped=tuple(unmapped),
    )


def to_trajectory(
    sent: Iterable[Span], messages: Iterable[Message], evaluations: Iterable[Evaluation], *, tenant: str | None
) -> tuple[Trajectory | None, list[Unmapped]]:
    """The trajectory of spans of one trace, with log records and evaluation results of them; None if no span is a
    GenAI span."""
    spans = sorted({span.id: span for span in sent}.values(), key=lambda span: (span.start_ns, span.id))
    by_span = defaultdict(list)
    for message in messages:
        by_span[message.span_id].append(message)
    known = {span.id for span in spans}
    left = [one for id, several in by_span.items() if id not in known for one in _not_mapped(Reason.NO_SPAN, several)]
    if all(span.operation is None for span in spans):
        unused = [one for id, several in by_span.items() if id in known for one in several]
        return None, [*left, *_not_mapped(Reason.NOT_GENAI, spans), *_not_mapped(Reason.NO_SPAN, unused)]
    trajectory = evaluated(_trajectory(spans, by_span, tenant=tenant), evaluations)
    try:
        size = len(encode(trajectory))
        detail = f"{trajectory.id} has {size:,} bytes: expected at most {MAX_BYTES:,}; send less content"
    except EventError as error:  # a value that JSON cannot hold
        size, detail = MAX_BYTES + 1, str(error)
    if size > MAX_BYTES:
        return None, [*left, *_not_mapped(Reason.TOO_LARGE, spans, detail=detail)]
    return trajectory, left


def evaluated(trajectory: Trajectory, evaluations: Iterable[Evaluation]) -> Trajectory:
    """The trajectory with evaluation results added: all of them to its metadata, and the mean score of each name to
    the quality of its outcome. A result that it has is not added again."""
    metadata = trajectory.metadata or {}
    before = metadata.get("evaluations")
    listed = [one for one in before if isinstance(one, dict)] if isinstance(before, list) else []
    for one in evaluations:
        fields = {"name": one.name, "score": one.score, "label": one.label, "span": one.span_id}
        entry = {
            name: value for name, value in (fields | {"explanation": one.explanation}).items() if value is not None
        }
        if entry not in listed:
            listed = [*listed, entry]
    if not listed:
        return trajectory
    scores: dict[str, list[float]] = defaultdict(list)
    for entry in listed:
        name, score = entry.get("name"), entry.get("score")
        if isinstance(name, str) and isinstance(score, float):
            scores[name].append(score)
    quality = (trajectory.outcome.quality or {}) | {name: sum(all_) / len(all_) for name, all_ in scores.items()}
    outcome = msgspec.structs.replace(trajectory.outcome, quality=quality or None)
    return msgspec.structs.replace(trajectory, outcome=outcome, metadata=metadata | {"evaluations": listed})


def _trajectory(spans: Sequence[Span], messages: Mapping[str, list[Message]], *, tenant: str | None) -> Trajectory:
    """`spans` are in the order of time."""
    root = next((span for span in spans if span.parent_id is None), None)
    agent = next((span for span in spans if span.is_agent), None)
    whole = agent or root  # the span of the task
    first = [whole, *spans] if whole is not None else list(spans)
    inputs = (messages_of(span, messages.get(span.id, ()), "input") for span in first if span.operation is not None)
    task = next(filter(None, map(user_text, inputs)), None) or first[0].name or TASK
    turns = [span for span in spans if span.operation is not None and not (span is whole and span.is_agent)]
    start_ns = spans[0].start_ns
    return Trajectory(
        id=trajectory_id(spans[0].trace_id),
        time=EPOCH + timedelta(microseconds=start_ns // 1000),
        task=task,
        problem=TASK,
        agent=_first(first, "gen_ai.agent.name"),
        model=_model(spans) or _first(first, "gen_ai.response.model", "gen_ai.request.model"),
        user=_first(first, *USER),
        tenant=tenant,
        turns=tuple(_turn(span, messages.get(span.id, ()), start_ns) for span in turns),
        outcome=_outcome([span for span in (root, agent) if span is not None]),
        metadata=_metadata(spans, first),
    )


def _turn(span: Span, sent: Iterable[Message], start_ns: int) -> Turn:
    given = span.attributes
    action = {
        "operation": span.operation,
        "model": text(given, "gen_ai.response.model") or text(given, "gen_ai.request.model"),
        "provider": text(given, "gen_ai.provider.name"),
        "input_tokens": tokens(given, "input"),
        "output_tokens": tokens(given, "output"),
        "agent": text(given, "gen_ai.agent.name"),
        "tool": text(given, "gen_ai.tool.name"),
        "call_id": text(given, "gen_ai.tool.call.id"),
        "arguments": structured(given, "gen_ai.tool.call.arguments"),
        "query": structured(given, "gen_ai.retrieval.query.text"),
    }
    result = messages_of(span, sent, "output")
    for name in ("gen_ai.tool.call.result", "gen_ai.retrieval.documents"):
        result = structured(given, name) if result is None else result
    return Turn(
        at_ms=(span.start_ns - start_ns) / 1e6,
        observation=messages_of(span, sent, "input"),
        action={name: value for name, value in action.items() if value is not None},
        result=result,
        error=_error(span) if span.ok is False else None,
        latency_ms=span.latency_ms,
    )


def _error(span: Span) -> str:
    return span.error or text(span.attributes, "error.type") or f"{span.name or span.operation} failed"


def _outcome(ends: Sequence[Span]) -> Outcome:
    """`ends` are the root span and the span of the agent, as far as they arrived. A span without a status says nothing
    about success: an instrumentation sets errors, and leaves the rest to the application."""
    if not ends:
        return Outcome()
    failed = next((span for span in ends if span.ok is False), None)
    if failed is not None:
        return Outcome(
            success=False, success_by="self", ended="failed", error=_error(failed), latency_ms=ends[0].latency_ms
        )
    done = any(span.ok for span in ends)
    return Outcome(success=True if done else None, success_by="self" if done else None, latency_ms=ends[0].latency_ms)


def _metadata(spans: Sequence[Span], first: Sequence[Span]) -> dict[str, Any]:
    calls = {span.id for span in spans if span.calls_model}
    counted = [span for span in spans if span.id in calls and span.parent_id not in calls]  # else counted twice
    used = {d: [n for span in counted if (n := tokens(span.attributes, d)) is not None] for d in DIRECTIONS}
    found = {
        "source": "opentelemetry",
        "conversation": _first(first, "gen_ai.conversation.id"),
        "agent_id": _first(first, "gen_ai.agent.id"),
        "agent_version": _first(first, "gen_ai.agent.version"),
        "provider": _first(first, "gen_ai.provider.name"),
        "service": next((span.service for span in first if span.service), None),
        **{f"{direction}_tokens": sum(several) for direction, several in used.items() if several},
    }
    return {name: value for name, value in found.items() if value is not None}


def _model(spans: Iterable[Span]) -> str | None:
    """The model of most model calls."""
    models = Counter(
        text(span.attributes, "gen_ai.response.model") or text(span.attributes, "gen_ai.request.model")
        for span in spans
        if span.calls_model
    )
    return next((model for model, _ in models.most_common() if model is not None), None)


def _first(spans: Iterable[Span], *names: str) -> str | None:
    """The first of these attributes that a span has."""
    return next((found for span in spans for name in names if (found := text(span.attributes, name))), None)


def _not_mapped(reason: Reason, items: Iterable[Span | Message], detail: str = "") -> list[Unmapped]:
    return [
        Unmapped(
            reason=reason,
            kind="span" if isinstance(one, Span) else "record",
            raw=one.raw,
            detail=detail,
            service=one.service if isinstance(one, Span) else None,
        )
        for one in items
    ]
