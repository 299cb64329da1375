"""Trajectories: sent by agents, read by those whose they are."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, get_type_hints

import msgspec
from litestar import Request, Response, get, post
from litestar.datastructures import State
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct

from etude.contracts.errors import RequestError
from etude.contracts.query import Where, parse
from etude.contracts.store import Summary, TrajectoryDetail
from etude.contracts.trajectory import Id, Trajectory
from etude.serving.access import Called, needs
from etude.serving.errors import refusals
from etude.serving.idempotency import once
from etude.serving.ids import id_of_tenant
from etude.serving.keys import Caller, Role
from etude.serving.pages import Cursor, IdPath, Limit
from etude.serving.server import Server

MAX_TRAJECTORIES = 100


class TrajectoriesGiven(Struct, kw_only=True, forbid_unknown_fields=True):
    trajectories: Annotated[list[Trajectory], Meta(min_length=1, max_length=MAX_TRAJECTORIES)]
    """Finished tasks, as the schema `agent.rl.trajectory.v1` has them. One that is sent again changes nothing."""


class TrajectoriesStored(Struct, kw_only=True, frozen=True):
    stored: list[Id]
    """Ids of what is on disk now, in the order of the request. Those of a tenant have its mark at their end."""


TrajectorySummary: Any = msgspec.defstruct(
    "TrajectorySummary", list(get_type_hints(Summary).items()), kw_only=True, frozen=True
)
"""`contracts.store.Summary` as an object."""


class TrajectoryPage(Struct, kw_only=True, frozen=True):
    rows: list[TrajectorySummary]
    next: str | None
    """Cursor of the next page; null at the end."""


@post(
    "/v1/trajectories",
    summary="Send finished tasks",
    tags=["experience"],
    status_code=202,
    guards=[needs(Role.INGEST)],
    responses=refusals(400, 401, 403, 409, 413, 429, 503),
)
async def send(
    request: Request[Any, Any, Any], state: State, data: JSONBody[TrajectoriesGiven], caller: Called
) -> Response[TrajectoriesStored]:
    """They are redacted before they are on disk, and on disk before they are acknowledged. Those of users who opted
    out are not stored. A key of a tenant sends for that tenant alone, and two tenants may use the same ids."""
    server: Server = state.server
    own = [_of_tenant(one, caller) for one in data.trajectories]

    def keep() -> None:
        server.collector.publish_all(own)
        for one in own:
            server.decisions.close(one.id, caller)

    async def stored() -> TrajectoriesStored:
        await asyncio.to_thread(keep)
        return TrajectoriesStored(stored=[one.id for one in own])

    return await once(request, server, caller, stored, status=202)


def _of_tenant(trajectory: Trajectory, caller: Caller) -> Trajectory:
    if caller.tenant is None:
        return trajectory
    if trajectory.tenant not in (None, caller.tenant):
        raise RequestError(
            f"trajectory {trajectory.id!r} is of another tenant: this key sends for {caller.tenant!r} alone", status=403
        )
    return msgspec.structs.replace(trajectory, id=id_of_tenant(trajectory.id, caller.tenant), tenant=caller.tenant)


@get(
    "/v1/trajectories",
    summary="List stored tasks",
    tags=["experience"],
    guards=[needs(Role.DECIDE)],
    responses=refusals(400, 401, 403, 429, 503),
)
async def listed(
    state: State,
    caller: Called,
    where: Annotated[str, QueryParameter(description="Conditions: `problem=choice:model and outcome=failure`.")] = "",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> TrajectoryPage:
    """Newest first, without their content. A key of a tenant sees that tenant's alone."""
    server: Server = state.server
    wanted = _own(parse(where) if where else Where(), caller)
    page = await asyncio.to_thread(server.store.page, wanted, version=server.reward_version, after=cursor, limit=limit)
    return TrajectoryPage(rows=[TrajectorySummary(**row._asdict()) for row in page.rows], next=page.next)


def _own(where: Where, caller: Caller) -> Where:
    """The query, within the caller's tenant."""
    return where if caller.tenant is None else msgspec.structs.replace(where, tenant=caller.tenant)


@get(
    "/v1/trajectories/{id:str}",
    summary="One stored task",
    tags=["experience"],
    guards=[needs(Role.DECIDE)],
    responses=refusals(400, 401, 403, 404, 429, 503),
)
async def one(state: State, caller: Called, id: IdPath) -> TrajectoryDetail:
    """With its feedback and rewards."""
    server: Server = state.server
    # As the tenant calls it, or as it is stored.
    for known in dict.fromkeys((id_of_tenant(id, caller.tenant), id)):
        found = await asyncio.to_thread(server.store.detail, known)
        if found is not None and caller.tenant in (None, found.trajectory.tenant):
            return found
    raise RequestError(f"there is no trajectory {id[:80]!r}", status=404)


ROUTES = [send, listed, one]
