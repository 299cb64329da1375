"""Whether the server lives, whether it can work, and what it did."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Literal

from litestar import Response, get
from litestar.datastructures import State
from msgspec import Struct

from etude.contracts.errors import EtudeError
from etude.contracts.query import Where
from etude.contracts.subjects import TRAJECTORIES
from etude.experience.ingest import GROUP as INGEST
from etude.serving.access import needs
from etude.serving.errors import refusals, without_folders
from etude.serving.keys import Role
from etude.serving.server import Server

log = logging.getLogger("etude")

HEARTBEAT_S = 60.0
"""Seconds without a beat of the background work after which the process is not ready."""


class Health(Struct, kw_only=True, frozen=True):
    status: Literal["ok"] = "ok"
    version: str


class Ready(Struct, kw_only=True, frozen=True):
    status: Literal["ready", "not ready"]
    checks: dict[str, str]
    """By what was checked: `ok`, or what is wrong and what to do."""
    warnings: dict[str, str] = {}
    """What is wrong without stopping decisions: `loop` and `background`, with what to do."""


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
    """It answers as long as the process runs, whatever the disk does; it needs no key."""
    return Health(version=state.server.version)


@get("/ready", summary="Whether decisions can be made and stored", tags=["health"])
async def ready(state: State) -> Response[Ready]:
    """503 while it starts or stops, and if policies, stores, the disk or the background work fail."""
    found = await found_ready(state.server)
    return Response(found, status_code=200 if found.status == "ready" else 503)


async def found_ready(server: Server) -> Ready:
    """Every check, all at once."""
    texts = await asyncio.gather(*(asyncio.to_thread(_checked, check, server) for check in CHECKS.values()))
    checks = dict(zip(CHECKS, texts, strict=True))
    warnings = {"background": server.trouble, "loop": await asyncio.to_thread(_loop, server)}
    fine = all(text == "ok" for text in checks.values())
    return Ready(
        status="ready" if fine else "not ready",
        checks=checks,
        warnings={name: without_folders(text) for name, text in warnings.items() if text},
    )


def _checked(check: Callable[[Server], str], server: Server) -> str:
    try:
        return without_folders(check(server)) or "ok"
    except (EtudeError, OSError) as error:
        log.error("not ready: %s", error)
        return without_folders(str(error))


def _phase(server: Server) -> str:
    return "" if server.phase == "running" else f"the server is {server.phase}: send requests to another one"


def _policies(server: Server) -> str:
    return "; ".join(
        f"{problem}: {missing.why}: "
        + ("wait" if missing.reason == "loading" else "check experience.policies and the log; it is tried again")
        for problem, missing in server.policies().items()
        if missing is not None
    )


def _store(server: Server) -> str:
    server.store.ping()
    return ""


def _outbox(server: Server) -> str:
    server.collector.bus.pending(TRAJECTORIES, INGEST)
    return ""


def _state(server: Server) -> str:
    server.state.count()
    return ""


def _disk(server: Server) -> str:
    free_mb = server.installation.free_bytes() / 1e6
    if free_mb >= server.config.min_free_mb:
        return ""
    return (
        f"{free_mb:,.0f} MB are free on the disk of experience.folder, less than serving.min_free_mb "
        f"({server.config.min_free_mb:,}): free some, or let old trajectories expire"
    )


def _work(server: Server) -> str:
    late_s = monotonic() - server.worked_at
    if late_s <= HEARTBEAT_S:
        return ""
    return f"the background work has not begun again for {late_s:.0f} seconds: look at the log, and restart the server"


CHECKS: dict[str, Callable[[Server], str]] = {
    "phase": _phase,
    "policies": _policies,
    "store": _store,
    "outbox": _outbox,
    "state": _state,
    "disk": _disk,
    "work": _work,
}
"""Each gives what is wrong, or raises it. A loop that does not run is a warning: decisions are made without it."""


def _loop(server: Server) -> str:
    if not server.with_loop:
        return ""
    try:
        if server.installation.loop_runs():
            return ""
    except EtudeError as error:
        log.error("whether the loop runs is not known: %s", error)
        return without_folders(str(error))
    return "no process runs the loop, so nothing is trained or released: see the log, or start `etude loop run`"


@get(
    "/stats",
    summary="What was served and stored",
    tags=["health"],
    guards=[needs(Role.RELEASE)],
    responses=refusals(401, 403, 429, 503),
)
async def stats(state: State) -> Statistics:
    """Requests of this process, and trajectories, decisions and rewards of the installation."""
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


ROUTES = [health, ready, stats]
