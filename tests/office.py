"""The simulated office small enough for a test: its settings, the commands of both phases, and a run of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny import etude

SETTINGS = {
    "office.scenarios": "60",
    "office.held_out": "20",
    "planner.encoder": "ngrams",
    "planner.width": "16",
    "planner.layers": "1",
    "planner.heads": "2",
    "run.device": "cpu",
    "run.threads": "1",
}
PHASE_1 = {"num_epochs": "1", "final_epochs": "1", "learning_rate": "1e-3"}
PHASE_2 = {
    "envs": "8",
    "steps": "16",
    "minibatch": "64",
    "eval_every": "256",
    "eval_episodes": "8",
    "learning_rate": "1e-2",
}
"""Updates of 128 decisions, the first of 256, with some fifteen workflows; evaluations at 256, 512, …"""


def imitate(out: Path, *more: str | Path, **changed: str) -> list[str | Path]:
    """Arguments of `etude` for phase 1 in the office; `changed` has keys such as `office__scenarios`."""
    return [*_command(1, out, "phase1_supervised", PHASE_1, changed), *more]


def go_on(checkpoint: Path, out: Path, *more: str | Path, episodes: int = 100, **changed: str) -> list[str | Path]:
    """For phase 2 from another run."""
    changed = {"run__checkpoint_every": "256"} | changed
    given = ["--checkpoint", checkpoint, "--episodes", str(episodes)]
    return [*_command(2, out, "phase2_rl", PHASE_2, changed), *given, *more]


def _command(phase: int, out: Path, section: str, own: dict[str, str], changed: dict[str, str]) -> list[str | Path]:
    settings = SETTINGS | {f"training.{section}.{key}": value for key, value in own.items()}
    settings |= {key.replace("__", "."): value for key, value in changed.items()}
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return ["train", "workflow", "--phase", str(phase), "--out", out, *flags]


def first_phase(factory: pytest.TempPathFactory) -> Path:
    """One finished run for all tests that only read it."""
    return _once(factory, "phase-1", lambda out: imitate(out, "--quiet"))


def second_phase(factory: pytest.TempPathFactory) -> Path:
    return _once(factory, "phase-2", lambda out: go_on(first_phase(factory), out, "--quiet"))


def _once(factory: pytest.TempPathFactory, name: str, command: Callable[[Path], list[str | Path]]) -> Path:
    out = factory.getbasetemp() / "office" / name
    if not (out / "summary.json").exists():
        assert etude(*command(out)) == 0
    return out
