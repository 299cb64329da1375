"""Kill a real training process at any moment, start it again until it ends: as if nothing had happened.

SIGKILL leaves a process no time for anything, so whatever the folder holds at that instant must do.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from etude.learning.artefact import Artefact
from etude.learning.checkpoint import checkpoints, read_checkpoint, under
from etude.learning.run_folder import RunFolder, find_policy
from tests.office import go_on, imitate
from tests.tiny import etude, train_command

CLOCK = {"wall_s", "steps_per_s", "collect_share"}
"""What differs from run to run however it was carried out."""

# A checkpoint every second update, of a network whose writing takes long enough to be killed in the middle of it.
COMMON = {
    "network__hidden": "[256, 256]",
    "run__max_steps": "4000",
    "run__eval_every": "480",
    "run__checkpoint_every": "320",
    "run__keep_checkpoints": "2",
}
EVERYTHING = COMMON | {
    "network__dropout": "0.1",
    "network__norm": "batch",
    "ppo__curiosity_coef": "0.1",
    "ppo__kl_coef": "0.2",
    "ppo__priority_alpha": "0.6",
    "ppo__target_kl": "0.05",
}


@contextmanager
def training(out: Path, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    whole = [sys.executable, "-m", "etude.cli", *command]
    with subprocess.Popen(
        whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=out.parent
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def train(out: Path, command: list[str]) -> str:
    with training(out, command) as process:
        stdout = process.communicate(timeout=240)[0]
    assert process.returncode == 0, stdout
    return stdout


def kill(out: Path, command: list[str], when: Callable[[], bool], *, after_s: float = 0.0) -> None:
    """Start or resume, and end it without warning `after_s` after `when` becomes true."""
    with training(out, command) as process:
        deadline = time.monotonic() + 120
        while not when():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.0002)
        time.sleep(after_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL


def drafts(out: Path) -> list[Path]:
    return [*out.glob("checkpoints/.*.draft"), *out.glob("best/.*.draft")]


def kill_while_it_writes_a_checkpoint(out: Path, command: list[str]) -> None:
    """A draft seen may be finished when the signal arrives: try until one stays behind."""
    for _ in range(5):
        old = set(drafts(out))
        kill(out, command, lambda seen=old: bool(set(drafts(out)) - seen))  # type: ignore[misc]
        if drafts(out):
            return
    raise AssertionError("no checkpoint was caught half written")


def kill_at_a_random_moment(out: Path, command: list[str], chance: random.Random) -> None:
    """Some updates further than it ever was, and a moment later."""
    lines = count_lines(out) + chance.randint(1, 4)
    kill(out, command, lambda: count_lines(out) >= lines, after_s=chance.uniform(0, 0.05))


def count_lines(out: Path) -> int:
    metrics = out / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def final_state(out: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    tensors, manifest = read_checkpoint(checkpoints(out / "checkpoints")[-1])
    return tensors, {name: value for name, value in manifest.items() if name not in ("wall_s", "sha256")}


def without_clock(out: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in CLOCK} for row in RunFolder(out).read_metrics()]


@pytest.mark.parametrize("settings", [COMMON, EVERYTHING], ids=["default", "everything"])
def test_a_run_killed_again_and_again_ends_like_one_never_interrupted(settings: dict[str, str], tmp_path: Path) -> None:
    whole, killed, chance = tmp_path / "whole", tmp_path / "killed", random.Random(str(settings))
    assert etude(*train_command(whole, "--quiet", **settings)) == 0

    command = train_command(killed, **settings)
    if settings is COMMON:
        kill(killed, command, killed.exists)  # before it knows what to write there
    kill_at_a_random_moment(killed, command, chance)
    kill_while_it_writes_a_checkpoint(killed, command)
    kill_at_a_random_moment(killed, command, chance)
    assert RunFolder(killed).summary() is None
    assert "resuming after" in train(killed, command)
    assert_same(killed, whole)


def test_phase_2_of_a_planner_killed_ends_like_one_never_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, whole, killed = (tmp_path / name for name in ("first", "whole", "killed"))
    assert etude(*imitate(first, "--quiet")) == 0
    assert etude(*go_on(first, whole, "--quiet")) == 0
    command = [str(part) for part in go_on(first, killed)]
    kill(killed, command, lambda: count_lines(killed) >= 3)  # evaluated, and a checkpoint written with the first update
    assert RunFolder(killed).summary() is None
    assert etude(*command) == 0
    assert "resuming after" in capsys.readouterr().out
    assert_same(killed, whole)
    reference, began = under("learner.ppo.reference.", final_state(killed)[0]), RunFolder(first).policy()
    weights = under("policy.", began.tensors())
    assert reference.keys() == weights.keys()
    assert [name for name, value in reference.items() if not torch.equal(value, weights[name])] == []
    assert RunFolder(killed).policy().manifest.parent == Artefact(killed / "start").version == began.version
    assert (killed / "plans.json").read_bytes() == (whole / "plans.json").read_bytes()


def assert_same(killed: Path, whole: Path) -> None:
    (tensors, manifest), (expected, wanted) = final_state(killed), final_state(whole)
    assert tensors.keys() == expected.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], expected[name])] == []
    assert manifest == wanted
    assert RunFolder(killed).policy().version == RunFolder(whole).policy().version
    assert find_policy(killed / "checkpoints").version == find_policy(whole / "checkpoints").version
    assert without_clock(killed) == without_clock(whole)
    ended, wanted_end = RunFolder(killed).summary(), RunFolder(whole).summary()
    assert ended is not None
    assert wanted_end is not None
    assert ended | {"wall_s": 0} == wanted_end | {"wall_s": 0}
    assert [path.name for path in checkpoints(killed / "checkpoints")] == [
        path.name for path in checkpoints(whole / "checkpoints")
    ]
