"""Spans of our own requests, on a real exporter: what is sent, and that nothing is imported without the setting."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from etude.bootstrap.serving import watched
from etude.contracts.errors import ConfigError, MissingExtraError
from etude.serving.tracing import tracing_to
from tests.unit.serving.server import serving

ASKED: dict[str, Any] = {"problem": "choice:model", "context": "ana@example.com", "options": ["small", "large"]}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """A URL that takes spans, and these."""
    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            found = ExportTraceServiceRequest.FromString(body)
            spans.extend(s for r in found.resource_spans for scope in r.scope_spans for s in scope.spans)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_each_request_is_a_span_of_its_callers_trace(tmp_path: Path) -> None:
    with collector() as (url, spans), serving(tmp_path, around=watched, otel_endpoint=url) as served:
        client = served.client()
        answer = client.post("/v1/decisions?email=ana@example.com", json=ASKED, headers={"traceparent": PARENT})
        client.get("/v1/trajectories/ana@example.com")
        client.get("/health")
    decided, missing = spans
    assert decided.name == "POST /v1/decisions"
    assert decided.trace_id.hex() == PARENT.split("-")[1]
    assert decided.parent_span_id.hex() == PARENT.split("-")[2]
    attributes = {one.key: one.value for one in decided.attributes}
    assert attributes["http.response.status_code"].int_value == 200
    assert attributes["etude.request_id"].string_value == answer.headers["x-request-id"]
    assert 0 < decided.end_time_unix_nano - decided.start_time_unix_nano < 30e9
    assert missing.name == "GET /v1/trajectories/{id}"
    assert b"ana@" not in b"".join(span.SerializeToString() for span in spans)


def test_a_collector_that_is_away_stops_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, around=watched, otel_endpoint="http://127.0.0.1:1") as served:
        assert served.client().post("/v1/decisions", json=ASKED).status_code == 200


def test_what_is_wrong_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"serving.otel_endpoint is 'collector:4318': expected a URL"):
        tracing_to("collector:4318", "1").__enter__()
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingExtraError, match=r"etude\[otel\]"):
        tracing_to("http://localhost:4318", "1").__enter__()


def test_nothing_of_it_is_imported_without_the_setting() -> None:
    code = "import sys, etude.serving.app; sys.exit(any(m.startswith('opentelemetry.sdk') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
