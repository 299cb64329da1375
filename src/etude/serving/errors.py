"""Errors as problem details (RFC 9457): one table from our errors to HTTP, and nothing secret in an answer."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from math import ceil
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, NotFoundException, ValidationException
from litestar.openapi.datastructures import ResponseSpec
from litestar.types import HTTPScope
from msgspec import Struct

from etude.contracts.errors import (
    BusError,
    CatalogueError,
    CheckpointError,
    ConfigError,
    ConflictError,
    DataError,
    DatasetError,
    EtudeError,
    EventError,
    JobError,
    MissingExtraError,
    ObservationError,
    PlanError,
    ReleaseError,
    RequestError,
    StoreError,
    WorkersError,
)

log = logging.getLogger("etude")

MEDIA_TYPE = "application/problem+json"
STATUS: Mapping[type[EtudeError], int] = {
    DataError: 400,
    EventError: 400,
    ObservationError: 400,
    PlanError: 400,
    ConfigError: 400,
    DatasetError: 400,
    ConflictError: 409,
    ReleaseError: 409,
    JobError: 409,
    StoreError: 503,
    BusError: 503,
    MissingExtraError: 503,
    CatalogueError: 503,
    WorkersError: 503,
    CheckpointError: 503,
}
"""The first one that an error is decides; all others are errors of the server."""
ABSENT = re.compile(r"Object (contains|missing) (?:unknown|required) field `([^`]*)`")
"""What msgspec says of a field that there is not, or should be."""
PATH = re.compile(r"(?<![\w:/.])(?!/v1/)(?:(?:/[^\s/:'\"]+)+|[.~][^\s/:'\"]*(?:/[^\s/:'\"]+)*)/([^\s/:'\"]+)")
"""A path of a file, not of a route: absolute with a folder, or beginning with a dot or a tilde; its last part."""
UNREADABLE = (UnicodeDecodeError, RecursionError)
"""What readers of JSON raise besides their own errors."""


REFUSALS = {
    400: "The request is wrong: `errors` and `detail` say where, and what was expected.",
    401: "There is no API key, or it is not known.",
    403: "The API key may not do this.",
    404: "There is no such thing, or the caller may not see it.",
    405: "The route has no such method.",
    409: "It was done already, or something else was.",
    413: "The request is too large.",
    429: "Too many requests: wait as long as `retry-after` says.",
    503: "It cannot be done now: try again later.",
}
"""What each status of a refusal means."""


class FieldError(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What is wrong with a field of a request."""

    field: str
    detail: str


class Problem(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What went wrong, and what to do."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"
    request_id: str = ""
    """Give this to whoever runs the server: it is in the server's log."""
    errors: tuple[FieldError, ...] = ()


def on_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The answer to a request that raised this error."""
    status, headers, body = refusal(request.scope, error)
    return Response(body, status_code=status, headers=headers, media_type=MEDIA_TYPE)


def refusal(scope: HTTPScope, error: Exception) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to a request that raised this error."""
    status, headers, fields = 500, dict[str, str](), tuple[FieldError, ...]()
    detail = "an unexpected error: the server's log has it under the request id"
    route = f"{scope['method']} {scope.get('path_template') or scope['path'][:80]}"
    if isinstance(error, RequestError):
        status, detail = error.status, str(error)
        headers = {"retry-after": str(ceil(error.wait_s))} if error.wait_s else {}
        headers |= {"www-authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
    elif isinstance(error, HTTPException):
        status, detail, headers = error.status_code, error.detail, dict(error.headers or {})
        fields = _fields(error)
        if fields:
            detail = f"{'; '.join(f'{one.field}: {one.detail}' for one in fields)}: GET /openapi.json describes {route}"
        elif isinstance(error, NotFoundException):
            detail = f"there is no route {scope['path'][:80]!r}: GET /openapi.json describes all; ids have no slashes"
        elif status == HTTPStatus.METHOD_NOT_ALLOWED:
            detail = f"{route} does not exist: there is {_allowed(headers)}"
        elif status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            detail = "the request is larger than serving.max_body_bytes: send less, or in parts"
        elif status == HTTPStatus.BAD_REQUEST:
            detail = f"the body cannot be read: {detail}: expected JSON, as GET /openapi.json describes it for {route}"
    elif isinstance(error, EtudeError):
        status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 500)
        detail = str(error) if status != 500 else detail
    elif isinstance(error, UNREADABLE):
        status, detail = 400, "the body cannot be read: expected UTF-8, and not thousands of brackets in each other"
    request_id = scope["state"].get("request_id", "")
    shown = without_folders(detail) if status >= 500 else detail
    if status >= 500:
        unexpected = error if status == 500 else None
        template, named = scope.get("path_template", ""), {"request_id": request_id}
        said = (request_id, scope["method"], template, detail)
        log.error("request %s: %s %s: %s", *said, exc_info=unexpected, extra=named)
    problem = Problem(
        title=HTTPStatus(status).phrase, status=status, detail=shown, request_id=request_id, errors=fields
    )
    if isinstance(error, NotFoundException):  # perhaps of OpenAI's API, whose clients show nothing else
        more = {"error": {"message": shown, "type": "invalid_request_error", "param": None, "code": "unknown_url"}}
        return status, headers, msgspec.json.encode(msgspec.to_builtins(problem) | more)
    return status, headers, msgspec.json.encode(problem)


def without_folders(text: str) -> str:
    """A message without the folders of the server's files, which only the log shows."""
    return PATH.sub(r"\1", text)


def _allowed(headers: Mapping[str, str]) -> str:
    return next((methods for name, methods in headers.items() if name.lower() == "allow"), "no other method")


def _fields(error: HTTPException) -> tuple[FieldError, ...]:
    """The fields that a validation names."""
    if not isinstance(error, ValidationException) or not isinstance(error.extra, list):
        return ()
    return tuple(_field(one) for one in error.extra if isinstance(one, dict))


def _field(found: Mapping[str, Any]) -> FieldError:
    """The field itself where one is unknown or missing, in place of the object that it should not or should be in."""
    where, what = str(found.get("key", "data")), str(found.get("message", ""))
    inside = "" if where == "data" else f"{where}."
    if named := ABSENT.search(what):
        return FieldError(field=f"{inside}{named[2]}", detail="is unknown" if named[1] == "contains" else "is missing")
    return FieldError(field="body" if where == "data" else where, detail=what)


def refusals(*statuses: int) -> dict[int, ResponseSpec]:
    """The refusals of a route, for its description."""
    return {
        status: ResponseSpec(Problem, generate_examples=False, description=REFUSALS[status], media_type=MEDIA_TYPE)
        for status in statuses
    }
