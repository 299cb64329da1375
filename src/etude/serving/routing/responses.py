"""The Responses API: passed on where the upstream has it, else translated to chat completions and back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from etude.serving.routing.asked import AskedError
from etude.serving.routing.config import ModelConfig
from etude.serving.routing.wires import DONE, Answer, BrokenError, error_of, read_chat, sse, upstream_message

DROPPED = (
    *("background", "include", "input", "instructions", "max_output_tokens", "max_tool_calls", "model"),
    *("previous_response_id", "reasoning", "store", "stream_options", "text", "tool_choice", "tools", "truncation"),
)
"""Fields that chat completions do not have, or have in another form."""
UNTRANSLATED = ("previous_response_id", "conversation", "prompt", "background")
"""Fields that need what only the service of the Responses API has."""


class ResponsesWire:
    """Responses as they are."""

    path = "/responses"

    def __init__(self, request: Mapping[str, Any], name: str, model: ModelConfig) -> None:
        self.answer = Answer()
        self.body = msgspec.json.encode(dict(request) | {"model": model.model or name})

    def whole(self, body: bytes) -> bytes:
        try:
            found = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BrokenError(f"it is no response: {error}") from error
        if not isinstance(found, dict) or not isinstance(found.get("output"), list):
            raise BrokenError("it has no output")
        self._read(found)
        return body

    def event(self, data: bytes) -> bytes:
        if data == DONE:
            return b""
        try:
            found = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BrokenError(f"it is no event: {error}") from error
        if not isinstance(found, dict):
            raise BrokenError("it is no event")
        kind = str(found.get("type", ""))
        if kind == "error" or (found.get("error") and not kind):
            raise BrokenError(upstream_message(found.get("error") or found))
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            response = found.get("response")
            self._read(response if isinstance(response, dict) else {})
            if kind == "response.failed":
                raise BrokenError(upstream_message((response or {}).get("error") or "the response failed"))
        return sse(data, kind or None)

    def _read(self, response: Mapping[str, Any]) -> None:
        answer, status = self.answer, response.get("status")
        answer.id, answer.finish, answer.ended = response.get("id"), str(status or "completed"), True
        if isinstance(usage := response.get("usage"), dict):
            answer.count(usage)
        items = [item for item in response.get("output") or () if isinstance(item, dict)]
        for place, item in enumerate(items):
            if item.get("type") == "function_call":
                answer.tool_calls[place] = {
                    name: str(item.get(key) or "")
                    for name, key in (("id", "call_id"), ("name", "name"), ("arguments", "arguments"))
                }
            for part in item.get("content") or ():
                if isinstance(part, dict) and isinstance(part.get("text"), str) and item.get("type") == "message":
                    answer.text.append(part["text"])

    def end(self) -> bytes:
        return b""

    def failure(self, message: str, code: str) -> bytes:
        return _error_event(message, code, 0)


class TranslatedWire:
    """Responses from a service that has chat completions alone."""

    path = "/chat/completions"

    def __init__(self, request: Mapping[str, Any], name: str, model: ModelConfig) -> None:
        self.answer = Answer(id=f"resp_{secrets.token_hex(24)}")
        self._request, self._model, self._created = request, model.model or name, int(time.time())
        asked = to_chat(request) | {"model": self._model}
        if asked.get("stream") and model.reports_usage:
            asked["stream_options"] = {"include_usage": True}
        self.body = msgspec.json.encode(asked)
        self._number = -1
        self._items: list[dict[str, Any]] = []  # in their order; that of the text, and one of each tool call
        self._text: dict[str, Any] | None = None
        self._calls: dict[int, dict[str, Any]] = {}

    def whole(self, body: bytes) -> bytes:
        found = read_chat(body, self.answer)
        if not found.choices:
            raise BrokenError("it has no choices")
        self._model, self.answer.ended = found.model or self._model, True
        items = [_message(self.answer.content())] if self.answer.content() or not self.answer.tool_calls else []
        items += [_call(call) for call in self.answer.calls()]
        return msgspec.json.encode(self._response(items))

    def event(self, data: bytes) -> bytes:
        if data == DONE:
            self.answer.ended = True
            return b""
        before = {place: len(call["arguments"]) for place, call in self.answer.tool_calls.items()}
        said = len(self.answer.text)
        found = read_chat(data, self.answer)
        self._model = found.model or self._model
        out = [self._begin()] if self._number < 0 else []
        for text in self.answer.text[said:]:
            out.append(self._say(text))
        for place, call in self.answer.tool_calls.items():
            if place not in before or len(call["arguments"]) > before[place]:
                out.append(self._call(place, call, before.get(place, 0)))
        return b"".join(out)

    def end(self) -> bytes:
        out = [] if self._number >= 0 else [self._begin()]
        if self._text is None and not self._calls:
            out.append(self._say(""))
        for place, item in enumerate(self._items):
            out.append(self._close(place, item))
        response = self._response(self._items)
        kind = "response.incomplete" if response["status"] == "incomplete" else "response.completed"
        return b"".join([*out, self._emit(kind, response=response)])

    def failure(self, message: str, code: str) -> bytes:
        failed = self._response(self._items, status="failed") | {"error": {"code": "server_error", "message": message}}
        return self._emit("response.failed", response=failed) + _error_event(message, code, self._number + 1)

    def _begin(self) -> bytes:
        empty = self._response([], status="in_progress")
        return self._emit("response.created", response=empty) + self._emit("response.in_progress", response=empty)

    def _say(self, text: str) -> bytes:
        out = b""
        if self._text is None:
            self._text = _message("", status="in_progress")
            place = self._add(self._text)
            part = {"type": "output_text", "text": "", "annotations": []}
            out = self._emit("response.output_item.added", output_index=place, item=self._text | {"content": []})
            out += self._emit("response.content_part.added", **self._where(self._text), content_index=0, part=part)
        self._text["content"][0]["text"] += text
        if not text:
            return out
        return out + self._emit(
            "response.output_text.delta", **self._where(self._text), content_index=0, delta=text, logprobs=[]
        )

    def _call(self, place: int, call: Mapping[str, str], known: int) -> bytes:
        out = b""
        if place not in self._calls:
            self._calls[place] = _call(call, status="in_progress")
            index = self._add(self._calls[place])
            begun = self._calls[place] | {"arguments": ""}
            out = self._emit("response.output_item.added", output_index=index, item=begun)
        item = self._calls[place]
        item.update(name=call["name"], call_id=call["id"] or item["call_id"], arguments=call["arguments"])
        if delta := call["arguments"][known:]:
            out += self._emit("response.function_call_arguments.delta", **self._where(item), delta=delta)
        return out

    def _close(self, place: int, item: dict[str, Any]) -> bytes:
        item["status"] = "completed"
        where = {"item_id": item["id"], "output_index": place}
        if item["type"] == "message":
            part = item["content"][0]
            out = self._emit(
                "response.output_text.done", **where, content_index=0, text=part["text"], logprobs=[]
            ) + self._emit("response.content_part.done", **where, content_index=0, part=part)
        else:
            out = self._emit(
                "response.function_call_arguments.done", **where, name=item["name"], arguments=item["arguments"]
            )
        return out + self._emit("response.output_item.done", output_index=place, item=item)

    def _add(self, item: dict[str, Any]) -> int:
        self._items.append(item)
        return len(self._items) - 1

    def _where(self, item: Mapping[str, Any]) -> dict[str, Any]:
        place = next(place for place, one in enumerate(self._items) if one is item)
        return {"item_id": item["id"], "output_index": place}

    def _emit(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return sse(msgspec.json.encode({"type": kind, "sequence_number": self._number} | fields), kind)

    def _response(self, items: Sequence[Mapping[str, Any]], status: str | None = None) -> dict[str, Any]:
        answer, asked = self.answer, self._request
        if status is None:
            status = "incomplete" if answer.finish in ("length", "content_filter") else "completed"
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(answer.finish or "")
        tokens_in, tokens_out = answer.tokens_in or 0, answer.tokens_out or 0
        usage = {
            "input_tokens": tokens_in,
            "input_tokens_details": {"cached_tokens": answer.tokens_cached},
            "output_tokens": tokens_out,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens_in + tokens_out,
        }
        return {
            "id": answer.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": reason} if status == "incomplete" else None,
            "instructions": asked.get("instructions"),
            "max_output_tokens": asked.get("max_output_tokens"),
            "model": self._model,
            "output": list(items),
            "parallel_tool_calls": asked.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": asked.get("temperature"),
            "text": asked.get("text") or {"format": {"type": "text"}},
            "tool_choice": asked.get("tool_choice") or "auto",
            "tools": asked.get("tools") or [],
            "top_p": asked.get("top_p"),
            "truncation": "disabled",
            "usage": usage if status in ("completed", "incomplete") else None,
            "metadata": asked.get("metadata") or {},
        }


def _error_event(message: str, code: str, number: int) -> bytes:
    body = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": number}
    return sse(msgspec.json.encode(body | error_of(message, kind="server_error", code=code)), "error")


def _message(text: str, status: str = "completed") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    id = f"msg_{secrets.token_hex(12)}"
    return {"type": "message", "id": id, "status": status, "role": "assistant", "content": [part]}


def _call(call: Mapping[str, str], status: str = "completed") -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{secrets.token_hex(12)}",
        "call_id": call["id"] or f"call_{secrets.token_hex(12)}",
        "name": call["name"],
        "arguments": call["arguments"],
        "status": status,
    }


def to_chat(request: Mapping[str, Any]) -> dict[str, Any]:
    """The request as one for chat completions; AskedError for what cannot be said there."""
    for name in UNTRANSLATED:
        if request.get(name):
            raise AskedError(
                f"{name} needs a model whose service has the Responses API: send the whole conversation as `input`, or "
                "name such a model",
                param=name,
                code="unsupported_parameter",
            )
    made = {name: value for name, value in request.items() if name not in DROPPED and value is not None}
    made["messages"] = _messages(request)
    if request.get("max_output_tokens") is not None:
        made["max_tokens"] = request["max_output_tokens"]
    if tools := request.get("tools"):
        made["tools"] = [_tool(tool, place) for place, tool in enumerate(_listed("tools", tools))]
        made |= _tool_choice(request.get("tool_choice"))
    text, reasoning = request.get("text"), request.get("reasoning")
    if isinstance(text, dict):
        made |= _format(text.get("format"))
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        made["reasoning_effort"] = reasoning["effort"]
    return made


def _listed(name: str, given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise AskedError(f"{name} is {str(given)[:60]!r}: expected a list", param=name)
    return given


def _messages(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    given, instructions = request.get("input"), request.get("instructions")
    found: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    for place, item in enumerate(_listed("input", given)):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "message":
            role = str(item.get("role", "user"))
            content = _content(item.get("content"), f"input[{place}].content")
            found.append({"role": "system" if role == "developer" else role, "content": content})
        elif kind == "function_call":
            function = {"name": item.get("name", ""), "arguments": item.get("arguments", "")}
            call = {"id": item.get("call_id", ""), "type": "function", "function": function}
            if found and found[-1]["role"] == "assistant":
                found[-1].setdefault("tool_calls", []).append(call)
            else:
                found.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            output = item.get("output", "")
            text = output if isinstance(output, str) else _content(output, f"input[{place}].output")
            found.append({"role": "tool", "tool_call_id": item.get("call_id", ""), "content": text})
        elif kind != "reasoning":
            raise _unsupported(f"input[{place}]", kind)
    return found


def _content(given: Any, where: str) -> Any:
    """A text, or parts where there is more than text."""
    if given is None or isinstance(given, str):
        return given or ""
    parts = [_part(part, f"{where}[{place}]") for place, part in enumerate(_listed(where, given))]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": str(part.get("text", ""))}
    if kind == "refusal":
        return {"type": "text", "text": str(part.get("refusal", ""))}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"]} | detail}
    raise _unsupported(where, kind)


def _tool(tool: Any, place: int) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise _unsupported(f"tools[{place}]", kind)
    function = {name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name)}
    return {"type": "function", "function": function}


def _tool_choice(given: Any) -> dict[str, Any]:
    if isinstance(given, dict) and given.get("type") == "function":
        return {"tool_choice": {"type": "function", "function": {"name": given.get("name", "")}}}
    return {} if given is None else {"tool_choice": given}


def _format(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict) or given.get("type") == "text":
        return {}
    if given.get("type") == "json_schema":
        named = {name: value for name, value in given.items() if name != "type"}
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    return {"response_format": given}


def _unsupported(where: str, kind: Any) -> AskedError:
    return AskedError(
        f"{where} has the type {str(kind)[:60]!r}, which needs a model whose service has the Responses API",
        param=where,
        code="unsupported_value",
    )
