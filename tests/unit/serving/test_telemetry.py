"""An instrumented agent, by the OpenTelemetry SDK, against a real server: its traces become trajectories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from etude.contracts.errors import BusError, EventError
from etude.contracts.trajectory import Trajectory
from etude.serving.gathering import GatheringConfig
from etude.serving.keys import Caller, Role
from etude.serving.telemetry import Telemetry
from tests.unit.serving.server import Served, serving


def work(served: Served, tenant: str | None = None) -> str:
    """An agent that calls a model once, and another span that is not GenAI; the id of its trace."""
    _, key = served.server.keys.create(Role.INGEST, tenant=tenant)
    exporter = OTLPSpanExporter(endpoint=f"{served.url}/v1/traces", headers={"authorization": f"Bearer {key}"})
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("agent")
    with tracer.start_as_current_span("invoke_agent helper") as agent:
        agent.set_attributes({"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "helper"})
        with tracer.start_as_current_span("chat") as chat:
            chat.set_attributes({"gen_ai.operation.name": "chat", "gen_ai.request.model": "small"})
    with tracer.start_as_current_span("GET /page of ana@example.com"):
        pass
    provider.shutdown()
    return f"{agent.get_span_context().trace_id:032x}"


def test_traces_become_trajectories_and_the_rest_is_kept(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        trace, other = work(served), work(served, tenant="acme")
        telemetry, client = served.server.telemetry, served.client()
        telemetry.take()
        assert served.server.telemetry.counts["trajectories"] == 0  # more spans may come
        telemetry.take(everything=True)
        served.server.ingest()
        found = client.get(f"/v1/trajectories/otel-{trace}").json()["trajectory"]
        assert (found["agent"], found["model"], len(found["turns"])) == ("helper", "small", 1)
        rows = client.get("/v1/trajectories", params={"where": "tenant=acme"}).json()["rows"]
        assert [row["id"].startswith(f"otel-{other}-") for row in rows] == [True]
        counts = client.get("/stats").json()["telemetry"]
        assert counts["trajectories"] == 2
        kept = [json.loads(line) for line in telemetry.unmapped.read_text().splitlines()]
        assert len(kept) == 2
        assert "ana@example.com" not in telemetry.unmapped.read_text()
        assert telemetry.unmapped.stat().st_mode & 0o777 == 0o600
        refused = client.post("/v1/traces", content=b"\xff\xff", headers={"content-type": "application/x-protobuf"})
        assert refused.status_code == 400


def test_what_cannot_be_published_now_is_published_later(tmp_path: Path) -> None:
    published, errors = list[str](), [BusError("full"), EventError("too large")]

    def publish(events: list[Trajectory]) -> None:
        if errors:
            raise errors.pop(0)
        published.extend(event.id for event in events)

    telemetry = Telemetry(
        publish=publish,
        redact=lambda body: body,
        unmapped=tmp_path / "unmapped.jsonl",
        max_bytes=1 << 20,
        config=GatheringConfig(quiet_s=1e-9),
    )
    span = {"spanId": "00f067aa0ba902b7", "name": "chat", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    named = [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]
    traces = [f"4bf92f3577b34da6a3ce929d0e0e47{i:02x}" for i in range(3)]
    spans = [span | {"traceId": trace, "attributes": named} for trace in traces]
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    caller = Caller(key="k", role=Role.INGEST, tenant=None)
    telemetry._receive("traces", body, "application/json", None, caller)
    with pytest.raises(BusError):
        telemetry.take(everything=True)
    telemetry.take()
    assert published == [f"otel-{trace}" for trace in traces[1:]]
    assert telemetry.counts["refused"] == 1
