"""What the server logs: a line for each request, errors under the request's id, and never a secret."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import thread_time
from types import SimpleNamespace
from typing import Any, Literal

import httpx
import pytest

from etude.bootstrap.serving import watched
from etude.contracts.errors import StoreError
from etude.experience.cleaning import make_cleaner
from etude.experience.config import ExperienceConfig
from etude.serving.keys import Caller, Role
from etude.serving.logs import JsonLines, RequestLines, TextLines
from tests.unit.serving.server import Served, serving

ASKED: dict[str, Any] = {"problem": "choice:model", "context": "where is my parcel?", "options": ["small", "large"]}
PLANTED = {
    "openai": "sk-proj-a1b2c3d4e5f6a7b8c9d0e1f2",
    "github": "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "etude": "etude_0123456789ab_A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8S9t0U1v",
    "email": "ana.lopez@example.com",
    "card": "4111 1111 1111 1111",
    "phone": "+34 612 345 678",
    "password": "hunter2hunter2",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
}
redact = make_cleaner(ExperienceConfig()).text


class _Stderr(io.TextIOWrapper):
    """stderr, kept."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def text(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


@contextmanager
def logged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, form: Literal["text", "json"] = "json"
) -> Iterator[tuple[Served, _Stderr]]:
    stderr = _Stderr()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        with serving(folder, around=watched, log_format=form) as served:
            yield served, stderr


def lines(stderr: _Stderr) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stderr.text().splitlines()]


def test_a_line_for_each_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with logged(tmp_path, monkeypatch) as (served, stderr):
        _, key = served.server.keys.create(Role.DECIDE, tenant="acme")
        id = key.split("_")[1]
        client = served.bare(authorization=f"Bearer {key}")
        first = client.post("/v1/decisions", json=ASKED)
        client.get("/v1/trajectories/no-such-one", headers={"x-request-id": "mine-1"})
        served.bare().get("/nowhere/at/all")
    found = [line for line in lines(stderr) if line["logger"] == "etude.requests"]
    decided, missing, nowhere = found
    assert decided["request_id"] == first.headers["x-request-id"]
    assert (decided["route"], decided["method"], decided["status"]) == ("/v1/decisions", "POST", 200)
    assert (decided["key"], decided["tenant"]) == (id, "acme")
    assert 0 < decided["duration_ms"] < 30_000
    assert (missing["route"], missing["status"], missing["request_id"]) == ("/v1/trajectories/{id}", 404, "mine-1")
    assert (nowhere["route"], nowhere["status"], nowhere["key"]) == ("unmatched", 404, None)


def test_an_error_has_the_id_of_its_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with logged(tmp_path, monkeypatch) as (served, stderr):

        def broken(*_: Any) -> Any:
            raise RuntimeError(f"cannot read {PLANTED['email']}")

        served.server.decisions._decide = broken  # type: ignore[method-assign]
        answer = served.client().post("/v1/decisions", json=ASKED)
        assert answer.status_code == 500
    error, request = (line for line in lines(stderr) if line["level"] == "error")
    assert error["request_id"] == request["request_id"] == answer.headers["x-request-id"]
    assert "RuntimeError: cannot read [EMAIL_1]" in error["error"]
    assert (request["logger"], request["status"]) == ("etude.requests", 500)


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_is_ever_logged(
    form: Literal["text", "json"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted in headers, bodies, URLs, and what errors say; all that is logged is read."""
    with logged(tmp_path, monkeypatch, form) as (served, stderr):
        _, key = served.server.keys.create(Role.ADMIN)
        client = served.bare(authorization=f"Bearer {key}")
        for secret in PLANTED.values():
            quoted = httpx.URL(f"{served.url}/v1/trajectories", params={"where": secret, "api_key": secret})
            plain = secret.replace(" ", "-")
            headers = {"cookie": f"session={secret}", "x-api-key": secret, "referer": f"https://x/?{secret}"}
            if secret != PLANTED["password"]:  # an id that looks like one is logged as it is
                headers["x-request-id"] = plain
            password = f"password={secret}" if secret == PLANTED["password"] else secret
            body = ASKED | {"context": {"text": password, "password": secret}, "user": plain, "task": password}
            client.post("/v1/decisions", json=body, headers=headers | {"idempotency-key": secret})
            client.post("/v1/decisions", json=ASKED | {"problem": secret, "id": secret, "options": [password]})
            client.post("/v1/decisions", json={secret: secret}, headers={"authorization": f"Bearer {secret}"})
            client.post("/v1/feedback", json={"id": secret, "comment": password}, headers=headers)
            client.post("/v1/trajectories", json={"trajectories": [{"id": plain, "task": secret}]})
            client.post("/v1/traces", content=secret.encode(), headers={"content-type": secret.replace("+", "")})
            client.get(quoted)
            client.get(f"/v1/trajectories/{plain}", headers=headers)
            client.get(f"/{plain}?{plain}")

            def broken(*_: Any, text: str = password) -> Any:
                raise StoreError(f"ClickHouse says: {text} is not a number")

            def unknown(*_: Any, text: str = password) -> Any:
                raise KeyError(text)

            for failing in (broken, unknown):
                with monkeypatch.context() as patched:
                    patched.setattr(served.server.decisions, "_decide", failing)
                    assert client.post("/v1/decisions", json=body, headers=headers).status_code in (500, 503)
                    patched.setattr(served.server.store, "detail", failing)
                    client.get("/v1/trajectories/x")
    text = stderr.text()
    assert text.count("KeyError") >= len(PLANTED)  # the errors are there
    for secret in (*PLANTED.values(), key):
        assert secret not in text
        assert secret.replace(" ", "-") not in text
        assert secret.rpartition("_")[2] not in text


def test_text_says_warnings_and_errors_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with logged(tmp_path, monkeypatch, "text") as (served, stderr):
        served.client().post("/v1/decisions", json=ASKED)
        logging.getLogger("etude").info("nothing to see")
        logging.getLogger("etude").warning("the disk of ana@example.com is full")
    assert stderr.text().rstrip().endswith("WARNING the disk of [EMAIL_1] is full")
    assert len(stderr.text().splitlines()) == 1


def test_the_log_is_as_before_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = logging.getLogger().handlers[:], logging.getLogger("etude").level
    with logged(tmp_path, monkeypatch):
        assert any(isinstance(one.formatter, JsonLines) for one in logging.getLogger().handlers)
    assert (logging.getLogger().handlers, logging.getLogger("etude").level) == before


def test_a_message_with_line_breaks_is_one_line() -> None:
    record = logging.LogRecord("etude", logging.WARNING, "f", 1, "a\n%s", ('b"\r\nc',), None)
    line = JsonLines(redact).format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == 'a\nb"\r\nc'
    assert "WARNING" in TextLines(redact).format(record)


def test_a_line_costs_a_few_microseconds() -> None:
    written = RequestLines(redact, io.BytesIO())
    written._timer = SimpleNamespace(cancel=lambda: None)  # type: ignore[assignment]
    state = {"request_id": "0123456789abcdef", "caller": Caller(key="0123", role=Role.DECIDE, tenant=None)}
    scope, many, best = {"state": state, "method": "POST"}, 5_000, float("inf")
    for _ in range(5):
        began = thread_time()
        for _ in range(many):
            written(scope, "/v1/decisions", 200, 0.002)
            written._timer = written._timer or SimpleNamespace(cancel=lambda: None)  # type: ignore[assignment]
        best = min(best, (thread_time() - began) / many)
    assert best < 30e-6  # 4 µs on an idle core
