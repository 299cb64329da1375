"""OTLP requests become trajectories, the same in both encodings."""

from __future__ import annotations

import gzip
import json
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceResponse,
)

from etude.contracts.errors import DataError
from etude.contracts.subjects import decode, encode
from etude.experience.cleaning import Cleaner
from etude.experience.redact import RedactionConfig
from etude.serving import otlp, traces
from etude.serving.otlp import JSON, PROTOBUF, answer, to_json
from etude.serving.traces import Mapped, Reason, evaluated
from tests.unit.serving.otlp_requests import (
    CHAT,
    CHAT_2,
    MAX,
    OTHER_TRACE,
    ROOT,
    START,
    TOOL,
    TRACE,
    WEB,
    desk,
    event,
    log_request,
    parse,
    read,
    read_traces,
    record,
    result,
    span,
    trace_request,
    user_says,
)


@pytest.mark.parametrize("content_type", [JSON, PROTOBUF])
def test_a_trace_is_one_trajectory_with_its_turns_in_the_order_of_time(content_type: str) -> None:
    mapped = read(desk(), content_type, tenant="acme")
    (made,) = mapped.trajectories
    assert made.id == f"otel-{TRACE}"
    assert made.time == datetime.fromtimestamp(START / 1e9, UTC)
    assert (made.task, made.problem, made.tenant, made.user) == ("Where is my parcel?", "task", "acme", "u-17")
    assert (made.agent, made.model) == ("desk", "gpt-5-2026")
    assert [(turn.at_ms, turn.latency_ms, turn.error) for turn in made.turns] == [
        (10, 100, None),
        (150, 50, "timed out"),
        (300, 100, None),
    ]
    first, tool, _ = made.turns
    assert first.action == {
        "operation": "chat",
        "model": "gpt-5-2026",
        "provider": "openai",
        "input_tokens": 30,
        "output_tokens": 5,
    }
    assert first.result == [{"role": "assistant", "parts": []}]
    assert tool.action == {
        "operation": "execute_tool",
        "tool": "track",
        "call_id": "call-1",
        "arguments": {"parcel": 12},
    }
    assert all(turn.cost_usd is None for turn in made.turns)
    assert (made.outcome.success, made.outcome.latency_ms, made.outcome.cost_usd) == (None, 500, None)
    assert made.metadata == {
        "source": "opentelemetry",
        "conversation": "c7",
        "agent_id": "a1",
        "provider": "openai",
        "service": "desk",
        "input_tokens": 70,
        "output_tokens": 9,
    }
    assert mapped.counts == {"not a GenAI span": 1}
    kept = json.loads(to_json(mapped.unmapped[0]))
    assert (kept["reason"], kept["service"]) == ("not a GenAI span", "desk")
    assert (kept["span"]["traceId"], kept["span"]["parentSpanId"]) == (TRACE, TOOL)


def test_both_encodings_give_the_same() -> None:
    assert read(desk(), JSON) == read(desk(), PROTOBUF)


def test_trajectories_can_be_stored() -> None:
    (made,) = read(desk()).trajectories
    assert decode(encode(made)) == made
    event, _ = Cleaner(RedactionConfig()).clean(encode(made))
    assert event.id == made.id


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "deflate"])
def test_compressed_bodies(encoding: str) -> None:
    body = json.dumps(desk()).encode()
    packed = zlib.compress(body) if encoding == "deflate" else gzip.compress(body)
    mapped = read_traces(packed, content_type=f"{JSON}; charset=utf-8", content_encoding=encoding, max_bytes=MAX)
    assert mapped == read(desk())


def test_decompression_stops_at_the_limit() -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) < MAX
    tracemalloc.start()
    with pytest.raises(DataError, match="larger than 1,048,576 bytes when decompressed"):
        read_traces(bomb, content_type=JSON, content_encoding="gzip", max_bytes=MAX)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 8 * MAX
    exact = gzip.compress(b" " * (MAX - 2) + b"{}")
    assert read_traces(exact, content_type=JSON, content_encoding="gzip", max_bytes=MAX) == Mapped()


