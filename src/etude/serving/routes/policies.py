"""Policies: the registered versions of every slot, where they come from, their gates, approvals and rollbacks."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, post
from litestar.datastructures import State
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct

from etude.contracts.errors import RequestError, TamperedError
from etude.contracts.live import Operation
from etude.contracts.policy import Manifest
from etude.contracts.release import Entry, Slot
from etude.contracts.release import State as VersionState
from etude.release.gates.gate import REPORT
from etude.release.versions import VersionRow, differences, steps_of, version_row, version_rows
from etude.serving.access import Called, needs
from etude.serving.idempotency import once
from etude.serving.keys import Role
from etude.serving.pages import VERSION, Cursor, IdPath, Limit, SlotQuery, VersionPath, page
from etude.serving.routes.kinds import CHANGES, begins, reads, steers
from etude.serving.server import Server
from etude.serving.steering import Releases, actor

By = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
Reason = Annotated[str, Meta(max_length=500)]


class PolicyPage(Struct, kw_only=True, frozen=True):
    rows: list[VersionRow]
    next: str | None
    """Cursor of the next page; null at the end."""


class PolicyDetail(Struct, kw_only=True, frozen=True):
    """A version with all that is known about it."""

    about: VersionRow
    manifest: Manifest | None
    """Null if its files were deleted by retention."""
    attachments: list[str]
    """Reports and logs that are kept with it."""
    history: list[Entry]


class UsedDataset(Struct, kw_only=True, frozen=True):
    id: str
    content: str
    trajectories: int
    url: str


class LineageStep(Struct, kw_only=True, frozen=True):
    version: str
    data: list[str]
    """Hashes of the datasets and files that it learned from."""
    datasets: list[UsedDataset]
    """Those that are known here."""


class PolicyLineage(Struct, kw_only=True, frozen=True):
    versions: list[LineageStep]
    """The version, and those before it that it continues."""
    children: list[str]
    """Versions that continue it."""


class LearnedFrom(Struct, kw_only=True, frozen=True):
    """What learned from a trajectory."""

    trajectory: str
    datasets: list[str]
    versions: list[dict[str, str]]
    """Each with its `version`, `slot` and `state`."""


class Differences(Struct, kw_only=True, frozen=True):
    version: str
    other: str
    changed: dict[str, list[Any]]
    """Dotted field of the manifests → both values, null where one has none."""


class Verified(Struct, kw_only=True, frozen=True):
    version: str
    unaltered: bool
    files: int
    """Files that were compared with the signed manifest."""
    detail: str
    """What is wrong; empty if nothing is."""


class GatesAsked(Struct, kw_only=True, forbid_unknown_fields=True):
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """Seed of fuzzed requests and samples."""


class GatesReport(Struct, kw_only=True, frozen=True):
    """The newest report of the gates on a version."""

    version: str
    slot: str
    verdict: str
    """pass, fail or cannot tell."""
    report: dict[str, Any]


class Approval(Struct, kw_only=True, forbid_unknown_fields=True):
    by: By | None = None
    """Name of the person, for the audit log: it stands there next to the key."""
    reason: Reason = ""


class RollbackAsked(Struct, kw_only=True, forbid_unknown_fields=True):
    slot: Slot
    by: By | None = None
    """Name of the person, for the audit log: it stands there next to the key."""
    reason: Reason = ""


class StepTaken(Struct, kw_only=True, frozen=True):
    """A step of a slot's record."""

    slot: str
    step: Entry


