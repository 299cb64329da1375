"""The wire format as files: a JSON Schema per event and the registry of topics, all generated."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import to_builtins

from etude.contracts.examples import EXAMPLES
from etude.contracts.field_docs import field_docs
from etude.contracts.subjects import DEAD_LETTERS, MAX_BYTES, STREAMS, TOPICS, Topic
from etude.contracts.trajectory import Event

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FOLDER = "schemas/agent-rl"
REGISTRY = "topics.json"
TYPE_DOC = "Subject of the event; it ends in the version of this schema."


def schema_files() -> dict[str, str]:
    """File contents by relative path: five schemas and topics.json."""
    whole = {topic.schema: topic for topic in TOPICS if "#" not in topic.schema}
    files = {f"{FOLDER}/{name}": _text(_schema(topic)) for name, topic in whole.items()}
    return files | {REGISTRY: _text(_registry())}


def _schema(topic: Topic) -> dict[str, Any]:
    """The schema of an event; events that share its file are in $defs."""
    others = [other.event for other in TOPICS if other.schema.startswith(f"{topic.schema}#")]
    _, parts = msgspec.json.schema_components([topic.event, *others], ref_template="#/$defs/{name}")
    for kind in structs_of(topic.event, *others):
        docs = field_docs(kind) | ({"type": TYPE_DOC} if issubclass(kind, Event) else {})
        for name, doc in docs.items():
            parts[kind.__name__]["properties"][name]["description"] = doc
    root = parts.pop(topic.event.__name__)
    return {
        "$schema": DIALECT,
        "$id": f"urn:etude:{topic.subject}",
        **root,
        "examples": [to_builtins(EXAMPLES[topic.event], str_keys=True)],
        "$defs": dict(sorted(parts.items())),
    }


def structs_of(*kinds: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """These structs and all structs in their fields."""
    found: list[type[msgspec.Struct]] = []

    def visit(kind: Any) -> None:
        if isinstance(kind, msgspec.inspect.StructType) and kind.cls not in found:
            found.append(kind.cls)
        parts = [field.type for field in kind.fields] if isinstance(kind, msgspec.inspect.StructType) else []
        for name in ("types", "item_types"):
            parts += getattr(kind, name, ())
        for name in ("item_type", "value_type", "type"):
            parts += [getattr(kind, name)] if isinstance(getattr(kind, name, None), msgspec.inspect.Type) else []
        for part in parts:
            visit(part)

    for kind in kinds:
        visit(msgspec.inspect.type_info(kind))
    return found


def _registry() -> dict[str, Any]:
    return {
        "max_bytes": MAX_BYTES,
        "streams": {
            name: {
                "retention_days": days,
                "subjects": sorted(
                    {f"{topic.subject.rpartition('.')[0]}.*" for topic in TOPICS if topic.stream == name}
                    or {"agent.rl.dead.>"}
                ),
            }
            for name, days in STREAMS.items()
        },
        "dead_letters": DEAD_LETTERS,
        "topics": {
            topic.subject: {
                "description": _first_line(topic.event),
                "schema": f"{FOLDER}/{topic.schema}",
                "stream": topic.stream,
                "retention_days": topic.retention_days,
            }
            for topic in TOPICS
        },
    }


def _first_line(event: type[Event]) -> str:
    return (event.__doc__ or "").splitlines()[0]


def _text(tree: dict[str, Any]) -> str:
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"
