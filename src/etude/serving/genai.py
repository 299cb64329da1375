"""What spans say by the GenAI semantic conventions of OpenTelemetry (v1.41.1), older names included.

Spans, messages and evaluation results come in as plain values; `serving/otlp.py` reads them from requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from etude.contracts.plain import plain

Direction = Literal["input", "output"]
PREFIX = "gen_ai."
EVALUATION = "gen_ai.evaluation.result"
DETAILS = "gen_ai.client.inference.operation.details"
"""The event that holds the messages of a model call when its span does not."""
MESSAGES: Mapping[str, tuple[Direction, str]] = {
    "gen_ai.system.message": ("input", "system"),
    "gen_ai.user.message": ("input", "user"),
    "gen_ai.assistant.message": ("input", "assistant"),
    "gen_ai.tool.message": ("input", "tool"),
    "gen_ai.choice": ("output", "assistant"),
    "gen_ai.content.prompt": ("input", "user"),
    "gen_ai.content.completion": ("output", "assistant"),
}
"""Events of older conventions, one per message: its direction, and its role where the event has none."""
ALIASES: Mapping[str, tuple[str, ...]] = {
    "gen_ai.provider.name": ("gen_ai.system",),
    "gen_ai.usage.input_tokens": ("gen_ai.usage.prompt_tokens",),
    "gen_ai.usage.output_tokens": ("gen_ai.usage.completion_tokens",),
    "gen_ai.input.messages": ("gen_ai.prompt",),
    "gen_ai.output.messages": ("gen_ai.completion",),
}
"""Attribute → its older names."""
USER = ("user.id", "enduser.id")
OTHER = ("error.type", *USER)
"""Attributes outside `gen_ai.` that are read."""
AGENT = ("invoke_", "create_agent")
"""How operations begin whose tokens are those of the model calls below them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """Messages of a model call: one of an event of older conventions, or all of them."""

    trace_id: str
    span_id: str
    content: Mapping[Direction, Any]
    whole: bool = False
    """Whether `content` has lists of all messages, not one message."""
    raw: bytes = b""
    """The log record that it came in, if it was one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """A result of an evaluation: a score from 0 to 1, a label, or both."""

    trace_id: str
    span_id: str | None = None
    name: str
    score: float | None = None
    label: str | None = None
    explanation: str | None = None
    kind: Literal["event", "record"] = "record"
    """What it came in: an event of a span, or a log record."""
    raw: bytes = b""
    """That event or log record, as it was sent."""

    @property
    def trajectory_id(self) -> str:
        return trajectory_id(self.trace_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One operation of a trace."""

    trace_id: str
    id: str
    parent_id: str | None
    name: str
    start_ns: int
    end_ns: int
    """0 if unknown."""
    attributes: Mapping[str, Any]
    """Those of the GenAI conventions, and `OTHER`."""
    ok: bool | None = None
    """False: its status is an error; None: no status was set."""
    error: str = ""
    """Message of the error."""
    messages: tuple[Message, ...] = ()
    """Messages from its events."""
    service: str | None = None
    """The service that sent it."""
    raw: bytes = b""
    """The span as it was sent, in protobuf."""

    @property
    def operation(self) -> str | None:
        """Kind of the operation, such as chat or execute_tool; None if this is not a GenAI span."""
        named = text(self.attributes, "gen_ai.operation.name")
        if named is not None or not any(name.startswith(PREFIX) for name in self.attributes):
            return named
        if "gen_ai.tool.name" in self.attributes:
            return "execute_tool"
        if "gen_ai.request.model" in self.attributes or attribute(self.attributes, "gen_ai.provider.name") is not None:
            return "chat"
        return "invoke_agent" if "gen_ai.agent.name" in self.attributes else self.name or "unknown"

    @property
    def is_agent(self) -> bool:
        """Whether it is an agent, or a chain of agents, at work: `invoke_agent`, `invoke_workflow`."""
        return (self.operation or "").startswith(AGENT[0])

    @property
    def calls_model(self) -> bool:
        """Whether its tokens are its own."""
        return self.operation is not None and not self.operation.startswith((*AGENT, "execute_tool"))

    @property
    def latency_ms(self) -> float | None:
        return (self.end_ns - self.start_ns) / 1e6 if self.end_ns >= self.start_ns else None


