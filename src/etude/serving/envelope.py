"""Around every request: its id, security headers, and a limit of time."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from typing import Any

import msgspec
from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from etude.serving.errors import MEDIA_TYPE, Problem

KNOWN_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Envelope:
    """A middleware. What is longer than `timeout_s` before its first byte is answered with 503."""

    def __init__(self, app: ASGIApp, timeout_s: float, answered: Counter[int], untimed: frozenset[str]) -> None:
        """`answered` counts requests by their status; `untimed` are paths that have limits of their own."""
        self._app, self._timeout_s, self._answered, self._untimed = app, timeout_s, answered, untimed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = given if KNOWN_ID.fullmatch(given) else secrets.token_hex(8)
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id
        begun = asyncio.Event()

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                begun.set()
                self._answered[message["status"]] += 1
                headers = MutableScopeHeaders.from_message(message)
                headers["x-request-id"] = request_id
                for name in HEADERS.keys() - set(headers):
                    headers[name] = HEADERS[name]
            await send(message)

        if scope["path"] in self._untimed:
            await self._app(scope, receive, answer)
            return
        work = asyncio.ensure_future(self._app(scope, receive, answer))
        first = asyncio.ensure_future(begun.wait())
        await asyncio.wait({work, first}, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
        if work.done() or begun.is_set():
            await work
            return
        work.cancel()
        body = Problem(
            title="Service Unavailable",
            status=503,
            detail=f"the request took longer than {self._timeout_s:g} seconds: try again later",
            request_id=request_id,
        )
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"retry-after", b"1")]
        await answer({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": msgspec.json.encode(body), "more_body": False})
