"""The shortest way to a decision gives the answers that the framework's route gives."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from etude.serving.keys import Role
from tests.unit.serving.server import Served, serving

ASKED: dict[str, Any] = {"problem": "choice:model", "context": "where?", "options": ["small", "large"]}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("direct"), max_body_bytes=20_000) as found:
        yield found


BODIES = {
    "no JSON": b"{",
    "no object": b"[]",
    "empty": b"",
    "not UTF-8": b'{"problem": "\xff"}',
    "a field is missing": b"{}",
    "a field is unknown": json.dumps(ASKED | {"optoins": []}).encode(),
    "a field is of another type": json.dumps(ASKED | {"timeout_ms": -1}).encode(),
    "no options": json.dumps(ASKED | {"options": []}).encode(),
    "an option twice": json.dumps(ASKED | {"options": ["a", "a"]}).encode(),
    "not signed here": json.dumps(ASKED | {"id": "t-1.00"}).encode(),
    "no context": json.dumps(ASKED | {"context": {"a": {"b": 1}}}).encode(),
    "too deep": b'{"problem": "choice:a", "context": ' + b"[" * 9000 + b"]" * 9000 + b"}",
    "too large": b" " * 20_001,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_both_refuse_alike(served: Served, body: bytes) -> None:
    """An idempotency key sends a request through the framework."""
    client = served.client()
    answers = [
        client.post("/v1/decisions", content=body, headers={"content-type": "application/json"} | more)
        for more in ({}, {"idempotency-key": uuid.uuid4().hex})
    ]
    assert answers[0].status_code in (400, 403, 413)
    said = [(one.status_code, one.headers["content-type"], _without_id(one)) for one in answers]
    assert said[0] == said[1]


def _without_id(answer: httpx.Response) -> dict[str, Any]:
    return {name: value for name, value in answer.json().items() if name != "request_id"}


def test_both_decide_alike(served: Served) -> None:
    client = served.client()
    found = [
        client.post("/v1/decisions", json=ASKED | {"default": "large", "explain": True}, headers=more)
        for more in ({}, {"idempotency-key": uuid.uuid4().hex})
    ]
    made = [{name: value for name, value in one.json().items() if name != "id"} for one in found]
    assert (
        made[0]
        == made[1]
        == {"problem": "choice:model", "action": "large", "propensity": 1.0, "policy": "default", "expected": {}}
    )
    assert set(found[0].headers) == set(found[1].headers)


def test_a_role_that_may_not_decide_is_refused(served: Served) -> None:
    assert served.bare().post("/v1/decisions", json=ASKED).status_code == 401
    assert served.bare().post("/v1/decisions", json=ASKED).headers["www-authenticate"] == "Bearer"
    assert served.client(Role.INGEST).post("/v1/decisions", json=ASKED).status_code == 403


def test_a_limited_key_waits_once_per_request(served: Served) -> None:
    limited = served.client(Role.DECIDE, requests_per_s=2)
    assert [limited.post("/v1/decisions", json=ASKED).status_code for _ in range(3)] == [200, 200, 429]


def test_a_wrong_request_counts_once(served: Served) -> None:
    limited = served.client(Role.DECIDE, requests_per_s=2)
    assert [limited.post("/v1/decisions", json={}).status_code for _ in range(3)] == [400, 400, 429]


def test_a_body_in_parts_is_read_whole(served: Served) -> None:
    url, body = urlsplit(served.url), json.dumps(ASKED).encode()
    _, key = served.server.keys.create(Role.DECIDE)
    with socket.create_connection((url.hostname or "", url.port or 0), timeout=20) as connection:
        head = f"POST /v1/decisions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n"
        connection.sendall(f"{head}content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        for part in (body[:10], body[10:], b""):
            connection.sendall(b"%x\r\n%s\r\n" % (len(part), part))
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_who_opted_out_is_decided_for_and_not_stored(served: Served) -> None:
    served.server.store.set_opt_out("u9", True)
    served.server.collector.opted_out.refresh()  # type: ignore[attr-defined]
    before = served.server.state.count()
    answer = served.client().post("/v1/decisions", json=ASKED | {"user": "u9"})
    assert answer.status_code == 200
    assert served.server.state.count() == before
