"""A problem of another package, installed: the same commands train, evaluate, log, learn from logs and report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_problem"
SMALL = ("--set", "run.max_steps=20000", "--set", "run.eval_every=8000", "--set", "run.eval_episodes=200")
AGENT = """
import random
import etude

SKILL = {"password": (0.9, 0.9, 0.95), "billing": (0.3, 0.8, 0.9), "outage": (0.05, 0.4, 0.9)}
rng = random.Random(0)
for number in range(600):
    kind, tried, solved = rng.choice(list(SKILL)), [], False
    with etude.task(f"ticket about {kind}", user="u1") as task:
        while not solved and len(tried) < 3:
            who = task.decide("helpdesk", {"kind": kind, "tried": tried}).action
            tried = [*tried, who]
            solved = rng.random() < SKILL[kind][("bot", "expert", "person").index(who)]
        task.outcome(success=solved and len(tried) == 1, cost_usd=0.1 * len(tried))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to work in, with the package installed next to it."""
    root = tmp_path_factory.mktemp("own_problem")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", root / "packages", EXAMPLE], check=True, capture_output=True, timeout=240)
    (root / "work").mkdir()
    return root / "work"


def run(place: Path, *command: str | Path, script: str = "") -> str:
    call = [sys.executable, "-c", script] if script else [sys.executable, "-m", "etude.cli", *command]
    path = os.pathsep.join([str(place.parent / "packages"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        call, cwd=place, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def trained(place: Path) -> str:
    run(place, "train", "helpdesk", "--out", "runs/first", "--difficulty", "0.1", *SMALL)
    return "runs/first"


def test_it_trains_and_is_compared_with_its_baselines(place: Path, trained: str) -> None:
    found = json.loads(run(place, "evaluate", trained, "--episodes", "500", "--json"))
    assert found["policy"]["mean_return"] > found["baselines"]["random"]["mean_return"]
    assert found["policy"]["solved"] > 0.8
    assert "runs/first" in run(place, "runs", "list")
    assert "helpdesk.difficulty" in run(place, "runs", "show", trained)


def test_it_has_a_report(place: Path, trained: str) -> None:
    page = Path(run(place, "runs", "plot", trained, "--episodes", "100").strip())
    assert "cheapest first" in (place / page).read_text()


def test_it_decides_logs_and_learns_from_its_logs(place: Path, trained: str) -> None:
    (place / "etude.yaml").write_text(f"experience:\n  policies: {{helpdesk: {trained}}}\n  explore: 1\n")
    run(place, script=AGENT)
    stats = json.loads(run(place, "experience", "stats", "--json"))
    assert "helpdesk" in json.dumps(stats)
    run(place, "dataset", "create", "--problem", "helpdesk", "--out", "datasets/tickets")
    learned = json.loads(
        run(place, "train", "helpdesk", "--dataset", "datasets/tickets", "--out", "runs/second", "--json")
    )
    assert learned["stopped"] in ("budget", "plateau", "overlap", "distance")
    judged = json.loads(run(place, "evaluate", "runs/second", "--dataset", "datasets/tickets", "--json"))
    assert judged["answer"] in ("better", "worse", "not distinguishable", "cannot tell")
