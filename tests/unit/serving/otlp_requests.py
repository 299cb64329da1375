"""OTLP requests for tests, in both encodings."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

from etude.serving.otlp import JSON, PROTOBUF, parse_logs, parse_traces
from etude.serving.traces import Mapped, Received, map_received

TRACE, OTHER_TRACE = "5b8efff798038103d269b633813fc60c", "aa" * 16
CHAT_2, WEB, TOOL, ROOT, CHAT = (f"eee19b7ec3c1b17{n}" for n in range(5))
START = 1_760_000_000_000_000_000
MAX = 1 << 20


def any_value(value: Any) -> dict[str, Any]:
    """A value as in OTLP/JSON, where 64-bit integers are strings."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        special = {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        return {"doubleValue": value if math.isfinite(value) else special}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(one) for one in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": attributes(value)}}
    if isinstance(value, bytes):
        return {"bytesValue": b64encode(value).decode()}
    return {"stringValue": value}


def attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": any_value(value)} for name, value in values.items()]


def event(name: str, also: Mapping[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    return {"name": name, "timeUnixNano": str(START), "attributes": attributes(gen_ai(values | dict(also or {})))}


def gen_ai(values: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes by short names: `request_model` is gen_ai.request.model; other prefixes are written with dots."""
    short = {"input_tokens": "usage.input_tokens", "output_tokens": "usage.output_tokens"}
    return {
        name if "." in name else f"gen_ai.{short.get(name, name.replace('_', '.'))}": value
        for name, value in values.items()
    }


def span(
    id: str,
    parent: str | None = None,
    *,
    name: str = "",
    at_ms: float = 0.0,
    ms: float = 100.0,
    trace: str = TRACE,
    status: dict[str, Any] | None = None,
    events: list[dict[str, Any]] | None = None,
    also: Mapping[str, Any] | None = None,
    **values: Any,
) -> dict[str, Any]:
    begin = START + int(at_ms * 1e6)
    return {
        "traceId": trace,
        "spanId": id,
        **({"parentSpanId": parent} if parent else {}),
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(begin),
        "endTimeUnixNano": str(begin + int(ms * 1e6)),
        "attributes": attributes(gen_ai(values | dict(also or {}))),
        "events": events or [],
        "status": status or {},
    }


def trace_request(*spans: dict[str, Any]) -> dict[str, Any]:
    resource = {"attributes": attributes({"service.name": "desk"})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "s"}, "spans": list(spans)}]}]}


def record(name: str | None, *, trace: str = TRACE, id: str = CHAT, body: Any = None, **values: Any) -> dict[str, Any]:
    return {
        "timeUnixNano": str(START),
        "traceId": trace,
        "spanId": id,
        **({"eventName": name} if name else {}),
        **({"body": any_value(body)} if body is not None else {}),
        "attributes": attributes(gen_ai(values)),
    }


def log_request(*records: dict[str, Any]) -> dict[str, Any]:
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}


def protobuf(request: dict[str, Any]) -> bytes:
    """The same request in protobuf, made field by field rather than by the code under test."""
    logs = "resourceLogs" in request
    made = json_format.ParseDict(
        without_ids(request), ExportLogsServiceRequest() if logs else ExportTraceServiceRequest()
    )
    groups = made.resource_logs if logs else made.resource_spans
    for group, said in zip(groups, request["resourceLogs" if logs else "resourceSpans"], strict=True):
        scopes = group.scope_logs if logs else group.scope_spans
        for scope, said_scope in zip(scopes, said["scopeLogs" if logs else "scopeSpans"], strict=True):
            items = scope.log_records if logs else scope.spans
            for item, said_item in zip(items, said_scope["logRecords" if logs else "spans"], strict=True):
                item.trace_id = bytes.fromhex(said_item["traceId"])
                item.span_id = bytes.fromhex(said_item["spanId"])
                if "parentSpanId" in said_item:
                    item.parent_span_id = bytes.fromhex(said_item["parentSpanId"])
    body = made.SerializeToString()
    assert isinstance(body, bytes)
    return body


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {n: without_ids(one) for n, one in value.items() if n not in ("traceId", "spanId", "parentSpanId")}
    return [without_ids(one) for one in value] if isinstance(value, list) else value


def read(request: dict[str, Any], content_type: str = JSON, **how: Any) -> Mapped:
    body = protobuf(request) if content_type == PROTOBUF else json.dumps(request).encode()
    reader = read_logs if "resourceLogs" in request else read_traces
    return reader(body, content_type=content_type, content_encoding=None, max_bytes=MAX, **how)


def read_traces(body: bytes, *, tenant: str | None = None, **sent: Any) -> Mapped:
    """The trajectories of a request that holds whole traces."""
    return map_received(parse_traces(body, **sent), tenant=tenant)


def read_logs(body: bytes, *, tenant: str | None = None, **sent: Any) -> Mapped:
    return map_received(parse_logs(body, **sent), tenant=tenant)


def parse(request: dict[str, Any]) -> Received:
    parser = parse_logs if "resourceLogs" in request else parse_traces
    return parser(json.dumps(request).encode(), content_type=JSON, content_encoding=None, max_bytes=MAX)


def user_says(text: str) -> str:
    return json.dumps([{"role": "user", "parts": [{"type": "text", "content": text}]}])


def desk() -> dict[str, Any]:
    """An agent that asks a model, calls a tool that fails, asks again; with a span that is not GenAI."""
    return trace_request(
        span(
            CHAT_2,
            ROOT,
            name="chat gpt-5",
            at_ms=300,
            operation_name="chat",
            request_model="gpt-5",
            response_model="gpt-5-2026",
            input_tokens=40,
            output_tokens=4,
            provider_name="openai",
        ),
        span(
            ROOT,
            name="invoke_agent desk",
            ms=500,
            operation_name="invoke_agent",
            agent_name="desk",
            agent_id="a1",
            conversation_id="c7",
            input_tokens=70,
            output_tokens=9,
            also={"gen_ai.input.messages": user_says("Where is my parcel?"), "user.id": "u-17"},
        ),
        span(
            CHAT,
            ROOT,
            name="chat gpt-5",
            at_ms=10,
            operation_name="chat",
            request_model="gpt-5",
            response_model="gpt-5-2026",
            input_tokens=30,
            output_tokens=5,
            provider_name="openai",
            also={"gen_ai.output.messages": '[{"role": "assistant", "parts": []}]'},
        ),
        span(
            TOOL,
            ROOT,
            name="execute_tool track",
            at_ms=150,
            ms=50,
            operation_name="execute_tool",
            tool_name="track",
            tool_call_id="call-1",
            tool_call_arguments='{"parcel": 12}',
            status={"code": 2, "message": "timed out"},
        ),
        span(WEB, TOOL, name="GET", at_ms=160, also={"http.method": "GET"}),
    )


def result(name: str | None = "relevance", score: Any = 0.75, label: str | None = None) -> dict[str, Any]:
    found = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": score}
    found["gen_ai.evaluation.score.label"] = label
    return {key: value for key, value in found.items() if value is not None}
