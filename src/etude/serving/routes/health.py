"""Whether the server lives, whether it can work, and what it did."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Literal

from litestar import Response, get
from litestar.datastructures import State
from msgspec import Struct

from etude.contracts.errors import EtudeError
from etude.contracts.query import Where
from etude.serving.access import needs
from etude.serving.errors import refusals
from etude.serving.keys import Role
from etude.serving.server import Server


class Health(Struct, kw_only=True, frozen=True):
    status: Literal["ok"] = "ok"
    version: str


class Ready(Struct, kw_only=True, frozen=True):
    status: Literal["ready", "not ready"]
    checks: dict[str, str]
    """By what was checked: `ok`, or what is wrong."""


class Statistics(Struct, kw_only=True, frozen=True):
    """Of the whole installation, except for requests, which are those of this process."""

    uptime_s: float
    requests: dict[str, int]
    """By status."""
    open_tasks: int
    """Tasks that wait for their outcome."""
    telemetry: dict[str, int]
    """Of this process: trajectories from traces, and what of OTLP requests was not mapped, by reason."""
    trajectories: int
    decisions: int
    mean_reward: float | None


@get("/health", summary="Whether the process lives", tags=["health"])
async def health(state: State) -> Health:
    return Health(version=state.server.version)


@get("/ready", summary="Whether decisions can be made and stored", tags=["health"])
async def ready(state: State) -> Response[Ready]:
    """503 if the store or the disk cannot be used, or while policies are being loaded."""
    server: Server = state.server
    checks = {
        "store": await asyncio.to_thread(_checked, server.store.ping),
        "state": await asyncio.to_thread(_checked, server.state.ping),
    }
    loading = server.collector.deciders.loading()
    checks["policies"] = f"{', '.join(loading)} being loaded" if loading else "ok"
    fine = all(text == "ok" for text in checks.values())
    return Response(Ready(status="ready" if fine else "not ready", checks=checks), status_code=200 if fine else 503)


@get(
    "/stats",
    summary="What was served and stored",
    tags=["health"],
    guards=[needs(Role.RELEASE)],
    responses=refusals(401, 403, 429, 503),
)
async def stats(state: State) -> Statistics:
    server: Server = state.server
    found = await asyncio.to_thread(server.store.stats, Where(), version=server.reward_version)
    return Statistics(
        uptime_s=(server.clock() - server.started) / timedelta(seconds=1),
        requests={str(status): count for status, count in sorted(server.answered.items())},
        open_tasks=await asyncio.to_thread(server.state.count),
        telemetry=dict(server.telemetry.counts),
        trajectories=found.trajectories,
        decisions=found.decisions,
        mean_reward=found.mean_reward,
    )


def _checked(check: object) -> str:
    assert callable(check)
    try:
        check()
    except EtudeError as error:
        return str(error)
    return "ok"


ROUTES = [health, ready, stats]
