"""Settings of the OpenAI-compatible routes: which models there are, where, and at which price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, MinLen

FORBID: dict[str, Any] = {"extra": "forbid"}
"""An unknown name in an entry is an error."""


@dataclass(frozen=True, kw_only=True)
class UpstreamConfig:
    """A service with an OpenAI-compatible API."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID

    url: Annotated[str, MinLen(1)]
    """Its base URL, such as https://api.openai.com/v1."""
    api_key_env: str | None = None
    """Name of the environment variable that holds its API key; null sends none."""
    allow_private: bool = False
    """Whether the URL may lead to a private address, such as this machine."""
    has_responses: bool = False
    """Whether it has /responses; without it, such requests are translated to /chat/completions."""
    first_byte_s: Annotated[float, Gt(0)] = 30.0
    """Seconds until the first byte of a stream; then the next model is asked."""
    stall_s: Annotated[float, Gt(0)] = 60.0
    """Seconds of silence after which a stream has failed."""
    answer_s: Annotated[float, Gt(0)] = 300.0
    """Seconds until an answer that is not a stream; then the next model is asked."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model of an upstream, under the name that callers use."""

    __pydantic_config__: ClassVar[dict[str, Any]] = FORBID

    upstream: Annotated[str, MinLen(1)]
    """Name of its upstream."""
    model: str = ""
    """Its name there; empty is the same name."""
    kind: Literal["chat", "embedding"] = "chat"
    """What it does. Only chat models are chosen among: vectors of two models cannot be compared."""
    description: str = ""
    """What it is good at, in words: a policy reads it."""
    usd_per_mtok_in: Annotated[float, Ge(0)] | None = None
    """Price of a million tokens of requests in USD; null is unknown."""
    usd_per_mtok_out: Annotated[float, Ge(0)] | None = None
    """Price of a million tokens of answers in USD; null is unknown."""
    usd_per_mtok_cached: Annotated[float, Ge(0)] | None = None
    """Price of a million tokens of requests that the service had cached in USD; null is that of others."""
    context_tokens: Annotated[int, Gt(0)] | None = None
    """Maximum number of tokens of a request and its answer; null is unknown."""
    latency_ms: Annotated[float, Gt(0)] | None = None
    """Usual duration of an answer in milliseconds, for limits before it has been learned."""
    regions: tuple[str, ...] = ()
    """Regions where it runs; empty is unknown."""
    tools: bool = True
    """Whether it takes tools."""
    vision: bool = False
    """Whether it takes images."""
    json: bool = True
    """Whether it takes `response_format`."""
    reports_usage: bool = True
    """Whether a stream may be asked for its token counts; some services reject `stream_options`."""


@dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """A language model that scores a share of the answers, in the background."""

    model: str | None = None
    """Its name among routing.models; null has no judge."""
    rate: Annotated[float, Ge(0), Le(1)] = 0.05
    """Share of the routed answers that it scores."""
    success: Annotated[float, Gt(0), Le(1)] = 0.5
    """Score from which an answer is a success."""
    timeout_s: Annotated[float, Gt(0)] = 60.0
    """Seconds to wait for a score."""


@dataclass(frozen=True, kw_only=True)
class RoutingConfig:
    """The OpenAI-compatible routes. Without models they refuse all calls."""

    upstreams: Mapping[str, UpstreamConfig] = field(default_factory=dict)
    """Services by name."""
    models: Mapping[str, ModelConfig] = field(default_factory=dict)
    """Models by the names that callers use; `etude/auto` is any of them."""
    choices: tuple[str, ...] = ()
    """Names of further choices among the models: `etude/NAME` asks the policy of choice:NAME."""
    default_model: str | None = None
    """Model to take until a policy has learned, except for `experience.explore` of the calls; null samples all."""
    attempts: Annotated[int, Ge(1)] = 3
    """Maximum number of models that are asked for one call."""
    cooldown_s: Annotated[float, Gt(0)] = 10.0
    """Seconds for which a model that failed is not chosen, unless its service says otherwise (retry-after)."""
    max_cooldown_s: Annotated[float, Gt(0)] = 300.0
    """Maximum of these seconds, whatever the service says."""
    affinity_hours: Annotated[float, Ge(0), Le(24)] = 12.0
    """Hours for which a conversation stays on its model; 0 decides at each call."""
    max_conversations: Annotated[int, Ge(1)] = 100_000
    """Maximum number of conversations that are remembered; the oldest are forgotten first."""
    store_content: bool = True
    """Whether texts of calls are stored, redacted; without them, a policy learns from sizes and kinds alone."""
    max_content_chars: Annotated[int, Ge(0)] = 20_000
    """Maximum number of characters of a call's messages that are stored, the last ones."""
    verifiers: tuple[str, ...] = ()
    """Functions, as package.module:function, that are given request and answer and return whether it is good."""
    max_waiting: Annotated[int, Ge(1)] = 200
    """Maximum number of answers that wait for verifiers and judge; further ones are not checked."""
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    """The judge."""
