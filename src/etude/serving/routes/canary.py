"""Releases of candidates: canaries, experiments and shadows, their evidence, and how a person steers them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

from litestar import Request, Response
from litestar.datastructures import State
from litestar.params import JSONBody
from msgspec import Meta, Struct

from etude.contracts.release import Entry, Mode
from etude.release.start import CanaryConfig
from etude.release.status import SlotStatus, slot_status
from etude.release.strategy import Strategy
from etude.serving.access import Called
from etude.serving.idempotency import once
from etude.serving.keys import Caller
from etude.serving.pages import Cursor, Limit, SlotPath, page
from etude.serving.routes.kinds import reads, steers
from etude.serving.routes.policies import By, Reason, StepTaken, releases
from etude.serving.steering import Releases, actor

Version = Annotated[str, Meta(pattern=r"^[0-9a-f]{4,16}$(?!\n)")]
Minutes = Annotated[float, Meta(gt=0, le=527_040)]


class SlotPage(Struct, kw_only=True, frozen=True):
    rows: list[SlotStatus]
    next: str | None
    """Cursor of the next page; null at the end."""


class CanaryAsked(Struct, kw_only=True, forbid_unknown_fields=True):
    """How a candidate is released; what is null is as in the settings of the server."""

    version: Version
    """A version that passed its gates: 16 hexadecimal digits, or the first ones."""
    strategy: Literal["auto", "canary", "experiment", "shadow", "direct"] = "auto"
    """auto chooses by the rules release.canary.strategies."""
    stages: Annotated[list[Annotated[float, Meta(gt=0, le=100)]], Meta(min_length=1, max_length=20)] | None = None
    """Shares of the traffic in percent, such as [10, 25, 50, 100]."""
    over_minutes: Minutes | None = None
    """Minimum duration of all stages together."""
    deadline_minutes: Minutes | None = None
    """Duration after which an undecided canary is held."""
    by: By | None = None
    """Name of the person, for the audit log: it stands there next to the key."""


class ShadowAsked(Struct, kw_only=True, forbid_unknown_fields=True):
    version: Version
    """The candidate: 16 hexadecimal digits, or the first ones."""
    by: By | None = None
    """Name of the person, for the audit log: it stands there next to the key."""


class ExperimentAsked(Struct, kw_only=True, forbid_unknown_fields=True):
    """Two versions of a slot, of which one serves."""

    a: Version
    b: Version
    share_of_b: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    """Share of the traffic that `b` gets."""
    by: By | None = None
    """Name of the person, for the audit log: it stands there next to the key."""


class Steered(Struct, kw_only=True, forbid_unknown_fields=True):
    by: By | None = None
    """Name of the person, for the audit log: it stands there next to the key."""
    reason: Reason = ""


class ReleaseStarted(Struct, kw_only=True, frozen=True):
    """How a release began."""

    slot: str
    strategy: str
    sentence: str
    """How, and how long it takes at the present traffic."""
    step: Entry


@reads("/v1/canary", summary="List what serves, and the evidence", tags=["releases"])
async def listed(state: State, cursor: Cursor = None, limit: Limit = 100) -> SlotPage:
    """Of every slot: which policy serves it, and the evidence about its candidate so far."""
    return await asyncio.to_thread(_page, releases, state, cursor, limit)


@reads("/v1/experiments", summary="List experiments", tags=["releases"])
async def experiments(state: State, cursor: Cursor = None, limit: Limit = 100) -> SlotPage:
    """Slots in which two versions are compared now."""
    return await asyncio.to_thread(_page, releases, state, cursor, limit, Mode.EXPERIMENT)


def _page(
    opened: Callable[[State], Releases], state: State, cursor: str | None, limit: int, mode: Mode | None = None
) -> SlotPage:
    own = opened(state)

    def is_wanted(slot: str) -> bool:
        exposure = own.registry.serving(slot).exposure
        return mode is None or (exposure is not None and exposure.mode is mode)

    wanted = [slot for slot in own.registry.slots() if is_wanted(slot)]
    slots, after = page(wanted, lambda slot: (slot,), cursor=cursor, kind=tuple[str], limit=limit)
    with own.turn:
        return SlotPage(rows=[slot_status(own.controller, slot) for slot in slots], next=after)


@reads("/v1/canary/{slot:str}", summary="Show what serves a slot", tags=["releases"])
async def shown(state: State, slot: SlotPath) -> SlotStatus:
    """And the evidence about its candidate. It may be looked at at any time; looking changes nothing."""

    def find() -> SlotStatus:
        own = releases(state)
        with own.turn:
            return slot_status(own.controller, own.slot(slot))

    return await asyncio.to_thread(find)


@steers("/v1/canary", summary="Start a release", tags=["releases"])
async def start(
    request: Request[Any, Any, Any], state: State, caller: Called, data: JSONBody[CanaryAsked]
) -> Response[ReleaseStarted]:
    """Of a version that passed its gates. It is promoted only on proof, and rolled back on harm."""
    strategy = None if data.strategy == "auto" else data.strategy
    return await _started(request, state, caller, data.version, data.by, strategy, data)


@steers("/v1/shadow", summary="Start a shadow", tags=["releases"])
async def shadow(
    request: Request[Any, Any, Any], state: State, caller: Called, data: JSONBody[ShadowAsked]
) -> Response[ReleaseStarted]:
    """Ask a candidate with every request; only whether it answers as the incumbent does is kept."""
    return await _started(request, state, caller, data.version, data.by, "shadow")


@steers("/v1/experiments", summary="Start an experiment", tags=["releases"])
async def compare(
    request: Request[Any, Any, Any], state: State, caller: Called, data: JSONBody[ExperimentAsked]
) -> Response[ReleaseStarted]:
    """Compare the version that serves with another one. Harm ends it; nothing is promoted by itself."""

    def take() -> ReleaseStarted:
        own = releases(state)
        first, second = own.version(data.a), own.version(data.b)
        with own.turn:
            begun = own.starts.compare(first, second, share=data.share_of_b, by=actor(caller, data.by))
        return ReleaseStarted(
            slot=own.registry.slot_of(second), strategy=begun.strategy, sentence=begun.sentence, step=begun.entry
        )

    return await once(request, state.server, caller, lambda: asyncio.to_thread(take))


async def _started(
    request: Request[Any, Any, Any],
    state: State,
    caller: Caller,
    version: str,
    by: str | None,
    strategy: Strategy | None,
    asked: CanaryAsked | None = None,
) -> Response[ReleaseStarted]:
    def take() -> ReleaseStarted:
        own = releases(state)
        candidate = own.version(version)
        slot = own.registry.slot_of(candidate)
        with own.turn:
            begun = own.starts.start(
                slot, candidate, by=actor(caller, by), canary=_changed(own.canary, asked), strategy=strategy
            )
        return ReleaseStarted(slot=slot, strategy=begun.strategy, sentence=begun.sentence, step=begun.entry)

    return await once(request, state.server, caller, lambda: asyncio.to_thread(take))


def _changed(config: CanaryConfig, asked: CanaryAsked | None) -> CanaryConfig:
    """The settings of the server with what the request says."""
    if asked is None:
        return config
    changes = {
        "stages": None if asked.stages is None else tuple(asked.stages),
        "over_minutes": asked.over_minutes,
        "deadline_minutes": asked.deadline_minutes,
    }
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    return replace(config, **given)


@steers("/v1/canary/{slot:str}/pause", summary="Pause a release", tags=["releases"])
async def pause(
    request: Request[Any, Any, Any], state: State, caller: Called, slot: SlotPath, data: JSONBody[Steered]
) -> Response[StepTaken]:
    """Assign no further tasks to the candidate."""
    by = actor(caller, data.by)
    return await _steered(request, state, caller, slot, lambda own: own.controller.pause(slot, by=by))


@steers("/v1/canary/{slot:str}/resume", summary="Resume a release", tags=["releases"])
async def resume(
    request: Request[Any, Any, Any], state: State, caller: Called, slot: SlotPath, data: JSONBody[Steered]
) -> Response[StepTaken]:
    """Continue a paused or held release with the share of its stage."""
    by = actor(caller, data.by)
    return await _steered(request, state, caller, slot, lambda own: own.controller.resume(slot, by=by))


@steers("/v1/canary/{slot:str}/abort", summary="Abort a release", tags=["releases"])
async def abort(
    request: Request[Any, Any, Any], state: State, caller: Called, slot: SlotPath, data: JSONBody[Steered]
) -> Response[StepTaken]:
    """End a canary, an experiment or a shadow: the incumbent serves all."""
    by = actor(caller, data.by)
    return await _steered(
        request, state, caller, slot, lambda own: own.controller.abort(slot, by=by, reason=data.reason)
    )


@steers("/v1/experiments/{slot:str}/stop", summary="Stop an experiment", tags=["releases"])
async def stop(
    request: Request[Any, Any, Any], state: State, caller: Called, slot: SlotPath, data: JSONBody[Steered]
) -> Response[StepTaken]:
    """The incumbent serves all; what was found stays in the record."""
    by, reason = actor(caller, data.by), data.reason or "stopped"
    return await _steered(request, state, caller, slot, lambda own: own.controller.abort(slot, by=by, reason=reason))


async def _steered(
    request: Request[Any, Any, Any], state: State, caller: Caller, slot: str, step: Callable[[Releases], Entry]
) -> Response[StepTaken]:
    def take() -> StepTaken:
        own = releases(state)
        own.slot(slot)
        with own.turn:
            return StepTaken(slot=slot, step=step(own))

    return await once(request, state.server, caller, lambda: asyncio.to_thread(take))


ROUTES = [listed, experiments, shown, start, shadow, compare, pause, resume, abort, stop]
