"""Metrics for Prometheus."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Response, get
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.handlers import BaseRouteHandler

from etude.serving.access import needs
from etude.serving.errors import refusals
from etude.serving.keys import Role
from etude.serving.metrics import MEDIA_TYPE, Sample, render
from etude.serving.routes.health import found_ready
from etude.serving.server import Server

READS_TIMEOUT_S = 5.0
"""Seconds that reading the stores may take; then the metrics of the process are given alone."""


def _scrapes(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """A guard: the role `release`, unless the settings say that none is needed."""
    server: Server = connection.app.state.server
    if not server.config.metrics_without_key:
        needs(Role.RELEASE)(connection, handler)


@get(
    "/metrics",
    summary="Metrics in the text format of Prometheus",
    tags=["health"],
    media_type="text/plain",
    guards=[_scrapes],
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
