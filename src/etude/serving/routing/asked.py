"""What a caller asks: the model, what it has to be able to do, limits of cost and latency, and the conversation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from etude.contracts.decision import Preferences
from etude.contracts.errors import RequestError
from etude.serving.keys import Caller

Api = Literal["chat", "responses", "embeddings"]
PREFIX = "etude/"
AUTO = "auto"
DEFAULT_CHOICE = "model"
"""The choice that `etude/auto` asks."""
TOKENS_PER_CHAR = 0.3
"""Tokens per character of text, as an upper estimate."""
IMAGE_TOKENS = 1000
"""Tokens of an image, about."""
MAX_TASK_CHARS = 2000
OWN = ("conversation", "user", "max_cost_usd", "max_latency_ms", "quality_weight", "region")
"""Names of `metadata` that are for us, and not passed on."""


class AskedError(RequestError):
    """A request that is wrong, with the parameter at fault and OpenAI's code."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message, status=status)
        self.param, self.code = param, code


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One call."""

    api: Api
    model: str
    body: Mapping[str, Any]
    """As it was sent, without what is for us alone."""
    stream: bool
    preferences: Preferences
    user: str | None
    conversation: str | None
    """Key under which the model of a conversation is remembered; it says nothing of its content."""
    continues: bool
    """Whether the conversation has begun before."""
    previous: str | None
    """`previous_response_id`."""
    text: str
    """What the user said last."""
    chars: int
    """Characters of text in all of the request."""
    images: int
    tools: int
    json: bool
    max_tokens: int
    """Maximum number of tokens of the answer, 0 if it is not given."""
    turns: int
    """Messages so far."""
    schema: Mapping[str, Any] | None
    """JSON Schema that the answer has to match."""

    @property
    def choice(self) -> str | None:
        """Name of the choice that is asked; None if a model is named."""
        if not self.model.startswith(PREFIX):
            return None
        name = self.model.removeprefix(PREFIX)
        return DEFAULT_CHOICE if name == AUTO else name

    @property
    def tokens(self) -> int:
        """Tokens of the request, about."""
        return math.ceil(self.chars * TOKENS_PER_CHAR) + self.images * IMAGE_TOKENS

    def context(self, *, with_text: bool) -> dict[str, Any]:
        """What a policy knows of the call."""
        known: dict[str, Any] = {"text": self.text[-MAX_TASK_CHARS:]} if with_text else {}
        return known | {
            "tokens": self.tokens,
            "turns": self.turns,
            "tools": self.tools,
            "images": self.images,
            "json": self.json,
        }


def read_asked(api: Api, raw: bytes, headers: Mapping[str, str], caller: Caller) -> Asked:
    """AskedError says what is wrong, and where."""
    body = _object(raw)
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise AskedError("model is missing: expected the name of a model, such as 'etude/auto'", param="model")
    messages = _messages(api, body)
    metadata = body.get("metadata")
    own = {name: metadata[name] for name in OWN if name in metadata} if isinstance(metadata, dict) else {}
    if own:
        assert isinstance(metadata, dict)
        left = {name: value for name, value in metadata.items() if name not in OWN}
        body = {name: value for name, value in body.items() if name != "metadata"} | (
            {"metadata": left} if left else {}
        )
    user = _name("user", body.get("safety_identifier") or body.get("user") or own.get("user"))
    parts = [part for message in messages for part in _parts(message)]
    format = _format(api, body)
    stream = body.get("stream") or False
    if not isinstance(stream, bool):
        raise AskedError(f"stream is {stream!r}: expected true or false", param="stream")
    previous = body.get("previous_response_id") if api == "responses" else None
    named = headers.get("x-etude-conversation") or own.get("conversation")
    tools = body.get("tools")
    answered = any(message.get("role") in ("assistant", "tool") for message in messages) or any(
        message.get("type") in ("function_call", "function_call_output") for message in messages
    )
    return Asked(
        api=api,
        model=model,
        body=body,
        stream=stream,
        preferences=_preferences(headers, own),
        user=user,
        conversation=_conversation(_name("conversation", named), user, body, messages, caller),
        continues=named is not None or answered,
        previous=previous if isinstance(previous, str) else None,
        text=_last_text(messages),
        chars=sum(len(text) for text, _ in parts) + _length(tools),
        images=sum(is_image for _, is_image in parts),
        tools=len(tools) if isinstance(tools, list) else 0,
        json=format.get("type") in ("json_object", "json_schema"),
        max_tokens=_most(body),
        turns=len(messages),
        schema=_schema(format),
    )


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AskedError(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise AskedError("the body is no JSON object: expected one with `model`")
    return body


def _messages(api: Api, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    if api == "embeddings":
        given = body.get("input")
        if not given or not isinstance(given, str | list):
            raise AskedError("input is missing: expected a text or a list of texts", param="input")
        texts = [given] if isinstance(given, str) else [one for one in given if isinstance(one, str)]
        return [{"role": "user", "content": text} for text in texts]
    name = "messages" if api == "chat" else "input"
    given = body.get(name)
    if api == "responses" and isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if api == "responses" and given is None and (body.get("previous_response_id") or body.get("prompt")):
        given = []
    elif not isinstance(given, list) or not given:
        raise AskedError(f"{name} is missing or empty: expected a list of messages", param=name)
    assert isinstance(given, list)
    for place, message in enumerate(given):
        if not isinstance(message, dict):
            raise AskedError(f"{name}[{place}] is {str(message)[:60]!r}: expected an object", param=f"{name}[{place}]")
    instructions = body.get("instructions")
    first = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
    return first + given


def _parts(message: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Texts of a message, and whether a part is an image."""
    content = message.get("content")
    if isinstance(content, str):
        yield content, False
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict):
                kind, text = part.get("type"), part.get("text")
                yield text if isinstance(text, str) else "", isinstance(kind, str) and "image" in kind
    for name in ("tool_calls", "arguments", "output"):
        if message.get(name):
            yield str(message[name]), False


