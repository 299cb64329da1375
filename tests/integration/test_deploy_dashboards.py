"""Every query of every panel, every rule and every alert, after a session of a real server, on a real Prometheus.

Traffic, ratings, a training job, gates, a canary and its rollback. Prometheus is Debian's package; where it is not
installed, the test is skipped and says so.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from etude.bootstrap.release import open_registry
from etude.contracts.release import Action
from etude.learning.run_folder import find_policy
from tests.integration.test_deploy import DEPLOY, RULES
from tests.integration.test_serve import served
from tests.tiny import etude

SLOT = "choice:model"
OPTIONS = ["small", "large"]
SETTINGS = {
    "experience": {"explore": 1.0, "policies": {"model": "served"}},
    "loop": {"threshold": 150, "schedule": None, "drift": False, "nice": 0},
    "release": {
        "gates": {"fuzz_cases": 50, "frequency_draws": 50, "frequency_requests": 1, "latency_calls": 100},
        "canary": {"holdback_days": 0.0, "shadow_answers": 0},
    },
    "choice": {"encoder": "ngrams"},
}


@contextmanager
def prometheus(folder: Path, target: str, key: str) -> Iterator[str]:
    """Its URL: it scrapes a server every second with the rules of deploy/, and keeps what it reads in this folder."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("prometheus is not installed (Debian: apt install prometheus): no query of a panel was evaluated")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    folder.mkdir()
    (folder / "metrics_key").write_text(key)
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"], config["alerting"] = [str(RULES)], {}
    scrape = config["scrape_configs"][0]
    scrape["authorization"]["credentials_file"] = str(folder / "metrics_key")
    scrape["static_configs"] = [{"targets": [target]}]
    config["scrape_configs"] = [scrape]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    own = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([binary, *own, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 90
    try:
        while True:
            try:
                if httpx.get(f"{url}/-/ready").status_code == 200:
                    break
            except httpx.TransportError:
                assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def traffic(client: httpx.Client, count: int, *, seed: int) -> None:
    """An agent that asks which model to take: the large one succeeds more often with proofs, the small one else."""
    rng = random.Random(seed)
    for number in range(count):
        kind = rng.choice(["proof", "chat"])
        asked = {"problem": SLOT, "context": {"text": f"{kind} {number}", "kind": kind}, "options": OPTIONS}
        made = client.post("/v1/decisions", json=asked).raise_for_status().json()
        right = (made["action"] == "large") == (kind == "proof")
        report = {"id": made["id"], "success": rng.random() < (0.9 if right else 0.3), "cost_usd": 0.01}
        report |= {"thumbs": "up" if right else "down"} if number % 3 == 0 else {}
        client.post("/v1/feedback", json=report).raise_for_status()


def scrapes(prometheus: str, metric: str, value: float, *, timeout_s: float = 30.0) -> None:
    """Wait until Prometheus has seen a metric with at least this value."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = httpx.get(f"{prometheus}/api/v1/query", params={"query": metric}).json()["data"]["result"]
        if any(float(one["value"][1]) >= value for one in found):
            return
        assert time.monotonic() < deadline, f"{metric} did not reach {value}: {found}"
        time.sleep(0.2)


def command(*arguments: str | Path) -> None:
    assert etude(*arguments) == 0, arguments


def queries() -> dict[str, str]:
    """By where they are. An interval of Grafana's becomes what it is for a panel of some minutes."""
    found = {}
    for path in sorted((DEPLOY / "grafana/dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                found[f"{board['title']}: {panel['title']} {target['refId']}"] = target["expr"]
    rules = yaml.safe_load(RULES.read_text())["groups"]
    for rule in rules[0]["rules"]:
        found[rule["record"]] = rule["expr"]
    return {where: expression.replace("$__rate_interval", "20s") for where, expression in found.items()}


def test_every_query_of_every_panel_returns_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("etude.yaml").write_text(yaml.safe_dump(SETTINGS))
    began = time.time()
    with served(tmp_path, "--no-loop") as (_, url, key):
        assert key is not None
        client = httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=30)
        with client, prometheus(tmp_path / "prometheus", url.removeprefix("http://"), key) as scraper:
            scrapes(scraper, 'agent_rl_trajectories_collected_total{problem="choice"}', 0)
            traffic(client, 200, seed=0)
            scrapes(scraper, 'agent_rl_trajectories_collected_total{problem="choice"}', 200)

            command("loop", "run", "--once")  # a job, its policy registered, and its gates
            registry = open_registry()
            scrapes(scraper, f'agent_rl_training_jobs_total{{slot="{SLOT}",state="completed"}}', 1)
            head = registry.head(SLOT)
            assert head is not None
            (first,) = head.states
            scrapes(scraper, f'sum(agent_rl_gate_verdicts_total{{slot="{SLOT}"}})', 1)  # 200 trajectories prove little
            registry.record(SLOT, Action.GATES_PASSED, first, actor="test")
            registry.approve(SLOT, first, by="test")
            registry.promote_directly(SLOT, first, by="test", reason="a test")
            traffic(client, 60, seed=1)
            scrapes(scraper, f'agent_rl_model_trajectories{{version="{first}"}}', 30)

            data, run = tmp_path / "datasets/second", tmp_path / "runs/second"
            command("dataset", "create", "--problem", SLOT, "--shares", "0.6,0.1,0.3", "--out", data)
            command("train", "choice", "--name", "model", "--dataset", data, "--out", run, "--seed", "7")
            command("models", "register", run, "--slot", SLOT, "--by", "test")
            second = find_policy(run).version
            assert second != first
            registry.record(SLOT, Action.GATES_PASSED, second, actor="test")
            command("canary", "start", second, "--strategy", "canary", "--by", "test")
            scrapes(scraper, f'agent_rl_release_stage{{slot="{SLOT}",mode="canary"}}', 1)
            traffic(client, 60, seed=2)
            scrapes(scraper, f'agent_rl_model_traffic_share{{version="{second}",role="candidate"}}', 0.05)
            command("canary", "abort", SLOT, "--by", "test")
            scrapes(scraper, f'agent_rl_model_rollbacks_total{{slot="{SLOT}"}}', 1)
            scrapes(scraper, 'ALERTS{alertname="EtudeRolledBack",alertstate="firing",severity="critical"}', 1)

            empty = []
            for where, query in queries().items():
                asked = {"query": query, "start": began, "end": time.time(), "step": "1"}
                answer = httpx.get(f"{scraper}/api/v1/query_range", params=asked).json()
                assert answer["status"] == "success", (where, answer)
                values = [value for one in answer["data"]["result"] for _, value in one["values"]]
                if not any(re.fullmatch(r"[-+.\de]+", value) for value in values):
                    empty.append(where)
            assert not empty
            firing: Any = httpx.get(f"{scraper}/api/v1/alerts").json()["data"]["alerts"]
            assert {alert["labels"]["alertname"] for alert in firing} == {"EtudeRolledBack"}
            client.get("/metrics").raise_for_status()
            assert float(scrape_seconds(scraper)) < 1
    assert (tmp_path / "serve.log").read_text().count("ERROR") == 0


def scrape_seconds(scraper: str) -> str:
    query = {"query": 'max_over_time(scrape_duration_seconds{job="etude"}[1h])'}
    found: str = httpx.get(f"{scraper}/api/v1/query", params=query).json()["data"]["result"][0]["value"][1]
    return found
