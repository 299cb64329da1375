"""Is any malformed request answered with an error of the server, or does one write anything? Over every route.

A real `etude serve` in an empty folder gets broken JSON, wrong types, huge numbers, deep nesting, wrong encodings, odd
headers, path tricks and broken HTTP, with every kind of key. All are malformed, so that nothing may be stored. Exits 1
if an answer has a status of 5xx but a documented 503, if a request has no answer, if a traceback is in the log, or if
anything was written.

python benchmarks/http_fuzz.py --requests 100000
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.bootstrap.serving import open_keys
from etude.serving.keys import Role

COMMAND = [sys.executable, "-m", "etude.cli"]
SETTINGS = "etude.yaml"
CLIENTS = 4
TIMEOUT_S = 30.0
PARAMETER = re.compile(r"{\w+}")
OTLP = ("/v1/traces", "/v1/logs")
STREAM = "/v1/events"
LISTS = {
    "jobs": "/v1/jobs",
    "policies": "/v1/policies",
    "datasets": "/v1/datasets",
    "operations": "/v1/operations",
    "notices": "/v1/notices",
    "trajectories": "/v1/trajectories",
}
"""What has to be empty at the end."""
IDS = (
    *(
        "x",
        "t-1",
        "abcd",
        "0123456789abcdef",
        "choice:model",
        "1",
        "0",
        "-1",
        "99999999999999999999",
        "op-ca1cc9bc69be",
    ),
    *("..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%2Fetc%2Fpasswd", "..%5c..", "C:%5C", "%00", "abcd%00", "a%0d%0ab: c"),
    *(
        "%ff%fe",
        "%C0%AE%C0%AE",
        "%E2%80%8B",
        "%F0%9F%98%80",
        "%",
        "%zz",
        "a" * 3000,
        "{id}",
        "*",
        "~",
        ";",
        "'--",
        "$()",
    ),
    *("choice:%2F", "choice:..", "CHOICE", "choice%0a", "choice:%252e", "1e3", "0x1", "١", "null", "true"),
)
QUERIES = (
    *("limit=0", "limit=-1", "limit=1e9", "limit=99999999999999999999", "limit=", "limit=1&limit=2", "limit=%00"),
    *("cursor=", "cursor=x", "cursor=%00", "cursor=e30", "cursor=WzFd", "cursor=" + "A" * 5000, "cursor=%ff"),
    *("where=bogus~1", "where=%00", "where=" + "a" * 9000, "where=problem%3D", "where=time%3E%3Dnever", "where=%22"),
    *("slot=..", "slot=%2F", "slot=a%00", "status=lost", "status=", "head=x", "after=-1", "after=1e400", "version=x"),
    *("&&&===", "%", "a" * 4000, "[]=1", "x[y]=z", "=", "?"),
)
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**400, -(10**400), 1.5, "", "x", "\x00", "../../etc/passwd", "/etc/passwd", "a" * 5000),
    *("http://169.254.169.254/", "s3://bucket/x", "%2e%2e", "\u202e", "\ud800", [], {}, [[]], {"": {}}, [None] * 300),
)
LITERALS = (b"1e400", b"-1e400", b"NaN", b"Infinity", b"1" * 5000, b"0x10", b"01", b"+1", b"'a'", b"undefined", b"//")
HEADERS = (
    *("x-request-id: a b", "x-request-id: " + "r" * 500, "x-forwarded-for: ::1", "cookie: a=b; c", "range: bytes=0-"),
    *(
        "accept: text/html;q=2",
        "accept: */*;;;",
        "accept-encoding: ???",
        "if-match: *",
        "x-http-method-override: DELETE",
    ),
    *("idempotency-key: ", "idempotency-key: " + "k" * 129, "idempotency-key: \xff\xfe", "last-event-id: x", "te: x"),
    *(
        "last-event-id: -1",
        "last-event-id: 99999999999999999999",
        "origin: null",
        "content-language: \xe4",
        "x: " + "y" * 9000,
    ),
    *(
        "expect: 100-continue",
        "connection: upgrade",
        "content-encoding: gzip",
        "content-encoding: x",
    ),
)
UPGRADE = "connection: upgrade\r\nupgrade: websocket"
"""Of a POST, the body would be taken for what follows the upgrade: it is answered when its time is over."""
KINDS = (
    *("application/json", "application/json", "application/json", "application/json; charset=utf-16", "text/plain", ""),
    *("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "multipart/form-data", "application/xml"),
    *("application/x-protobuf", "application/msgpack", "APPLICATION/JSON", "application/json;", "a/b/c", "\xff"),
)
WIRE = (
    b"GET /health HTTP/9.9\r\n\r\n",
    b"GET\r\n\r\n",
    b"\x00\x01\x02\x03\r\n\r\n",
    b"FOO /v1/jobs HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET http://example.com/v1/jobs HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET //v1//jobs HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /v1/jobs\x00 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /v1/jobs HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
    b"GET /v1/jobs HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 3000 + b"\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n0\r\n\r\n",
    b"POST /v1/feedback HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{}",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
"""Requests that are no HTTP, or hardly; a server may also end the connection."""


@dataclass
class Fuzz:
    """What is sent, and what was answered."""

    url: str
    port: int
    keys: list[str]
    routes: list[tuple[str, str, Any]]
    """Method, path, and an example of its body."""
    answers: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def run(self, count: int, seed: int) -> None:
        with ThreadPoolExecutor(CLIENTS) as pool:
            for done in [pool.submit(self._client, count // CLIENTS, seed + number) for number in range(CLIENTS)]:
                done.result()

    def _client(self, count: int, seed: int) -> None:
        rng = random.Random(seed)
        connection: http.client.HTTPConnection | None = None
        for _ in range(count):
            if rng.random() < 0.02:
                self._broken(rng.choice(WIRE))
                continue
            connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
            method, path, body, headers, kind = self._request(rng)
            self.sent[kind] += 1
            try:
                status, said = _exchange(connection, method, path, body, headers)
            except (OSError, http.client.HTTPException, ValueError, UnicodeError) as error:
                connection.close()
                connection = None
                self._note(f"no answer: {type(error).__name__}", f"{kind}: {method} {path[:200]} {headers} {error}")
                continue
            if said is None:  # a stream, or an answer that ends the connection
                connection.close()
                connection = None
            self._judge(status, said, method, path, kind, headers, body)

    def _judge(
        self, status: int, said: bytes | None, method: str, path: str, kind: str, headers: list[str], body: bytes
    ) -> None:
        self.answers[str(status)] += 1
        sent = f"{method} {path[:200]} {[line[:80] for line in headers]} {body[:200]!r}"
        where = f"{kind}: {sent}: {status} {(said or b'')[:300]!r}"
        if status >= 500 and not (status == 503 and b'"detail"' in (said or b"")):
            self.wrong.append(where)
        if method == "POST" and status < 300 and path.partition("?")[0] not in OTLP:
            self.wrong.append(f"accepted: {where}")

    def _note(self, what: str, where: str) -> None:
        self.answers[what] += 1
        self.wrong.append(where)

    def _broken(self, data: bytes) -> None:
        """Bytes that are hardly HTTP: whatever happens, it must not be an error of the server."""
        self.sent["broken HTTP"] += 1
        head = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S) as raw, suppress(OSError):
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            head = raw.recv(200)
        found = re.match(rb"HTTP/1\.[01] (\d{3})", head)
        status = found[1].decode() if found else "closed"
        self.answers[status] += 1
        if status.startswith("5"):
            self.wrong.append(f"broken HTTP {data[:100]!r}: {head!r}")

    def _request(self, rng: random.Random) -> tuple[str, str, bytes, list[str], str]:
        method, path, example = rng.choice(self.routes)
        path = PARAMETER.sub(lambda _: rng.choice(IDS), path)
        headers, kind, body = [f"authorization: Bearer {rng.choice(self.keys)}"], "body", b""
        if method == "GET":
            kind = rng.choice(("query", "path", "headers", "method"))
            if kind == "query":
                path += "?" + "&".join(rng.choices(QUERIES, k=rng.randint(1, 3)))
            if kind == "path":
                path = rng.choice(
                    (path + "/" + rng.choice(IDS), path.replace("/v1", "/v1/" + rng.choice(IDS)), path + "/")
                )
            if kind == "method":
                method = rng.choice(("PUT", "DELETE", "PATCH", "TRACE", "HEAD", "OPTIONS", "BREW"))
        else:
            kind, body = _body(rng, example)
            headers.append(f"content-type: {rng.choice(KINDS)}")
        if kind == "headers" or rng.random() < 0.1:
            headers += rng.choices(HEADERS, k=rng.randint(1, 3))
        if method == "GET" and rng.random() < 0.02:
            headers.append(UPGRADE)
        if rng.random() < 0.05:
            headers[0] = rng.choice(("authorization: x", "authorization: Bearer", "authorization: Basic eDp5", "a: b"))
        return method, path.replace(" ", "%20"), body, headers, kind


def _body(rng: random.Random, example: Any) -> tuple[str, bytes]:
    """A body that no route may accept, and how it is made."""
    text = json.dumps(example).encode()
    kind = rng.choice(("broken JSON", "wrong type", "huge number", "deep nesting", "wrong encoding", "hostile value"))
    if kind == "broken JSON":
        cut = text[: rng.randrange(len(text))]
        made = rng.choice((cut, text + b"}", text.replace(b":", b"", 1), rng.randbytes(rng.randint(1, 200)), b"", b"{"))
        return kind, b"{" + made if made == text else made
    if kind == "wrong type":
        return kind, rng.choice((b"[]", b"1", b'"x"', b"null", b"true", b"[" + text + b"]", b'{"zzz": 1}'))
    if kind == "huge number":
        return kind, b'{"zzz": %b}' % rng.choice(LITERALS)
    if kind == "deep nesting":
        depth = rng.choice((50, 600, 5000, 60_000))
        return kind, rng.choice(
            (b"[" * depth, b'{"a":' * depth, b"[" * depth + b"]" * depth, b'{"zzz":' + b"[" * depth)
        )
    if kind == "wrong encoding":
        return kind, rng.choice(
            (text.decode().encode("utf-16"), b"\xff" + text, b'{"zzz": "\xc3\x28"}', b"\x1f\x8b" + text)
        )
    changed = dict(example) if isinstance(example, dict) else {}
    for name in rng.sample(sorted(changed), min(len(changed), rng.randint(1, 3))):
        changed[name] = rng.choice(HOSTILE)
    changed.pop("type", None)
    changed.pop("id", None)  # of a training request, which takes unknown fields
    return kind, json.dumps(changed | {"zzz": rng.choice(HOSTILE)}).encode()


def _exchange(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes, headers: list[str]
) -> tuple[int, bytes | None]:
    if connection.sock is None:
        connection.connect()
    lines = [f"{method} {path} HTTP/1.1", "host: x", *headers]
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(f"content-length: {len(body)}")
    connection.sock.sendall("\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body)
    answer = http.client.HTTPResponse(connection.sock, method=method)
    answer.begin()
    if answer.status in (100, 101) or answer.headers.get("content-type", "").startswith("text/event-stream"):
        return answer.status, None
    said = answer.read()
    return answer.status, None if answer.will_close else said


@contextmanager
def served(folder: Path) -> Iterator[tuple[int, str, Path]]:
    """The port, the first key and the log of a server that runs in this folder."""
    limits = {"requests_per_s": 1e6, "request_timeout_s": 10}
    settings = {"experience": {"folder": str(folder / ".etude")}, "serving": limits}
    (folder / SETTINGS).write_text(json.dumps(settings))
    log = folder / "serve.log"
    with log.open("w") as output:
        command = [*COMMAND, "serve", "--no-loop", "--port", "0"]
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + 120
            while "serving at" not in log.read_text():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(log.read_text())
                time.sleep(0.05)
            said = log.read_text()
            port, key = re.search(r"serving at \S+:(\d+);", said), re.search(r"shown once: (\S+)", said)
            assert port is not None
            assert key is not None
            yield int(port[1]), key[1], log
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--requests", type=int, default=100_000)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--without", default="", help="a route to leave out: /v1/catalogue first loads torch")
    arguments.add_argument("--no-save", action="store_true", help="keep the results file as it is")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.perf_counter()
        with served(folder) as (port, key, log):
            own = _new_keys(folder)
            described = _get(port, key, "/openapi.json")
            fuzz = Fuzz(
                url=f"http://127.0.0.1:{port}",
                port=port,
                keys=[key, key, *own, "etude_x_y"],
                routes=[route for route in _routes(described) if route[1] != given.without],
            )
            fuzz.run(given.requests, given.seed)
            seconds = time.perf_counter() - began
            written = _written(port, key, folder)
            tracebacks = log.read_text(errors="replace").count("Traceback")
    count = fuzz.sent.total()
    print(f"{count:,} requests over {len(fuzz.routes)} routes in {seconds:.0f} s")
    print("sent:", ", ".join(f"{name} {number:,}" for name, number in sorted(fuzz.sent.items())))
    print("answers:", ", ".join(f"{name} {number:,}" for name, number in sorted(fuzz.answers.items())))
    print("written:", ", ".join(f"{name} {number}" for name, number in written.items()))
    for line in fuzz.wrong[:20]:
        print("WRONG", line)
    print(f"wrong answers {len(fuzz.wrong)}, tracebacks in the log {tracebacks}")
    if not given.no_save:
        from results import save  # it needs torch

        values = {"requests": count, "routes": len(fuzz.routes), "seconds": round(seconds, 1), "sent": fuzz.sent}
        found = {"answers": fuzz.answers, "wrong": len(fuzz.wrong), "tracebacks": tracebacks, "written": written}
        save("http_fuzz", values | found)
    sys.exit(bool(fuzz.wrong or tracebacks or any(written.values())))


def _routes(described: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            yield method.upper(), path, content.get("application/json", {}).get("example", {})


def _new_keys(folder: Path) -> list[str]:
    tenants = {Role.INGEST: None, Role.DECIDE: "a", Role.RELEASE: None}
    with open_keys(folder / SETTINGS) as keys:
        return [keys.create(role, tenant=tenant)[1] for role, tenant in tenants.items()]


def _get(port: int, key: str, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    connection.request("GET", path, headers={"authorization": f"Bearer {key}"})
    answer = connection.getresponse()
    said = answer.read()
    assert answer.status == 200, said
    connection.close()
    return json.loads(said)


def _written(port: int, key: str, folder: Path) -> dict[str, int]:
    """What is there now, and was not before; all have to be 0."""
    time.sleep(2.5)  # what was published would be stored by now
    stats = _get(port, key, "/stats")
    found = {name: len(_get(port, key, path)["rows"]) for name, path in LISTS.items()}
    found |= {name: int(stats[name]) for name in ("open_tasks", "decisions")}
    with open_keys(folder / SETTINGS) as keys:
        found["keys"] = len(keys.all()) - 4
    found["files"] = len(set(os.listdir(folder)) - {".etude", SETTINGS, "serve.log"})
    return found


if __name__ == "__main__":
    main()
