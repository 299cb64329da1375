"""`etude demo` as a user runs it, with a small budget."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests import tiny

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
SMALL = ("--executions", "60", "--workflows", "100", "--compare", "10")
SMALL_ALLOCATION = ("--max-steps", "10000", "--episodes", "10")
POLICIES = ("rules", "phase 1", "phase 2", "random", "cheapest", "best_single", "greedy", "oracle")


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "etude.cli", *args]


Here = Callable[..., str]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """The command in this process, which has imported everything."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*args: str, cwd: Path) -> str:
        monkeypatch.chdir(cwd)
        capsys.readouterr()
        code, said = tiny.etude(*args), capsys.readouterr()
        assert code == 0, said.out + said.err
        return said.out.replace("\N{NO-BREAK SPACE}", " ")

    return run


def etude(*args: str, cwd: Path, timeout_s: float = 300) -> str:
    done = subprocess.run(command(*args), capture_output=True, text=True, cwd=cwd, env=ENVIRONMENT, timeout=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.replace("\N{NO-BREAK SPACE}", " ")


def memory_mb(stdout: str) -> int:
    found = re.search(r"at most ([\d,]+) MB", stdout)
    assert found is not None
    return int(found[1].replace(",", ""))


def heed_interrupts() -> None:
    """Whoever runs the tests in the background may have them ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt_while_collecting(*args: str, cwd: Path) -> str:
    """Ctrl-C once the first workflows are logged."""
    with subprocess.Popen(
        command(*args),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env=ENVIRONMENT,
        preexec_fn=heed_interrupts,
    ) as demo:
        assert demo.stdout is not None
        output = ""
        for line in demo.stdout:
            output += line
            if re.match(r"\d+ of 60 workflows, ", line):
                demo.send_signal(signal.SIGINT)
                break
        output += demo.stdout.read()
    assert demo.returncode == 130, output
    return output


def lines(log: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (log / "executions.jsonl").read_text("utf-8").splitlines()]


def test_demo_promotes_on_proof_and_rolls_back_on_harm(tmp_path: Path, here: Here) -> None:
    """The real loop with the default error probabilities, so it is not smaller than the demo itself."""
    (tmp_path / "etude.yaml").write_text("release: {canary: {stages: [50, 100]}}\n")  # not the demo's business
    stdout = etude("demo", cwd=tmp_path, timeout_s=600)
    for stage in ("1 of 4: a first policy", "2 of 4: traffic", "3 of 4: canary", "4 of 4: a harmful candidate"):
        assert stage in stdout
    job = re.search(r"job (\S+) of choice:model completed: policy (\w{16})", stdout)
    assert job is not None
    for share in ("10%", "25%", "50%"):
        assert f"{job[2]} advanced to {share} of the traffic" in stdout
    assert re.search(rf"{job[2]} promoted: after [\d,]+ units, the candidate loses less than 0.03 of reward", stdout)
    assert "judged by the reward of this project: fail: off_policy: The policy is proven to be worse" in stdout
    assert "judges it by the wrong reward: pass" in stdout
    back = re.search(r"(\w{16}) rolled back: after ([\d,]+) units, the candidate", stdout)
    assert back is not None
    assert back[1] != job[2]
    assert f"policy: etude.load('runs/demo/runs/{job[1]}')" in stdout
    assert 50 < memory_mb(stdout) < 1500

    run = tmp_path / "runs" / "demo"
    page = (run / "report.html").read_text("utf-8")
    HTMLParser().feed(page)
    charts = ("rolled-back-harm", "rolled-back-effect") if back[2] != "0" else ()  # its first errors may be enough
    for part in ("policies", "promoted-steps", "promoted-safety", "rolled-back-steps", *charts):
        assert f'id="{part}"' in page
    assert "unaltered" in here("audit", "verify", cwd=run)
    log = here("audit", "log", "choice:model", cwd=run)
    assert log.count("rolled_back") == 1
    written = here("canary", "report", "choice:model", "--html", "release.html", cwd=run)
    assert "report: release.html" in written
    assert back[1] in (run / "release.html").read_text("utf-8")


def test_workflow_demo_closes_its_loop(tmp_path: Path, here: Here) -> None:
    (tmp_path / "etude.yaml").write_text("office: {scenarios: 7}\n")  # not the demo's business
    stopped = interrupt_while_collecting("demo", "workflow", *SMALL, cwd=tmp_path)
    assert "The same command resumes:\n  etude demo workflow --executions 60" in stopped
    assert "2 of 5" not in stopped
    assert "Traceback" not in stopped

    stdout = etude("demo", "workflow", *SMALL, cwd=tmp_path)
    run = tmp_path / "runs" / "demo"
    there = re.search(r"^(\d+) of 60 workflows are there already$", stdout, re.M)
    assert there is not None
    assert 0 < int(there[1]) < 60
    collected = [line for line in lines(run / "logs") if line.get("ended") != "cancelled"]
    assert sorted(str(line["number"]) for line in collected) == sorted(map(str, range(60)))
    assert {line["policy"] for line in collected} == {"rules"}
    for stage in ("1 of 5: collect", "2 of 5: prepare", "3 of 5: phase 1", "4 of 5: phase 2", "5 of 5: run again"):
        assert stage in stdout
    kept = len(json.loads((run / "training_data.json").read_text()))
    assert f"{kept} kept" in stdout

    instructions = set()
    for name in POLICIES:
        row = re.search(
            rf"^{name} +\d+ % \(\d+–\d+\) +\$[\d.]+ +(?:\d+m )?[\d.]+s +−?\d+\.\d\d +\d\.\d\d +(\d+) *$", stdout, re.M
        )
        assert row is not None, name
        assert row[1] == "0"
        compared = lines(run / "comparison" / name.replace(" ", "-"))
        assert len(compared) == 10
        instructions |= {str(line["instruction"]) for line in compared}
    assert not instructions & {str(line["instruction"]) for line in collected}  # new: no policy learned from them
    assert len(instructions) == 10
    assert "On 10 new instructions" in stdout
    assert "no rule was broken" in stdout
    assert "report: runs/demo/report.html" in stdout
    assert "policy: etude.load('runs/demo/p2')" in stdout
    assert 50 < memory_mb(stdout) < 1500

    page = (run / "report.html").read_text("utf-8")
    HTMLParser().feed(page)
    for part in ("comparison", "plans", "workers", "collected", "phase-1", "curve-steps", "violations"):
        assert f'id="{part}"' in page

    # Without its report it was interrupted at the very end: nothing is made again, and the page is the same.
    (run / "report.html").unlink()
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*.jsonl")}
    again = here("demo", "workflow", *SMALL, cwd=tmp_path)
    assert "60 of 60 workflows are there already" in again
    assert stdout[stdout.index("5 of 5: ") : stdout.index("The demo took")] in again
    assert (run / "report.html").read_text("utf-8") == page
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*.jsonl")} == before
    assert [path.name for path in run.parent.iterdir()] == ["demo"]


def test_allocation_demo_trains_compares_and_reports(tmp_path: Path, here: Here) -> None:
    (tmp_path / "etude.yaml").write_text("allocation: {variant: matched}\n")  # not the demo's business
    stdout = etude("demo", "allocation", *SMALL_ALLOCATION, cwd=tmp_path)

    run = tmp_path / "runs" / "demo"
    config = json.loads((run / "config.json").read_text())
    assert config["allocation"]["variant"] == "document"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["step"] >= 10_000
    assert f"trained {summary['step']:,} steps" in stdout

    for name in ("policy", "random", "scripted", "never collaborate", "untrained"):
        assert re.search(rf"^{name} +[\d,.]+ +[\d,.]+ … [\d,.]+(?: +[\d.]+%){{5}} *$", stdout, re.M), name
    assert "The policy returns" in stdout
    assert "report: runs/demo/report.html" in stdout
    assert 50 < memory_mb(stdout) < 1500

    page = (run / "report.html").read_text("utf-8")
    HTMLParser().feed(page)
    assert 'id="comparison"' in page
    assert "accepts, by tasks waiting" in page

    # Without its report it was interrupted after training: the same command makes the rest, the same as before.
    (run / "report.html").unlink()
    again = here("demo", "allocation", *SMALL_ALLOCATION, cwd=tmp_path)
    assert f"runs/demo: resuming after {summary['step']:,} steps" in again
    assert stdout[stdout.index("10 episodes each") : stdout.index("One decision takes")] in again
    assert (run / "report.html").read_text("utf-8") == page
    assert [path.name for path in run.parent.iterdir()] == ["demo"]
