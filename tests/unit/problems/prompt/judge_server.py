"""A judge on a free port of this machine: it prefers the longer prompt, and place A a little."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

SHOWN = re.compile(r"<<<\n(.*?)\n>>>", re.S)


class JudgeServer(ThreadingHTTPServer):
    """`asked` are the bodies of requests; `gives` is what it can answer: probabilities, text alone, or nonsense."""

    daemon_threads = True

    def __init__(self, gives: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.gives, self.asked = gives, list[dict[str, Any]]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def judging(gives: str = "probabilities") -> Iterator[JudgeServer]:
    with JudgeServer(gives) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: JudgeServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        if self.server.gives == "text" and "logprobs" in body:
            self._reply(400, {"error": {"message": "unknown field logprobs"}})
            return
        self._reply(200, {"choices": [self._choice(body["messages"][0]["content"])]})

    def _choice(self, asked: str) -> dict[str, Any]:
        if self.server.gives == "nonsense":
            return {"message": {"content": "perhaps"}}
        shown = SHOWN.findall(asked)
        if len(shown) == 1:
            return {"message": {"content": "7"}}
        a = 1 / (1 + math.exp(-(0.5 + 0.02 * (len(shown[0]) - len(shown[1])))))
        choice: dict[str, Any] = {"message": {"content": "A" if a > 0.5 else "B"}}
        if self.server.gives == "probabilities":
            said = [{"token": token, "logprob": math.log(p)} for token, p in ((" A", a), ("B", 1 - a)) if p > 0]
            choice["logprobs"] = {"content": [{"token": "A", "top_logprobs": said}]}
        return choice

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...
