"""OTLP requests of agents in, spans, messages and evaluation results out; answers in the encoding of the request.

An exporter sends the spans of a trace over several requests: a `Gathering` collects what is parsed here. Bodies that
cannot be read raise DataError.
"""

from __future__ import annotations

import math
import re
import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Literal, TypeVar

import msgspec
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2

from etude.contracts.arguments import shown
from etude.contracts.errors import DataError
from etude.contracts.plain import plain
from etude.serving.genai import (
    DETAILS,
    EVALUATION,
    MESSAGES,
    OTHER,
    PREFIX,
    Evaluation,
    Message,
    Span,
    read_messages,
    text,
)
from etude.serving.traces import INVALID, Mapped, Reason, Received, Unmapped

PROTOBUF, JSON = "application/x-protobuf", "application/json"
WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""Content encoding → the format that zlib expects."""
MAX_ITEMS = 50_000
"""Maximum number of spans or log records per request; SDKs send 512 at a time."""
MAX_TEXT_CHARS = 4096
"""Maximum length of an explanation."""
IDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")
HEX = re.compile("[0-9a-fA-F]*")

T = TypeVar("T")
Request = TypeVar("Request", ExportTraceServiceRequest, ExportLogsServiceRequest)


def answer(received: Received | Mapped, content_type: str) -> tuple[bytes, str]:
    """The body of the response and its content type, which is that of the request.

    Spans and log records with an error of the sender are counted as rejected; those that are no part of a trajectory
    for another reason are accepted.
    """
    kind = _media_type(content_type)
    wrong = [one for one in received.unmapped if one.reason in INVALID]
    rejected = sum(one.kind != "event" for one in wrong)
    message = "; ".join(_warnings(wrong))
    response: Any
    if received.signal == "traces":
        response = ExportTraceServiceResponse()
        if wrong:
            response.partial_success.rejected_spans = rejected
            response.partial_success.error_message = message
    else:
        response = ExportLogsServiceResponse()
        if wrong:
            response.partial_success.rejected_log_records = rejected
            response.partial_success.error_message = message
    if kind == PROTOBUF:
        return response.SerializeToString(), kind
    return msgspec.json.encode(json_format.MessageToDict(response)), kind


def to_json(unmapped: Unmapped) -> bytes:
    """A span, event or log record that was not mapped, as in OTLP/JSON, with the reason."""
    kinds: dict[str, Any] = {"span": trace_pb2.Span, "event": trace_pb2.Span.Event, "record": LogRecord}
    content = json_format.MessageToDict(kinds[unmapped.kind].FromString(unmapped.raw))
    for one in (content, *content.get("links", ())):
        for name in IDS:
            if name in one:
                one[name] = b64decode(one[name]).hex()
    found = {"reason": unmapped.reason.value, "detail": unmapped.detail, "service": unmapped.service}
    kept = {name: value for name, value in found.items() if value}
    return msgspec.json.encode(kept | {unmapped.kind: content})


def parse_traces(body: bytes, *, content_type: str, content_encoding: str | None, max_bytes: int) -> Received:
    """The content of a request to /v1/traces."""
    request = _request(ExportTraceServiceRequest, body, content_type, content_encoding, max_bytes)
    sent = _items(
        "spans",
        (
            (span, group.resource)
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ),
    )
    spans: list[Span] = []
    evaluations: list[Evaluation] = []
    unmapped: list[Unmapped] = []
    for message, resource in sent:
        service = _service(resource)
        span = _span(message, service)
        if isinstance(span, Unmapped):
            unmapped.append(span)
            continue
        for event in message.events:
            if event.name == EVALUATION:
                found = _evaluation(
                    _values(event.attributes), span.trace_id, span.id, event.SerializeToString(), kind="event"
                )
                evaluations += [found] if isinstance(found, Evaluation) else []
                unmapped += [found] if isinstance(found, Unmapped) else []
        if span.operation is None and span.parent_id is not None:
            unmapped.append(Unmapped(reason=Reason.NOT_GENAI, kind="span", raw=span.raw, service=service))
        else:
            spans.append(span)
    return Received(signal="traces", spans=tuple(spans), evaluations=tuple(evaluations), unmapped=tuple(unmapped))


def parse_logs(body: bytes, *, content_type: str, content_encoding: str | None, max_bytes: int) -> Received:
    """The content of a request to /v1/logs."""
    request = _request(ExportLogsServiceRequest, body, content_type, content_encoding, max_bytes)
    sent = _items(
        "log records",
        (
            (record, group.resource)
            for group in request.resource_logs
            for scope in group.scope_logs
            for record in scope.log_records
        ),
    )
    messages: list[Message] = []
    evaluations: list[Evaluation] = []
    unmapped: list[Unmapped] = []
    for record, resource in sent:
        one = _record(record, _service(resource))
        if isinstance(one, Message):
            messages.append(one)
        elif isinstance(one, Evaluation):
            evaluations.append(one)
        else:
            unmapped.append(one)
    return Received(signal="logs", messages=tuple(messages), evaluations=tuple(evaluations), unmapped=tuple(unmapped))


def _request(
    kind: Callable[[], Request], body: bytes, content_type: str, content_encoding: str | None, max_bytes: int
) -> Request:
    media_type = _media_type(content_type)
    content = _decompressed(body, content_encoding, max_bytes)
    request = kind()
    try:
        if media_type == PROTOBUF:
            request.ParseFromString(content)
        else:
            raw = msgspec.json.decode(content)
            if not isinstance(raw, dict):
                raise DataError(f"the body is {shown(raw)}: expected a JSON object of OTLP")
            for one in _with_ids(raw):
                _convert_ids(one)
            json_format.ParseDict(raw, request, ignore_unknown_fields=True)
    except DataError:
        raise
    except RecursionError as error:
        raise DataError("the body is nested too deeply to be read: send flatter attributes") from error
    except Exception as error:  # a body may hold anything, and the parsers promise no class of error
        reason = f"{type(error).__name__}: {plain(str(error))[:300]}"
        raise DataError(f"the body of {len(content):,} bytes is not OTLP in {media_type} ({reason})") from error
    return request


def _media_type(content_type: str) -> str:
    found = content_type.partition(";")[0].strip().lower()
    if found not in (PROTOBUF, JSON):
        raise DataError(f"content type {shown(content_type)} is unknown: expected {PROTOBUF} or {JSON}")
    return found


def _decompressed(body: bytes, content_encoding: str | None, max_bytes: int) -> bytes:
    """The body, decompressed only as far as the limit."""
    if len(body) > max_bytes:
        raise DataError(f"the body has {len(body):,} bytes: expected at most {max_bytes:,}; send smaller batches")
    encoding = (content_encoding or "identity").strip().lower()
    if encoding == "identity":
        return body
    if encoding not in WINDOW_BITS:
        raise DataError(f"content encoding {shown(content_encoding)} is unknown: expected gzip, deflate or none")
    stream = zlib.decompressobj(wbits=WINDOW_BITS[encoding])
    try:
        found = stream.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise DataError(f"the body is not {encoding} ({error})") from error
    if len(found) > max_bytes:
        raise DataError(f"the body is larger than {max_bytes:,} bytes when decompressed: send smaller batches")
    if not stream.eof or stream.unused_data:
        raise DataError(f"the {encoding} body is {'truncated' if not stream.eof else 'followed by other bytes'}")
    return found


def _with_ids(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Objects of OTLP/JSON that have ids: spans, their links, and log records."""
    for group in _objects(raw, "resourceSpans", "resource_spans"):
        for scope in _objects(group, "scopeSpans", "scope_spans"):
            for span in _objects(scope, "spans"):
                yield span
                yield from _objects(span, "links")
    for group in _objects(raw, "resourceLogs", "resource_logs"):
        for scope in _objects(group, "scopeLogs", "scope_logs"):
            yield from _objects(scope, "logRecords", "log_records")


