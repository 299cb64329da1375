"""OTLP: traces and logs of agents that are instrumented with OpenTelemetry."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, post
from litestar.datastructures import State

from etude.serving.access import Called, needs
from etude.serving.errors import refusals
from etude.serving.keys import Caller, Role
from etude.serving.server import Server
from etude.serving.telemetry import Signal


@post(
    "/v1/traces",
    summary="Send spans",
    tags=["telemetry"],
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