REFUSED: list[tuple[bytes, dict[str, Any], str]] = [
    (b"x" * (MAX + 1), {}, "has 1,048,577 bytes: expected at most 1,048,576"),
    (b"{}", {"content_type": "text/plain"}, "content type 'text/plain' is unknown"),
    (b"{}", {"content_encoding": "br"}, "content encoding 'br' is unknown"),
    (b"{}", {"content_encoding": "gzip"}, "the body is not gzip"),
    (gzip.compress(b"{}", mtime=0)[:-3], {"content_encoding": "gzip"}, "the gzip body is truncated"),
    (gzip.compress(b"{}", mtime=0) + b"{}", {"content_encoding": "gzip"}, "followed by other bytes"),
    (b"[]", {}, r"the body is \[\]: expected a JSON object"),
    (b"{", {}, "not OTLP in application/json"),
    (b'{"resourceSpans": 1}', {}, "not OTLP in application/json"),
    (b"\xff\xff\xff", {"content_type": PROTOBUF}, "not OTLP in application/x-protobuf"),
    (b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"W47/95gDgQPSabYzgT/GDA=="}]}]}]}', {}, "traceId is"),
    (b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"spanId":"abc"}]}]}]}', {}, "spanId is 'abc'"),
    (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, {}, "nested too deeply"),
]


