"""The shortest way to a decision: `POST /v1/decisions` without the framework, with the same answers.

Litestar keeps the route, which describes it and answers what is out of the ordinary: idempotency keys, bodies that are
no request for a decision, and bodies that are too large.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from etude.serving.access import caller_by
from etude.serving.bodies import may_be_deep
from etude.serving.decisions import DecisionAsked
from etude.serving.errors import MEDIA_TYPE, refusal
from etude.serving.idempotency import HEADER
from etude.serving.keys import Role
from etude.serving.server import Server

PATH = "/v1/decisions"
JSON = b"application/json"
IDEMPOTENCY = HEADER.encode()


class Direct:
    """A middleware."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app, self._server = app, server
        self._max_bytes = server.config.max_body_bytes
        self._decode = msgspec.json.Decoder(DecisionAsked).decode
        self._encode = msgspec.json.Encoder().encode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        scope["path_template"] = PATH
        if IDEMPOTENCY in headers or not headers.get(b"content-type", b"").startswith(JSON):
            await self._app(scope, receive, send)
            return
        try:
            # Before the body is read: whoever has no key sends nothing.
            caller = caller_by(self._server.keys, headers.get(b"authorization", b"").decode("latin-1"), Role.DECIDE)
            scope["state"]["caller"] = caller
            read: list[Message] = []
            body = await _body(receive, self._max_bytes, read)
            try:
                asked = self._decode(body) if body is not None and not may_be_deep(body) else None
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                asked = None
            if asked is None or body is None:  # the framework says what is wrong with it
                await self._app(scope, _again(read, receive), send)
                return
            given = await self._server.decisions.decide(asked, caller, size=len(body))
            status, more, kind, answer = 200, dict[str, str](), JSON, self._encode(given)
        except Exception as error:
            status, more, answer = refusal(scope, error)
            kind = MEDIA_TYPE.encode()
        lines = [(b"content-type", kind), (b"content-length", b"%d" % len(answer))]
        lines += [(name.encode(), value.encode()) for name, value in more.items()]
        await send({"type": "http.response.start", "status": status, "headers": lines})
        await send({"type": "http.response.body", "body": answer, "more_body": False})


async def _body(receive: Receive, most: int, read: list[Message]) -> bytes | None:
    """The body of a request; None if it is too large, or the caller has gone. `read` gets the messages."""
    message: Any = await receive()
    read.append(message)
    body: bytes = message.get("body", b"")
    if message["type"] == "http.request" and message.get("more_body"):
        parts, size = [body], len(body)
        while message["type"] == "http.request" and message.get("more_body") and size <= most:
            message = await receive()
            read.append(message)
            parts.append(message.get("body", b""))
            size += len(parts[-1])
        body = b"".join(parts)
    return body if message["type"] == "http.request" and len(body) <= most else None


def _again(read: list[Message], receive: Receive) -> Receive:
    """Messages that were received, then the next ones."""
    left = iter(read)

    async def found() -> Any:
        message = next(left, None)
        return await receive() if message is None else message

    return found
