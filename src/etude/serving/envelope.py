"""Around every request: its id, the server's version, security headers, and a limit of time."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from etude.serving.errors import MEDIA_TYPE, Problem

KNOWN_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
HEADERS = {
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}
"""Of every answer that does not set them itself."""
REQUEST_ID = b"x-request-id"
VERSION = b"etude-version"
"""Says which version answers: a client of another one can say so, in place of failing at what it does not know."""


class Envelope:
    """A middleware. What is longer than `timeout_s` before its first byte is answered with 503."""

    def __init__(
        self,
        app: ASGIApp,
        timeout_s: float,
        answered: Counter[int],
        *,
        version: str,
        untimed: frozenset[str] = frozenset(),
    ) -> None:
        """`answered` counts requests by their status; `untimed` are paths that have limits of their own."""
        self._app, self._timeout_s, self._answered, self._untimed = app, timeout_s, answered, untimed
        self._headers = ((VERSION, version.encode()), *HEADERS.items())
        self._rng = Random()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        request_id = _given_id(scope["headers"]) or f"{self._rng.getrandbits(64):016x}"
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id
        own = [(REQUEST_ID, request_id.encode()), *self._headers]

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                if not limit.expired():
                    limit.reschedule(None)  # it is answered in time
                self._answered[message["status"]] += 1
                given = {name.lower() for name, _ in message.get("headers", ())}
                message["headers"] = [*message.get("headers", ()), *(one for one in own if one[0] not in given)]
            await send(message)

        limit = asyncio.timeout(None if scope["path"] in self._untimed else self._timeout_s)
        try:
            async with limit:
                await self._app(scope, receive, answer)
            return
        except TimeoutError:
            if not limit.expired():
                raise
        body = Problem(
            title="Service Unavailable",
            status=503,
            detail=f"the request took longer than {self._timeout_s:g} seconds: try again later",
            request_id=request_id,
        )
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"retry-after", b"1")]
        await answer({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": msgspec.json.encode(body), "more_body": False})


def _given_id(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The request's id that the caller gave, if it is one."""
    for name, value in headers:
        if name == REQUEST_ID and KNOWN_ID.fullmatch(given := value.decode("latin-1")):
            return given
    return None
