"""The description of the API: every route is described, with examples that are what it takes and gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from etude.serving.description import operations
from tests.unit.serving.server import serving

OPEN = ("/health", "/ready")


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with serving(tmp_path_factory.mktemp("described")) as served:
        found: dict[str, Any] = served.bare().get("/openapi.json").json()
    return found


def bodies(operation: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    places = {"request": operation.get("requestBody", {})} | operation["responses"]
    return [(f"{place} {kind}", body) for place, of in places.items() for kind, body in of.get("content", {}).items()]


def test_every_route_is_described(described: dict[str, Any]) -> None:
    for path, method, operation in operations(described):
        where = f"{method} {path}"
        assert operation.get("summary"), where
        assert operation.get("description"), where
        assert operation.get("tags"), where
        refused = set(operation["responses"])
        assert path in OPEN or {"401", "403", "429", "503"} <= refused, where
        assert method != "post" or {"400", "413"} <= refused, where
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description") or parameter["schema"].get("description"), (where, parameter["name"])


def test_every_body_has_an_example_of_its_type(described: dict[str, Any]) -> None:
    for path, method, operation in operations(described):
        for place, body in bodies(operation):
            where = f"{method} {path} {place}"
            if place.endswith("event-stream"):
                continue
            assert "example" in body, where
            schema = body["schema"] | {"components": described["components"]}
            if not place.endswith("protobuf"):
                jsonschema.validate(body["example"], schema, jsonschema.Draft202012Validator)


def test_examples_of_requests_are_accepted(tmp_path: Path, described: dict[str, Any]) -> None:
    """By their validation: they may name what this server does not have."""
    with serving(tmp_path) as served:
        client = served.client()
        for path, method, operation in operations(described):
            example = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
            if method != "post" or example is None:
                continue
            for name, value in {"slot": "choice:model", "version": "1", "id": "x-1", "number": "1"}.items():
                path = path.replace(f"{{{name}}}", "abcd" if name == "version" and "policies" in path else value)
            answer = client.post(path, json=example)
            assert answer.status_code < 500, answer.text
            assert "GET /openapi.json describes" not in answer.text, answer.text
