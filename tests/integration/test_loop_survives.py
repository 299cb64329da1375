"""The whole loop in real processes, killed at random: one job, one policy that serves, and every trajectory once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

KILLS = 8
ROOT = Path(__file__).parents[2]


def test_kills_at_random_change_nothing(tmp_path: Path) -> None:
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.loop_week", str(tmp_path / "week"), str(KILLS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    week = json.loads(done.stdout.splitlines()[-1])
    assert week["violations"] == []
    assert week["ended_by_themselves"] == {}
    assert week["kills"] == KILLS
    stored = week["trajectories"]
    assert {name: stored[name] for name in ("lost", "unknown", "stored_twice", "altered", "unrewarded")} == {
        "lost": 0,
        "unknown": 0,
        "stored_twice": 0,
        "altered": 0,
        "unrewarded": 0,
    }
    assert stored["not_serving"] == 0
    end = week["end"]["choice:model"]
    assert (len(end["jobs"]), end["registered"], end["exposed"]) == (1, 1, False)
    # What the server explored is random, and the gates may be unable to judge a policy by so little.
    passed = (["threshold", "completed", "started"], ["registered", "promoted"], 1)
    undecided = (["threshold", "completed", "undecided"], ["registered"], None)
    assert (end["jobs"][0], end["policies"][0], end["serves"]) in (passed, undecided)
