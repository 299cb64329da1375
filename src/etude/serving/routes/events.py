"""What happens now: the stream of events, operations that run, and notices to people."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, JSONBody, PathParameter, QueryParameter
from litestar.response import Stream
from msgspec import Struct

from etude.contracts.errors import RequestError
from etude.contracts.live import OPERATION, Operation
from etude.loop.notify import Notice
from etude.serving.access import Called, needs
from etude.serving.idempotency import once
from etude.serving.keys import Role
from etude.serving.pages import END, Cursor, IdPath, Limit, decode_cursor, encode_cursor, page
from etude.serving.routes.kinds import READS, reads, steers
from etude.serving.routes.policies import By
from etude.serving.server import Server
from etude.serving.steering import actor

SSE = "text/event-stream"
MAX_NUMBER = 2**53


class OperationPage(Struct, kw_only=True, frozen=True):
    rows: list[Operation]
    next: str | None
    """Cursor of the next page; null at the end."""


class NoticePage(Struct, kw_only=True, frozen=True):
    rows: list[Notice]
    next: str | None
    """Cursor of the next page; null at the end."""


class Acknowledged(Struct, kw_only=True, forbid_unknown_fields=True):
    by: By | None = None
    """Name of the person; it stands next to the key."""


@get(
    "/v1/events",
    summary="Follow what happens",
    tags=["events"],
    guards=[needs(Role.RELEASE)],
    media_type=SSE,
    responses={200: ResponseSpec(str, generate_examples=False, description="Server-sent events.", media_type=SSE)}
    | READS,
)
async def follow(
    state: State,
    caller: Called,
    after: Annotated[
        int | None,
        QueryParameter(ge=0, le=MAX_NUMBER, description="Number of an event: those after it; 0 is the last week."),
    ] = None,
    last_event_id: Annotated[
        str | None,
        HeaderParameter(name="last-event-id", max_length=32, description="The `id` of the last event that arrived."),
    ] = None,
) -> Stream:
    """Jobs and their progress (`job`), steps of releases such as promotions and rollbacks (`release`), `notice` and
    `operation`, as server-sent events. A client that reconnects with `Last-Event-ID` misses nothing of a week; `gap`
    says where something is missing. It ends after an hour, and when the server stops: connect again."""
    server: Server = state.server
    begin = _number(last_event_id) if last_event_id else after
    frames = await server.steering.live.stream(begin, may_go_on=lambda: server.keys.is_active(caller.key))
    return Stream(frames, media_type=SSE, headers={"x-accel-buffering": "no"})


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_NUMBER):
        raise RequestError(f"last-event-id is {text!r}: expected the number of an event", status=400)
    return int(text)


@reads("/v1/operations", summary="List operations", tags=["events"])
async def operations(state: State, cursor: Cursor = None, limit: Limit = 100) -> OperationPage:
    """Gates, datasets and rewards that are being made, or were in the last week: the newest first."""
    server: Server = state.server

    def find() -> OperationPage:
        after = decode_cursor(cursor, tuple[str])
        rows = server.steering.operations.page(after=after[0] if after else None, limit=limit + 1)
        more = len(rows) > limit
        return OperationPage(rows=rows[:limit], next=encode_cursor((rows[limit - 1].id,)) if more else None)

    return await asyncio.to_thread(find)


@reads("/v1/operations/{id:str}", summary="Show an operation", tags=["events"])
async def operation(
    state: State,
    id: Annotated[str, PathParameter(pattern=OPERATION.removesuffix("$") + END, description="Id of the operation.")],
) -> Operation:
    """Whether it is done, and where its result is; or why it failed."""
    server: Server = state.server
    found = await asyncio.to_thread(server.steering.operations.find, id)
    if found is None:
        raise RequestError(f"there is no operation {id!r}: GET /v1/operations lists them", status=404)
    return found


@reads("/v1/notices", summary="List notices", tags=["events"])
async def notices(state: State, cursor: Cursor = None, limit: Limit = 100) -> NoticePage:
    """Promotions, rollbacks, alarms and failures, and who acknowledged them: oldest first."""
    server: Server = state.server

    def find() -> NoticePage:
        rows, after = page(
            server.steering.notices.all(),
            lambda one: (one.time.isoformat(), one.id),
            cursor=cursor,
            kind=tuple[str, str],
            limit=limit,
        )
        return NoticePage(rows=rows, next=after)

    return await asyncio.to_thread(find)


@steers("/v1/notices/{id:str}/acknowledge", summary="Acknowledge a notice", tags=["events"])
async def acknowledge(
    request: Request[Any, Any, Any], state: State, caller: Called, id: IdPath, data: JSONBody[Acknowledged]
) -> Response[Notice]:
    """Somebody takes care of it: it is not escalated any more."""
    server: Server = state.server

    def done() -> Notice:
        if all(one.id != id for one in server.steering.notices.all()):
            raise RequestError(f"there is no notice {id!r}: GET /v1/notices lists them", status=404)
        return server.steering.notices.acknowledge(id, by=actor(caller, data.by), now=server.clock())

    return await once(request, server, caller, lambda: asyncio.to_thread(done))


ROUTES = [follow, operations, operation, notices, acknowledge]
