"""Collects the spans of a trace until it is complete: exporters send spans as they end, over several requests."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Gt

from etude.serving.genai import Evaluation, Message, Span
from etude.serving.traces import Mapped, Reason, Received, Unmapped, map_received

Item = Span | Message | Evaluation


@dataclass(frozen=True, kw_only=True)
class GatheringConfig:
    """When a trace is complete, and how much is gathered at a time."""

    quiet_s: Annotated[float, Gt(0)] = 10.0
    """Seconds without a new span after which a trace with a root span is complete."""
    max_wait_s: Annotated[float, Gt(0)] = 600.0
    """Seconds without a new span after which a trace is mapped without a root span."""
    max_trace_spans: Annotated[int, Gt(0)] = 10_000
    """Maximum number of spans, messages and evaluation results of one trace; a larger one is dropped."""
    max_traces: Annotated[int, Gt(0)] = 10_000
    """Maximum number of traces; the one that is quiet for longest is dropped first."""
    max_spans: Annotated[int, Gt(0)] = 100_000
    """Maximum number of spans, messages and evaluation results of all traces."""
    max_bytes: Annotated[int, Gt(0)] = 256 << 20
    """Maximum size in bytes of all traces, as they were sent."""


@dataclass(kw_only=True)
class _Trace:
    items: dict[tuple[str | None, bytes], Item] = field(default_factory=dict)
    """By span and bytes, so that what is sent again changes nothing."""
    bytes: int = 0
    last_s: float = 0.0
    has_root: bool = False
    has_spans: bool = False
    has_messages: bool = False

    def waits_s(self, config: GatheringConfig) -> float:
        """Seconds of quiet until it is complete. Evaluation results alone are of a trace that was mapped earlier."""
        waits = (self.has_spans or self.has_messages) and not self.has_root
        return config.max_wait_s if waits else config.quiet_s


class Gathering:
    """The unfinished traces of one tenant. One per tenant, so that none can take the space of another.

    A trace is complete when its root span has arrived and no other for `quiet_s`; without a root span, after
    `max_wait_s`. Times are arguments, in seconds of a monotonic clock. It is for one thread at a time.
    """

    def __init__(self, config: GatheringConfig, *, tenant: str | None) -> None:
        self._config, self._tenant = config, tenant
        self._traces: OrderedDict[str, _Trace] = OrderedDict()  # the quietest first
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._items = self._bytes = 0
        self.dropped: Counter[Reason] = Counter()
        """Number of spans, messages and evaluation results that were dropped, by reason."""

    def __len__(self) -> int:
        """Number of unfinished traces."""
        return len(self._traces)

    def add(self, received: Received, *, now_s: float) -> tuple[Unmapped, ...]:
        """Add the content of a request; returns what is dropped: what came too late, and what exceeds the limits."""
        dropped: list[Unmapped] = []
        items: tuple[Item, ...] = (*received.spans, *received.messages, *received.evaluations)
        for one in items:
            if one.trace_id in self._closed and not isinstance(one, Evaluation):
                dropped.append(_unmapped(Reason.LATE, one))
                continue
            self._put(one, now_s)
            while (id := self._over_limit(one.trace_id)) is not None:
                dropped += [_unmapped(Reason.OVER_LIMIT, item) for item in self._remove(id).items.values()]
        self.dropped.update(one.reason for one in dropped)
        return tuple(dropped)

    def take(self, *, now_s: float) -> Mapped:
        """Map and remove the traces that are complete."""
        complete = [id for id, trace in self._traces.items() if now_s - trace.last_s >= trace.waits_s(self._config)]
        return self._map(complete)

    def take_all(self) -> Mapped:
        """Map and remove all traces, complete or not: the process stops."""
        return self._map(list(self._traces))

    def _map(self, ids: Sequence[str]) -> Mapped:
        items = [one for id in ids for one in self._remove(id).items.values()]
        received = Received(
            signal="traces",
            spans=tuple(one for one in items if isinstance(one, Span)),
            messages=tuple(one for one in items if isinstance(one, Message)),
            evaluations=tuple(one for one in items if isinstance(one, Evaluation)),
        )
        return map_received(received, tenant=self._tenant)

    def _put(self, one: Item, now_s: float) -> None:
        trace = self._traces.setdefault(one.trace_id, _Trace())
        self._traces.move_to_end(one.trace_id)
        trace.last_s = now_s
        key = (one.id, b"") if isinstance(one, Span) else (one.span_id, one.raw)
        if key in trace.items:
            return
        trace.items[key] = one
        if isinstance(one, Span):
            trace.has_spans, trace.has_root = True, trace.has_root or one.parent_id is None
        trace.has_messages = trace.has_messages or isinstance(one, Message)
        trace.bytes += len(one.raw)
        self._items, self._bytes = self._items + 1, self._bytes + len(one.raw)

    def _over_limit(self, added: str) -> str | None:
        """The trace to drop next: the one added to if it is too large by itself, else the quietest."""
        limits, trace = self._config, self._traces.get(added)
        if trace is not None and len(trace.items) > limits.max_trace_spans:
            return added
        full = len(self._traces) > limits.max_traces or self._items > limits.max_spans
        return next(iter(self._traces)) if full or self._bytes > limits.max_bytes else None

    def _remove(self, id: str) -> _Trace:
        """What arrives later would be a second trajectory with the same id, so the trace is closed."""
        trace = self._traces.pop(id)
        self._items, self._bytes = self._items - len(trace.items), self._bytes - trace.bytes
        if trace.has_spans:
            self._closed[id] = None
        while len(self._closed) > self._config.max_traces:
            self._closed.popitem(last=False)
        return trace


def _unmapped(reason: Reason, one: Item) -> Unmapped:
    if isinstance(one, Span):
        return Unmapped(reason=reason, kind="span", raw=one.raw, service=one.service)
    from_span = isinstance(one, Evaluation) and one.kind == "event"
    return Unmapped(reason=reason, kind="event" if from_span else "record", raw=one.raw)
