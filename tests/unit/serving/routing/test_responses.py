"""The Responses API, translated to chat completions and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from etude.serving.routing.asked import AskedError
from etude.serving.routing.config import ModelConfig
from etude.serving.routing.responses import ResponsesWire, TranslatedWire, to_chat
from etude.serving.routing.wires import BrokenError
from tests.chat_server import delta, message

MODEL = ModelConfig(upstream="a", model="tiny")
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def test_a_request_is_translated_with_all_its_parts() -> None:
    made = to_chat(
        {
            "model": "etude/auto",
            "instructions": "be brief",
            "input": [
                {"role": "developer", "content": [{"type": "input_text", "text": "in French"}]},
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "what is it?"},
                        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
                    ],
                },
                {"type": "reasoning", "summary": []},
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
                {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "a cat"},
            ],
            "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}],
            "tool_choice": {"type": "function", "name": "look"},
            "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
            "max_output_tokens": 9,
            "reasoning": {"effort": "low"},
            "store": False,
            "temperature": 0.5,
            "unknown_field": 7,
        }
    )
    assert [one["role"] for one in made["messages"]] == ["system", "system", "user", "assistant", "tool"]
    assert made["messages"][1]["content"] == "in French"
    assert made["messages"][2]["content"][1]["image_url"] == {"url": "data:image/png;base64,AA==", "detail": "low"}
    assert [call["id"] for call in made["messages"][3]["tool_calls"]] == ["c1", "c2"]
    assert made["messages"][4] == {"role": "tool", "tool_call_id": "c1", "content": "a cat"}
    assert made["tools"][0]["function"] == {"name": "look", "parameters": {"type": "object"}, "strict": True}
    assert made["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert made["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "object"}},
    }
    assert (made["max_tokens"], made["reasoning_effort"], made["temperature"], made["unknown_field"]) == (
        *(9, "low", 0.5, 7),
    )
    assert not {"input", "instructions", "store", "text", "reasoning", "model"} & set(made)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": [7]}, "input[0]"),
    ],
)
def test_what_cannot_be_translated_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    with pytest.raises(AskedError) as refused:
        to_chat({"input": "hello"} | more)
    assert refused.value.param == param


def test_a_whole_answer_becomes_a_response() -> None:
    wire = TranslatedWire({"input": "hello", "metadata": {"k": "v"}}, "small", MODEL)
    assert json.loads(wire.body) == {
        "messages": [{"role": "user", "content": "hello"}],
        "metadata": {"k": "v"},
        "model": "tiny",
    }
    found = json.loads(wire.whole(json.dumps(message("hi", tool_calls=[CALL])).encode()))
    text, call = found["output"]
    assert text["content"][0]["text"] == "hi"
    assert (call["type"], call["call_id"], call["name"], call["arguments"]) == (
        *("function_call", "call_1", "add", '{"a": 1}'),
    )
    assert (found["status"], found["model"], found["metadata"]) == ("completed", "tiny", {"k": "v"})
    assert found["usage"]["input_tokens"] == 12
    assert found["usage"]["total_tokens"] == 19


def events(body: bytes) -> list[dict[str, Any]]:
    parts = [part.split(b"\n") for part in body.split(b"\n\n") if part]
    found = [json.loads(lines[1].removeprefix(b"data: ")) for lines in parts]
    assert [lines[0].removeprefix(b"event: ").decode() for lines in parts] == [one["type"] for one in found]
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    return found


def streamed(wire: TranslatedWire, *chunks: dict[str, Any]) -> list[dict[str, Any]]:
    out = b"".join(wire.event(json.dumps(chunk).encode()) for chunk in chunks)
    return events(out + wire.event(b"[DONE]") + wire.end())


def test_a_stream_becomes_the_events_of_a_response() -> None:
    wire = TranslatedWire({"input": "hello", "stream": True}, "small", MODEL)
    assert json.loads(wire.body)["stream_options"] == {"include_usage": True}
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    found = streamed(wire, delta("al"), delta("l"), delta(finish="stop"), usage)
    kinds = [one["type"].removeprefix("response.") for one in found]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert found[6]["text"] == "all"
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == "all"
    assert found[-1]["response"]["usage"]["total_tokens"] == 5
    assert wire.answer.content() == "all"


def test_tool_calls_stream_as_items_of_their_own() -> None:
    wire = TranslatedWire({"input": "hello", "stream": True}, "small", MODEL)
    begin = delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "add", "arguments": ""}}])
    more = delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a"'}}])
    other = delta(tool_calls=[{"index": 1, "id": "c2", "function": {"name": "sub", "arguments": "{}"}}])
    rest = delta(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}])
    found = streamed(wire, begin, more, other, rest, delta(finish="tool_calls"))
    output = found[-1]["response"]["output"]
    assert [(one["call_id"], one["name"], one["arguments"]) for one in output] == [
        ("c1", "add", '{"a": 1}'),
        ("c2", "sub", "{}"),
    ]
    deltas = [(one["output_index"], one["delta"]) for one in found if one["type"].endswith("arguments.delta")]
    assert deltas == [(0, '{"a"'), (1, "{}"), (0, ": 1}")]


def test_an_answer_that_was_cut_is_incomplete() -> None:
    wire = TranslatedWire({"input": "hello", "stream": True}, "small", MODEL)
    last = streamed(wire, delta("al"), delta(finish="length"))[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_stream_that_fails_says_so() -> None:
    wire = TranslatedWire({"input": "hello", "stream": True}, "small", MODEL)
    out = wire.event(json.dumps(delta("al")).encode())
    with pytest.raises(BrokenError, match="too hot"):
        wire.event(b'{"error": {"message": "too hot"}}')
    failed, error = events(out + wire.failure("it broke off", "upstream_failed"))[-2:]
    assert (failed["type"], failed["response"]["error"]["message"]) == ("response.failed", "it broke off")
    assert (error["type"], error["error"]["code"]) == ("error", "upstream_failed")


def test_responses_of_a_service_that_has_them_are_passed_on() -> None:
    wire = ResponsesWire({"model": "etude/auto", "input": "hello", "unknown": 1}, "small", MODEL)
    assert json.loads(wire.body) == {"model": "tiny", "input": "hello", "unknown": 1}
    item = {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    body = json.dumps(
        {"id": "r1", "status": "completed", "output": [item, call], "usage": {"input_tokens": 4}}
    ).encode()
    assert wire.whole(body) == body
    answer = wire.answer
    assert (answer.id, answer.content(), answer.tokens_in, answer.calls()[0]["name"]) == ("r1", "hi", 4, "f")
    data = b'{"type":"response.completed","response":%b}' % body
    streaming = ResponsesWire({"input": "hello"}, "small", MODEL)
    assert streaming.event(b'{"type": "response.created"}').startswith(b"event: response.created\ndata: ")
    assert not streaming.answer.ended
    assert streaming.event(data) == b"event: response.completed\ndata: %b\n\n" % data
    assert streaming.answer.ended
    with pytest.raises(BrokenError, match="too hot"):
        streaming.event(b'{"type": "error", "message": "too hot"}')
