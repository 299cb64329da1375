"""The routes of the source document on prompt mutation, by its names: a policy that learns while a caller asks it.

Each caller has a policy of its own. Only the release path serves it to anyone else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from litestar import Request, Response, post
from litestar.datastructures import State
from litestar.params import JSONBody
from msgspec import Meta, Struct

from etude.contracts.session import Embedding, Selected, Session, SessionStep, Share, Updated
from etude.serving.access import Called, needs
from etude.serving.errors import refusals
from etude.serving.idempotency import once
from etude.serving.keys import Caller, Role
from etude.serving.pages import VERSION
from etude.serving.server import Server

T = TypeVar("T")
TAGS, GUARDS = ["session"], [needs(Role.DECIDE)]
REFUSALS = refusals(400, 401, 403, 409, 413, 429, 503)


class Seen(Struct, kw_only=True, forbid_unknown_fields=True):
    """A prompt, or its embedding."""

    embedding: Embedding | None = None
    prompt: str | None = None


class SelectAsked(Seen, kw_only=True, forbid_unknown_fields=True):
    greedy: bool = False
    """Take the most probable mutation; else one is sampled."""
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """The same seed samples the same; absent is another one for each request."""


class ExperienceStored(Struct, kw_only=True, frozen=True):
    stored: Literal[True] = True
    buffer_size: int
    """Steps that wait for the next update."""


class SaveAsked(Struct, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(max_length=128)] = ""
    """What the caller calls it, for the record of the slot."""


class Nothing(Struct, kw_only=True, forbid_unknown_fields=True):
    """No fields."""


class Distribution(Struct, kw_only=True, frozen=True):
    probabilities: dict[str, Share]
    """By mutation."""


class Saved(Struct, kw_only=True, frozen=True):
    version: str
    """In the registry: `POST /load` takes it, and a release may begin with it."""


class LoadAsked(Struct, kw_only=True, forbid_unknown_fields=True):
    version: Annotated[str, Meta(pattern=VERSION)]
    """Version: 16 hexadecimal digits, or at least the first four."""


class Loaded(Struct, kw_only=True, frozen=True):
    loaded: Literal[True] = True
    version: str


@post("/select_action", summary="Select a mutation", tags=TAGS, status_code=200, guards=GUARDS, responses=REFUSALS)
async def select_action(state: State, data: JSONBody[SelectAsked], caller: Called) -> Selected:
    """For a prompt, which comes back mutated, or for its embedding."""
    server: Server = state.server
    seed = server.sessions.seed() if data.seed is None else data.seed
    return await _in(
        server,
        caller,
        lambda own: own.select(embedding=data.embedding, prompt=data.prompt, greedy=data.greedy, seed=seed),
    )


@post("/get_distribution", summary="Show the policy", tags=TAGS, status_code=200, guards=GUARDS, responses=REFUSALS)
async def get_distribution(state: State, data: JSONBody[Seen], caller: Called) -> Distribution:
    """The probability of each mutation."""
    found = await _in(state.server, caller, lambda own: own.distribution(embedding=data.embedding, prompt=data.prompt))
    return Distribution(probabilities=found)


@post("/store_experience", summary="Store a step", tags=TAGS, status_code=200, guards=GUARDS, responses=REFUSALS)
async def store_experience(
    request: Request[Any, Any, Any], state: State, data: JSONBody[SessionStep], caller: Called
) -> Response[ExperienceStored]:
    """It is kept in memory until the next update of this caller's policy."""

    async def kept() -> ExperienceStored:
        return ExperienceStored(buffer_size=await _in(state.server, caller, lambda own: own.store(data)))

    return await once(request, state.server, caller, kept)


@post("/update", summary="Learn from the stored steps", tags=TAGS, status_code=200, guards=GUARDS, responses=REFUSALS)
async def update(
    request: Request[Any, Any, Any], state: State, data: JSONBody[Nothing], caller: Called
) -> Response[Updated]:
    """By PPO, for this caller alone. Too few steps change nothing."""
    return await once(request, state.server, caller, lambda: _in(state.server, caller, lambda own: own.update()))


@post("/save", summary="Save the policy", tags=TAGS, status_code=200, guards=GUARDS, responses=REFUSALS)
async def save(
    request: Request[Any, Any, Any], state: State, data: JSONBody[SaveAsked], caller: Called
) -> Response[Saved]:
    """As a signed version in the registry, in a slot of the caller's own."""
    server: Server = state.server

    async def saved() -> Saved:
        return Saved(version=await asyncio.to_thread(server.sessions.save, caller, data.name))

    return await once(request, server, caller, saved)


@post(
    "/load",
    summary="Continue with a saved policy",
    tags=TAGS,
    status_code=200,
    guards=GUARDS,
    responses=REFUSALS | refusals(404),
)
async def load(
    request: Request[Any, Any, Any], state: State, data: JSONBody[LoadAsked], caller: Called
) -> Response[Loaded]:
    """One that the caller saved, or the one that serves. Steps that were not learned from are dropped."""
    server: Server = state.server

    async def loaded() -> Loaded:
        return Loaded(version=await asyncio.to_thread(server.sessions.load, caller, data.version))

    return await once(request, server, caller, loaded)


async def _in(server: Server, caller: Caller, do: Callable[[Session], T]) -> T:
    """What a call of the caller's session gives, in a thread: networks take their time."""

    def call() -> T:
        with server.sessions.of(caller) as own:
            return do(own)

    return await asyncio.to_thread(call)


ROUTES = [select_action, get_distribution, store_experience, update, save, load]
