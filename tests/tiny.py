"""A run small enough for a test: settings, and the command line in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etude.cli import main

SETTINGS = {
    "allocation.horizon": "20",
    "network.hidden": "[16]",
    "ppo.envs": "16",
    "ppo.steps": "10",
    "ppo.minibatch": "80",
    "ppo.epochs": "2",
    "run.max_steps": "960",
    "run.eval_every": "320",
    "run.eval_episodes": "8",
    "run.checkpoint_every": "320",
    "run.device": "cpu",
}
"""Updates of 160 steps, the first of 320; evaluations and checkpoints at 320, 640 and 960."""


def train_command(out: Path, *more: str, **changed: str) -> list[str]:
    """Arguments of `etude`; `changed` has keys such as `ppo__lr`."""
    settings = SETTINGS | {key.replace("__", "."): value for key, value in changed.items()}
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return ["train", "allocation", "--out", str(out), *flags, *more]


def etude(*args: str | Path) -> int:
    """Run a command here; returns its exit code."""
    with pytest.raises(SystemExit) as left:
        main([str(arg) for arg in args])
    code = left.value.code
    return code if isinstance(code, int) else 0 if code is None else 1


def json_output(capsys: pytest.CaptureFixture[str], *args: str | Path) -> Any:
    """What a command that succeeds says with --json."""
    capsys.readouterr()
    assert etude(*args, "--json") == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *args: str | Path) -> str:
    """What a command says that leaves with 2, and says nothing else."""
    capsys.readouterr()
    assert etude(*args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "unexpected" not in captured.err
    return captured.err
