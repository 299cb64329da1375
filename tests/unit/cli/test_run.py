"""`etude run` and `etude collect`: on simulated workers, on real ones, with what is wrong told before anything runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from etude.orchestrator.log import read_log
from etude.orchestrator.record import Execution
from tests.office import second_phase
from tests.tiny import etude, refused, told_json

Captured = pytest.CaptureFixture[str]
ASKED = "Summarise the report and count its words"
WORKERS = """
task_types:
  summarise: {description: Summarise a report, verify: {regex: short}}
  count: Count the words of a text
workers:
  writer: {kind: command, task_types: [summarise], command: [echo, short]}
  counter: {kind: command, task_types: [count], command: [sh, -c, 'printf %s "$1" | wc -w', wc, "{input}"]}
"""


@pytest.fixture
def workers(tmp_path: Path) -> Path:
    file = tmp_path / "workers.yaml"
    file.write_text(WORKERS)
    return file


def executions(folder: Path) -> list[Execution]:
    return [found for found in read_log(folder) if isinstance(found, Execution)]


def test_real_commands_do_what_is_asked_and_are_logged(workers: Path, tmp_path: Path, capsys: Captured) -> None:
    svg = tmp_path / "plan.svg"
    assert etude("run", "rules", ASKED, "--workers", workers, "--log", tmp_path / "log", "--svg", svg) == 0
    told = capsys.readouterr().out
    assert "● summarise writer" in told
    assert "● count counter" in told
    assert "\ndone in " in told
    assert "<svg" in svg.read_text()
    (kept,) = executions(tmp_path / "log")
    assert (kept.success, kept.instruction, kept.ended, kept.violations) == (True, ASKED, "done", ())
    assert {node.status for node in kept.nodes} == {"done"}


def test_json_is_the_line_of_the_log(workers: Path, tmp_path: Path, capsys: Captured) -> None:
    told = told_json(capsys, "run", "rules", ASKED, "--workers", workers, "--log", tmp_path / "log")
    (line,) = (tmp_path / "log" / "executions.jsonl").read_text().splitlines()
    assert told == json.loads(line)
    assert told["planner_outputs"]["task_types"]


def test_what_does_not_succeed_leaves_with_3(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(WORKERS.replace("[echo, short]", "['false']"))
    assert etude("run", "rules", ASKED, "--workers", file) == 3
    told = capsys.readouterr().out
    assert "unknown:" in told
    assert "→ retry" in told
    assert "→ skip" in told
    assert "not done: summarise was skipped" in told


def test_an_instruction_on_stdin(workers: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ASKED.encode())))
    assert etude("run", "rules", "-", "--workers", workers) == 0
    assert ASKED in capsys.readouterr().out


def test_a_trained_planner_runs_in_the_office(tmp_path_factory: pytest.TempPathFactory, capsys: Captured) -> None:
    run = second_phase(tmp_path_factory)
    assert etude("run", run, "Summarise the report and mail it to the team", "--json") in (0, 3)
    told = json.loads(capsys.readouterr().out)
    assert told["policy"].startswith(f"{run.name}@")
    assert all(0 < decision["propensity"] <= 1 for decision in told["decisions"])
    assert "violations" not in told


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (("kind: command", "kind: comand"), "did you mean 'command'?"),
        (("[echo, short]", "[no-such-program-anywhere]"), "no-such-program-anywhere"),
        (('"{input}"', '"{inptu}"'), "did you mean"),
        (("regex: short", "regex: '('"), "regex"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_line(
    tmp_path: Path, capsys: Captured, broken: tuple[str, str], said: str
) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(WORKERS.replace(*broken))
    line = 1 + file.read_text()[: file.read_text().index(broken[1])].count("\n")
    told = refused(capsys, "run", "rules", ASKED, "--workers", file, "--log", tmp_path / "log")
    assert f"{file}:{line}: " in told
    assert said in told
    assert not (tmp_path / "log" / "executions.jsonl").exists() or not executions(tmp_path / "log")


def test_a_policy_that_is_not_there(workers: Path, capsys: Captured) -> None:
    told = refused(capsys, "run", "runs/nowhere", ASKED, "--workers", workers)
    assert "runs/nowhere" in told


# collect


def test_collecting_in_the_office_goes_on_where_it_stopped(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "logs"
    assert etude("collect", "--num-executions", "12", "--out", out) == 0
    told = capsys.readouterr().out
    assert "carrying out 12 workflows, decided by rules, on simulated workers" in told
    assert "success" in told
    assert f"next: etude prepare --logs {out}" in told
    assert etude("collect", "--num-executions", "20", "--out", out) == 0
    assert "going on after 12 of 20 workflows" in capsys.readouterr().out
    kept = executions(out)
    assert sorted(e.number or 0 for e in kept) == list(range(20))
    assert len({e.instruction for e in kept}) == 20
    assert not any(e.violations for e in kept)


def test_exploring_leaves_decisions_to_chance_with_their_propensity(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "logs"
    told = told_json(capsys, "collect", "--num-executions", "15", "--out", out, "--explore", "0.5")
    assert told["count"] == 15
    chances = [d.propensity for e in executions(out) for d in e.decisions]
    assert {e.policy for e in executions(out)} == {"rules+0.5"}
    assert all(chance is not None and 0 < chance <= 1 for chance in chances)
    assert len({chance for chance in chances if chance != 1.0}) > 10


def test_real_workers_collect_what_a_file_asks(workers: Path, tmp_path: Path, capsys: Captured) -> None:
    asked = tmp_path / "asked.txt"
    asked.write_text(f"{ASKED}\nCount the words\n")
    out = tmp_path / "logs"
    given = ("--workers", workers, "--instructions", asked, "--out", out, "--concurrency", "2")
    assert told_json(capsys, "collect", "--num-executions", "3", *given)["success"]["mean"] == 1.0
    assert sorted(e.instruction for e in executions(out)) == ["Count the words", ASKED, ASKED]


def test_ctrl_c_leaves_a_complete_log_and_says_how_to_go_on(tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(WORKERS.replace("[echo, short]", "[sh, -c, 'touch begun; sleep 60']"))
    command = [sys.executable, "-m", "etude.cli", "collect", "--num-executions", "3", "--workers", str(file)]
    started = subprocess.Popen(
        [*command, "--out", "logs"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # it may be ignored where tests run
    )
    assert started.stdout is not None
    assert "carrying out 3 workflows" in started.stdout.readline()
    while not (tmp_path / "begun").exists():  # its workers are asleep then
        assert started.poll() is None
    started.send_signal(signal.SIGINT)
    told, _ = started.communicate(timeout=30)
    assert started.returncode == 130
    assert "The same command goes on" in told
    assert "etude collect --num-executions 3" in told
    kept = executions(tmp_path / "logs")
    assert kept
    assert {e.ended for e in kept} == {"cancelled"}
