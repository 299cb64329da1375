"""OpenTelemetry spans of our own requests, for a collector that the settings name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from etude.contracts.errors import ConfigError, MissingExtraError
from etude.serving.watched import Watch

UNTRACED = {"/v1/traces", "/v1/logs", "/health", "/ready", "/metrics"}
"""Spans of requests that bring spans would never end; the others say nothing."""


@contextmanager
def tracing_to(endpoint: str, version: str) -> Iterator[Watch]:
    """What sends a span for each request, in the background; the rest is sent at the end."""
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).hostname:
        raise ConfigError(f"serving.otel_endpoint is {endpoint!r}: expected a URL such as http://localhost:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingExtraError(needs="opentelemetry-sdk", extra="otel") from error
    provider = TracerProvider(
        resource=Resource.create({"service.name": "etude", "service.version": version}), shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=5)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield _spans(provider.get_tracer("etude", version))
    finally:
        provider.shutdown()


def _spans(tracer: Any) -> Watch:
    from opentelemetry.trace import SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    extract: Callable[..., Any] = TraceContextTextMapPropagator().extract

    def ended(scope: Mapping[str, Any], route: str, status: int, seconds: float) -> None:
        if route in UNTRACED:
            return
        end_ns = time.time_ns()
        headers = dict(scope["headers"])
        sent = {"traceparent": headers[b"traceparent"].decode("latin-1")} if b"traceparent" in headers else {}
        state = scope.get("state") or {}
        span = tracer.start_span(
            f"{scope['method']} {route}",
            context=extract(sent),
            kind=SpanKind.SERVER,
            start_time=end_ns - int(seconds * 1e9),
            attributes={
                "http.request.method": scope["method"],
                "http.route": route,
                "http.response.status_code": status,
                "etude.request_id": state.get("request_id", ""),
            },
        )
        if status >= 500:
            span.set_status(StatusCode.ERROR)
        span.end(end_time=end_ns)

    return ended
