"""Events from files, and whatever else stands in them."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest

from etude.contracts.bus import Message
from etude.contracts.errors import EventError
from etude.contracts.examples import EXAMPLES
from etude.contracts.subjects import MAX_BYTES, decode, encode
from etude.contracts.trajectory import Feedback, Trajectory
from etude.experience.cleaning import Cleaner, pseudonym
from etude.experience.files import Convert, read_lines, to_message
from etude.experience.redact import RedactionConfig

CLEANER = Cleaner(RedactionConfig(), allow={"*": ("@etude.example",), "acme": ("help@acme.example",)})
TRAJECTORY: dict[str, Any] = json.loads(encode(EXAMPLES[Trajectory]))


def read_messages(file: BytesIO, cleaner: Cleaner, convert: Convert | None = None) -> list[tuple[Message, int]]:
    return [(to_message(line, cleaner, convert), line.size) for line in read_lines(file)]


def lines(*records: object) -> BytesIO:
    return BytesIO(b"".join(r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in records))


def test_events_of_both_kinds_and_trajectories_without_a_type() -> None:
    untyped = {name: value for name, value in TRAJECTORY.items() if name != "type"} | {"id": "t-2"}
    feedback = json.loads(encode(EXAMPLES[Feedback]))
    found = [message for message, _ in read_messages(lines(TRAJECTORY, b"\n", b"  \n", untyped, feedback), CLEANER)]
    assert [message.id for message in found] == ["t-0193f2a1", "t-2", feedback["id"]]
    assert [type(decode(m.body, subject=m.subject)) for m in found] == [Trajectory, Trajectory, Feedback]


def test_bytes_add_up_to_the_file() -> None:
    file = lines(TRAJECTORY, b"nonsense\n", TRAJECTORY)
    assert sum(size for _, size in read_messages(file, CLEANER)) == file.tell()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"nonsense\n", "JSON"),
        (b'{"id": "a"}\n', "schema"),
        (b'{"type": "agent.rl.trajectory.v7", "id": "a"}\n', "newer"),
        (b'{"type": "agent.rl.trajectory.v1", "id": "a", "task": "\xff"}\n', "JSON"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        (b'{"id": "a", "time": "2026-11-16T08:00:00Z", "task": "' + b"x" * MAX_BYTES + b'"}\n', "JSON"),
    ],
    ids=["text", "fields", "version", "bytes", "deep", "large"],
)
def test_what_is_no_event_can_be_buried_with_the_reason_and_the_rest_is_read(line: bytes, expected: str) -> None:
    bad, good = (message for message, _ in read_messages(lines(line, TRAJECTORY), CLEANER))
    with pytest.raises(EventError, match=expected):
        decode(bad.body, subject=bad.subject)
    assert len(bad.body) <= 1 << 17
    assert good.id == TRAJECTORY["id"]


@pytest.mark.parametrize("end", [b"", b"}"], ids=["cut off", "whole"])
@pytest.mark.parametrize("who", [b"ana@example.com", rb"ana\u0040example.com", rb"ana\\u0040example.com"])
def test_even_what_is_no_event_is_redacted(who: bytes, end: bytes) -> None:
    line = b'{"who": "' + who + b'", "' + who + b'": 1, "password": "geheim1"' + end + b"\n"
    ((message, _),) = read_messages(lines(line), CLEANER)
    assert b"example.com" not in message.body
    assert b"geheim1" not in message.body


def test_records_of_another_kind_are_converted() -> None:
    made = json.dumps(TRAJECTORY | {"id": "made"}).encode()
    file = lines({"planner_outputs": 1}, TRAJECTORY)
    found = read_messages(file, CLEANER, convert=lambda line: made if b"planner_outputs" in line else None)
    assert [message.id for message, _ in found] == ["made", TRAJECTORY["id"]]


def test_nothing_found_leaves_the_event_as_it_came() -> None:
    body = (
        b'{"type":"agent.rl.trajectory.v1", "id":"a","time":"2026-11-16T08:00:00Z","task":"tidy up","problem":"task",'
        b'"later":{"x":1}}'
    )
    event, kept = CLEANER.clean(body)
    assert json.loads(kept) == json.loads(body)
    assert event.id == "a"
    assert CLEANER.clean(kept)[1] == kept


def test_what_a_later_etude_added_survives_redaction() -> None:
    raw = TRAJECTORY | {"task": "mail ana@example.com", "later": {"x": [1, 2]}, "redacted": {"email": 3}}
    _, body = CLEANER.clean(json.dumps(raw).encode())
    kept = json.loads(body)
    assert kept["later"] == {"x": [1, 2]}
    assert kept["task"] == "mail [EMAIL_1]"
    assert kept["redacted"] == {"email": 4}
    assert CLEANER.clean(body)[1] == body


def test_what_a_later_etude_added_is_redacted_like_the_rest() -> None:
    raw = TRAJECTORY | {
        "later": {"who": ["ana@example.com"], "password": "geheim1", "ana@example.com": 1},
        "model": "gpt for ana@example.com",
        "tenant": "ana@example.com",
        "policy": "of ana@example.com",
        "problem": "mail to ana@example.com",
        "redacted": {"ana@example.com": 2},
        "trajectory_id": "ana@example.com",  # not a field of this event, so nothing checked it
        "note": '{"to": "ana\\u0040example.com"}',
    }
    _, body = CLEANER.clean(json.dumps(raw).encode())
    assert b"example.com" not in body
    assert b"geheim1" not in body
    assert CLEANER.clean(body)[1] == body


def test_a_key_that_occurs_twice_hides_nothing() -> None:
    body = json.dumps(TRAJECTORY).encode()[:-1] + b', "later": "ana@example.com", "later": 1}'
    assert b"ana@example.com" not in CLEANER.clean(body)[1]


def test_tenants_have_lists_of_their_own() -> None:
    raw = TRAJECTORY | {"task": "to help@acme.example, info@etude.example and ana@example.com"}
    for tenant, expected in [
        (None, "to [EMAIL_1], info@etude.example and [EMAIL_2]"),
        ("other", "to [EMAIL_1], info@etude.example and [EMAIL_2]"),
        ("acme", "to help@acme.example, info@etude.example and [EMAIL_1]"),
    ]:
        body = json.dumps(raw | ({"tenant": tenant} if tenant else {})).encode()
        event = CLEANER.clean(body)[0]
        assert isinstance(event, Trajectory)
        assert event.task == expected


def test_users_whose_names_are_personal_data_get_a_pseudonym() -> None:
    event = CLEANER.clean(json.dumps(TRAJECTORY | {"user": "ana@example.com"}).encode())[0]
    assert isinstance(event, Trajectory)
    assert event.user == pseudonym("ana@example.com") != pseudonym("bob@example.com")


def test_ids_may_be_neither_addresses_nor_keys() -> None:
    with pytest.raises(EventError, match="id holds an '@'"):
        CLEANER.clean(json.dumps(TRAJECTORY | {"id": "ana@example.com"}).encode())
    with pytest.raises(EventError, match="id looks like a key"):
        CLEANER.clean(json.dumps(TRAJECTORY | {"id": "sk-proj-a1b2c3d4e5f6a7b8c9d0"}).encode())


@pytest.mark.parametrize(
    "id",
    [
        "t-06605b5e6d3f06-51c0b107b7cc",
        "0193f2a1-7c3e-7d7a-9a6c-3f1e5b0c9d21",
        "01HF7YAT31JZHMSP2ZX4SFD2QK",
        "9c1185a5c5e9fc54612808977ee8f548b2258d31" * 3,
        "order:4111111111111111",
        "my_project-task-number-000123",
    ],
)
def test_common_ids_are_taken(id: str) -> None:
    assert CLEANER.clean(json.dumps(TRAJECTORY | {"id": id}).encode())[0].id == id
