"""Whatever a sender puts wherever into an event, nothing personal or secret is stored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from etude.contracts.errors import EventError
from etude.contracts.examples import EXAMPLES
from etude.contracts.subjects import encode, subject_of
from etude.contracts.trajectory import Event
from etude.experience.cleaning import Cleaner
from etude.experience.redact import RedactionConfig

CLEANER = Cleaner(RedactionConfig())
Path = tuple[str | int, ...]


def places(kind: inspect.Type, path: Path = ()) -> Iterator[Path]:
    """Every field of an event, at every depth, and at every depth a field that the schema does not name."""
    match kind:
        case inspect.StructType():
            yield (*path, "later")
            for field in kind.fields:
                yield (*path, field.encode_name)
                yield from places(field.type, (*path, field.encode_name))
        case inspect.UnionType():
            for some in kind.types:
                yield from places(some, path)
        case inspect.VarTupleType() | inspect.ListType():
            yield (*path, 0)
            yield from places(kind.item_type, (*path, 0))
        case inspect.DictType():
            yield (*path, "name")
            yield from places(kind.value_type, (*path, "name"))


EVERYWHERE = [
    (kind, place) for kind in EXAMPLES for place in dict.fromkeys(places(inspect.type_info(kind))) if place != ("type",)
]


def planted(event: Event, place: Path, value: Any) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(encode(event))
    at: Any = tree
    for step, following in pairwise(place):
        missing = [] if isinstance(following, int) else {}
        if isinstance(step, int) and step >= len(at):
            at.append(missing)
        elif isinstance(step, str) and not at.get(step):
            at[step] = missing
        at = at[step]
    if isinstance(place[-1], int):
        at[:1] = [value]
    else:
        at[place[-1]] = value
    return tree


def stored(body: bytes) -> bytes:
    """What is kept of it: the event, or a dead letter."""
    try:
        return CLEANER.clean(body)[1]
    except EventError:
        return CLEANER.unknown(body)


word = st.text("abcdefghijklmnopqrstuvwxyz", min_size=4, max_size=12)
token = st.text("0123456789abcdefABCDEF", min_size=30, max_size=40)
secrets = st.one_of(
    st.tuples(word, word).map(lambda pair: f"{pair[0]}@{pair[1]}q.com"),
    token.map(lambda text: f"sk-proj-1{text}"),
    token.map(lambda text: f"ghp_1{text}".replace("-", "")),
)


def hidden(secret: str) -> st.SearchStrategy[Any]:
    """A secret as people and programs write it down."""
    escaped = json.dumps({"to": secret}).replace("@", "\\u0040").replace("-", "\\u002d")
    shapes: list[Any] = [
        secret,
        f"for {secret}, please",
        {secret: 1},
        {"a": [{"b": [f"see {secret}"]}, {f"x {secret}": {"y": None}}]},
        json.dumps({"to": secret}),
        escaped,
        json.dumps({"inner": escaped}),
        [secret, secret],
    ]
    return st.sampled_from(shapes)


def readings(body: bytes) -> Iterator[str]:
    """The bytes as text, and as they read with one more layer of escapes taken off, and another."""
    text = body.decode()
    for _ in range(4):
        yield text
        text = re.sub(r"\\+u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), text)


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(EVERYWHERE), secrets.flatmap(lambda secret: st.tuples(st.just(secret), hidden(secret))))
def test_no_secret_survives_in_any_field_of_any_event(where: tuple[type[Event], Path], plant: tuple[str, Any]) -> None:
    (kind, place), (secret, value) = where, plant
    body = stored(json.dumps(planted(EXAMPLES[kind], place, value)).encode())
    assert not any(secret in reading for reading in readings(body)), (kind, place)


@pytest.mark.parametrize(("kind", "place"), EVERYWHERE, ids=lambda part: str(getattr(part, "__name__", part)))
def test_no_address_survives_in_each_field_of_each_event(kind: type[Event], place: Path) -> None:
    for value in ("ana@example.com", {"ana@example.com": ["x"]}, "ana\\u0040example.com", {"password": "geheim1"}):
        body = stored(json.dumps(planted(EXAMPLES[kind], place, value)).encode())
        assert b"example.com" not in body
        assert b"geheim1" not in body


@pytest.mark.parametrize("event", EXAMPLES.values(), ids=lambda event: subject_of(event))
def test_an_event_without_secrets_stays_as_it_is(event: Event) -> None:
    assert CLEANER.clean(encode(event))[0] == event
