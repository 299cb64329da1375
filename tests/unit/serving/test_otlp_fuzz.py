"""Whatever a body holds, DataError is the only exception."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from etude.contracts.errors import DataError
from etude.contracts.subjects import decode, encode
from etude.serving.otlp import JSON, PROTOBUF, answer, to_json
from tests.unit.serving.otlp_requests import (
    CHAT,
    MAX,
    TRACE,
    desk,
    event,
    log_request,
    protobuf,
    read_logs,
    read_traces,
    record,
    result,
    span,
    trace_request,
    user_says,
)


def survives(body: bytes, content_type: str, content_encoding: str | None = None) -> None:
    """Both readers read the body, or raise DataError; what they make can be stored and answered."""
    for reader in (read_traces, read_logs):
        try:
            mapped = reader(body, content_type=content_type, content_encoding=content_encoding, max_bytes=MAX)
        except DataError:
            continue
        for made in mapped.trajectories:
            assert decode(encode(made)) == made
        for one in mapped.unmapped:
            json.loads(to_json(one))
        answer(mapped, content_type)


fuzzed = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@fuzzed
@given(
    body=st.binary(max_size=300),
    content_type=st.sampled_from([JSON, PROTOBUF]),
    encoding=st.sampled_from([None, "gzip", "deflate"]),
)
def test_random_bytes(body: bytes, content_type: str, encoding: str | None) -> None:
    survives(body, content_type, encoding)


SEEDS = [
    protobuf(desk()),
    protobuf(
        log_request(record("gen_ai.evaluation.result", **result()), record("gen_ai.choice", body={"content": "x"}))
    ),
]


@fuzzed
@given(data=st.data(), seed=st.sampled_from(SEEDS), compress=st.booleans())
def test_truncated_and_changed_protobuf(data: st.DataObject, seed: bytes, compress: bool) -> None:
    body = bytearray(gzip.compress(seed) if compress else seed)
    for _ in range(data.draw(st.integers(0, 8))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    survives(bytes(body[:cut]), PROTOBUF, "gzip" if compress else None)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**30, -(2**63), 2**64, "9" * 5000, "NaN", "1e400", "\ud800", "\x00", "=", "zz", "0x1"])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Containers and keys of everything inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, one in inside for place in [(value, key), *places(one)]]


@fuzzed
@given(data=st.data(), logs=st.booleans())
def test_changed_json(data: st.DataObject, logs: bool) -> None:
    records = (record("gen_ai.evaluation.result", **result()), record("gen_ai.choice", body={"content": "x"}))
    request = log_request(*records) if logs else desk()
    for _ in range(data.draw(st.integers(1, 4))):
        container, key = data.draw(st.sampled_from(places(request)))
        container[key] = data.draw(json_values)
        if not places(request):
            break
    survives(json.dumps(request).encode(), JSON)


@fuzzed
@given(values=st.dictionaries(st.sampled_from(sorted({
    "gen_ai.operation.name", "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.tool.call.arguments",
    "gen_ai.usage.input_tokens", "gen_ai.request.model", "gen_ai.agent.name", "gen_ai.system", "error.type", "user.id",
    "gen_ai.evaluation.name", "gen_ai.evaluation.score.value",
})), st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=9) | st.binary(max_size=5)
    | st.sampled_from(["chat", "invoke_agent", user_says("x"), "[[[", '{"role": "user", "parts": {"type": 1}}']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
), max_size=6))  # fmt: skip
def test_attributes_of_any_type(values: dict[str, Any]) -> None:
    events = [event("gen_ai.evaluation.result", **values), event("gen_ai.user.message", **values)]
    survives(protobuf(trace_request(span(CHAT, name="c", **values, events=events))), PROTOBUF)
    survives(protobuf(log_request(record("gen_ai.evaluation.result", **values))), PROTOBUF)


@pytest.mark.parametrize("depth", [1, 20, 30, *range(40, 52), 120, 1000, 20_000])
def test_values_in_values(depth: int) -> None:
    inner = '{"arrayValue":{"values":[' * depth + '{"intValue":"1"}' + "]}}" * depth
    name = '"key":"gen_ai.tool.call.arguments"'
    body = f'{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{{"traceId":"{TRACE}","spanId":"{CHAT}",'
    body += f'"startTimeUnixNano":"5","attributes":[{{{name},"value":{inner}}}]}}]}}]}}]}}'
    survives(body.encode(), JSON)
    value = AnyValue(int_value=1).SerializeToString()
    for _ in range(min(depth, 200)):
        value = message_in(5, message_in(1, value))  # AnyValue.array_value, ArrayValue.values
    arguments = message_in(1, b"gen_ai.tool.call.arguments") + message_in(2, value)
    sent = trace_pb2.Span(trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(CHAT), start_time_unix_nano=5)
    spans = message_in(2, sent.SerializeToString() + message_in(9, arguments))
    survives(message_in(1, message_in(2, spans)), PROTOBUF)


def message_in(field: int, content: bytes) -> bytes:
    """A field of a message that holds bytes, in the wire format."""
    size, left = bytearray(), len(content)
    while left > 127:
        size.append(left & 127 | 128)
        left >>= 7
    return bytes([field << 3 | 2, *size, left]) + content
