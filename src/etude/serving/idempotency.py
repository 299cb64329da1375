"""Idempotency keys: a request that is sent again under the same key gets the first answer, and has no effect.

One that is sent while the first is in work waits for it; one whose process died may be made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
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
LOOK_S = 0.05
"""Seconds between two looks at whether another request of the same key has its answer."""
PATIENCE = 3
"""Limits of time of a request after which one without an answer has died."""
_in_work: set[asyncio.Task[Any]] = set()
"""What is answered under a key, also if its caller has gone: the loop alone would forget it."""


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
    patience = timedelta(seconds=PATIENCE * server.config.request_timeout_s)
    while True:
        now = server.clock()
        found = await asyncio.to_thread(server.state.claim, caller.key, key, asked, now, stale=now - patience)
        if found is None:
            work = asyncio.create_task(_answered(server, caller, key, make))
            _in_work.add(work)
            work.add_done_callback(_ended)
            return _answer(await asyncio.shield(work), status)
        if found[0] != asked:
            raise RequestError(f"{HEADER} {key[:40]!r} was used for another request: use a new one", status=409)
        if found[1] is not None:
            return _answer(found[1], status)
        await asyncio.sleep(LOOK_S)


async def _answered(server: Server, caller: Caller, key: str, make: Callable[[], Awaitable[Any]]) -> bytes:
    """The answer, kept; of a request that fails, nothing is."""
    try:
        body = msgspec.json.encode(await make())
    except BaseException:
        await asyncio.to_thread(server.state.unclaim, caller.key, key)
        raise
    await asyncio.to_thread(server.state.keep_answer, caller.key, key, body)
    return body


def _ended(work: asyncio.Task[Any]) -> None:
    _in_work.discard(work)
    if not work.cancelled():
        work.exception()  # its caller got it, or has gone


def _answer(body: bytes, status: int) -> Response[Any]:
    return Response(body, status_code=status, media_type=MediaType.JSON)
