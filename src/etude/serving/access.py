"""Who may call a route: reads the API key of a request, and refuses what its role may not do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler
from litestar.types import Scope

from etude.contracts.errors import RequestError
from etude.serving.keys import Caller, Keys, Role

BEARER = "bearer "
Called = NamedDependency[Caller]
"""Who calls, as an argument of a handler."""


@dataclass(frozen=True)
class Guard:
    """Refuses keys that are missing, unknown, or of a lower role."""

    role: Role

    def __call__(self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        state = connection.scope["state"]
        if "caller" not in state:  # nothing found it before the framework
            keys: Keys = connection.app.state.server.keys
            state["caller"] = caller_by(keys, connection.headers.get("authorization", ""), self.role)


def needs(role: Role) -> Guard:
    """A guard for routes that this role, and those above it, may call."""
    return Guard(role)


def caller_by(keys: Keys, authorization: str, role: Role) -> Caller:
    """Who calls, by the header of a request; RequestError unless its key may do what needs this role."""
    if authorization[: len(BEARER)].lower() != BEARER:
        raise RequestError("the request has no API key: send the header `Authorization: Bearer KEY`", status=401)
    caller = keys.caller(authorization[len(BEARER) :].strip())
    if not caller.may(role):
        raise RequestError(
            f"the API key {caller.key} has the role {caller.role}: this needs {role}, or a role above it",
            status=403,
        )
    return caller


def provide_caller(scope: Scope) -> Caller:
    """For handlers: who the guard found."""
    found: Caller = scope["state"]["caller"]
    return found
