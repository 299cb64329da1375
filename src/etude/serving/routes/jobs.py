"""Training jobs: list, show, submit, cancel and retry them; and the training service in the form of its events."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from litestar import Request, Response
from litestar.datastructures import State
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct
from msgspec.structs import replace

from etude.contracts.decision import Name
from etude.contracts.errors import JobError, RequestError
from etude.contracts.jobs import Change, Job, JobState, job_id
from etude.contracts.query import parse
from etude.contracts.release import Slot
from etude.contracts.release import State as VersionState
from etude.contracts.training import TrainingRequest, TrainingStatus
from etude.loop.events import check_learnable, job_of, status_of
from etude.problems.spec import FROM_LOGS
from etude.problems.table import find_spec
from etude.release.versions import version_rows
from etude.serving.access import Called
from etude.serving.idempotency import once
from etude.serving.keys import Caller
from etude.serving.pages import Cursor, IdPath, Limit, SlotQuery, decode_cursor, encode_cursor, page
from etude.serving.routes.datasets import Conditions
from etude.serving.routes.kinds import begins, reads, steers
from etude.serving.routes.policies import releases
from etude.serving.server import Server
from etude.serving.steering import Steering, actor

VALUE = re.compile(r"[A-Za-z0-9_.+-]{0,64}")
"""A text among hyperparameters: a name, never a path or a URL."""
KEY = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")
MAX_DEPTH = 8


class JobPage(Struct, kw_only=True, frozen=True):
    rows: list[Job]
    next: str | None
    """Cursor of the next page; null at the end."""


class JobAsked(Struct, kw_only=True, forbid_unknown_fields=True):
    """A training job."""

    problem: Name
    """Name of the problem."""
    method: Name = FROM_LOGS
    """Learning method, one of the problem's."""
    slot: Slot | None = None
    """Slot to train; null is the problem's only one."""
    algorithm: Name | None = None
    """Algorithm of the method, such as ppo; null is the method's."""
    where: Conditions = ""
    """Trajectories to learn from, such as `time>=2026-11-01`; empty is all."""
    policy: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$(?!\n)")] | None = None
    """Registered version to continue from; null is the incumbent."""
    hyperparameters: dict[str, Any] = {}
    """Settings by dotted key, such as `ppo.lr`."""
    priority: Annotated[int, Meta(ge=0, le=9)] = 5
    """From 0 to 9; a job of priority 9 runs first."""


class StatusPage(Struct, kw_only=True, frozen=True):
    rows: list[TrainingStatus]
    next: str | None
    """Cursor of the next page; null at the end."""


class TrainedModel(Struct, kw_only=True, frozen=True):
    """A trained policy that is registered."""

    version: str
    slot: str
    state: VersionState
    serves: bool


class ModelPage(Struct, kw_only=True, frozen=True):
    rows: list[TrainedModel]
    next: str | None
    """Cursor of the next page; null at the end."""


