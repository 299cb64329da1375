"""Rewards: definitions, how far the history is rewarded under each, and why a task has its reward."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from litestar import Request, Response
from litestar.datastructures import State
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Struct

from etude.contracts.errors import RequestError
from etude.contracts.live import Operation
from etude.contracts.query import Where, parse
from etude.experience.definitions import RewardDefinition, definitions
from etude.experience.rewards import Explanation, explain
from etude.serving.access import Called
from etude.serving.idempotency import once
from etude.serving.pages import Cursor, IdPath, Limit, page
from etude.serving.routes.datasets import Conditions
from etude.serving.routes.kinds import begins, reads
from etude.serving.server import Server
from etude.serving.steering import actor

VersionNumber = Annotated[int, PathParameter(ge=1, le=10**9, description="Version of the definition.")]


class RewardRow(Struct, kw_only=True, frozen=True):
    """A reward definition."""

    version: int
    hash: str
    definition: RewardDefinition
    shares: dict[str, float]
    """Weight of each component, as a share of all."""
    in_use: bool
    """Whether new tasks are rewarded under it."""


class RewardPage(Struct, kw_only=True, frozen=True):
    rows: list[RewardRow]
    next: str | None
    """Cursor of the next page; null at the end."""


class RewardStatus(Struct, kw_only=True, frozen=True):
    """A definition, and the history under it."""

    reward: RewardRow
    trajectories: int
    """In the store."""
    rewarded: int
    """Of them have a reward of this version."""
    mean: float | None
    confidence: float | None


class RescoreAsked(Struct, kw_only=True, forbid_unknown_fields=True):
    where: Conditions = ""
    """Conditions, such as `problem=choice:model`; empty is the whole history."""


@reads("/v1/rewards", summary="List reward definitions", tags=["rewards"])
async def listed(state: State, cursor: Cursor = None, limit: Limit = 100) -> RewardPage:
    """The built-in and the stored ones."""

    def find() -> RewardPage:
        rows, after = page(_rows(state.server), lambda row: (row.version,), cursor=cursor, kind=tuple[int], limit=limit)
        return RewardPage(rows=rows, next=after)

    return await asyncio.to_thread(find)


@reads("/v1/rewards/{version:int}", summary="Show a reward definition", tags=["rewards"])
async def shown(state: State, version: VersionNumber) -> RewardStatus:
    """And how much of the history is rewarded under it."""
    server: Server = state.server

    def find() -> RewardStatus:
        row = _row(server, version)
        found = server.store.stats(Where(), version=version)
        rewarded = server.store.stats(Where(min_confidence=0.0), version=version).trajectories
        return RewardStatus(
            reward=row,
            trajectories=found.trajectories,
            rewarded=rewarded,
            mean=found.mean_reward,
            confidence=found.mean_confidence,
        )

    return await asyncio.to_thread(find)


@begins("/v1/rewards/{version:int}/rescore", summary="Reward the history again", tags=["rewards"])
async def rescore(
    request: Request[Any, Any, Any], state: State, caller: Called, version: VersionNumber, data: JSONBody[RescoreAsked]
) -> Response[Operation]:
    """Under a definition, in a process of its own. Rewards of other versions stay; it can be repeated."""
    server: Server = state.server

    def begin() -> Operation:
        parse(data.where)
        _row(server, version)
        where = [f"--where={data.where}"] if data.where else []
        return server.steering.operations.submit(
            "rescore",
            f"{version} where {data.where}" if data.where else str(version),  # else another one would be taken for it
            ["reward", "rescore", f"--version={version}", *where, "--json"],
            by=actor(caller),
            result=f"/v1/rewards/{version}",
        )

    return await once(request, server, caller, lambda: asyncio.to_thread(begin), status=202)


@reads("/v1/trajectories/{id:str}/reward", summary="Explain a reward", tags=["rewards"])
async def explained(
    state: State,
    id: IdPath,
    version: Annotated[
        int | None,
        QueryParameter(ge=1, le=10**9, description="Version of the definition; absent is the highest of the task."),
    ] = None,
) -> Explanation:
    """Its components with their baselines, what is missing, and every revision."""
    server: Server = state.server

    def find() -> Explanation:
        detail = server.store.detail(id)
        if detail is None:
            raise RequestError(f"there is no trajectory {id!r}", status=404)
        versions = sorted({reward.version for reward in detail.rewards})
        if not versions or (version is not None and version not in versions):
            there = f"there are rewards of version {', '.join(map(str, versions))}" if versions else "it has none yet"
            raise RequestError(f"trajectory {id!r}: {there}", status=404)
        return explain(detail, definitions(server.store), version=version)

    return await asyncio.to_thread(find)


def _rows(server: Server) -> list[RewardRow]:
    return [
        RewardRow(
            version=version,
            hash=one.hash,
            definition=one,
            shares=dict(one.shares),
            in_use=version == server.reward_version,
        )
        for version, one in definitions(server.store).items()
    ]


def _row(server: Server, version: int) -> RewardRow:
    rows = {row.version: row for row in _rows(server)}
    if version not in rows:
        there = ", ".join(map(str, rows))
        raise RequestError(f"there is no reward definition {version}: there are {there}", status=404)
    return rows[version]


ROUTES = [listed, shown, rescore, explained]