def _objects(raw: dict[str, Any], *names: str) -> Iterator[dict[str, Any]]:
    for name in names:
        several = raw.get(name)
        if isinstance(several, list):
            yield from (one for one in several if isinstance(one, dict))


def _convert_ids(raw: dict[str, Any]) -> None:
    """Ids are hexadecimal in OTLP/JSON, but the JSON of protobuf has bytes in base64."""
    for name in IDS:
        value = raw.get(name)
        if isinstance(value, str):
            if not HEX.fullmatch(value) or len(value) % 2:
                raise DataError(f"{name} is {shown(value)}: expected hexadecimal digits, as OTLP/JSON has ids")
            raw[name] = b64encode(bytes.fromhex(value)).decode("ascii")


def _items(what: str, all_: Iterable[T]) -> list[T]:
    """A list of them; more than MAX_ITEMS are not even read, since each takes far more memory than in the request."""
    found = list(islice(all_, MAX_ITEMS + 1))
    if len(found) > MAX_ITEMS:
        raise DataError(f"the request has more than {MAX_ITEMS:,} {what}: send smaller batches")
    return found


def _span(message: trace_pb2.Span, service: str | None) -> Span | Unmapped:
    raw = message.SerializeToString()
    wrong = _wrong_ids(message.trace_id, message.span_id)
    if wrong is not None:
        return Unmapped(reason=Reason.INVALID_IDS, kind="span", raw=raw, detail=wrong, service=service)
    if not message.start_time_unix_nano:
        return Unmapped(reason=Reason.NO_START, kind="span", raw=raw, service=service)
    trace_id, span_id = message.trace_id.hex(), message.span_id.hex()
    attributes = {
        name: value for name, value in _values(message.attributes).items() if name.startswith(PREFIX) or name in OTHER
    }
    messages = [
        one
        for event in message.events
        if (event.name in MESSAGES or event.name == DETAILS)
        and (one := read_messages(event.name, _values(event.attributes), None, trace_id=trace_id, span_id=span_id))
    ]
    code = message.status.code
    return Span(
        trace_id=trace_id,
        id=span_id,
        parent_id=message.parent_span_id.hex() if any(message.parent_span_id) else None,
        name=message.name,
        start_ns=message.start_time_unix_nano,
        end_ns=message.end_time_unix_nano,
        attributes=attributes,
        ok={trace_pb2.Status.STATUS_CODE_OK: True, trace_pb2.Status.STATUS_CODE_ERROR: False}.get(code),
        error=message.status.message,
        messages=tuple(messages),
        service=service,
        raw=raw,
    )


