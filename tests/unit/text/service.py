"""An embeddings service on a free port of this machine, which answers as a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers, body."""


class Service:
    """Answers with `answers` first, one per request, then with vectors; keeps what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[Answer] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.rows: Callable[[list[str]], list[dict[str, Any]]] = rows
        self.always: Answer | None = None

    def answer(self) -> Answer:
        if self.answers:
            return self.answers.pop(0)
        return self.always or (200, {}, json.dumps({"data": self.rows(self.asked[-1]["input"])}).encode())


def rows(texts: list[str]) -> list[dict[str, Any]]:
    return [{"index": i, "embedding": vector(text)} for i, text in enumerate(texts)]


def vector(text: str) -> list[float]:
    """Three numbers that tell texts apart, exact in float16."""
    return [len(text) % 1024, ord(text[0]) % 1024, ord(text[-1]) % 1024 / 4]


@contextmanager
def running() -> Iterator[Service]:
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            service.asked.append(json.loads(body) | {"path": self.path})
            service.headers.append(dict(self.headers))
            status, headers, reply = service.answer()
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(reply))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()
