"""The app: routes, errors, limits and the background work of one process of the server."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from litestar import Litestar, Request, Response, get
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import ASGIApp

from etude.contracts.errors import EtudeError
from etude.experience.task import OptOuts
from etude.serving.access import provide_caller
from etude.serving.bodies import JsonRequest
from etude.serving.description import described
from etude.serving.direct import Direct
from etude.serving.envelope import Envelope
from etude.serving.errors import on_error
from etude.serving.routes import (
    audit,
    canary,
    datasets,
    decisions,
    events,
    experience,
    health,
    jobs,
    metrics,
    openai,
    policies,
    rewards,
    session,
    telemetry,
)
from etude.serving.server import Server
from etude.serving.watched import Watched

log = logging.getLogger("etude")

ROUTES: Sequence[Any] = [
    *health.ROUTES,
    *metrics.ROUTES,
    *decisions.ROUTES,
    *experience.ROUTES,
    *telemetry.ROUTES,
    *openai.ROUTES,
    *policies.ROUTES,
    *canary.ROUTES,
    *audit.ROUTES,
    *jobs.ROUTES,
    *datasets.ROUTES,
    *rewards.ROUTES,
    *events.ROUTES,
    *session.ROUTES,
]
LOOK_S = 0.05
"""Seconds between two looks at whether the policies are loaded."""
TICK_S = 1.0
"""Seconds between two looks at what was published, and at tasks whose time is over."""


@get("/openapi.json", include_in_schema=False, sync_to_thread=False)
def openapi(request: Request[Any, Any, Any]) -> Response[dict[str, Any]]:
    return Response(described(request.app))


def make_app(server: Server) -> ASGIApp:
    @asynccontextmanager
    async def working(app: Litestar) -> AsyncIterator[None]:
        server.worked_at = monotonic()
        jobs = (_work(server), _refresh(server), _settle(server))
        work = [asyncio.create_task(job) for job in jobs]
        server.phase = "running"
        try:
            yield
        finally:
            server.phase = "stopping"
            for one in work:
                one.cancel()
            await server.proxy.close()
            await asyncio.to_thread(server.telemetry.take, everything=True)

    app = _Framework(
        route_handlers=[*ROUTES, openapi],
        dependencies={"caller": Provide(provide_caller, sync_to_thread=False)},
        exception_handlers={Exception: on_error},
        request_class=JsonRequest,
        request_max_body_size=server.config.max_body_bytes,
        lifespan=[working],
        openapi_config=OpenAPIConfig(
            title="Etude",
            version=server.version,
            description="Decisions that learn from what happened after them.",
            path="/openapi",
            use_handler_docstrings=True,
            render_plugins=[JsonRenderPlugin()],  # pages would load scripts from elsewhere
            components=Components(security_schemes={"key": SecurityScheme(type="http", scheme="bearer")}),
            security=[{"key": []}],
        ),
        logging_config=None,
    )
    app.state.server = server
    inner = Envelope(
        Direct(app, server),
        timeout_s=server.config.request_timeout_s,
        answered=server.answered,
        version=server.version,
        untimed=frozenset(openai.CALLS),
    )
    return Watched(inner, server.metrics, server.watch)


class _Framework(Litestar):
    """Litestar without support for pydantic's models, of which no route has any: half a second of imports."""

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


async def _settle(server: Server) -> None:
    """Once the policies are loaded: what is there then stays, so that the garbage collector need not look at it."""
    while server.collector.deciders.loading():
        await asyncio.sleep(LOOK_S)
    gc.collect()
    gc.freeze()


async def _refresh(server: Server) -> None:
    """Reads keys and opt-outs before they are old, so that no request waits for it."""
    while True:
        try:
            await asyncio.to_thread(server.keys.refresh)
            if isinstance(server.collector.opted_out, OptOuts):
                await asyncio.to_thread(server.collector.opted_out.refresh)
        except EtudeError as error:
            log.error("%s", error)
        await asyncio.sleep(TICK_S)


async def _work(server: Server) -> None:
    """Stores what was published, and tasks whose time is over. What fails is logged and tried again, and keeps nothing
    else from being done."""
    while True:
        server.worked_at = monotonic()
        steps = (server.decisions.close_old, server.telemetry.take, server.ingest, server.state.tidy)
        failed = [await _failure(step) for step in steps]
        server.trouble = next(filter(None, failed), "")
        await asyncio.sleep(TICK_S)


async def _failure(step: Callable[[], object]) -> str:
    """Why a step could not be done; empty if it was."""
    try:
        await asyncio.to_thread(step)
    except EtudeError as error:
        log.error("%s", error)
        return str(error)
    except Exception as error:  # whatever it is, the next steps have nothing to do with it
        log.exception("the background work failed")
        return f"{type(error).__name__}: the log says more"
    return ""
