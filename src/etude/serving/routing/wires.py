"""What goes over the wire: a caller's request to an upstream, and its answer back, as it comes.

A `Wire` is made for one attempt. It passes on what it does not know, and notes on the way what the call came to.
"""

from __future__ import annotations

import array
import base64
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from etude.serving.routing.config import ModelConfig

CHARS_PER_TOKEN = 4
"""For an estimate where a service does not count."""
DONE = b"[DONE]"


class BrokenError(ValueError):
    """An answer that is not what was asked for, or an error that the upstream sends within a stream."""


@dataclass(kw_only=True)
class Answer:
    """What a call came to, so far."""

    id: str | None = None
    text: list[str] = field(default_factory=list)
    tool_calls: dict[int, dict[str, str]] = field(default_factory=dict)
    """By their place: id, name and arguments."""
    finish: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int = 0
    is_estimated: bool = False
    """Whether the tokens are estimated."""
    ended: bool = False
    """Whether all of it has come."""

    def content(self) -> str:
        return "".join(self.text)

    def calls(self) -> list[dict[str, str]]:
        return [self.tool_calls[place] for place in sorted(self.tool_calls)]

    def count(self, usage: Mapping[str, Any]) -> None:
        """The tokens of a `usage` of chat completions, responses or embeddings."""
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        self.tokens_in = _count(usage.get("prompt_tokens", usage.get("input_tokens")), self.tokens_in)
        self.tokens_out = _count(usage.get("completion_tokens", usage.get("output_tokens")), self.tokens_out)
        if isinstance(details, dict):
            self.tokens_cached = _count(details.get("cached_tokens"), 0) or 0

    def estimate(self, request_chars: int) -> None:
        """Fill in the tokens that the service did not count."""
        if self.tokens_in is None or self.tokens_out is None:
            self.is_estimated = True
        said = len(self.content()) + sum(len(call.get("arguments", "")) for call in self.tool_calls.values())
        self.tokens_in = math.ceil(request_chars / CHARS_PER_TOKEN) if self.tokens_in is None else self.tokens_in
        self.tokens_out = math.ceil(said / CHARS_PER_TOKEN) if self.tokens_out is None else self.tokens_out

    def cost_usd(self, model: ModelConfig) -> float | None:
        """By the configured prices; None without any."""
        if model.usd_per_mtok_in is None and model.usd_per_mtok_out is None:
            return None
        price_in, tokens_in = model.usd_per_mtok_in or 0.0, self.tokens_in or 0
        cached = min(self.tokens_cached, tokens_in)
        price_cached = price_in if model.usd_per_mtok_cached is None else model.usd_per_mtok_cached
        spent = (tokens_in - cached) * price_in + cached * price_cached
        return (spent + (self.tokens_out or 0) * (model.usd_per_mtok_out or 0.0)) / 1e6


def _count(given: Any, otherwise: int | None) -> int | None:
    return given if type(given) is int and given >= 0 else otherwise


class Wire(Protocol):
    """One attempt: `path` and `body` are what is asked."""

    path: str
    body: bytes
    answer: Answer

    def whole(self, body: bytes) -> bytes:
        """The caller's answer from the upstream's; BrokenError if it is none."""

    def event(self, data: bytes) -> bytes:
        """What the caller's stream gets for an event of the upstream's; BrokenError if it is an error or nonsense."""

    def end(self) -> bytes:
        """The end of the caller's stream."""

    def failure(self, message: str, code: str) -> bytes:
        """The end of a stream that failed."""