@reads("/v1/policies", summary="List policies", tags=["policies"])
async def listed(
    state: State,
    slot: SlotQuery = None,
    status: Annotated[VersionState | None, QueryParameter(description="Only versions in this state.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> PolicyPage:
    """Every registered version with its state, by slot and version."""

    def find() -> PolicyPage:
        registry = releases(state).registry
        rows = [row for row in version_rows(registry, slot) if status is None or row.state is status]
        rows.sort(key=lambda row: (row.slot, row.version))
        found, after = page(rows, lambda row: (row.slot, row.version), cursor=cursor, kind=tuple[str, str], limit=limit)
        return PolicyPage(rows=found, next=after)

    return await asyncio.to_thread(find)


@reads("/v1/policies/{version:str}", summary="Show a policy", tags=["policies"])
async def shown(state: State, version: VersionPath) -> PolicyDetail:
    """Its signed manifest, the reports kept with it, and every step about it."""

    def find() -> PolicyDetail:
        own = releases(state)
        found = own.version(version)
        slot = own.registry.slot_of(found)
        steps = steps_of(own.registry, slot, found)
        deleted = any(step.action == "deleted" for step in steps)
        return PolicyDetail(
            about=version_row(own.registry, slot, found),
            manifest=None if deleted else own.registry.artefact(found).manifest,
            attachments=own.registry.attachments(found),
            history=steps,
        )

    return await asyncio.to_thread(find)


@reads("/v1/policies/{version:str}/lineage", summary="Show what a policy learned from", tags=["policies"])
async def lineage(state: State, version: VersionPath) -> PolicyLineage:
    """Earlier versions that it continues, their datasets and numbers of trajectories, and who continues it."""

    def find() -> PolicyLineage:
        own = releases(state)
        return msgspec.convert(own.lineage(own.version(version)), PolicyLineage)

    return await asyncio.to_thread(find)


@reads("/v1/trajectories/{id:str}/policies", summary="Show what learned from a task", tags=["policies"])
async def learners(state: State, id: IdPath) -> LearnedFrom:
    """The datasets that hold a trajectory, and the versions that learned from them."""

    def find() -> LearnedFrom:
        found = releases(state).learned_from(id)
        if found is None:
            raise RequestError(f"there is no trajectory {id!r}", status=404)
        return msgspec.convert(found, LearnedFrom)

    return await asyncio.to_thread(find)


@reads("/v1/policies/{version:str}/diff/{other:str}", summary="Compare two policies", tags=["policies"])
async def compared(
    state: State,
    version: VersionPath,
    other: Annotated[str, PathParameter(pattern=VERSION, description="The version to compare with.")],
) -> Differences:
    """What their manifests say differently: settings, data, files."""

    def find() -> Differences:
        own = releases(state)
        first, second = own.version(version), own.version(other)
        return Differences(version=first, other=second, changed=differences(own.registry, first, second))

    return await asyncio.to_thread(find)


@reads("/v1/policies/{version:str}/verification", summary="Verify a policy", tags=["policies"])
async def verified(state: State, version: VersionPath) -> Verified:
    """Check its signature and the hash of every file."""

    def check() -> Verified:
        own = releases(state)
        found = own.version(version)
        try:
            manifest = own.registry.verify(found)
        except TamperedError as error:
            return Verified(version=found, unaltered=False, files=0, detail=str(error))
        return Verified(version=found, unaltered=True, files=len(manifest.files), detail="")

    return await asyncio.to_thread(check)


@reads("/v1/policies/{version:str}/gates", summary="Show the report of the gates", tags=["policies"])
async def report(state: State, version: VersionPath) -> GatesReport:
    """The newest one, with the evidence of each gate."""

    def find() -> GatesReport:
        own = releases(state)
        found = own.version(version)
        kept = own.registry.attached(found, REPORT)
        if kept is None:
            raise RequestError(
                f"the gates have not judged {found} yet: POST /v1/policies/{found}/gates runs them", status=404
            )
        said: dict[str, Any] = msgspec.json.decode(kept)
        return GatesReport(version=found, slot=said["slot"], verdict=said["verdict"], report=said)

    return await asyncio.to_thread(find)


@begins("/v1/policies/{version:str}/gates", summary="Run the gates", tags=["policies"])
async def judge(
    request: Request[Any, Any, Any], state: State, caller: Called, version: VersionPath, data: JSONBody[GatesAsked]
) -> Response[Operation]:
    """All gates judge the version in a process of its own, which takes minutes: the answer names the operation, and
    its `result` is where the report will be. The version changes its state by the verdict."""
    server: Server = state.server

    async def begun() -> Operation:
        def begin() -> Operation:
            found = releases(state).version(version)
            return server.steering.operations.submit(
                "gates",
                found,
                ["gates", "run", found, f"--seed={data.seed}", "--json"],
                by=actor(caller),
                result=f"/v1/policies/{found}/gates",
                done=(0, 3, 4),  # a verdict, whatever it is
            )

        return await asyncio.to_thread(begin)

    return await once(request, server, caller, begun, status=202)


@post(
    "/v1/policies/{version:str}/approve",
    summary="Approve a policy",
    tags=["policies"],
    status_code=200,
    guards=[needs(Role.ADMIN)],
    responses=CHANGES,
)
async def approve(
    request: Request[Any, Any, Any], state: State, caller: Called, version: VersionPath, data: JSONBody[Approval]
) -> Response[StepTaken]:
    """As a person: a direct release needs it, and every promotion where release.require_approval is set."""

    def take() -> StepTaken:
        own = releases(state)
        found = own.version(version)
        slot = own.registry.slot_of(found)
        step = own.registry.approve(slot, found, by=actor(caller, data.by), reason=data.reason)
        return StepTaken(slot=slot, step=step)

    return await once(request, state.server, caller, lambda: asyncio.to_thread(take))


@steers("/v1/policies/rollback", summary="Roll a slot back", tags=["policies"])
async def roll_back(
    request: Request[Any, Any, Any], state: State, caller: Called, data: JSONBody[RollbackAsked]
) -> Response[StepTaken]:
    """Return to the policy that served before, at once and in every process."""

    def take() -> StepTaken:
        own = releases(state)
        step = own.registry.roll_back(own.slot(data.slot), by=actor(caller, data.by), reason=data.reason)
        return StepTaken(slot=data.slot, step=step)

    return await once(request, state.server, caller, lambda: asyncio.to_thread(take))


def releases(state: State) -> Releases:
    server: Server = state.server
    return server.steering.releases()


ROUTES = [listed, shown, lineage, learners, compared, verified, report, judge, approve, roll_back]
