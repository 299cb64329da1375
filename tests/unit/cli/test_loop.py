"""`etude loop` and `etude jobs` as a user types them: from an empty machine to a job that is retried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import etude as api
from etude.bootstrap import experience as wiring
from tests.tiny import etude, json_output, refused

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _own_collector() -> Iterator[None]:
    """Tasks of a test go to its own folder."""
    wiring._collector.made.clear()
    yield
    for collector in wiring._collector.made.values():
        collector.bus.close()
    wiring._collector.made.clear()


def log_tasks(count: int) -> None:
    for i in range(count):
        with api.task(f"question {i}") as task:
            picked = task.decide("model", context=f"question {i % 7}", options=["small", "large"])
            task.outcome(success=picked == "large", cost_usd=0.001)


def says(capsys: Captured, *args: str | Path) -> str:
    capsys.readouterr()
    assert etude(*args) == 0
    return " ".join(capsys.readouterr().out.split())


def test_an_empty_machine_says_what_it_waits_for(capsys: Captured) -> None:
    assert "no experience yet: log decisions in your agent" in says(capsys, "loop", "run", "--once")
    assert "no loop is running" in says(capsys, "loop", "status")
    assert "no jobs" in says(capsys, "jobs", "list")
    assert says(capsys, "loop", "notices") == "there are none"
    assert "nothing was collected yet" in refused(capsys, "jobs", "submit", "--problem", "choice")


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        ("schedule: every monday", "loop.schedule is 'every monday'"),
        ("schedule: '61 * * * *'", "loop.schedule is '61 * * * *'"),
        ("timezone: Mars/Olympus", "unknown time zone"),
        ("threshold: 0", "loop.threshold"),
        ("tresholds: 5", "did you mean"),
    ],
)
def test_wrong_settings_are_named_before_anything_happens(
    tmp_path: Path, capsys: Captured, loop: str, why: str
) -> None:
    (tmp_path / "etude.yaml").write_text(f"loop:\n  {loop}\n")
    for command in (("loop", "run", "--once"), ("loop", "status"), ("jobs", "list")):
        assert why in refused(capsys, *command)


def test_a_job_from_submission_to_a_second_try(tmp_path: Path, capsys: Captured) -> None:
    log_tasks(30)
    assert "waits for 970 more rewarded trajectories" in says(capsys, "loop", "run", "--once")
    for wrong, why in {
        ("--problem", "choise"): "choise",
        ("--problem", "choice", "--method", "dreaming"): "dreaming",
        ("--problem", "choice", "--slot", "choice:../x"): "expected PROBLEM or PROBLEM:NAME",
        ("--problem", "choice", "--slot", "choice:other"): "there is experience of choice:model",
        ("--problem", "choice", "--set", "lr"): "expected key=value",
    }.items():
        assert why in refused(capsys, "jobs", "submit", *wrong)
    job = json_output(capsys, "jobs", "submit", "--problem", "choice", "--set", "choice.epsilon=2", "--priority", "9")
    assert (job["slot"], job["request"]["priority"]) == ("choice:model", 9)
    assert "failed" in says(capsys, "loop", "run", "--once"), "the setting is out of range"
    shown = json_output(capsys, "jobs", "show", job["id"])
    assert (shown["state"], shown["error"]["kind"]) == ("failed", "WrongInput")
    assert "choice.epsilon" in shown["error"]["message"]
    (notice,) = json_output(capsys, "loop", "notices")
    assert (notice["kind"], notice["job"]) == ("failure", job["id"])
    assert "acknowledged by ada" in says(capsys, "loop", "ack", notice["id"], "--by", "ada")
    assert "queued again" in says(capsys, "jobs", "retry", job["id"])
    assert "cancelled" in says(capsys, "jobs", "cancel", job["id"])
    assert "is cancelled" in refused(capsys, "jobs", "retry", job["id"])
    assert "cancelled" in says(capsys, "jobs", "list")
    assert "there is no such job" in refused(capsys, "jobs", "show", "job-none")
    (report,) = tmp_path.rglob(f"reports/jobs/{job['id']}.html")
    assert "choice.epsilon" in report.read_text("utf-8")


def test_status_warns_of_too_little_exploration(capsys: Captured) -> None:
    log_tasks(20)
    assert "choice:model explored in the last 8 days: 20 decisions, 0% without exploration" in explored_says(capsys)
    for i in range(25):
        with api.task(f"question {i}") as task:
            task.decided("model", "large", policy="p", propensity=1.0, options=["small", "large"])
    said = explored_says(capsys)
    assert "warning: choice:model: decisions without exploration: 56% of 45 decisions have an entropy below" in said
    found = json_output(capsys, "loop", "status")["exploration"]["choice:model"]
    assert (found["count"], list(found["warnings"])) == (45, ["decisions without exploration"])


def explored_says(capsys: Captured) -> str:
    assert etude("loop", "run", "--once") == 0
    return says(capsys, "loop", "status")
