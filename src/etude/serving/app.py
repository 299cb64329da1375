"""The app: routes, errors, limits and the background work of one process of the server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from litestar import Litestar, Request, Response, get
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import ASGIApp

from etude.contracts.errors import EtudeError
from etude.serving.access import provide_caller
from etude.serving.envelope import Envelope
from etude.serving.errors import on_error
from etude.serving.routes import decisions, experience, health, openai, telemetry
from etude.serving.server import Server

log = logging.getLogger("etude")

ROUTES: Sequence[Any] = [*health.ROUTES, *decisions.ROUTES, *experience.ROUTES, *telemetry.ROUTES, *openai.ROUTES]
TICK_S = 1.0
"""Seconds between two looks at what was published, and at tasks whose time is over."""


@get("/openapi.json", include_in_schema=False, sync_to_thread=False)
def openapi(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
    return Response(request.app.openapi_schema.to_schema())


def make_app(server: Server) -> ASGIApp:
    @asynccontextmanager
    async def working(app: Litestar) -> AsyncIterator[None]:
        work = asyncio.create_task(_work(server))
        try:
            yield
        finally:
            work.cancel()
            await server.proxy.close()
            await asyncio.to_thread(server.telemetry.take, everything=True)

    app = Litestar(
        route_handlers=[*ROUTES, openapi],
        dependencies={"caller": Provide(provide_caller, sync_to_thread=False)},
        exception_handlers={Exception: on_error},
        request_max_body_size=server.config.max_body_bytes,
        lifespan=[working],
        openapi_config=OpenAPIConfig(
            title="Etude",
            version=server.version,
            description="Decisions that learn from what happened after them.",
            path="/openapi",
            render_plugins=[JsonRenderPlugin()],  # pages would load scripts from elsewhere
            components=Components(security_schemes={"key": SecurityScheme(type="http", scheme="bearer")}),
            security=[{"key": []}],
        ),
        logging_config=None,
    )
    app.state.server = server
    return Envelope(
        app, timeout_s=server.config.request_timeout_s, answered=server.answered, untimed=frozenset(openai.CALLS)
    )


async def _work(server: Server) -> None:
    """Stores what was published, and tasks whose time is over. A failure is logged, and tried again."""
    while True:
        try:
            await asyncio.to_thread(server.decisions.close_old)
            await asyncio.to_thread(server.telemetry.take)
            await asyncio.to_thread(server.ingest)
        except EtudeError as error:
            log.error("%s", error)
        await asyncio.sleep(TICK_S)
