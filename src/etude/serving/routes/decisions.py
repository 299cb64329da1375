"""Decisions, and what happened after them."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Request, Response, post
from litestar.datastructures import State
from litestar.params import JSONBody

from etude.serving.access import Called, needs
from etude.serving.decisions import (
    DecisionAsked,
    DecisionGiven,
    DecisionsAsked,
    DecisionsGiven,
    FeedbackGiven,
    FeedbackStored,
)
from etude.serving.errors import refusals
from etude.serving.idempotency import once
from etude.serving.keys import Role
from etude.serving.server import Server


@post(
    "/v1/decisions",
    summary="Decide",
    tags=["decisions"],
    status_code=200,
    guards=[needs(Role.DECIDE)],
    responses=refusals(400, 401, 403, 409, 413, 429, 503),
)
async def decide(
    request: Request[Any, Any, Any], state: State, data: JSONBody[DecisionAsked], caller: Called
) -> Response[DecisionGiven]:
    """Choose an option, plan a workflow, correct one, or allocate. The answer is on disk before it is sent."""
    server: Server = state.server
    size = len(await request.body())
    return await once(request, server, caller, lambda: server.decisions.decide(data, caller, size=size))


@post(
    "/v1/decisions/batch",
    summary="Decide many",
    tags=["decisions"],
    status_code=200,
    guards=[needs(Role.DECIDE)],
    responses=refusals(400, 401, 403, 409, 413, 429, 503),
)
async def decide_batch(
    request: Request[Any, Any, Any], state: State, data: JSONBody[DecisionsAsked], caller: Called
) -> Response[DecisionsGiven]:
    """Up to 100 decisions of tasks that have nothing to do with each other. One that is wrong refuses all."""
    server: Server = state.server
    size = len(await request.body())

    async def made() -> DecisionsGiven:
        found = await asyncio.gather(*(server.decisions.decide(one, caller, size=size) for one in data.decisions))
        return DecisionsGiven(decisions=list(found))

    return await once(request, server, caller, made)


@post(
    "/v1/feedback",
    summary="Report an outcome or a rating",
    tags=["decisions"],
    status_code=202,
    guards=[needs(Role.INGEST)],
    responses=refusals(400, 401, 403, 409, 413, 429, 503),
)
async def feedback(
    request: Request[Any, Any, Any], state: State, data: JSONBody[FeedbackGiven], caller: Called
) -> Response[FeedbackStored]:
    """Under the signed id of an answer. The outcome can be reported once, ratings once per user and day."""
    server: Server = state.server
    return await once(request, server, caller, lambda: server.decisions.report(data, caller), status=202)


ROUTES = [decide, decide_batch, feedback]
