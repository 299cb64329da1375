"""The same commands on NATS JetStream, ClickHouse and S3: three lines of settings, real servers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etude.contracts.examples import EXAMPLES
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Feedback, Trajectory
from tests.servers.clickhouse import ClickHouse
from tests.servers.nats import NatsServer
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from tests.tiny import etude, json_output

AGENT = """
import etude
with etude.task("mail ana@example.com", user="u9", id="t-agent") as task:
    choice = task.decide("tone", options=["formal", "casual"])
    task.turn(action=choice, result="sent")
etude.feedback("t-agent", thumbs="up", stars=5)
"""


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All three, named in the etude.yaml of the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    nats, s3 = NatsServer(tmp_path / "nats", sync=False), S3Server(tmp_path / "s3")
    try:
        with ClickHouse(tmp_path / "clickhouse") as warehouse:
            lines = [f"bus: {nats.url}", f"store: {warehouse.url}", f'blobs: "{s3.url}"']
            Path("etude.yaml").write_text("experience:\n" + "".join(f"  {line}\n" for line in lines))
            yield
    finally:
        nats.stop()
        s3.stop()


def test_from_an_agent_to_a_dataset_and_to_being_forgotten(servers: None, capsys: pytest.CaptureFixture[str]) -> None:
    base: dict[str, Any] = json.loads(encode(EXAMPLES[Trajectory])) | {"time": "2026-11-15T08:00:00Z"}
    events = [base | {"id": f"t-{i}", "task": f"request {i % 9}", "user": f"u{i % 3}"} for i in range(60)]
    said = {"trajectory_id": "t-1", "time": "2026-11-15T09:00:00Z", "thumbs": "down", "stars": 1}
    events.append(json.loads(encode(EXAMPLES[Feedback])) | said)
    Path("events.jsonl").write_text("\n".join(map(json.dumps, events)) + "\nnonsense\n")
    assert json_output(capsys, "ingest", "events.jsonl")["sent"] == 62
    subprocess.run([sys.executable, "-c", AGENT], check=True, timeout=240)
    worker = subprocess.Popen([sys.executable, "-m", "etude.cli", "experience", "work"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 90
        while json_output(capsys, "experience", "stats")["rewards"] < 63:  # two of them revised
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        worker.terminate()
        worker.wait(timeout=240)
    stats = json_output(capsys, "experience", "stats")
    assert (stats["trajectories"], stats["users"], stats["dead_letters"]) == (61, 4, 1)
    story = json_output(capsys, "experience", "show", "t-agent")
    assert story["trajectory"]["task"] == "mail [EMAIL_1]"
    assert [reward.get("revision", 0) for reward in story["rewards"]] == [0, 1]
    made = json_output(capsys, "dataset", "create", "--problem", "choice:model", "--out", "november")
    assert made["url"].startswith("s3://")
    assert etude("dataset", "verify", "november") == 0
    assert not Path("november").exists()
    result = json_output(capsys, "experience", "forget", "--user", "u1")
    assert result["trajectories"] == 20
    assert result["datasets"] == {made["id"]: 20}
    assert result["unreachable"] == []
    assert json_output(capsys, "dataset", "show", "november")["counts"]["trajectories"] == 40
    assert json_output(capsys, "experience", "stats")["users"] == 3