@reads("/v1/jobs", summary="List jobs", tags=["jobs"])
async def listed(
    state: State,
    slot: SlotQuery = None,
    status: Annotated[JobState | None, QueryParameter(description="Only jobs in this state.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> JobPage:
    """The newest first, each with its progress and estimated time."""
    return await asyncio.to_thread(lambda: JobPage(**_rows(state, slot, status, cursor, limit)))


def _rows(state: State, slot: str | None, status: JobState | None, cursor: str | None, limit: int) -> dict[str, Any]:
    after = decode_cursor(cursor, tuple[str])
    states = () if status is None else (status,)
    own = after[0] if after else None
    found = steering(state).jobs().jobs(slot=slot, states=states, after=own, limit=limit + 1)
    more = len(found) > limit
    return {"rows": found[:limit], "next": encode_cursor((found[limit - 1].id,)) if more else None}


@reads("/v1/jobs/{id:str}", summary="Show a job", tags=["jobs"])
async def shown(state: State, id: IdPath) -> Job:
    """What was requested, how far it is, what it cost, why it failed."""
    return await asyncio.to_thread(_job, state, id)


@begins("/v1/jobs", summary="Submit a job", tags=["jobs"])
async def submit(
    request: Request[Any, Any, Any], state: State, caller: Called, data: JSONBody[JobAsked]
) -> Response[Job]:
    """The loop runs it: it trains, and the policy becomes a candidate of its slot."""
    server: Server = state.server

    def queue() -> Job:
        now = server.clock()
        conditions = parse(data.where)
        asked = TrainingRequest(
            id=job_id(f"manual:{now.isoformat()}:{secrets.token_hex(8)}"),
            time=now,
            problem=data.problem,
            method=data.method,
            algorithm=data.algorithm,
            dataset=conditions if data.slot is None else replace(conditions, problem=data.slot),
            reward_version=server.reward_version,
            policy=data.policy,
            hyperparameters=data.hyperparameters,
            priority=data.priority,
            requested_by=actor(caller),
        )
        return _queued(server, asked, id=asked.id)

    return await once(request, server, caller, lambda: asyncio.to_thread(queue), status=202)


@steers("/v1/jobs/{id:str}/cancel", summary="Cancel a job", tags=["jobs"])
async def cancel(request: Request[Any, Any, Any], state: State, caller: Called, id: IdPath) -> Response[Job]:
    """A queued one at once; a running one ends within seconds. 409 if it has ended."""

    def change() -> Job:
        return steering(state).jobs().cancel(_job(state, id).id)

    return await once(request, state.server, caller, lambda: asyncio.to_thread(change))


@steers("/v1/jobs/{id:str}/retry", summary="Retry a job", tags=["jobs"])
async def retry(request: Request[Any, Any, Any], state: State, caller: Called, id: IdPath) -> Response[Job]:
    """Queue a failed one again: its run resumes where it stopped. 409 if it did not fail."""

    def change() -> Job:
        return steering(state).jobs().retry(_job(state, id).id)

    return await once(request, state.server, caller, lambda: asyncio.to_thread(change))


@begins("/v1/training/requests", summary="Request a training", tags=["training"])
async def train(
    request: Request[Any, Any, Any], state: State, caller: Called, data: JSONBody[TrainingRequest]
) -> Response[TrainingStatus]:
    """As the schema `agent.rl.training.request.v1` has it. The same request gives the same job, however often it is
    sent."""
    server: Server = state.server

    def queue() -> TrainingStatus:
        asked = replace(data, requested_by=_requester(data, caller))
        return _status(_queued(server, asked))

    return await once(request, server, caller, lambda: asyncio.to_thread(queue), status=202)


def _requester(asked: TrainingRequest, caller: Caller) -> str:
    return actor(caller, None if asked.requested_by is None else asked.requested_by[:64])


@reads("/v1/training/status", summary="List trainings", tags=["training"])
async def statuses(
    state: State,
    slot: SlotQuery = None,
    status: Annotated[JobState | None, QueryParameter(description="Only jobs in this state.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> StatusPage:
    """The newest first, as the schema `agent.rl.training.status.v1` has them."""

    def find() -> StatusPage:
        found = _rows(state, slot, status, cursor, limit)
        return StatusPage(rows=[_status(job) for job in found["rows"]], next=found["next"])

    return await asyncio.to_thread(find)


@reads("/v1/training/status/{id:str}", summary="Show a training", tags=["training"])
async def status(state: State, id: IdPath) -> TrainingStatus:
    """Progress, metrics and artefacts of a job, as the schema `agent.rl.training.status.v1` has them."""
    return await asyncio.to_thread(lambda: _status(_job(state, id)))


@reads("/v1/training/models", summary="List trained models", tags=["training"])
async def models(state: State, cursor: Cursor = None, limit: Limit = 100) -> ModelPage:
    """Registered policies, and which of them serve."""

    def find() -> ModelPage:
        rows = sorted(version_rows(releases(state).registry), key=lambda row: (row.slot, row.version))
        found = [
            TrainedModel(version=row.version, slot=row.slot, state=row.state, serves=row.state is VersionState.SERVING)
            for row in rows
        ]
        kept, after = page(found, lambda one: (one.slot, one.version), cursor=cursor, kind=tuple[str, str], limit=limit)
        return ModelPage(rows=kept, next=after)

    return await asyncio.to_thread(find)


def steering(state: State) -> Steering:
    server: Server = state.server
    return server.steering


def _job(state: State, id: str) -> Job:
    try:
        return steering(state).jobs().find(id)
    except JobError as error:
        if error.__cause__ is not None:  # the queue cannot be read
            raise
        raise RequestError(str(error), status=404) from error


def _queued(server: Server, asked: TrainingRequest, *, id: str | None = None) -> Job:
    """The job of a request, queued; ConfigError or RequestError for one that cannot be learned."""
    for key, value in _leaves(asked.hyperparameters):
        if not KEY.fullmatch(key) or (isinstance(value, str) and not VALUE.fullmatch(value)):
            raise RequestError(
                f"hyperparameters has {key[:80]!r}: {str(value)[:80]!r}: expected a dotted key, such as ppo.lr, and a "
                "number, a flag or a name: paths and URLs are set on the server alone",
                status=400,
            )
    steering, slots = server.steering, server.steering.slots()
    find_spec(asked.problem.partition(":")[0])
    job = job_of(asked, slots, server.clock(), id=id)
    check_learnable(job, slots)
    if asked.policy is not None:
        steering.releases().version(asked.policy.partition("+")[0])
    steering.jobs().submit(job)
    return steering.jobs().find(job.id)


def _leaves(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values; the values of a list have its key."""
    if depth > MAX_DEPTH:
        raise RequestError(f"hyperparameters are nested deeper than {MAX_DEPTH}", status=400)
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{key}.{name}" if key else name, depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, key, depth + 1)
    elif key:
        yield key, value


def _status(job: Job) -> TrainingStatus:
    """A job as an event of now."""
    latest = max(time for time in (job.created, job.started, job.ended, job.stage_time) if time is not None)
    return replace(status_of(Change(number=0, revision=0, time=latest, job=job)), id=f"{job.id}.now")


ROUTES = [listed, shown, submit, cancel, retry, train, statuses, status, models]
