"""`etude demo` as a user runs it, with a small budget."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
SMALL = ("--max-steps", "10000", "--episodes", "10")


def etude(*args: str, cwd: Path) -> str:
    command = [sys.executable, "-m", "etude.cli", *args]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=ENVIRONMENT, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.replace("\N{NO-BREAK SPACE}", " ")


def test_demo_trains_compares_and_reports(tmp_path: Path) -> None:
    (tmp_path / "etude.yaml").write_text("allocation: {variant: matched}\n")  # not the demo's business
    told = etude("demo", *SMALL, cwd=tmp_path)

    run = tmp_path / "runs" / "demo"
    config = json.loads((run / "config.json").read_text())
    assert config["allocation"]["variant"] == "document"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["step"] >= 10_000
    assert f"trained {summary['step']:,} steps" in told

    for name in ("policy", "random", "scripted", "never collaborate", "untrained"):
        assert re.search(rf"^{name} +−?[\d,]+ ± +\d+(?: +\d+ %){{4}} *$", told, re.M), name
    assert "The policy returns" in told
    assert "report: runs/demo/report.html" in told
    memory = re.search(r"at most ([\d,]+) MB", told)
    assert memory is not None
    assert 50 < int(memory[1].replace(",", "")) < 1500

    page = (run / "report.html").read_text("utf-8")
    HTMLParser().feed(page)
    assert 'id="comparison"' in page
    assert "accepts, by tasks waiting" in page

    # Without its report it was interrupted after training: the same command makes the rest, the same as before.
    (run / "report.html").unlink()
    again = etude("demo", *SMALL, cwd=tmp_path)
    assert f"runs/demo: going on from step {summary['step']:,}" in again
    assert told[told.index("10 episodes each") : told.index("report:")] in again
    assert (run / "report.html").read_text("utf-8") == page
    assert [path.name for path in run.parent.iterdir()] == ["demo"]
