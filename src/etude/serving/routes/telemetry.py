"""OTLP: traces and logs of agents that are instrumented with OpenTelemetry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litestar import Request, Response, post
from litestar.datastructures import State
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, OpenAPIType, Operation, RequestBody, Schema

from etude.serving.access import Called, needs
from etude.serving.errors import MEDIA_TYPE, refusals
from etude.serving.keys import Caller, Role
from etude.serving.server import Server
from etude.serving.telemetry import Signal

OTLP = {
    "application/json": OpenAPIMediaType(Schema(type=OpenAPIType.OBJECT), example={}),
    "application/x-protobuf": OpenAPIMediaType(
        Schema(type=OpenAPIType.STRING, content_media_type="application/x-protobuf"), example=""
    ),
}
"""Both forms, of requests and answers: what they hold is in the specification of OTLP."""


@dataclass
class Export(Operation):
    """A route whose body is OTLP; exporters repeat requests by themselves."""

    def __post_init__(self) -> None:
        self.request_body = RequestBody(content=dict(OTLP), description="An export request of OTLP.")
        for answer in (self.responses or {}).values():
            if isinstance(answer, OpenAPIResponse) and MEDIA_TYPE not in (answer.content or {}):
                answer.content = dict(OTLP)


@post(
    "/v1/traces",
    summary="Send spans",
    tags=["telemetry"],
    operation_class=Export,
    status_code=200,
    guards=[needs(Role.INGEST)],
    responses=refusals(400, 401, 403, 413, 429, 503),
)
async def traces(request: Request[Any, Any, Any], state: State, caller: Called) -> Response[bytes]:
    """An ExportTraceServiceRequest, as protobuf or JSON. GenAI spans of a trace become a trajectory when it is over."""
    return await _receive("traces", request, state.server, caller)


@post(
    "/v1/logs",
    summary="Send log records",
    tags=["telemetry"],
    operation_class=Export,
    status_code=200,
    guards=[needs(Role.INGEST)],
    responses=refusals(400, 401, 403, 413, 429, 503),
)
async def logs(request: Request[Any, Any, Any], state: State, caller: Called) -> Response[bytes]:
    """An ExportLogsServiceRequest, as protobuf or JSON: messages and evaluation results of traces."""
    return await _receive("logs", request, state.server, caller)


async def _receive(signal: Signal, request: Request[Any, Any, Any], server: Server, caller: Caller) -> Response[bytes]:
    sent, encoding = request.headers.get("content-type", ""), request.headers.get("content-encoding")
    body, kind = await server.telemetry.receive(signal, await request.body(), sent, encoding, caller)
    return Response(body, media_type=kind)


ROUTES = [traces, logs]
