"""The types of the TypeScript client, generated from the description of the API.

`python -m tests.openapi_types` writes clients/typescript/src/api.ts again.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.unit.serving.server import serving

TYPES = Path(__file__).parents[1] / "clients" / "typescript" / "src" / "api.ts"
HEAD = """// Generated from the server's OpenAPI description by `python -m tests.openapi_types`: do not edit.

"""
JSON = "application/json"
NAMED = {
    "etude.experience.datasets.manifest.Manifest": "DatasetManifest",
    "etude.contracts.policy.Manifest": "PolicyManifest",
}
"""Types of the same name in two modules."""
PRIMITIVES = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "Record<string, unknown>",
    "array": "unknown[]",
}
WIDTH = 118


def described() -> dict[str, Any]:
    """What a server says of its API."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as served:
        found: dict[str, Any] = served.bare().get("/openapi.json").json()
    return found


def types_of(description: Mapping[str, Any]) -> str:
    """A module of TypeScript: the schemas as types, and the routes by method and path."""
    schemas = sorted(description["components"]["schemas"].items(), key=lambda pair: _name(pair[0]))
    return HEAD + "\n".join([*(_declared(name, schema) for name, schema in schemas), _routes(description)])


def _name(schema: str) -> str:
    if "." in schema and schema not in NAMED:
        raise ValueError(f"{schema} has the name of another schema: give it one in NAMED")
    return NAMED.get(schema, schema)


def _declared(name: str, schema: Mapping[str, Any]) -> str:
    doc = _doc(schema.get("description"), "")
    if "properties" not in schema:
        return f"{doc}export type {_name(name)} = {_type(schema)};\n"
    return f"{doc}export interface {_name(name)} {{\n{''.join(_fields(schema))}}}\n"


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        mark = "" if name in required else "?"
        yield f"{_doc(field.get('description'), '  ')}  {_key(name)}{mark}: {_type(field)};\n"


def _routes(description: Mapping[str, Any]) -> str:
    """Routes that are asked with JSON alone and answer with JSON alone."""
    lines = ["/** What each route takes and gives. */\n", "export interface Routes {\n"]
    for path, methods in sorted(description["paths"].items()):
        for method, route in methods.items():
            bodies, answers = route.get("requestBody", {}).get("content", {}), _answers(route)
            if set(answers) != {JSON} or not set(bodies) <= {JSON}:
                continue
            parts = {
                "path": _parameters(route, "path"),
                "query": _parameters(route, "query"),
                "body": _type(bodies[JSON]["schema"]) if bodies else "",
                "answer": _type(answers[JSON]["schema"]),
            }
            fields = " ".join(f"{part}: {kind};" for part, kind in parts.items() if kind)
            lines.append(f"{_doc(route['summary'], '  ')}  {_key(f'{method.upper()} {path}')}: {{ {fields} }};\n")
    return "".join([*lines, "}\n"])


def _answers(route: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(a for status, a in route["responses"].items() if status < "300").get("content", {})
    return found


def _parameters(route: Mapping[str, Any], place: str) -> str:
    found = [one for one in route.get("parameters", ()) if one["in"] == place]
    fields = (f"{_key(one['name'])}{'' if one['required'] else '?'}: {_type(one['schema'])};" for one in found)
    return f"{{ {' '.join(fields)} }}" if found else ""


def _type(schema: Mapping[str, Any]) -> str:
    """A schema as a type."""
    if "$ref" in schema:
        return _name(schema["$ref"].rpartition("/")[2])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " | ".join(dict.fromkeys(_type(one) for one in schema[several]))
    if "enum" in schema:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_type({**schema, "type": one}) for one in kind)
    if kind == "array":
        return _array(schema)
    if kind == "object" and "properties" in schema:
        return f"{{ {' '.join(line.strip() for line in _fields({**schema}))} }}"
    if kind == "object" and schema.get("additionalProperties"):
        values = schema["additionalProperties"]
        return f"Record<string, {_type(values) if isinstance(values, Mapping) else 'unknown'}>"
    return PRIMITIVES[kind] if kind is not None else "unknown"


def _array(schema: Mapping[str, Any]) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(_type(one) for one in schema['prefixItems'])}]"
    items = schema.get("items")
    if not isinstance(items, Mapping):
        return "unknown[]"
    kind = _type(items)
    return f"({kind})[]" if " | " in kind else f"{kind}[]"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else json.dumps(name)


def _doc(text: str | None, indent: str) -> str:
    """A comment of one or more lines."""
    if not text:
        return ""
    lines = text.replace("*/", "* /").split("\n")
    if len(lines) == 1 and len(indent + lines[0]) + 7 <= WIDTH:
        return f"{indent}/** {lines[0]} */\n"
    return f"{indent}/**\n{''.join(f'{indent} * {line}'.rstrip() + chr(10) for line in lines)}{indent} */\n"


if __name__ == "__main__":
    TYPES.write_text(types_of(described()), "utf-8")
    print(f"written: {TYPES}")
