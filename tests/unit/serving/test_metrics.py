"""GET /metrics: names and values, the text format, what labels may say, and what it costs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from time import thread_time
from typing import Any

import httpx
import pytest

from etude.adapters.jobs import SqliteJobs
from etude.contracts.bus import Message
from etude.contracts.errors import BusError, StoreError
from etude.contracts.jobs import Job, JobState
from etude.contracts.release import Action
from etude.contracts.training import JobError as Failure
from etude.contracts.training import TrainingRequest
from etude.release.registry import Registry
from etude.serving.installation import failures_in_a_row
from etude.serving.keys import Role
from etude.serving.metrics import MAX_SERIES, METRICS, ProcessMetrics, Sample, render
from tests.unit.release.traffic import make_artefact
from tests.unit.serving.server import Served, serving

ASKED: dict[str, Any] = {"problem": "choice:model", "context": "where is my parcel?", "options": ["small", "large"]}
LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\]|\\.)*",?)+)\})? (\S+)')
SLOT = "choice:model"


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Values by name and labels; every line has to be of the format."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = LINE.fullmatch(line)
            assert match is not None, line
            assert (match[1], match[2] or "") not in found, line
            found[match[1], match[2] or ""] = float(match[3])
    return found


def scraped(served: Served, client: httpx.Client) -> dict[tuple[str, str], float]:
    served.server.installation._read_at = float("-inf")
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parsed(answer.text)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture(scope="module")
def client(served: Served) -> httpx.Client:
    return served.client()


def test_traffic_is_counted(served: Served, client: httpx.Client) -> None:
    before = scraped(served, client)
    made = [client.post("/v1/decisions", json=ASKED).json() for _ in range(4)]
    for number, one in enumerate(made):
        report = {"id": one["id"], "success": number > 0, "cost_usd": 0.01, "thumbs": "up"}
        assert client.post("/v1/feedback", json=report).status_code == 202
    client.post("/v1/feedback", json={"id": "wrong", "success": True})
    client.post("/v1/trajectories", content=b"no json", headers={"content-type": "application/json"})
    served.server.ingest()
    found = scraped(served, client)

    def more(name: str, labels: str = "") -> float:
        return found[name, labels] - before.get((name, labels), 0.0)

    assert more("agent_rl_trajectories_collected_total", 'problem="choice"') == 4
    assert more("agent_rl_feedback_total", 'problem="choice"') == 4
    assert more("agent_rl_trajectory_reward_count", 'problem="choice"') == 4
    assert more("agent_rl_trajectory_reward_bucket", 'problem="choice",le="+Inf"') == 4
    assert more("agent_rl_trajectory_reward_bucket", 'problem="choice",le="0"') < 4
    assert more("etude_decisions_total", 'problem="choice",policy="uniform",fallback=""') == 4
    assert more("etude_decision_propensity_bucket", 'problem="choice",le="0.25"') == 0
    assert more("etude_decision_propensity_bucket", 'problem="choice",le="0.5"') == 4
    assert more("etude_http_requests_total", 'route="/v1/decisions",method="POST",status="200"') == 4
    assert more("etude_http_request_duration_seconds_count", 'route="/v1/decisions",method="POST"') == 4
    assert more("etude_collection_requests_total", 'result="stored"') == 4
    assert more("etude_collection_requests_total", 'result="refused"') == 1  # of the wrong id nothing was to be stored
    assert found["etude_http_requests_in_progress", ""] == 1  # the scrape itself
    assert found["agent_rl_bus_connected", ""] == found["etude_store_up", ""] == 1
    assert found["etude_ready", 'check="store"'] == 1
    assert found["process_resident_memory_bytes", ""] > 1e7


def test_a_key_is_needed_unless_the_settings_say_otherwise(served: Served, tmp_path: Path) -> None:
    assert served.bare().get("/metrics").status_code == 401
    assert served.client(Role.DECIDE).get("/metrics").status_code == 403
    assert served.client(Role.RELEASE).get("/metrics").status_code == 200
    with serving(tmp_path, metrics_without_key=True) as other:
        assert other.bare().get("/metrics").status_code == 200
        assert other.bare().get("/stats").status_code == 401


def test_labels_hold_nothing_that_callers_write(served: Served, client: httpx.Client) -> None:
    secret = "sk-proj-a1b2c3d4e5f6a7b8c9d0"
    client.post("/v1/decisions", json=ASKED | {"problem": f"choice:{secret}", "user": secret})
    client.post("/v1/decisions", json=ASKED | {"problem": secret})
    client.get(f"/v1/trajectories/{secret}")
    client.get(f"/{secret}?key={secret}")
    client.request("PROPFIND", f"/{secret}")
    client.post("/v1/trajectories", json={"trajectories": [{"id": "t-9", "time": "2026-11-18T10:00:00Z", "task": "x",
        "problem": f"choice:{secret}", "policy": secret, "agent": secret}]})  # fmt: skip
    served.server.ingest()
    served.server.installation._read_at = float("-inf")
    text = client.get("/metrics").text
    assert secret not in text
    assert 'route="unmatched",method="other"' in text
    assert 'route="/v1/trajectories/{id}"' in text


def test_series_are_bounded() -> None:
    metrics = ProcessMetrics()
    for number in range(3 * MAX_SERIES):
        metrics.decided(f"choice:{number}", f"policy-{number}", None, 0.5)
        metrics.answered(f"/{number}", "GET", 200, 0.1)
    names = [sample.name for sample in metrics.samples()]
    assert names.count("etude_decisions_total") <= MAX_SERIES + 1
    assert names.count("etude_http_requests_total") <= MAX_SERIES + 1
    assert sum(s.value for s in metrics.samples() if s.name == "etude_decisions_total") == 3 * MAX_SERIES


@pytest.fixture
def release(served: Served) -> Registry:
    found = served.server.installation.registry
    assert found is not None
    return found


def test_jobs_releases_and_policies(served: Served, client: httpx.Client, release: Registry, tmp_path: Path) -> None:
    queue, clock = served.server.installation.jobs, served.server.clock
    old = release.register(make_artefact(tmp_path / "old", "old"), SLOT, actor="test")
    release.record(SLOT, Action.GATES_PASSED, old, actor="test")
    release.approve(SLOT, old, by="test")
    release.promote_directly(SLOT, old, by="test", reason="first")
    new = release.register(make_artefact(tmp_path / "new", "new"), SLOT, actor="test")
    release.record(SLOT, Action.GATES_FAILED, new, actor="test")
    for number in range(4):
        request = TrainingRequest(id=f"j-{number}", time=clock(), problem=SLOT, method="from-logs", requested_by="test")
        queue.submit(Job(id=f"j-{number}", slot=SLOT, request=request, created=clock()))
        job = queue.claim("test", lease_s=60)
        assert job is not None
        if number == 0:
            queue.finish(job, version="a" * 16)
        elif number < 3:
            queue.fail(job, Failure(kind="DataError", message="no rows", retryable=False))
    found = scraped(served, client)
    slot = f'slot="{SLOT}"'
    assert found["agent_rl_training_jobs_total", f'{slot},state="completed"'] == 1
    assert found["agent_rl_training_jobs_total", f'{slot},state="failed"'] == 2
    assert found["agent_rl_training_jobs", f'{slot},state="running"'] == 1
    assert found["agent_rl_training_failures_in_a_row", slot] == 2
    assert found["agent_rl_training_duration_seconds_count", ""] == 1
    assert found["agent_rl_model_promotions_total", slot] == 1
    assert found["agent_rl_gate_verdicts_total", f'{slot},verdict="failed"'] == 1
    assert found["agent_rl_gate_last_failure_timestamp_seconds", slot] == pytest.approx(clock().timestamp(), abs=60)
    assert found["agent_rl_model_traffic_share", f'{slot},version="{old}",role="incumbent"'] == 1
    assert ("agent_rl_model_rollbacks_total", slot) in found

    own = {"time": (clock() - timedelta(hours=1)).isoformat(), "task": "x", "problem": SLOT, "policy": f"{old}+sampled"}
    sent = [{"id": f"m-{number}", "outcome": {"success": number > 0, "cost_usd": 0.5}} | own for number in range(4)]
    assert client.post("/v1/trajectories", json={"trajectories": sent}).status_code == 202
    served.server.ingest()
    found = scraped(served, client)
    labels = f'{slot},version="{old}"'
    assert found["agent_rl_model_trajectories", labels] == 4
    assert found["agent_rl_model_error_rate", labels] == 0.25
    assert found["agent_rl_model_cost_usd_mean", labels] == 0.5
    assert 0 < found["agent_rl_model_reward_mean", labels] < 1


def test_failures_in_a_row_end_with_a_job_that_completes(tmp_path: Path) -> None:
    queue = SqliteJobs(tmp_path / "jobs.sqlite", retries=0)

    def ended(id: str, state: JobState) -> None:
        time = queue._clock()
        request = TrainingRequest(id=id, time=time, problem=SLOT, method="from-logs", requested_by="test")
        queue.submit(Job(id=id, slot=SLOT, request=request, created=time))
        job = queue.claim("test", lease_s=60)
        assert job is not None
        if state == JobState.COMPLETED:
            queue.finish(job, version="a" * 16)
        else:
            queue.fail(job, Failure(kind="X", message="x", retryable=False))

    counts = []
    states = (JobState.FAILED, JobState.FAILED, JobState.FAILED, JobState.COMPLETED, JobState.FAILED)
    for number, state in enumerate(states):
        ended(f"j-{number}", state)
        counts.append(failures_in_a_row(queue.jobs()))
    assert counts == [1, 2, 3, 0, 1]
    queue.close()


class _Away:
    """A broker that does not answer."""

    def publish(self, messages: list[Message]) -> None:
        raise BusError("NATS at broker:4222: no answer")


def test_a_store_or_a_bus_that_is_away_does_not_stop_a_scrape(
    served: Served, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = scraped(served, client)

    def away(*_: Any, **__: Any) -> Any:
        raise StoreError("ClickHouse does not answer")

    installation = served.server.installation
    monkeypatch.setattr(installation, "bus", _Away())
    monkeypatch.setattr(installation, "store", type("Gone", (), {"collected": away, "groups": away})())
    found = scraped(served, client)
    assert found["etude_store_up", ""] == found["agent_rl_bus_connected", ""] == 0
    collected = ("agent_rl_trajectories_collected_total", 'problem="choice"')
    assert found[collected] == before[collected]  # the last value


def test_the_format_escapes_and_is_accepted_by_promtool(served: Served, client: httpx.Client) -> None:
    text = render([Sample("etude_build_info", ('a"b\\c\nd',), 1)])
    assert text.splitlines()[-1] == r'etude_build_info{version="a\"b\\c\nd"} 1'
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus): the format was not checked by it")
    scraped_text = client.get("/metrics").text
    done = subprocess.run(["promtool", "check", "metrics"], input=scraped_text, text=True, capture_output=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_metric_has_a_helpful_name() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert bool(metric.bounds) == (metric.kind == "histogram"), metric.name
        assert metric.help.endswith("."), metric.name


def test_what_a_request_pays_is_a_few_microseconds() -> None:
    metrics, many = ProcessMetrics(), 20_000
    best = float("inf")
    for _ in range(5):
        began = thread_time()
        for _ in range(many):
            metrics.answered("/v1/decisions", "POST", 200, 0.002)
            metrics.decided("choice:model", "uniform", None, 0.5)
        best = min(best, (thread_time() - began) / many)
    assert best < 10e-6  # 1.5 µs on an idle core
