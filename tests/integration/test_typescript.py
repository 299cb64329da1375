"""The TypeScript client's types are those of the server; `make client` runs the client's own tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import etude
from tests.openapi_types import TYPES, described, types_of

PACKAGE = Path(__file__).parents[2] / "clients" / "typescript"


def test_the_types_are_those_of_the_server() -> None:
    assert TYPES.read_text("utf-8") == types_of(described()), "run `python -m tests.openapi_types`"


def api(schemas: dict[str, Any], paths: dict[str, Any] | None = None) -> str:
    return types_of({"components": {"schemas": schemas}, "paths": paths or {}})


def test_schemas_become_types() -> None:
    text = {"type": "string"}
    of = {
        "one": text,
        "maybe": {"anyOf": [{"$ref": "#/components/schemas/Kind"}, {"type": "null"}], "description": "A kind. */"},
        "several": {"type": "array", "items": {"anyOf": [text, {"type": "integer"}]}},
        "pair": {"type": "array", "prefixItems": [text, {"type": "number"}]},
        "by-name": {"type": "object", "additionalProperties": {"type": "boolean"}},
        "any": {},
    }
    found = api({"Kind": {"enum": ["a", 2, None]}, "All": {"type": "object", "properties": of, "required": ["one"]}})
    assert 'export type Kind = "a" | 2 | null;' in found
    for line in (
        "  one: string;",
        "  /** A kind. * / */\n  maybe?: Kind | null;",
        "  several?: (string | number)[];",
        "  pair?: [string, number];",
        '  "by-name"?: Record<string, boolean>;',
        "  any?: unknown;",
    ):
        assert line + "\n" in found, line


def test_routes_that_answer_with_json_have_types() -> None:
    def route(kind: str, **more: Any) -> dict[str, Any]:
        answer = {"content": {kind: {"schema": {"type": "string"}}}}
        return {"summary": "It", "responses": {"404": {}, "200": answer}} | more

    place = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    found = api(
        {}, {"/a/{id}": {"get": route("application/json", parameters=place)}, "/b": {"get": route("text/event-stream")}}
    )
    assert '"GET /a/{id}": { path: { id: string; }; answer: string; };' in found
    assert "/b" not in found


def test_two_schemas_of_one_name_need_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="give it one in NAMED"):
        api({"etude.other.Manifest": {"type": "string"}})


def test_the_package_has_the_version_of_etude_and_names_no_host() -> None:
    package = json.loads((PACKAGE / "package.json").read_text())
    assert package["version"] == etude.__version__
    assert "dependencies" not in package
    assert "http" not in (PACKAGE / "package-lock.json").read_text()
