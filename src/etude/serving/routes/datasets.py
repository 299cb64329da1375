"""Datasets: list, show and create them; and the catalogue of task types and workers."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Literal

from litestar import Request, Response
from litestar.datastructures import State
from litestar.params import JSONBody
from msgspec import Meta, Struct
from msgspec.structs import replace

from etude.contracts.errors import RequestError
from etude.contracts.live import Operation
from etude.contracts.query import Where, parse
from etude.contracts.release import Slot
from etude.experience.datasets import Manifest
from etude.problems.catalogue import Catalogue
from etude.serving.access import Called
from etude.serving.idempotency import once
from etude.serving.pages import Cursor, IdPath, Limit, SlotQuery, page
from etude.serving.routes.kinds import begins, reads
from etude.serving.server import Server
from etude.serving.steering import actor

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
DatasetName = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$(?!\n)")]

Conditions = Annotated[str, Meta(max_length=4096, pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)")]


class DatasetPage(Struct, kw_only=True, frozen=True):
    rows: list[Manifest]
    next: str | None
    """Cursor of the next page; null at the end."""


class DatasetAsked(Struct, kw_only=True, forbid_unknown_fields=True):
    """A dataset of trajectories that match now. Where it is kept is a setting of the server."""

    name: DatasetName
    """Name of a new dataset: letters, digits, - and _."""
    problem: Slot
    where: Conditions = ""
    """Conditions, such as `outcome=success and time>=2026-11-01`; empty is all."""
    reward_version: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    """Version of the reward; null is the one in the settings."""
    split: Literal["context", "time"] = "context"
    """context: a request is in one split only; time: the newest are the test split."""
    balance: Literal["none", "outcome", "policy", "task_type"] = "none"
    """Give each outcome, policy or set of task types the same total weight."""
    limit: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    """Maximum number of trajectories; null is all."""
    require_propensity: bool = False
    """Leave out trajectories with a decision without a logged propensity."""
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """Seed of the splits, and of the sample that `limit` takes."""


@reads("/v1/datasets", summary="List datasets", tags=["datasets"])
async def listed(
    state: State,
    problem: SlotQuery = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> DatasetPage:
    """Every dataset that was made from the store, oldest first."""
    server: Server = state.server

    def find() -> DatasetPage:
        known = [one for one in server.steering.datasets().values() if problem in (None, one.problem)]
        known.sort(key=lambda one: (one.created.isoformat(), one.id))
        rows, after = page(
            known, lambda one: (one.created.isoformat(), one.id), cursor=cursor, kind=tuple[str, str], limit=limit
        )
        return DatasetPage(rows=rows, next=after)

    return await asyncio.to_thread(find)


@reads("/v1/datasets/{id:str}", summary="Show a dataset", tags=["datasets"])
async def shown(state: State, id: IdPath) -> Manifest:
    """Its content, its source, and what was left out; by its id or the name that it was created with."""
    server: Server = state.server

    def find() -> Manifest:
        known = server.steering.datasets()
        # The store knows one place of datasets with the same content.
        found = known.get(id) or (server.steering.dataset_named(id) if NAME.fullmatch(id) else None)
        if found is None:
            there = ", ".join(list(known)[:10]) or "none yet"
            raise RequestError(f"there is no dataset {id!r}: there are {there}", status=404)
        return found

    return await asyncio.to_thread(find)


@begins("/v1/datasets", summary="Create a dataset", tags=["datasets"])
async def create(
    request: Request[Any, Any, Any], state: State, caller: Called, data: JSONBody[DatasetAsked]
) -> Response[Operation]:
    """Freeze matching trajectories with their rewards, in a process of its own: the answer names the operation, and
    its `result` is where the dataset will be."""
    server: Server = state.server

    def begin() -> Operation:
        where = parse(data.where)
        if not server.store.stats(_matching(where, data.problem), version=server.reward_version).trajectories:
            raise RequestError(
                f"no trajectory of {data.problem!r} matches {data.where!r}: GET /v1/trajectories shows what is stored",
                status=409,
            )
        options = {
            "--problem": data.problem,
            "--out": server.steering.dataset_place(data.name),
            "--where": data.where,
            "--reward-version": data.reward_version,
            "--split": data.split,
            "--balance": data.balance,
            "--max": data.limit,
            "--seed": data.seed,
        }
        given = [f"{name}={value}" for name, value in options.items() if value not in (None, "")]
        flags = ["--require-propensity"] if data.require_propensity else []
        return server.steering.operations.submit(
            "dataset",
            data.name,
            ["dataset", "create", *given, *flags, "--json"],
            by=actor(caller),
            result=f"/v1/datasets/{data.name}",
        )

    return await once(request, server, caller, lambda: asyncio.to_thread(begin), status=202)


def _matching(where: Where, problem: str) -> Where:
    if where.problem not in (None, problem):
        raise RequestError(
            f"the problem is {problem!r}, but the conditions say problem={where.problem}: leave one out", status=400
        )
    return replace(where, problem=problem)


@reads("/v1/catalogue", summary="Show the catalogue", tags=["catalogue"])
async def catalogue(state: State) -> Catalogue:
    """Task types and workers of plans: those of the workers file that experience.workers names."""
    server: Server = state.server
    return await asyncio.to_thread(server.steering.catalogue)


ROUTES = [listed, shown, create, catalogue]