def trajectory_id(trace_id: str) -> str:
    return f"otel-{trace_id}"


def attribute(attributes: Mapping[str, Any], name: str) -> Any:
    """The attribute by its current name, else by an older one."""
    return next((attributes[one] for one in (name, *ALIASES.get(name, ())) if attributes.get(one) is not None), None)


def text(attributes: Mapping[str, Any], name: str, *, max_chars: int = 256) -> str | None:
    """The attribute if it is a text that is not empty, shortened to what a name may have."""
    found = attribute(attributes, name)
    return str(plain(found))[:max_chars] if isinstance(found, str) and found else None


def tokens(attributes: Mapping[str, Any], direction: Direction) -> int | None:
    found = attribute(attributes, f"gen_ai.usage.{direction}_tokens")
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


def structured(attributes: Mapping[str, Any], name: str) -> Any:
    """The attribute, in the types of JSON; a text that holds an object or a list in JSON is parsed."""
    found = attribute(attributes, name)
    if isinstance(found, str) and found.lstrip()[:1] in ("[", "{"):
        try:
            return plain(msgspec.json.decode(found.encode("utf-8", "backslashreplace")))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return plain(found)
    return plain(found)


def messages_of(span: Span, sent: Iterable[Message], direction: Direction) -> Any:
    """Messages of a span: its attribute, else what its events or log records (`sent`) hold."""
    found = structured(span.attributes, f"gen_ai.{direction}.messages")
    if found is not None:
        return found
    mine = [one for one in (*span.messages, *sent) if one.content.get(direction) is not None]
    whole = next((one.content[direction] for one in mine if one.whole), None)
    return whole if whole is not None else [one.content[direction] for one in mine] or None


def read_messages(
    event: str, attributes: Mapping[str, Any], body: Any, *, trace_id: str, span_id: str, raw: bytes = b""
) -> Message | None:
    """The messages of an event of a span, or of a log record; None if it has none."""
    directions: tuple[Direction, ...] = ("input", "output")
    found: dict[Direction, Any] = {
        direction: content
        for direction in directions
        if (content := structured(attributes, f"gen_ai.{direction}.messages")) is not None
    }
    if found or event == DETAILS:  # also gen_ai.content.prompt and gen_ai.content.completion
        whole = Message(trace_id=trace_id, span_id=span_id, content=found, whole=True, raw=raw)
        return whole if found else None
    if event not in MESSAGES:
        return None
    direction, role = MESSAGES[event]
    content = plain(body)
    if content is None:
        known = ("gen_ai.system", "gen_ai.provider.name", "event.name")
        content = {name.removeprefix(PREFIX): structured(attributes, name) for name in attributes if name not in known}
    content = {"role": role} | content if isinstance(content, dict) else {"role": role, "content": content}
    return Message(trace_id=trace_id, span_id=span_id, content={direction: content}, raw=raw)


def user_text(messages: Any) -> str | None:
    """The text of the last message of the user: what is to be done now."""
    if isinstance(messages, str):
        return messages or None
    for message in reversed(messages) if isinstance(messages, list) else (messages,):
        if isinstance(message, dict) and message.get("role") == "user":
            found = _text_of(message.get("parts", message.get("content")))
            if found:
                return found
    return None


def _text_of(content: Any) -> str | None:
    """Text of a message: a string, or parts of type text."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    said = [
        part if isinstance(part, str) else part.get("content", part.get("text"))
        for part in parts
        if isinstance(part, str) or (isinstance(part, dict) and part.get("type", "text") == "text")
    ]
    return "\n".join(one for one in said if isinstance(one, str) and one) or None
