"""Metrics for Prometheus."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from litestar import Response, get
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.handlers import BaseRouteHandler
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, OpenAPIType, Operation, Schema

from etude.serving.access import Guard
from etude.serving.errors import refusals
from etude.serving.keys import Role
from etude.serving.metrics import MEDIA_TYPE, Sample, render
from etude.serving.routes.health import found_ready
from etude.serving.server import Server

READS_TIMEOUT_S = 5.0
"""Seconds that reading the stores may take; then the metrics of the process are given alone."""


EXAMPLE = "# TYPE agent_rl_trajectories_collected_total counter\nagent_rl_trajectories_collected_total 118000\n"


@dataclass
class Scrape(Operation):
    """A route whose answer is text."""

    def __post_init__(self) -> None:
        answer = (self.responses or {})["200"]
        assert isinstance(answer, OpenAPIResponse)
        answer.content = {"text/plain": OpenAPIMediaType(Schema(type=OpenAPIType.STRING), example=EXAMPLE)}


class Scrapes(Guard):
    """The role `release`, unless the settings say that none is needed."""

    def __call__(self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        server: Server = connection.app.state.server
        if not server.config.metrics_without_key:
            super().__call__(connection, handler)


@get(
    "/metrics",
    summary="Metrics in the text format of Prometheus",
    tags=["health"],
    operation_class=Scrape,
    media_type="text/plain",
    guards=[Scrapes(Role.RELEASE)],
    responses=refusals(401, 403, 429, 503),
)
async def metrics(state: State) -> Response[str]:
    """Of the whole installation, read from its stores, and of this process. The documentation lists them."""
    server: Server = state.server
    installation: list[Sample]
    try:
        installation = await asyncio.wait_for(asyncio.to_thread(server.installation.samples), READS_TIMEOUT_S)
    except TimeoutError:
        installation = [Sample("etude_store_up", (), 0)]
    ready = (await found_ready(server)).checks
    checks = [Sample("etude_ready", (name,), int(text == "ok")) for name, text in ready.items()]
    telemetry = [Sample("etude_otlp_total", (name,), count) for name, count in sorted(server.telemetry.counts.items())]
    own = list(server.metrics.samples())
    return Response(render([*installation, *own, *telemetry, *checks]), headers={"content-type": MEDIA_TYPE})


ROUTES = [metrics]