def _last_text(messages: Sequence[Mapping[str, Any]]) -> str:
    for message in reversed(messages):
        if message.get("role") == "user":
            return "\n".join(text for text, _ in _parts(message) if text)
    return ""


def _length(tools: Any) -> int:
    return len(msgspec.json.encode(tools)) if tools else 0


def _format(api: Api, body: Mapping[str, Any]) -> Mapping[str, Any]:
    text = body.get("text")
    found = body.get("response_format") if api == "chat" else text.get("format") if isinstance(text, dict) else None
    return found if isinstance(found, dict) else {}


def _schema(format: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if format.get("type") != "json_schema":
        return None
    inner = format.get("json_schema", format)
    schema = inner.get("schema") if isinstance(inner, dict) else None
    return schema if isinstance(schema, dict) else None


def _most(body: Mapping[str, Any]) -> int:
    found = (body.get(name) for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"))
    return next((one for one in found if type(one) is int and one > 0), 0)


def _preferences(headers: Mapping[str, str], own: Mapping[str, Any]) -> Preferences:
    found: dict[str, Any] = {}
    for name, least, most in (
        ("max_cost_usd", 0.0, math.inf),
        ("max_latency_ms", 0.0, math.inf),
        ("quality_weight", 0.0, 1.0),
    ):
        header = f"x-etude-{name.replace('_', '-')}"
        given, where = (headers[header], header) if header in headers else (own.get(name), f"metadata.{name}")
        if given is None:
            continue
        try:
            value = float(given)
        except (TypeError, ValueError):
            value = math.nan
        if not least <= value <= most or math.isinf(value):
            limit = "of 0 or more" if math.isinf(most) else f"from {least:g} to {most:g}"
            raise AskedError(f"{where} is {str(given)[:60]!r}: expected a number {limit}", param=where)
        found[name] = value
    region = headers.get("x-etude-region") or own.get("region")
    return Preferences(region=_name("region", region), **found)


def _name(what: str, given: Any) -> str | None:
    if given is None or given == "":
        return None
    if not isinstance(given, str) or not 0 < len(given) <= 256:
        raise AskedError(f"{what} is {str(given)[:60]!r}: expected a text of 1 to 256 characters", param=what)
    return given


def _conversation(
    named: str | None,
    user: str | None,
    body: Mapping[str, Any],
    messages: Sequence[Mapping[str, Any]],
    caller: Caller,
) -> str | None:
    """A hash of its name, or of what it began with: the same in every call of it, and of no other tenant."""
    if named is None:
        first = next((place for place, one in enumerate(messages) if one.get("role") == "user"), None)
        if first is None:
            return None
        began: Any = [[one.get("role"), one.get("content")] for one in messages[: first + 1]]
    else:
        began = named
    text = msgspec.json.encode([caller.tenant or f"key {caller.key}", user, body.get("model"), began])
    return blake2b(text, digest_size=16).hexdigest()


def response_key(id: str, caller: Caller) -> str:
    """Key under which the model of a response is remembered, for `previous_response_id`."""
    text = msgspec.json.encode([caller.tenant or f"key {caller.key}", "response", id])
    return blake2b(text, digest_size=16).hexdigest()
