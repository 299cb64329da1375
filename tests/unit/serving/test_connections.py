"""What a connection may hold before anyone knows who it is."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from etude.serving import connections
from tests.unit.serving.server import Served, serving

START = b"GET /health HTTP/1.1\r\nhost: x\r\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as found:
        yield found


def connected(served: Served) -> socket.socket:
    host, port = served.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def sent(connection: socket.socket, data: bytes) -> bytes:
    """What is answered until the connection is closed."""
    answer = b""
    try:
        connection.sendall(data)
        while more := connection.recv(65_536):
            answer += more
    except ConnectionError:  # closed while we still sent
        pass
    return answer


def received(connection: socket.socket, what: bytes, times: int) -> None:
    answer = b""
    while answer.count(what) < times:
        more = connection.recv(65_536)
        assert more, answer[-1000:]
        answer += more


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(START + b"x-long: " + b"a" * 2_000_000, id="one long header"),
        pytest.param(START + b"x-more: 1\r\n" * 200_000, id="many headers"),
        pytest.param(b"GET /" + b"a" * 2_000_000, id="a long path"),
        pytest.param(START + b"\r\n" + START + b"x-long: " + b"a" * 2_000_000, id="after a request"),
    ],
)
def test_a_head_without_an_end_is_refused(served: Served, head: bytes) -> None:
    with connected(served) as connection:
        answer = sent(connection, head)
    assert len(answer) < 4096  # refused long before the end, or reset while we sent
    if b" 431 " in answer:
        assert json.loads(answer[answer.rindex(b"{") :])["detail"].endswith("send less")
    assert served.bare().get("/health").status_code == 200


def test_a_head_that_does_not_arrive_is_not_waited_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    for begun in (b"", START):
        began = monotonic()
        with connected(served) as connection:
            answer = sent(connection, begun)
        assert 0.15 < monotonic() - began < 3
        assert (b" 408 " in answer) == bool(begun)


def test_large_bodies_and_many_requests_are_no_long_heads(served: Served, tmp_path: Path) -> None:
    client = served.client()
    sent = {"problem": "choice:model", "context": "a" * 1_000_000, "options": ["a", "b"], "record": False}
    assert [client.post("/v1/decisions", json=sent).status_code for _ in range(2)] == [200, 200]
    with connected(served) as connection:
        connection.sendall((START + b"\r\n") * 3000)  # 100 KB
        received(connection, b"HTTP/1.1 200", 3000)
    body = b"{" + b" " * 500_000 + b"}"
    post = b"POST /v1/feedback HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    with connected(served) as connection:
        connection.sendall(post + body + START)
        connection.sendall(b"\r\n")
        received(connection, b'"status":"ok"', 1)
