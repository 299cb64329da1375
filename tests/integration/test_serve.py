"""`etude serve` as a user starts it: a key on first start, decisions, an interrupt, and a crash that loses nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

COMMAND = [sys.executable, "-m", "etude.cli"]
ASKED = {"problem": "choice:model", "context": "where is my parcel?", "options": ["small", "large"]}


@contextmanager
def served(folder: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], str, str | None]]:
    """The process, its URL, and the key that it printed."""
    log = folder / "serve.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*COMMAND, "serve", "--port", "0", *more], cwd=folder, stderr=output, stdout=output, text=True
        )
        try:
            deadline = time.monotonic() + 120
            while "serving at" not in log.read_text() and time.monotonic() < deadline:
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            said = log.read_text()
            url = re.search(r"serving at (\S+);", said)
            key = re.search(r"shown once: (\S+)", said)
            assert url is not None, said
            yield process, url[1], None if key is None else key[1]
        finally:
            process.kill()
            process.wait()


def test_a_decision_survives_a_crash_and_gets_its_outcome_from_the_next_server(tmp_path: Path) -> None:
    with served(tmp_path, "--no-loop") as (process, url, key):
        assert key is not None
        headers = {"authorization": f"Bearer {key}"}
        made = httpx.post(f"{url}/v1/decisions", json=ASKED, headers=headers).json()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with served(tmp_path, "--no-loop") as (process, url, again):
        assert again is None  # there is a key
        report = {"id": made["id"], "success": True}
        assert httpx.post(f"{url}/v1/feedback", json=report, headers=headers).status_code == 202
        found, deadline = None, time.monotonic() + 90
        while found is None and time.monotonic() < deadline:
            answer = httpx.get(f"{url}/v1/trajectories/{made['id'].rpartition('.')[0]}", headers=headers)
            found = answer.json()["trajectory"] if answer.status_code == 200 else None
        assert found is not None
        assert found["decisions"][0]["action"] == made["action"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)


def test_the_loop_runs_with_it_and_ends_with_it(tmp_path: Path) -> None:
    with served(tmp_path) as (process, _, _):
        status, deadline = "", time.monotonic() + 120
        while "the loop is run by" not in status and time.monotonic() < deadline:
            status = subprocess.run([*COMMAND, "loop", "status"], cwd=tmp_path, capture_output=True, text=True).stdout
        assert "the loop is run by" in status
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    ended = subprocess.run([*COMMAND, "loop", "status"], cwd=tmp_path, capture_output=True, text=True).stdout
    assert "no loop is running" in ended


def test_keys_are_made_listed_and_revoked(tmp_path: Path) -> None:
    def etude(*arguments: str) -> str:
        done = subprocess.run([*COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True)
        return done.stdout + done.stderr

    key = etude("keys", "create", "--role", "decide", "--name", "agent", "--tenant", "acme").strip()
    assert re.fullmatch(r"etude_[0-9a-f]{12}_[\w-]{43}", key)
    listed = etude("keys", "list")
    assert "agent" in listed
    assert "acme" in listed
    assert key.rpartition("_")[2] not in listed
    id = key.split("_")[1]
    assert "is revoked" in etude("keys", "revoke", id)
    assert "there is no API key 'nope'" in etude("keys", "revoke", "nope")
    assert "leave tenant out" in etude("keys", "create", "--role", "admin", "--tenant", "acme")


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with served(tmp_path, "--no-loop") as (_, url, _):
        port = url.rpartition(":")[2]
        done = subprocess.run([*COMMAND, "serve", "--port", port], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2
        assert f"and {port}: cannot listen there" in done.stderr