def error_of(message: str, *, kind: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's form."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def sse(data: bytes, event: str | None = None) -> bytes:
    return b"data: %b\n\n" % data if event is None else b"event: %b\ndata: %b\n\n" % (event.encode(), data)


class _Delta(Struct):
    content: Any = None
    tool_calls: list[dict[str, Any]] | None = None
    refusal: str | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    index: int = 0
    finish_reason: str | None = None


class _Chat(Struct):
    """What is read of a chat completion, or of a chunk of one."""

    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None


_chat = msgspec.json.Decoder(_Chat)


def read_chat(data: bytes, answer: Answer) -> _Chat:
    """Note what a chat completion, or a chunk of one, says; BrokenError if it is neither."""
    try:
        found = _chat.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenError(f"it is no chat completion: {error}") from error
    if found.error:
        raise BrokenError(upstream_message(found.error))
    answer.id = answer.id or found.id
    if found.usage:
        answer.count(found.usage)
    for choice in found.choices or ():
        if choice.index == 0:
            _note(choice, answer)
    return found


def _note(choice: _Choice, answer: Answer) -> None:
    said = choice.delta or choice.message
    answer.finish = choice.finish_reason or answer.finish
    if said is None:
        return
    if isinstance(said.content, str) and said.content:
        answer.text.append(said.content)
    for place, call in enumerate(said.tool_calls or ()):
        index = call.get("index")
        known = answer.tool_calls.setdefault(
            index if isinstance(index, int) else place, {"id": "", "name": "", "arguments": ""}
        )
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        for name, value in (("id", call.get("id")), ("name", function.get("name"))):
            if isinstance(value, str) and value:
                known[name] = value
        if isinstance(arguments := function.get("arguments"), str):
            known["arguments"] += arguments


def upstream_message(error: Any) -> str:
    """The message of an error as services write it."""
    if isinstance(error, dict):
        error = error.get("message") or error
    return str(error)[:500]


class ChatWire:
    """Chat completions as they are."""

    path = "/chat/completions"

    def __init__(self, request: Mapping[str, Any], name: str, model: ModelConfig) -> None:
        """`request` is what the caller sent, without what is for us alone."""
        self.answer, self._name = Answer(), model.model or name
        asked = dict(request) | {"model": self._name}
        options = asked.get("stream_options")
        options = dict(options) if isinstance(options, dict) else {}
        self._wants_usage = bool(options.get("include_usage"))
        if asked.get("stream"):
            if model.reports_usage:
                asked["stream_options"] = options | {"include_usage": True}
            else:
                asked.pop("stream_options", None)
        self.body = msgspec.json.encode(asked)

    def whole(self, body: bytes) -> bytes:
        found = read_chat(body, self.answer)
        if not found.choices:
            raise BrokenError("it has no choices")
        self.answer.ended = True
        return body if found.model else _edited(body, model=self._name)

    def event(self, data: bytes) -> bytes:
        if data == DONE:
            self.answer.ended = True
            return b""  # `end` says it when the call is recorded
        found = read_chat(data, self.answer)
        if not self._wants_usage and b'"usage"' in data:
            if not found.choices and found.usage:
                return b""
            data = _edited(data, usage=None)
        return sse(data if found.model else _edited(data, model=self._name))

    def end(self) -> bytes:
        return sse(DONE)

    def failure(self, message: str, code: str) -> bytes:
        return sse(msgspec.json.encode(error_of(message, kind="server_error", code=code)))


def _edited(data: bytes, **changes: Any) -> bytes:
    """An object with other values; None removes one."""
    found = msgspec.json.decode(data) | changes
    return msgspec.json.encode({name: value for name, value in found.items() if value is not None or name != "usage"})


class EmbeddingsWire:
    """Embeddings, in the encoding that the caller asked for whatever the upstream knows."""

    path = "/embeddings"

    def __init__(self, request: Mapping[str, Any], name: str, model: ModelConfig) -> None:
        self.answer, self._name = Answer(), model.model or name
        self._base64 = request.get("encoding_format") == "base64"
        self.body = msgspec.json.encode(dict(request) | {"model": self._name})

    def whole(self, body: bytes) -> bytes:
        try:
            found = msgspec.json.decode(body)
            rows = found["data"]
            if not isinstance(rows, list) or not rows:
                raise BrokenError("it has no embeddings")
            for row in rows:
                row["embedding"] = _encoded(row["embedding"], self._base64)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, ValueError) as error:
            raise BrokenError(f"it has no embeddings: {error}") from error
        self.answer.count(found.get("usage") or {})
        self.answer.tokens_out, self.answer.ended = 0, True
        return msgspec.json.encode({"object": "list", "model": self._name} | found)

    def event(self, data: bytes) -> bytes:
        raise BrokenError("embeddings do not stream")

    def end(self) -> bytes:
        return b""

    def failure(self, message: str, code: str) -> bytes:
        return b""


def _encoded(vector: Any, as_base64: bool) -> Any:
    """32-bit floats, little-endian, in base64; or their list."""
    if isinstance(vector, str) == as_base64:
        return vector
    floats = array.array("f", base64.b64decode(vector, validate=True) if isinstance(vector, str) else vector)
    if sys.byteorder == "big":
        floats.byteswap()
    return base64.b64encode(floats.tobytes()).decode() if as_base64 else floats.tolist()
