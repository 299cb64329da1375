from __future__ import annotations

import json
import socket
import time
from typing import Any

import numpy as np
import pytest

from etude.contracts.errors import ConfigError, EndpointError
from etude.text.endpoint import EndpointEncoder
from tests.unit.text.service import Answer, Service, rows, vector

BUSY: Answer = (429, {}, b"slow down")
KEY = "sk-secret-1234"


class Waits(list[float]):
    """Stands in for sleeping: what was waited."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def endpoint(service: Service, **options: Any) -> EndpointEncoder:
    return EndpointEncoder(service.url, "small", **({"sleep": Waits()} | options))


def found(encoder: EndpointEncoder, texts: list[str]) -> list[list[float]]:
    return [tokens[0].tolist() for tokens in encoder.tokens(texts)]


def test_texts_go_out_in_batches_and_vectors_come_back_in_order(service: Service) -> None:
    texts = ["a", "bb", "ccc", "dddd", "eeeee"]
    assert found(endpoint(service, batch=2), texts) == [vector(text) for text in texts]
    assert [asked["input"] for asked in service.asked] == [["a", "bb"], ["ccc", "dddd"], ["eeeee"]]
    assert {asked["model"] for asked in service.asked} == {"small"}


@pytest.mark.parametrize("tail", ["", "/", "/embeddings", "/embeddings/"])
def test_the_url_may_name_the_service_or_its_route(service: Service, tail: str) -> None:
    EndpointEncoder(service.url + tail, "m").tokens(["a"])
    assert service.asked[0]["path"] == "/v1/embeddings"


def test_a_query_is_sent_and_not_shown(service: Service) -> None:
    encoder = EndpointEncoder(f"{service.url}?api-version=2&sig=hidden", "m")
    encoder.tokens(["a"])
    assert service.asked[0]["path"] == "/v1/embeddings?api-version=2&sig=hidden"
    assert "hidden" not in encoder.name


def test_indexes_say_which_text_a_vector_is_of(service: Service) -> None:
    service.rows = lambda texts: rows(texts)[::-1]
    assert found(endpoint(service), ["a", "bb", "ccc"]) == [vector("a"), vector("bb"), vector("ccc")]


def test_without_indexes_the_order_counts(service: Service) -> None:
    service.rows = lambda texts: [{"embedding": row["embedding"]} for row in rows(texts)]
    assert found(endpoint(service), ["a", "bb"]) == [vector("a"), vector("bb")]


def test_a_busy_service_is_asked_again_later_and_later(service: Service) -> None:
    service.answers = [BUSY, (503, {}, b""), (408, {}, b"")]
    waits = Waits()
    assert found(endpoint(service, sleep=waits), ["a"]) == [vector("a")]
    assert waits == [0.5, 1, 2]


@pytest.mark.parametrize(("asked", "waited"), [("7", 7), ("9999", 30), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.5)])
def test_a_service_may_say_when_to_come_back(service: Service, asked: str, waited: float) -> None:
    service.answers = [(429, {"Retry-After": asked}, b"")]
    waits = Waits()
    endpoint(service, sleep=waits).tokens(["a"])
    assert waits == [waited]


def test_a_service_that_always_fails_is_given_up(service: Service) -> None:
    service.always = (500, {}, b"out of order")
    waits = Waits()
    with pytest.raises(EndpointError, match=rf"{service.url}/embeddings failed 3 times, .* status 500 out of order"):
        endpoint(service, sleep=waits, attempts=3).tokens(["a"])
    assert len(service.asked) == 3
    assert len(waits) == 2


@pytest.mark.parametrize("status", [400, 401, 404, 413])
def test_a_refusal_is_final(service: Service, status: int) -> None:
    service.always = (status, {}, b"no")
    with pytest.raises(EndpointError, match=f"{service.url}/embeddings answered status {status} no"):
        endpoint(service).tokens(["a"])
    assert len(service.asked) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(service: Service, status: int) -> None:
    """The key would go with it."""
    service.answers = [(status, {"Location": service.url}, b"")]
    with pytest.raises(EndpointError, match=f"status {status}"):
        endpoint(service, api_key=KEY).tokens(["a"])
    assert len(service.asked) == 1


def reply(data: object) -> bytes:
    return json.dumps({"data": data}).encode()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>", "Expecting value"),
        (b"\xff\xfe\x00", "answered"),
        (b"", "Expecting value"),
        (b"[" * 100_000, "answered"),
        (b"[]", "a list 'data'"),
        (reply(None), "a list 'data'"),
        (reply([1, 2]), "a list 'data'"),
        (reply(rows(["a"])), "1 vectors, expected 2"),
        (reply(rows(["a", "b", "c"])), "3 vectors, expected 2"),
        (reply([{"index": 1, "embedding": [1]}] * 2), r"indexes are \[1, 1\], expected each of 0 to 1 once"),
        (reply([{"index": "0", "embedding": [1]}] * 2), "indexes are"),
        (reply([{"embedding": [1]}, {}]), "a list of numbers"),
        (reply([{"embedding": [1]}, {"embedding": []}]), "a list of numbers"),
        (reply([{"embedding": [1]}, {"embedding": ["1"]}]), "a list of numbers"),
        (reply([{"embedding": [1]}, {"embedding": [[1]]}]), "a list of numbers"),
        (reply([{"embedding": [1]}, {"embedding": [1, 2]}]), "several widths"),
        (reply([{"embedding": [1]}, {"embedding": [float("nan")]}]), "finite numbers"),
        (reply([{"embedding": [1]}, {"embedding": [1e300]}]), "finite numbers"),
        (reply([{"embedding": [1]}, {"embedding": [10**400]}]), "answered"),
    ],
)
def test_a_wrong_answer_is_refused(service: Service, body: bytes, message: str) -> None:
    service.always = (200, {}, body)
    with pytest.raises(EndpointError, match=message) as refused:
        endpoint(service).tokens(["a", "b"])
    assert service.url in str(refused.value)
    assert len(str(refused.value)) < 600


def test_a_reply_that_breaks_off_is_asked_for_again(service: Service) -> None:
    service.answers = [(200, {"Content-Length": "1000"}, b'{"data"')]
    assert found(endpoint(service), ["a"]) == [vector("a")]


def test_another_width_is_refused(service: Service) -> None:
    encoder = endpoint(service)
    assert encoder.width == 3
    service.rows = lambda texts: [{"embedding": [1, 2]} for _ in texts]
    with pytest.raises(EndpointError, match="vectors of width 2: expected 3"):
        encoder.tokens(["a"])


def test_blank_texts_are_not_sent_and_long_ones_cut(service: Service) -> None:
    blank, long = endpoint(service, max_bytes=10).tokens([" ", "é" * 100])
    assert not blank.any()
    assert blank.shape == (1, 3)
    assert [asked["input"] for asked in service.asked] == [["é" * 5]]
    np.testing.assert_array_equal(long[0], vector("é" * 5))


def test_no_server_there(service: Service) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(EndpointError, match=f"{url}/embeddings failed 2 times, .*refused"):
            EndpointEncoder(url, "m", attempts=2, sleep=Waits()).tokens(["a"])


def test_silence_is_not_waited_for_forever() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(EndpointError, match="timed out"):
            EndpointEncoder(url, "m", attempts=1, timeout_s=0.1).tokens(["a"])
        assert time.monotonic() - begin < 20


def test_the_key_is_sent_and_never_shown(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    encoder = endpoint(service, api_key=KEY, attempts=1)
    encoder.tokens(["a"])
    assert service.headers[0]["Authorization"] == f"Bearer {KEY}"
    for status in (401, 500, 200):
        service.always = (status, {}, f"wrong key {KEY}".encode())
        with pytest.raises(EndpointError, match=r"wrong key \*\*\*") as refused:
            encoder.tokens(["a"])
        assert KEY not in str(refused.value)
    assert KEY not in encoder.name + repr(encoder) + caplog.text


def test_no_key_no_header(service: Service) -> None:
    endpoint(service).tokens(["a"])
    assert "Authorization" not in service.headers[0]


@pytest.mark.parametrize("key", ["sk-1\n", "sk 1", "clé"])
def test_a_key_that_is_none_is_not_shown_either(key: str) -> None:
    with pytest.raises(ConfigError, match="the API key holds a character") as refused:
        EndpointEncoder("http://a/v1", "m", api_key=key)
    assert key not in str(refused.value)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://a/v1", "a/v1", "http://", "http://a:x/", "http://a b/"])
def test_what_is_no_url_of_a_service(url: str) -> None:
    with pytest.raises(ConfigError, match="expected that of an embeddings service"):
        EndpointEncoder(url, "m")


def test_a_password_in_the_url_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="api_key") as refused:
        EndpointEncoder("https://me:secret@host/v1", "m")
    assert "secret" not in str(refused.value)
