"""The routes of OpenAI's API that clients use: chat completions, responses, embeddings and the list of models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get, post
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, OpenAPIType, Operation, RequestBody, Schema
from litestar.params import PathParameter
from litestar.response import Stream
from msgspec import Struct

from etude.contracts.errors import RequestError
from etude.serving.access import Called, needs
from etude.serving.errors import REFUSALS, on_error
from etude.serving.keys import Caller, Role
from etude.serving.routing.asked import Api, AskedError
from etude.serving.routing.proxy import EVENT_STREAM, JSON, Reply
from etude.serving.routing.wires import error_of
from etude.serving.server import Server

CALLS = ("/v1/chat/completions", "/v1/responses", "/v1/embeddings")
"""Routes whose calls take as long as the settings of the upstream allow."""
KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
CODES = {401: "invalid_api_key", 403: "insufficient_role", 429: "rate_limit_exceeded"}


class OpenAIErrorDetail(Struct, kw_only=True, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(Struct, kw_only=True, frozen=True):
    """What went wrong, in OpenAI's form."""

    error: OpenAIErrorDetail


class OpenAIModel(Struct, kw_only=True, frozen=True):
    """A model that callers may name, or a choice among them."""

    id: str
    object: str
    created: int
    owned_by: str


class OpenAIModels(Struct, kw_only=True, frozen=True):
    object: str
    data: list[OpenAIModel]


def on_openai_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """As `on_error`, with the body that OpenAI's clients read."""
    made = on_error(request, error)
    problem = msgspec.json.decode(made.content)
    status = problem["status"]
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    fields = problem.get("errors") or [{}]
    param = error.param if isinstance(error, AskedError) else fields[0].get("field")
    code = error.code if isinstance(error, AskedError) else CODES.get(status)
    body = error_of(problem["detail"], kind=kind, code=code, param=param)
    return Response(msgspec.json.encode(body), status_code=status, headers=made.headers, media_type="application/json")


def _call(asked: Mapping[str, Any], given: Mapping[str, Any]) -> type[Operation]:
    """A route whose bodies are OpenAI's, with an example of each."""

    @dataclass
    class Call(Operation):
        def __post_init__(self) -> None:
            plain = Schema(type=OpenAPIType.OBJECT)
            self.request_body = RequestBody(content={JSON: OpenAPIMediaType(plain, example=asked)}, required=True)
            answer = (self.responses or {})["200"]
            assert isinstance(answer, OpenAPIResponse)
            answer.content = {
                JSON: OpenAPIMediaType(plain, example=given),
                EVENT_STREAM: OpenAPIMediaType(Schema(type=OpenAPIType.STRING)),
            }

    return Call


def _refusals(*statuses: int) -> dict[int, ResponseSpec]:
    return {
        status: ResponseSpec(
            OpenAIError, generate_examples=False, description=REFUSALS.get(status, HTTPStatus(status).description)
        )
        for status in statuses
    }


_SHARED: dict[str, Any] = {
    "tags": ["language models"],
    "status_code": 200,
    "guards": [needs(Role.DECIDE)],
    "exception_handlers": {Exception: on_openai_error},
}
_CALL: dict[str, Any] = _SHARED | {"responses": _refusals(400, 401, 403, 404, 413, 422, 429, 502, 503, 504)}


SAID = "Where is my parcel?"
ANSWERED = "It arrives tomorrow."
CHAT = _call(
    {"model": "etude/auto", "messages": [{"role": "user", "content": SAID}]},
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1763456400,
        "model": "small",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": ANSWERED}, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10},
    },
)
RESPONSE = _call(
    {"model": "etude/auto", "input": SAID},
    {
        "id": "resp-1",
        "object": "response",
        "status": "completed",
        "model": "small",
        "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWERED}]},
        ],
    },
)
EMBEDDING = _call(
    {"model": "vectors", "input": SAID},
    {
        "object": "list",
        "model": "vectors",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.1, -0.2]}],
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    },
)


@post(CALLS[0], summary="Chat completion", operation_class=CHAT, **_CALL)
async def chat(request: Request[Any, Any, Any], state: State, caller: Called) -> Response[Any]:
    """As OpenAI's, with any model that `GET /v1/models` lists; `etude/auto` chooses one. Headers `x-etude-…` of the
    answer say which, why, and the id under which its outcome can be reported."""
    return await _answer("chat", request, state.server, caller)


@post(CALLS[1], summary="Response", operation_class=RESPONSE, **_CALL)
async def responses(request: Request[Any, Any, Any], state: State, caller: Called) -> Response[Any]:
    """As OpenAI's Responses API; translated for models whose service has chat completions alone."""
    return await _answer("responses", request, state.server, caller)


@post(CALLS[2], summary="Embeddings", operation_class=EMBEDDING, **_CALL)
async def embeddings(request: Request[Any, Any, Any], state: State, caller: Called) -> Response[Any]:
    """As OpenAI's, with a model that is named: vectors of two models cannot be compared."""
    return await _answer("embeddings", request, state.server, caller)


@get("/v1/models", summary="Models that may be named", **_SHARED, responses=_refusals(401, 403, 429, 503))
async def models(state: State) -> OpenAIModels:
    """Those of the settings, and the choices among them."""
    server: Server = state.server
    return OpenAIModels(object="list", data=_models(server))


@get("/v1/models/{id:path}", summary="One model", **_SHARED, responses=_refusals(401, 403, 404, 429, 503))
async def model(state: State, id: Annotated[str, PathParameter(description="Name of a model.")]) -> OpenAIModel:
    """By the name that callers use."""
    wanted = str(id).removeprefix("/")
    for one in _models(state.server):
        if one.id == wanted:
            return one
    raise AskedError(f"there is no model {wanted[:80]!r}", param="model", code="model_not_found", status=404)


def _models(server: Server) -> list[OpenAIModel]:
    listed = server.proxy.models.listed(int(server.started.timestamp()))
    return [OpenAIModel(**one) for one in listed]


async def _answer(api: Api, request: Request[Any, Any, Any], server: Server, caller: Caller) -> Response[Any]:
    body, headers = await request.body(), _own(request)
    reply = await _unless_gone(request, api, body, headers, caller, server)
    kind = reply.headers.get("content-type", JSON)
    others = {name: value for name, value in reply.headers.items() if name != "content-type"}
    if isinstance(reply.body, bytes):
        return Response(reply.body, status_code=reply.status, headers=others, media_type=kind)
    return Stream(reply.body, status_code=reply.status, headers=others, media_type=kind)


def _own(request: Request[Any, Any, Any]) -> Mapping[str, str]:
    return {name: value for name, value in request.headers.items() if name.startswith("x-etude-")}


async def _unless_gone(
    request: Request[Any, Any, Any], api: Api, body: bytes, headers: Mapping[str, str], caller: Caller, server: Server
) -> Reply:
    """The answer; if the caller disconnects before it begins, the upstream is not asked any longer."""
    work = asyncio.ensure_future(server.proxy.answer(api, body, headers, caller))
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
        return await work
    except asyncio.CancelledError:
        if gone.done() and not gone.cancelled():
            raise RequestError("the caller disconnected", status=408) from None
        work.cancel()
        raise
    finally:
        gone.cancel()


async def _disconnected(request: Request[Any, Any, Any]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


ROUTES = [chat, responses, embeddings, models, model]