def _record(record: LogRecord, service: str | None) -> Message | Evaluation | Unmapped:
    """The content of a log record."""
    attributes, raw = _values(record.attributes), record.SerializeToString()
    event = record.event_name or text(attributes, "event.name") or ""
    other = Unmapped(reason=Reason.OTHER_EVENT, kind="record", raw=raw, service=service)
    if event not in (EVALUATION, DETAILS, *MESSAGES):
        return other
    # An evaluation may be of a whole trace; a message belongs to a span.
    wrong = _wrong_ids(record.trace_id, record.span_id, optional=event == EVALUATION)
    if wrong is not None:
        return Unmapped(reason=Reason.INVALID_IDS, kind="record", raw=raw, detail=wrong, service=service)
    trace_id, span_id = record.trace_id.hex(), record.span_id.hex()
    if event == EVALUATION:
        return _evaluation(attributes, trace_id, span_id if any(record.span_id) else None, raw, kind="record")
    body = _value(record.body)
    return read_messages(event, attributes, body, trace_id=trace_id, span_id=span_id, raw=raw) or other


def _wrong_ids(trace_id: bytes, span_id: bytes, *, optional: bool = False) -> str | None:
    """What is wrong with the ids, if anything; an `optional` span id may be missing."""
    if len(trace_id) != 16 or not any(trace_id):
        return f"traceId is {shown(trace_id.hex())}: expected 32 hexadecimal digits, not all 0"
    if optional and not any(span_id) and len(span_id) in (0, 8):
        return None
    if len(span_id) != 8 or not any(span_id):
        return f"spanId is {shown(span_id.hex())}: expected 16 hexadecimal digits, not all 0"
    return None


def _evaluation(
    attributes: dict[str, Any], trace_id: str, span_id: str | None, raw: bytes, *, kind: Literal["event", "record"]
) -> Evaluation | Unmapped:
    name = text(attributes, "gen_ai.evaluation.name")
    score = attributes.get("gen_ai.evaluation.score.value")
    label = text(attributes, "gen_ai.evaluation.score.label")
    if name is None or (score is None and label is None):
        return Unmapped(reason=Reason.INVALID_EVALUATION, kind=kind, raw=raw)
    if score is not None and not _is_share(score):
        detail = f"{name!r} has the score {shown(score)}: scale it to 0 (bad) to 1 (good)"
        return Unmapped(reason=Reason.SCORE_RANGE, kind=kind, raw=raw, detail=detail)
    return Evaluation(
        trace_id=trace_id,
        span_id=span_id,
        name=name,
        score=None if score is None else float(score),
        label=label,
        explanation=text(attributes, "gen_ai.evaluation.explanation", max_chars=MAX_TEXT_CHARS),
        kind=kind,
        raw=raw,
    )


def _is_share(score: Any) -> bool:
    return isinstance(score, int | float) and not isinstance(score, bool) and math.isfinite(score) and 0 <= score <= 1


def _service(resource: Resource) -> str | None:
    found = next((one.value.string_value for one in resource.attributes if one.key == "service.name"), "")
    return str(plain(found))[:256] or None


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: AnyValue) -> Any:
    """The value in the types of JSON, with bytes in base64."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    if kind == "kvlist_value":
        return {one.key: _value(one.value) for one in value.kvlist_value.values}
    if kind == "bytes_value":
        return b64encode(value.bytes_value).decode("ascii")
    return None if kind is None else getattr(value, kind)


def _warnings(wrong: list[Unmapped]) -> Iterator[str]:
    """For each reason: how many, and the details of the first."""
    for reason, count in Counter(one.reason for one in wrong).items():
        detail = next((one.detail for one in wrong if one.reason is reason), "")
        yield f"{count} × {reason.value}" + (f" ({detail})" if detail else "")
