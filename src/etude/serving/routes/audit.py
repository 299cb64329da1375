"""The audit log: every step of every release, whether the record is unaltered, and whether a step recomputes."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from litestar.datastructures import State
from litestar.params import PathParameter, QueryParameter
from msgspec import Struct

from etude.contracts.errors import RequestError, TamperedError
from etude.contracts.release import Entry
from etude.release.audit import audit_log, replay, verify
from etude.serving.pages import Cursor, Limit, SlotPath, SlotQuery, page
from etude.serving.routes.kinds import reads
from etude.serving.routes.policies import releases


class AuditRow(Struct, kw_only=True, frozen=True):
    slot: str
    step: Entry
    """Its `number` names it within the slot."""


class AuditPage(Struct, kw_only=True, frozen=True):
    rows: list[AuditRow]
    next: str | None
    """Cursor of the next page; null at the end."""


class RecordChecked(Struct, kw_only=True, frozen=True):
    """What was checked about the record of a slot."""

    slot: str
    unaltered: bool
    detail: str
    """What is wrong; empty if nothing is."""
    entries: int = 0
    releases: int = 0
    units: int = 0
    replayed: int = 0
    """Decisions that were computed again from their units."""
    head: str = ""
    """Hash of the newest entry: remember it, and give it next time."""


class Replayed(Struct, kw_only=True, frozen=True):
    """A step, computed again from the units that it rests on."""

    slot: str
    number: int
    units: int
    equal: bool
    log_e_values: dict[str, list[float | None]]
    """Name → what was logged and what was computed, as natural logarithms."""


@reads("/v1/audit", summary="List steps", tags=["audit"])
async def log(state: State, slot: SlotQuery = None, cursor: Cursor = None, limit: Limit = 100) -> AuditPage:
    """Who changed what serves, when, and on what evidence: oldest first."""

    def find() -> AuditPage:
        own = releases(state)
        steps = audit_log(own.registry, slot if slot is None else own.slot(slot))
        found, after = page(
            steps,
            lambda pair: (pair[1].time.isoformat(), pair[0], pair[1].number),
            cursor=cursor,
            kind=tuple[str, str, int],
            limit=limit,
        )
        return AuditPage(rows=[AuditRow(slot=one, step=step) for one, step in found], next=after)

    return await asyncio.to_thread(find)


@reads("/v1/audit/{slot:str}/verification", summary="Verify the record of a slot", tags=["audit"])
async def verified(
    state: State,
    slot: SlotPath,
    head: Annotated[
        str | None,
        QueryParameter(
            pattern=r"^[0-9a-f]{64}$(?!\n)",
            description="Hash of a remembered newest entry: finds a record that lost its end.",
        ),
    ] = None,
) -> RecordChecked:
    """Every hash, signature and rule, and every decision computed again from its units."""

    def check() -> RecordChecked:
        own = releases(state)
        own.slot(slot)
        try:
            found = verify(own.registry, slot, remembered=head)
        except TamperedError as error:
            return RecordChecked(slot=slot, unaltered=False, detail=str(error))
        return RecordChecked(slot=slot, unaltered=True, detail="", **asdict(found))

    return await asyncio.to_thread(check)


@reads("/v1/audit/{slot:str}/{number:int}/replay", summary="Replay a decision", tags=["audit"])
async def replayed(
    state: State,
    slot: SlotPath,
    number: Annotated[int, PathParameter(ge=1, le=2**31 - 1, description="Number of the step.")],
) -> Replayed:
    """The e-values of a step, computed again. 409 for a step that rests on none, such as an approval."""

    def compute() -> Replayed:
        own = releases(state)
        history = own.registry.history(own.slot(slot))
        if number > len(history):
            raise RequestError(f"{slot} has {len(history)} steps: there is no step {number}", status=404)
        found = replay(own.registry, history[number - 1])
        names = sorted(found.logged.keys() | found.computed.keys())
        values: dict[str, Any] = {name: [found.logged.get(name), found.computed.get(name)] for name in names}
        return Replayed(slot=slot, number=number, units=found.units, equal=found.is_equal, log_e_values=values)

    return await asyncio.to_thread(compute)


ROUTES = [log, verified, replayed]
