"""The description of the API: the routes as Litestar describes them, with the schemas that msgspec checks bodies by, an
example of each body, and the header that makes a POST repeatable."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from litestar import Litestar
from litestar.routes import HTTPRoute
from msgspec import Struct

from etude.contracts.field_docs import field_docs
from etude.contracts.schemas import structs_of
from etude.serving.errors import MEDIA_TYPE, Problem
from etude.serving.examples import examples
from etude.serving.idempotency import HEADER, MAX_CHARS
from etude.serving.routes.openai import OpenAIError

METHODS = ("get", "post", "put", "patch", "delete")
JSON = "application/json"
REFERENCE = "#/components/schemas/{name}"
REPEATABLE = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "A request that is sent again under the same key within a day gets the first answer, and has no "
    "other effect.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_CHARS},
}


@cache
def described(app: Litestar) -> dict[str, Any]:
    """OpenAPI 3.1."""
    found, own = app.openapi_schema.to_schema(), _types(app)
    known: set[type[Struct]] = {Problem, OpenAIError}
    known |= {kind for pair in own.values() for kind in pair if kind is not None}
    ordered = sorted(known, key=lambda kind: kind.__name__)
    schemas, components = _schemas(ordered)
    found["components"]["schemas"] = components
    public = set(_public(app))
    for path, method, operation in operations(found):
        if (path, method) in public:
            operation["security"] = []
        asked, given = own.get((path, method), (None, None))
        for kind, body in _bodies(operation, asked, given):
            body["schema"] = schemas[kind]
            if kind.__name__ in examples():
                body["example"] = examples()[kind.__name__]
        if asked is not None and method == "post":
            operation["parameters"] = [*operation.get("parameters", ()), REPEATABLE]
    return found


def operations(description: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and description of every route."""
    for path, methods in description["paths"].items():
        for method in METHODS:
            if method in methods:
                yield path, method, methods[method]


def _types(app: Litestar) -> dict[tuple[str, str], tuple[type[Struct] | None, type[Struct] | None]]:
    """By path and method: the types of a route's request and answer, where they are ours."""
    found = dict[tuple[str, str], tuple[type[Struct] | None, type[Struct] | None]]()
    for route in app.routes:
        for handler in route.route_handlers if isinstance(route, HTTPRoute) else ():
            signature = handler.parsed_fn_signature
            data, answer = signature.parameters.get("data"), signature.return_type
            given = answer.inner_types[0] if answer.inner_types else answer
            pair = (_own(None if data is None else data.annotation), _own(given.annotation))
            found |= {(route.path_format, method.lower()): pair for method in handler.http_methods}
    return found


def _public(app: Litestar) -> Iterator[tuple[str, str]]:
    """Routes that need no key."""
    for route in app.routes:
        for handler in route.route_handlers if isinstance(route, HTTPRoute) else ():
            if not handler.guards:
                yield from ((route.path_format, method.lower()) for method in handler.http_methods)


def _own(kind: Any) -> type[Struct] | None:
    return kind if isinstance(kind, type) and issubclass(kind, Struct) else None


def _schemas(kinds: list[type[Struct]]) -> tuple[dict[type[Struct], Any], dict[str, Any]]:
    """A reference for each type, and what is referred to, with the docstrings of fields."""
    references, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    by_title: dict[str, list[dict[str, Any]]] = {}
    for part in components.values():
        by_title.setdefault(part.get("title", ""), []).append(part)
    for kind in structs_of(*kinds):
        parts = by_title.get(kind.__name__, [])
        for name, doc in _docs(kind).items():
            for part in parts if len(parts) == 1 else []:
                part.get("properties", {}).get(name, {}).setdefault("description", doc)
    return dict(zip(kinds, references, strict=True)), components


def _docs(kind: type[Struct]) -> dict[str, str]:
    try:
        return field_docs(kind)
    except OSError:  # made by a function: it has no source
        return {}


def _bodies(
    operation: dict[str, Any], asked: type[Struct] | None, given: type[Struct] | None
) -> Iterator[tuple[type[Struct], dict[str, Any]]]:
    """The bodies of a route that have one of our types."""
    request = operation.get("requestBody", {}).get("content", {})
    if asked is not None and JSON in request:
        yield asked, request[JSON]
    for status, answer in operation["responses"].items():
        for media_type, body in answer.get("content", {}).items():
            if media_type == MEDIA_TYPE:
                yield Problem, body
            elif media_type == JSON and int(status) >= 400:
                yield OpenAIError, body
            elif media_type == JSON and given is not None:
                yield given, body
