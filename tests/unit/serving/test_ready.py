"""/health and /ready: every check fails when what it checks fails, and says what to do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

from etude.contracts.errors import ConfigError, EtudeError, JobError
from etude.experience.deciders import NoAnswer, ToLoad
from etude.serving.routes.health import CHECKS, HEARTBEAT_S
from tests.unit.serving.server import Served, serving


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as found:
        yield found


def checks(served: Served, status: int) -> dict[str, str]:
    answer = served.bare().get("/ready")
    assert answer.status_code == status, answer.text
    assert answer.json()["status"] == ("ready" if status == 200 else "not ready")
    found: dict[str, str] = answer.json()["checks"]
    return {name: text for name, text in found.items() if text != "ok"}


def test_a_server_that_runs_is_ready(served: Served) -> None:
    answer = served.bare().get("/ready")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "checks": dict.fromkeys(CHECKS, "ok"), "warnings": {}}
    assert served.bare().get("/health").json() == {"status": "ok", "version": served.server.version}


@pytest.mark.parametrize("phase", ["starting", "stopping"])
def test_phase(served: Served, phase: Any) -> None:
    served.server.phase = phase
    assert checks(served, 503) == {"phase": f"the server is {phase}: send requests to another one"}
    assert served.bare().get("/health").status_code == 200  # it lives


def test_store(served: Served) -> None:
    served.server.store.close()
    assert "closed" in checks(served, 503)["store"]


def test_outbox(served: Served) -> None:
    served.server.collector.bus.close()
    assert "closed" in checks(served, 503)["outbox"]


def test_state(served: Served) -> None:
    served.server.state.close()
    assert "is closed" in checks(served, 503)["state"]


def test_disk(tmp_path: Path) -> None:
    with serving(tmp_path, min_free_mb=10**9) as served:
        found = checks(served, 503)
        assert "less than serving.min_free_mb (1,000,000,000): free some" in found.pop("disk")
        assert not found


def test_work(served: Served) -> None:
    held = threading.Event()
    served.server.ingest = lambda: held.wait(60) and 0  # the work stands still
    try:
        while served.server.worked_at > monotonic() - 0.1:
            sleep(0.01)
        served.server.worked_at = monotonic() - HEARTBEAT_S - 1
        assert "has not begun again for 61 seconds" in checks(served, 503)["work"]
    finally:
        held.set()


def test_policies(tmp_path: Path) -> None:
    config = tmp_path / "no-such-run"
    with serving(tmp_path, experience={"policies": {"model": str(config)}}) as served:
        deciders = served.server.collector.deciders
        with pytest.raises(EtudeError):
            deciders.wait("choice:model")
        found = checks(served, 503)["policies"]
        assert "choice:model: " in found
        assert "check experience.policies and the log; it is tried again" in found


def test_a_policy_that_is_being_loaded(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        held, deciders = threading.Event(), served.server.collector.deciders

        def load() -> Any:
            held.wait(60)
            raise ConfigError("gone")

        deciders._make = lambda problem: ToLoad("runs/model", load)
        served.server.policies = lambda: {"choice:other": deciders.state("choice:other")}
        assert checks(served, 503) == {"policies": "choice:other: runs/model is being loaded: wait"}
        held.set()
        with pytest.raises(ConfigError):
            deciders.wait("choice:other")
        assert served.server.policies()["choice:other"] == NoAnswer("missing", "runs/model: gone")


def test_a_loop_that_does_not_run_is_a_warning(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.server.with_loop = True
    answer = served.bare().get("/ready")
    assert answer.status_code == 200
    assert "start `etude loop run`" in answer.json()["warnings"]["loop"]
    assert served.server.installation.leader.lead("me", lease_s=60)
    assert served.bare().get("/ready").json()["warnings"] == {}

    def broken() -> bool:
        raise JobError("jobs.sqlite: the file is damaged")

    monkeypatch.setattr(served.server.installation, "loop_runs", broken)
    assert "damaged" in served.bare().get("/ready").json()["warnings"]["loop"]


def test_work_that_fails_is_a_warning(served: Served) -> None:
    failed = threading.Event()

    def ingest() -> int:
        failed.set()
        raise EtudeError("the store is full")

    served.server.ingest = ingest
    assert failed.wait(30)
    while not served.server.trouble:
        sleep(0.01)
    answer = served.bare().get("/ready")
    assert (answer.status_code, answer.json()["warnings"]) == (200, {"background": "the store is full"})


def test_a_server_that_stops_says_so_while_it_answers_on(tmp_path: Path) -> None:
    with serving(tmp_path, drain_s=1.0) as served:
        client = served.bare()
        assert client.get("/ready").status_code == 200
        served.stop()
        while served.server.phase == "running":
            sleep(0.01)
        with httpx.Client(base_url=served.url) as fresh:  # a new connection, as of a load balancer
            assert fresh.get("/ready").status_code == 503
            assert fresh.get("/health").status_code == 200


def test_work_that_fails_keeps_nothing_else_from_being_done(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it raises."""
    done = threading.Event()
    monkeypatch.setattr(served.server, "ingest", lambda: done.set() or 0)

    def close_old() -> int:
        raise ValueError("a bug")

    monkeypatch.setattr(served.server.decisions, "close_old", close_old)
    while not served.server.trouble:
        sleep(0.01)
    done.clear()
    assert done.wait(30)
    assert served.bare().get("/ready").json()["warnings"]["background"] == "ValueError: the log says more"
