"""The examples run as their READMEs say: embedded, and on a server without a change."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.chat_server import ChatServer, in_thread
from tests.integration.test_serve import COMMAND, served

EXAMPLES = Path(__file__).parents[2] / "examples"
AGENT, GRAPH = EXAMPLES / "agent_loop" / "agent.py", EXAMPLES / "langgraph" / "graph.py"


def run(folder: Path, *command: Any, status: int = 0, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**os.environ, "ETUDE_EXPERIENCE__DECIDE_TIMEOUT_MS": "10000", **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with served(tmp_path_factory.mktemp("examples"), "--no-loop") as (_, url, key):
        assert key is not None
        yield {"ETUDE_URL": url, "ETUDE_API_KEY": key}


def stored(server: dict[str, str], where: str, count: int) -> list[Any]:
    """The trajectories that match, as soon as there are as many."""
    headers = {"authorization": f"Bearer {server['ETUDE_API_KEY']}"}
    waited = threading.Event()
    for _ in range(200):
        answer = httpx.get(f"{server['ETUDE_URL']}/v1/trajectories", params={"where": where}, headers=headers)
        rows: list[Any] = answer.json()["rows"]
        if len(rows) >= count and all(row["feedback"] is not None for row in rows if row["agent"] == "loop"):
            return rows
        waited.wait(0.05)
    raise AssertionError(answer.text)


def test_the_agent_loop_embedded(tmp_path: Path) -> None:
    assert "of 20 answers are right" in run(tmp_path, AGENT)
    found = json.loads(run(tmp_path, *COMMAND[1:], "experience", "stats", "--json"))
    assert (found["trajectories"], found["feedback"]) == (20, 20)
    run(tmp_path, *COMMAND[1:], "experience", "export", "--out", "all.jsonl")
    first = json.loads((tmp_path / "all.jsonl").read_text().splitlines()[0])
    assert first["model"] == "scripted-2026.11"
    assert [turn.get("result") is not None for turn in first["turns"]] == [True, False]


def test_the_agent_loop_on_a_server(tmp_path: Path, server: dict[str, str]) -> None:
    assert "of 20 answers are right" in run(tmp_path, AGENT, **server)
    rows = stored(server, "problem=choice:way", 20)
    assert len(rows) == 20
    assert {(row["agent"], row["policy"], row["turns"]) for row in rows} == {("loop", "uniform", 2)}
    assert not (tmp_path / ".etude" / "experience.sqlite").exists()


def test_a_graph_of_langgraph(tmp_path: Path, server: dict[str, str]) -> None:
    pytest.importorskip("langgraph", reason="the extra `bench` is not installed")
    for environ in ({}, server):
        said = run(tmp_path, GRAPH, **environ).splitlines()
        assert len(said) == 3
        assert {line.partition(":")[0] for line in said} <= {"faq", "expert"}
    rows = stored(server, "problem=choice:worker", 3)
    assert {row["success"] for row in rows} <= {True, False}


def has_route(server: dict[str, str], path: str) -> bool:
    return path in httpx.get(f"{server['ETUDE_URL']}/openapi.json").json()["paths"]


def test_the_daily_round_of_an_operator(tmp_path: Path, server: dict[str, str]) -> None:
    if not has_route(server, "/v1/notices"):
        pytest.skip("this server has no routes of releases")
    said = run(tmp_path, EXAMPLES / "operator" / "daily.py", **server)
    assert "## For a person\n\n- nothing" in said
    assert "0 trainings were queued since yesterday" in said
    environ = {**os.environ, **server, "ETUDE_API_KEY": "etude_1_2"}
    command = [sys.executable, EXAMPLES / "operator" / "daily.py"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert (done.returncode, "the API key is not known" in done.stderr) == (1, True)


def test_every_route_of_the_role_exists(server: dict[str, str]) -> None:
    if not has_route(server, "/v1/notices"):
        pytest.skip("this server has no routes of releases")
    known = httpx.get(f"{server['ETUDE_URL']}/openapi.json").json()["paths"]
    shapes = {"/".join("X" if part.startswith("{") else part for part in path.split("/")) for path in known}
    role = (EXAMPLES / "operator" / "ROLE.md").read_text("utf-8")
    named = [word for span in role.split("`")[1::2] for word in span.replace(",", " ").split() if word.startswith("/")]
    assert len(named) > 10
    for path in named:
        assert "/".join("X" if part.isupper() else part for part in path.split("/")) in shapes, path


def test_the_openai_sdk_by_its_base_url(tmp_path: Path) -> None:
    pytest.importorskip("openai", reason="the extra `dev` is not installed")
    if importlib.util.find_spec("etude.serving.routes.openai") is None:
        pytest.skip("this server has no routes for the SDKs of OpenAI")
    settings = yaml.safe_load((EXAMPLES / "openai_sdk" / "etude.yaml").read_text("utf-8"))
    with in_thread(ChatServer()) as chat:
        settings["routing"]["upstreams"] = {"service": {"url": chat.url, "allow_private": True}}
        (tmp_path / "etude.yaml").write_text(yaml.safe_dump(settings))
        with served(tmp_path, "--no-loop") as (_, url, key):
            assert key is not None
            said = run(
                tmp_path,
                EXAMPLES / "openai_sdk" / "chat.py",
                "where is my parcel?",
                OPENAI_BASE_URL=f"{url}/v1",
                OPENAI_API_KEY=key,
            )
            assert said.strip() in ("small: all is well", "large: all is well")
            rows = stored({"ETUDE_URL": url, "ETUDE_API_KEY": key}, "", 1)
            assert len(rows) == 1
