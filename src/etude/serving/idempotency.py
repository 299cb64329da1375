"""Idempotency keys: a request that is sent again under the same key gets the first answer, and has no effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec
from litestar import Request, Response
from litestar.enums import MediaType

from etude.contracts.errors import DataError, RequestError
from etude.serving.keys import Caller
from etude.serving.server import Server

T = TypeVar("T")
HEADER = "idempotency-key"
MAX_CHARS = 128


async def once(
    request: Request[Any, Any, Any],
    server: Server,
    caller: Caller,
    make: Callable[[], Awaitable[T]],
    *,
    status: int = 200,
) -> Response[T]:
    """The answer that `make` gives, or the one that was given for the same key before. Answers are kept for a day."""
    key = request.headers.get(HEADER)
    if key is None:
        return Response(await make(), status_code=status)
    if not 0 < len(key) <= MAX_CHARS:
        raise DataError(f"the header {HEADER} has {len(key):,} characters: expected 1 to {MAX_CHARS}")
    asked = blake2b(request.scope["path"].encode() + b"\0" + await request.body(), digest_size=16).digest()
    kept = await asyncio.to_thread(server.state.answer, caller.key, key)
    if kept is None:
        body = msgspec.json.encode(await make())
        if await asyncio.to_thread(server.state.keep_answer, caller.key, key, asked, body, server.clock()):
            return _answer(body, status)
        kept = await asyncio.to_thread(server.state.answer, caller.key, key)
    assert kept is not None
    if kept[0] != asked:
        raise RequestError(f"{HEADER} {key[:40]!r} was used for another request: use a new one", status=409)
    return _answer(kept[1], status)


def _answer(body: bytes, status: int) -> Response[Any]:
    return Response(body, status_code=status, media_type=MediaType.JSON)
