"""Around every request: counts and times it, and gives it to the log and the tracer when it has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from etude.serving.metrics import ProcessMetrics

UNMATCHED = "unmatched"
"""Route of a request that no route answers: its path is what a caller wrote."""
Watch = Callable[[Mapping[str, Any], str, int, float], None]
"""Called with the scope, the route, the status and the seconds of a request that has ended."""


class Watched:
    """A middleware: the outermost one."""

    def __init__(self, app: ASGIApp, metrics: ProcessMetrics, watch: tuple[Watch, ...]) -> None:
        self._app, self._metrics, self._watch = app, metrics, watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        metrics, since, status = self._metrics, perf_counter(), 500

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        metrics.in_progress += 1
        try:
            await self._app(scope, receive, answer)
        finally:
            seconds = perf_counter() - since
            metrics.in_progress -= 1
            route = scope.get("path_template") or UNMATCHED
            metrics.answered(route, scope["method"], status, seconds)
            for one in self._watch:
                one(scope, route, status, seconds)
