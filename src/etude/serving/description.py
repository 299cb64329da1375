"""The description of the API: what Litestar makes of the routes, with an example of each body and the header that
makes a POST repeatable."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from litestar import Litestar

from etude.serving.examples import examples
from etude.serving.idempotency import HEADER, MAX_CHARS

METHODS = ("get", "post", "put", "patch", "delete")
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
    schema, known = app.openapi_schema.to_schema(), examples()
    for _, method, operation in operations(schema):
        for body in _bodies(operation):
            # Types of the same name are told apart by a prefix with underscores.
            name = body.get("schema", {}).get("$ref", "").rpartition("/")[2].rpartition("_")[2]
            if name in known:
                body["example"] = known[name]
        if method == "post" and "telemetry" not in operation.get("tags", ()):
            operation["parameters"] = [*operation.get("parameters", ()), REPEATABLE]
    return schema


def operations(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and description of every route."""
    for path, methods in schema["paths"].items():
        for method in METHODS:
            if method in methods:
                yield path, method, methods[method]


def _bodies(operation: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from _contents(operation.get("requestBody", {})).values()
    for answer in operation["responses"].values():
        yield from _contents(answer).values()


def _contents(place: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = place.get("content", {})
    return found