@pytest.mark.parametrize(("body", "how", "message"), REFUSED)
def test_bodies_that_are_refused(body: bytes, how: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_traces(body, **{"content_type": JSON, "content_encoding": None, "max_bytes": MAX} | how)


def test_requests_with_too_many_spans_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MAX_ITEMS", 4)
    with pytest.raises(DataError, match="has more than 4 spans: send smaller"):
        read(desk())


def test_a_root_span_of_the_application_gives_the_task_its_name_and_its_end() -> None:
    request = trace_request(
        span(ROOT, name="POST /ask", ms=900, status={"code": 2, "message": "500"}, also={"http.method": "POST"}),
        span(CHAT, ROOT, name="chat m", at_ms=5, operation_name="chat", request_model="m"),
    )
    mapped = read(request)
    (made,) = mapped.trajectories
    assert (made.task, made.model, len(made.turns), mapped.unmapped) == ("POST /ask", "m", 1, ())
    assert (made.outcome.success, made.outcome.success_by, made.outcome.ended) == (False, "self", "failed")
    assert (made.outcome.error, made.outcome.latency_ms) == ("500", 900)


def test_a_status_that_is_ok_is_the_agents_own_report_of_success() -> None:
    request = trace_request(span(ROOT, name="a", operation_name="invoke_agent", status={"code": 1}))
    outcome = read(request).trajectories[0].outcome
    assert (outcome.success, outcome.success_by) == (True, "self")


def test_a_single_model_call_is_task_and_turn() -> None:
    request = trace_request(
        span(CHAT, name="chat m", operation_name="chat", status={"code": 2}, also={"error.type": "E"})
    )
    (made,) = read(request).trajectories
    assert (made.task, [turn.error for turn in made.turns], made.outcome.success) == ("chat m", ["E"], False)


def test_a_part_without_a_root_says_nothing_about_the_outcome() -> None:
    (made,) = read(trace_request(span(CHAT, ROOT, name="chat m", operation_name="chat"))).trajectories
    assert (made.outcome.success, made.outcome.latency_ms, made.task) == (None, None, "chat m")


def test_agents_that_an_agent_calls_are_turns() -> None:
    request = trace_request(
        span(ROOT, name="main", operation_name="invoke_workflow"),
        span(CHAT, ROOT, name="sub", at_ms=1, operation_name="invoke_agent", agent_name="sub", input_tokens=5),
        span(TOOL, CHAT, name="chat", at_ms=2, operation_name="chat", input_tokens=5),
    )
    (made,) = read(request).trajectories
    assert [turn.action["operation"] for turn in made.turns] == ["invoke_agent", "chat"]
    assert made.metadata is not None
    assert made.metadata["input_tokens"] == 5


def test_tokens_of_a_model_call_inside_a_model_call_count_once() -> None:
    request = trace_request(
        span(ROOT, name="langchain", operation_name="chat", input_tokens=5),
        span(CHAT, ROOT, name="openai", at_ms=1, operation_name="chat", input_tokens=5),
    )
    assert (read(request).trajectories[0].metadata or {})["input_tokens"] == 5


@pytest.mark.parametrize(
    ("value", "count"), [(3, 3), (3.0, 3), (0, 0), (3.5, None), (-3, None), ("3", None), (True, None)]
)
def test_numbers_of_tokens_are_whole_numbers(value: Any, count: int | None) -> None:
    (made,) = read(trace_request(span(CHAT, operation_name="chat", input_tokens=value)), PROTOBUF).trajectories
    assert made.turns[0].action.get("input_tokens") == (made.metadata or {}).get("input_tokens") == count


def test_older_names_are_read() -> None:
    request = trace_request(
        span(
            CHAT,
            name="openai.chat",
            request_model="gpt-4",
            also={"gen_ai.system": "openai", "gen_ai.usage.prompt_tokens": 3, "gen_ai.usage.completion_tokens": 2},
            events=[
                event("gen_ai.system.message", content="Be kind.", also={"gen_ai.system": "openai"}),
                event("gen_ai.user.message", content="Hello?", also={"gen_ai.system": "openai"}),
                event("gen_ai.choice", message='{"content": "Hi."}'),
            ],
        )
    )
    (made,) = read(request).trajectories
    (turn,) = made.turns
    assert made.task == "Hello?"
    assert turn.action == {
        "operation": "chat",
        "model": "gpt-4",
        "provider": "openai",
        "input_tokens": 3,
        "output_tokens": 2,
    }
    assert turn.observation == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello?"}]
    assert turn.result == [{"role": "assistant", "message": {"content": "Hi."}}]


@pytest.mark.parametrize(
    "messages",
    [
        user_says("Do it"),
        [{"role": "user", "content": "Do it"}],
        [
            {"role": "user", "content": "Before"},
            {"role": "assistant", "content": "."},
            {"role": "user", "content": "Do it"},
        ],
        [{"role": "user", "content": [{"type": "text", "text": "Do it"}, {"type": "image"}]}],
        "Do it",
    ],
)
def test_the_task_is_the_last_message_of_the_user(messages: Any) -> None:
    request = trace_request(span(CHAT, name="c", operation_name="chat", input_messages=messages))
    assert read(request).trajectories[0].task == "Do it"


@pytest.mark.parametrize(
    "messages", ["[" * 5000, '[{"role": "user"}]', "{", '{"n": ' + "9" * 400 + "}", [], {}, 3.5, True]
)
def test_messages_of_any_shape_leave_the_name_of_the_span_as_the_task(messages: Any) -> None:
    request = trace_request(span(CHAT, name="c", operation_name="chat", input_messages=messages))
    (made,) = read(request).trajectories
    assert made.task in ("c", messages)
    assert decode(encode(made)) == made


def test_attributes_of_wrong_types_and_lengths_do_no_harm() -> None:
    request = trace_request(
        span(
            CHAT,
            name="c",
            ms=-50,
            operation_name="chat",
            request_model="m" * 1000,
            agent_name=3,
            conversation_id=[1, {"a": b"\xff"}],
            input_tokens="many",
            output_tokens=-1,
            tool_call_arguments={"x": float("inf"), "y": b"\xff"},
        )
    )
    (made,) = read(request, PROTOBUF).trajectories
    assert (made.model, made.agent, made.turns[0].latency_ms) == ("m" * 256, None, None)
    assert made.turns[0].action["arguments"] == {"x": "inf", "y": "/w=="}
    assert decode(encode(made)) == made


def test_a_trace_without_a_genai_span_is_no_trajectory() -> None:
    mapped = read(trace_request(span(ROOT, name="GET"), span(CHAT, ROOT, name="SELECT")))
    assert (mapped.trajectories, mapped.counts) == ((), {"not a GenAI span": 2})
    assert answer(mapped, JSON) == (b"{}", JSON)


def test_a_trace_too_large_for_an_event_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_BYTES", 500)
    mapped = read(desk())
    assert mapped.trajectories == ()
    assert mapped.counts[Reason.TOO_LARGE] == 4


# Evaluation results.


@pytest.mark.parametrize("content_type", [JSON, PROTOBUF])
def test_evaluation_results_of_spans_are_the_quality_of_the_outcome(content_type: str) -> None:
    name = "gen_ai.evaluation.result"
    request = trace_request(
        span(ROOT, name="a", operation_name="invoke_agent", events=[event(name, **result(score=1))]),
        span(CHAT, ROOT, operation_name="chat", events=[event(name, **result(score=0.5))]),
        span(WEB, ROOT, events=[event(name, **result("tone", None, "rude"))]),
    )
    mapped = read(request, content_type)
    (made,) = mapped.trajectories
    assert made.outcome.quality == {"relevance": 0.75}
    assert made.metadata is not None
    assert made.metadata["evaluations"] == [
        {"name": "relevance", "score": 1.0, "span": ROOT},
        {"name": "relevance", "score": 0.5, "span": CHAT},
        {"name": "tone", "label": "rude", "span": WEB},
    ]
    assert mapped.evaluations == ()


@pytest.mark.parametrize("content_type", [JSON, PROTOBUF])
def test_evaluation_results_in_logs_are_added_later(content_type: str) -> None:
    name = "gen_ai.evaluation.result"
    request = log_request(
        record(name, **result(label="good")),
        record(None, id="", **{"event.name": name} | result("judge", 1)),
        record("app.started"),
    )
    mapped = read(request, content_type)
    first, second = mapped.evaluations
    assert (first.trajectory_id, first.name, first.score, first.label) == (f"otel-{TRACE}", "relevance", 0.75, "good")
    assert (second.span_id, second.score) == (None, 1.0)
    assert list(mapped.counts.values()) == [1]
    (made,) = read(desk()).trajectories
    later = evaluated(made, mapped.evaluations)
    assert later.outcome.quality == {"relevance": 0.75, "judge": 1.0}
    assert evaluated(later, mapped.evaluations) == later
    stored = decode(encode(later))
    assert isinstance(stored, type(later))
    assert evaluated(stored, mapped.evaluations) == later


# Answers.


BAD_RESULTS = [
    (result(score=4.0), Reason.SCORE_RANGE),
    (result(score=-0.1), Reason.SCORE_RANGE),
    (result(score=float("nan")), Reason.SCORE_RANGE),
    (result(score=True), Reason.SCORE_RANGE),
    (result(score="0.5"), Reason.SCORE_RANGE),
    (result(name=None), Reason.INVALID_EVALUATION),
    (result(score=None), Reason.INVALID_EVALUATION),
]


@pytest.mark.parametrize(("values", "reason"), BAD_RESULTS)
def test_evaluation_results_that_are_not_valid_are_rejected(values: dict[str, Any], reason: Reason) -> None:
    name = "gen_ai.evaluation.result"
    logs = read(log_request(record(name, **values)), PROTOBUF)
    assert (logs.evaluations, logs.counts) == ((), {reason.value: 1})
    body, kind = answer(logs, PROTOBUF)
    said = ExportLogsServiceResponse.FromString(body).partial_success
    assert (kind, said.rejected_log_records) == (PROTOBUF, 1)
    assert reason.value in said.error_message
    spans = read(trace_request(span(ROOT, operation_name="invoke_agent", events=[event(name, **values)])), PROTOBUF)
    warned = ExportTraceServiceResponse.FromString(answer(spans, PROTOBUF)[0]).partial_success
    assert (len(spans.trajectories), warned.rejected_spans) == (1, 0)
    assert reason.value in warned.error_message
    assert "event" in json.loads(to_json(spans.unmapped[0]))


def test_a_partial_success_counts_the_spans_that_are_rejected() -> None:
    request = desk()
    spans = request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    spans += [
        span(CHAT, trace="", operation_name="chat"),
        span(CHAT, trace="00" * 16, operation_name="chat"),
        span("abcd", operation_name="chat"),
        span(WEB, operation_name="chat") | {"startTimeUnixNano": "0"},
    ]
    mapped = read(request)
    assert len(mapped.trajectories) == 1
    assert mapped.counts == {"not a GenAI span": 1, Reason.INVALID_IDS: 3, Reason.NO_START: 1}
    body, kind = answer(mapped, f"{JSON}; charset=utf-8")
    said = json.loads(body)["partialSuccess"]
    assert (kind, said["rejectedSpans"]) == (JSON, "4")
    assert "3 × without a valid trace id and span id (traceId is ''" in said["errorMessage"]
    assert [json.loads(to_json(one))["span"].get("spanId") for one in mapped.unmapped][1:] == [CHAT, CHAT, "abcd", WEB]


def test_a_full_success_is_an_empty_answer() -> None:
    mapped = read(trace_request(span(CHAT, operation_name="chat")))
    assert answer(mapped, PROTOBUF) == (b"", PROTOBUF)
    assert answer(mapped, JSON) == (b"{}", JSON)
    with pytest.raises(DataError, match="content type"):
        answer(mapped, "text/html")


def test_ids_in_json_may_be_in_capitals_and_in_links() -> None:
    given_span = span(CHAT.upper(), trace=TRACE.upper(), operation_name="chat") | {"links": [{"traceId": OTHER_TRACE}]}
    assert read(trace_request(given_span)).trajectories[0].id == f"otel-{TRACE}"
    unmapped = read(trace_request(span(WEB, ROOT) | {"links": [{"traceId": OTHER_TRACE, "spanId": CHAT}]})).unmapped
    assert json.loads(to_json(unmapped[0]))["span"]["links"] == [{"traceId": OTHER_TRACE, "spanId": CHAT}]


# A real exporter.


@contextmanager
def collector() -> Iterator[tuple[str, list[tuple[str, dict[str, str], bytes]]]]:
    """A server that keeps what is posted, and answers as `answer` does."""
    posted: list[tuple[str, dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers["content-length"]))
            posted.append((self.path, headers, body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/traces", posted
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
def test_what_the_opentelemetry_sdk_exports_is_read(compression: str) -> None:
    http = pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    exporters = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    batches = pytest.importorskip("opentelemetry.sdk.trace.export")
    with collector() as (url, posted):
        exporter = exporters.OTLPSpanExporter(endpoint=url, compression=http.Compression(compression))
        provider = sdk.TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(batches.BatchSpanProcessor(exporter))
        tracer = provider.get_tracer("test")
        with tracer.start_as_current_span("invoke_agent desk") as agent:
            agent.set_attributes({"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "desk"})
            agent.set_attribute("gen_ai.input.messages", user_says("Where is it?"))
            with tracer.start_as_current_span("chat gpt-5") as chat:
                chat.set_attributes({"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 7})
            with suppress(ValueError), tracer.start_as_current_span("execute_tool t") as tool:
                tool.set_attributes({"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "t"})
                raise ValueError("no")
            agent.add_event("gen_ai.evaluation.result", result())
        provider.shutdown()
    ((path, headers, body),) = posted
    assert path == "/v1/traces"
    mapped = read_traces(
        body,
        content_type=headers["content-type"],
        content_encoding=headers.get("content-encoding"),
        max_bytes=MAX,
        tenant="acme",
    )
    (made,) = mapped.trajectories
    assert made.id == f"otel-{agent.get_span_context().trace_id:032x}"
    assert (made.task, made.agent, made.tenant) == ("Where is it?", "desk", "acme")
    assert [turn.action["operation"] for turn in made.turns] == ["chat", "execute_tool"]
    assert "ValueError: no" in (made.turns[1].error or "")
    assert made.outcome.quality == {"relevance": 0.75}
    assert mapped.unmapped == ()


def test_parsing_keeps_spans_for_a_gathering() -> None:
    received = parse(desk())
    assert [one.id for one in received.spans] == [CHAT_2, ROOT, CHAT, TOOL]
    assert answer(received, JSON) == (b"{}", JSON)
