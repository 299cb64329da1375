"""The folder of one run: what is in it, under which names, and whether a run may continue in it.

config.json      every setting the run was made with     metrics.jsonl   one line an update
checkpoints/     the newest few, to resume from          best/           the best policy by evaluation
summary.json     how it ended                            report.html     the same for people
plans.json       of a planner: plans to be looked at     scenarios.json  what it practised on, if plans of a user
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.contracts.errors import CheckpointError, RunError
from etude.learning.checkpoint import checkpoints, read_checkpoint, write_json
from etude.learning.tracking import read_metrics

if TYPE_CHECKING:  # torch takes seconds to import, and listing runs needs none of it
    from torch import Tensor

MAY_CHANGE = {"run.max_steps", "run.target_return", "run.plateau_patience", "run.decline_patience", "run.trackers"}
"""Settings a resumed run may have otherwise than before; any other would make it another run."""


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        return self.path / "best"

    @property
    def start(self) -> Path:
        """What a run began with that another had learned."""
        return self.path / "start"

    @property
    def plans(self) -> Path:
        return self.path / "plans.json"

    @property
    def scenarios(self) -> Path:
        """The instructions and plans, in a training file's format, that a planner's world was made of."""
        return self.path / "scenarios.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training here; the lock goes with the process, however that ends."""
        existed = self.path.exists()
        self._make()
        handle = os.open(self.path, os.O_RDONLY)
        try:
            if not _lock(handle):
                raise RunError(
                    f"another process is training in {self.path}: wait for its end, or choose another folder with --out"
                )
            yield
        finally:
            os.close(handle)
            if not existed and not any(self.path.iterdir()):
                self.path.rmdir()

    def in_use(self) -> bool:
        """Whether a process is training here now."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            return not _lock(handle)
        finally:
            os.close(handle)

    def open(self, settings: Mapping[str, Any]) -> None:
        """Make the folder for these settings, or check that it was made with the same."""
        file = self.path / "config.json"
        if not file.exists():
            self._make()
            # A hidden file is a draft: the process was killed while it wrote the first config.json.
            if any(not path.name.startswith(".") for path in self.path.iterdir()):
                raise RunError(f"{self.path} is not empty and holds no run: choose another folder with --out")
        else:
            before, now = dict(leaves(self.config())), dict(leaves(settings))
            changed = [key for key in before | now if before.get(key) != now.get(key) and key not in MAY_CHANGE]
            if changed:
                differences = ", ".join(f"{key} {before.get(key)!r} → {now.get(key)!r}" for key in sorted(changed))
                raise RunError(
                    f"{self.path} holds a run with other settings ({differences}): "
                    "choose another folder with --out, or repeat the settings to resume it"
                )
        write_json(file, settings)
        self.checkpoints.mkdir(exist_ok=True)

    def config(self) -> dict[str, Any]:
        return self._read("config.json")

    def summary(self) -> dict[str, Any] | None:
        """How the run ended; None while it has not."""
        return self._read("summary.json") if (self.path / "summary.json").exists() else None

    def finish(self, summary: Mapping[str, Any]) -> None:
        write_json(self.path / "summary.json", summary)

    def reopen(self) -> None:
        (self.path / "summary.json").unlink(missing_ok=True)

    def read_metrics(self) -> list[dict[str, Any]]:
        """One record an update; none before the first."""
        return read_metrics(self.metrics) if self.metrics.exists() else []

    def latest(self, problem: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest checkpoint, or None when there is none yet."""
        saved = checkpoints(self.checkpoints)
        return read_checkpoint(saved[-1], problem=problem) if saved else None

    def best_policy(self, problem: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights and manifest of the best policy so far."""
        self.config()
        saved = checkpoints(self.best)
        if not saved:
            raise CheckpointError(f"{self.path} has no evaluated policy yet: let it train up to its first evaluation")
        return read_checkpoint(saved[-1], problem=problem)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise RunError(f"{self.path} is a file or lies in one: choose another folder with --out") from error

    def _read(self, name: str) -> dict[str, Any]:
        file = self.path / name
        try:
            value: Any = json.loads(file.read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RunError(f"{self.path} is not a run: {name} is missing; `etude runs list` shows the runs") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{file}: not valid JSON ({error}); restore it or train anew in another folder") from error
        if not isinstance(value, dict):
            raise RunError(f"{file}: holds {value!r}, expected an object; restore it or train anew in another folder")
        return value


def find_runs(root: Path) -> list[RunFolder]:
    """Every run below `root`, newest last."""
    files = sorted(root.rglob("config.json"), key=lambda file: file.stat().st_mtime)
    return [RunFolder(file.parent) for file in files if (file.parent / "checkpoints").is_dir()]


def _lock(handle: int) -> bool:
    """False when another process holds it; given back when the handle is closed."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings as dotted keys and values."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
