"""ClickHouse on a free port of this machine: the real engine (chdb), behind as much of its HTTP interface as is asked.

    with ClickHouse(folder) as server: … server.url          # in a process of its own, stopped by its pid
    python -m tests.servers.clickhouse FOLDER [PASSWORD]     # prints its port, and serves until its stdin ends

The engine takes one request at a time.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

TRANSPORT = frozenset({"query", "database", "query_id", "session_id", "session_timeout", "wait_end_of_query", "user"})
TRANSPORT |= {"client_protocol_version", "enable_http_compression", "cancel_http_readonly_queries_on_client_close"}
TRANSPORT |= {"send_progress_in_http_headers", "http_headers_progress_interval_ms", "role", "quota_key"}
"""Parameters that are about the request, where all others are settings of the query."""


class ClickHouse:
    """A server for as long as the block lasts; what is in `folder` outlives it."""

    def __init__(self, folder: Path, *, password: str = "") -> None:
        self.folder, self.password = folder, password

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.servers.clickhouse", str(self.folder), self.password]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        assert self.process.stdout is not None
        port = self.process.stdout.readline().strip()
        assert port, "the server did not start"
        self.url = f"clickhouse://default@127.0.0.1:{port}/etude"
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Engine:
    """Queries of one process, one after the other."""

    def __init__(self, folder: str) -> None:
        session: Any = import_module("chdb.session")  # has no types
        self._session = session.Session(folder)
        self._turn = threading.Lock()

    def answer(self, query: bytes, database: str, settings: dict[str, str]) -> Iterator[bytes]:
        """Nothing before the first block is there, so that errors come before it; RuntimeError for them."""
        with self._turn:
            self._session.query(f"USE `{database}`")
            try:
                for name, value in settings.items():
                    self._session.query(f"SET {name} = '{value}'")
                yield from self._run(query)
            finally:
                for name in settings:
                    self._session.query(f"SET {name} = DEFAULT")

    def _run(self, query: bytes) -> Iterator[bytes]:
        insert = re.match(rb"\s*(INSERT\s.+?)\sFORMAT\s+(\w+)\n", query, re.DOTALL)
        if insert:
            stream = self._session.send_insert(insert[1].decode(), insert[2].decode())
            stream.append(query[insert.end() :])
            stream.finish()
            return
        text = query.decode()
        asked = re.search(r"\sFORMAT\s+(\w+)\s*$", text)
        if asked and re.match(r"\s*(SELECT|WITH)\b", text):
            for block in self._session.send_query(text[: asked.start()], asked[1]):
                yield block.bytes()
        else:
            yield self._session.query(text, "TabSeparated").bytes()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # which waits 40 ms between the parts of a response
    wbufsize = 1 << 16
    engine: Engine
    password: str

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        body = self._decoded(self._body())
        if parts.path == "/ping":
            return self._whole(200, b"Ok.\n")
        if self._sent_password() != self.password:
            return self._failed("Code: 516. DB::Exception: Authentication failed. (AUTHENTICATION_FAILED)")
        query = f"{given['query']}\n".encode() + body if "query" in given else body
        settings = {name: value for name, value in given.items() if name not in TRANSPORT}
        blocks = self.engine.answer(query, given.get("database", "default"), settings)
        try:
            first = next(blocks, b"")
        except RuntimeError as error:
            return self._failed(str(error))
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("X-ClickHouse-Timezone", "UTC")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._chunk(first)
        for block in blocks:
            self._chunk(block)
        self.wfile.write(b"0\r\n\r\n")
        return None

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _decoded(self, body: bytes) -> bytes:
        if self.headers.get("Content-Encoding") != "lz4":
            return body
        lz4: Any = import_module("lz4.frame")  # has no types
        whole = b""
        while body:  # a frame for each block
            frame = lz4.LZ4FrameDecompressor()
            whole += frame.decompress(body)
            body = frame.unused_data or b""
        return whole

    def _sent_password(self) -> str:
        _, _, credentials = self.headers.get("Authorization", "").partition(" ")
        return base64.b64decode(credentials).decode().partition(":")[2]

    def _failed(self, text: str) -> None:
        code = re.match(r"Code: (\d+)", text)
        self._whole(500, text.encode(), ("X-ClickHouse-Exception-Code", code[1] if code else "1002"))

    def _whole(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _chunk(self, block: bytes) -> None:
        if block:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block))

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test's output is its own."""


class Server(ThreadingHTTPServer):
    daemon_threads = True


def serve(folder: str, password: str = "") -> None:
    """Until stdin ends."""
    Handler.engine, Handler.password = Engine(folder), password
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    serve(*sys.argv[1:])
