"""The folder of one run: its files, and whether a run may continue in it.

config.json      facts about the run and all its settings           metrics.jsonl   one line per update
checkpoints/     the newest few, to resume from                     best/           the best policy, an artefact
start/           the policy it continues from, an artefact          summary.json    how it ended
report.html      the run for people                                 others          what its problem keeps
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.contracts.errors import CheckpointError, RunError
from etude.files.durable import write_json
from etude.learning.artefact import Artefact
from etude.learning.checkpoint import MANIFEST, checkpoints, read_checkpoint
from etude.learning.tracking import read_metrics

if TYPE_CHECKING:  # torch takes seconds to import, and listing runs needs none of it
    from torch import Tensor

CONFIG = "config.json"
POLICY = "policy"
"""The folder in a checkpoint that holds its policy as an artefact."""
MAY_CHANGE = {
    "budget",
    "run.max_steps",
    "run.target_return",
    "run.target_completion_rate",
    "run.plateau_patience",
    "run.decline_patience",
    "run.trackers",
}
"""Settings that may change when a run is resumed; any other change makes it another run."""


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path, self.metrics, self.report = path, path / "metrics.jsonl", path / "report.html"
        self.checkpoints, self.best, self.start = path / "checkpoints", path / "best", path / "start"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training here; the lock ends with the process."""
        existed = self.path.exists()
        self._make()
        handle = os.open(self.path, os.O_RDONLY)
        try:
            if not _lock(handle):
                raise RunError(
                    f"another process is training in {self.path}: wait for its end, or choose another folder"
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

    def open(self, settings: Mapping[str, Any]) -> bool:
        """Create the folder for these settings, or check that it has the same settings; return whether it is new."""
        file = self.path / CONFIG
        is_new = not file.exists()
        if is_new:
            self._make()
            # A hidden file is a draft: the process was killed while it wrote the first config.json.
            if any(not path.name.startswith(".") for path in self.path.iterdir()):
                raise RunError(f"{self.path} is not empty and holds no run: choose another folder")
        else:
            before, now = dict(leaves(self.config())), dict(leaves(settings))
            changed = [key for key in before | now if before.get(key) != now.get(key) and key not in MAY_CHANGE]
            if changed:
                differences = ", ".join(f"{key} {before.get(key)!r} → {now.get(key)!r}" for key in sorted(changed))
                raise RunError(
                    f"{self.path} holds a run with other settings ({differences}): "
                    "choose another folder, or repeat the settings to resume it"
                )
        write_json(file, settings)
        self.checkpoints.mkdir(exist_ok=True)
        return is_new

    def clear(self) -> None:
        """Remove everything in it, so that another run may begin here."""
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def config(self) -> dict[str, Any]:
        config = self._read(CONFIG)
        if "method" not in config:
            raise RunError(
                f"{self.path} is a run of an earlier version of Etude, which this one does not read: train it again in "
                "another folder, or use that version"
            )
        return config

    def summary(self) -> dict[str, Any] | None:
        """How the run ended; None before its end."""
        return self._read("summary.json") if (self.path / "summary.json").exists() else None

    def finish(self, summary: Mapping[str, Any]) -> None:
        write_json(self.path / "summary.json", summary)

    def reopen(self) -> None:
        (self.path / "summary.json").unlink(missing_ok=True)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The metrics, one record per update."""
        return read_metrics(self.metrics) if self.metrics.exists() else []

    def latest(self, problem: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The newest checkpoint, or None when there is none yet."""
        saved = checkpoints(self.checkpoints)
        return read_checkpoint(saved[-1], problem=problem) if saved else None

    def policy(self) -> Artefact:
        """The best policy so far."""
        self.config()
        kept = checkpoints(self.best)
        if not kept:
            raise CheckpointError(
                f"{self.path} has no policy: let it train up to its first evaluation; if best/ was deleted, the "
                "command that trained it makes it again from its newest checkpoint"
            )
        return Artefact(kept[-1])

    def keep_start(self, policy: Artefact) -> None:
        """Copy the policy that the run continues from; the copy appears by one rename."""
        if not self.start.exists():
            draft = self.path / ".start.draft"
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(policy.path, draft)
            draft.rename(self.start)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise RunError(f"{self.path} is a file or lies in one: choose another folder") from error

    def _read(self, name: str) -> dict[str, Any]:
        file = self.path / name
        try:
            value: Any = json.loads(file.read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RunError(f"{self.path} is not a run: {name} is missing; `etude runs list` shows the runs") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{file}: not valid JSON ({error}); restore it or train again in another folder") from error
        if not isinstance(value, dict):
            raise RunError(f"{file}: holds {value!r}, expected an object; restore it or train again in another folder")
        return value


def find_runs(root: Path) -> list[RunFolder]:
    """Every run below `root`, newest last."""
    files = sorted(root.rglob("config.json"), key=lambda file: file.stat().st_mtime)
    return [RunFolder(file.parent) for file in files if (file.parent / "checkpoints").is_dir()]


def _lock(handle: int) -> bool:
    """Take the lock; False if another process holds it. Closing the handle releases it."""
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


def find_root(path: Path) -> Path:
    """The run folder that `path` is or is inside of."""
    if not path.exists():
        raise RunError(f"{path} does not exist: `etude runs list` shows the runs")
    for folder in (path, *path.absolute().parents[:2]):
        if (folder / CONFIG).is_file():
            return folder
    raise RunError(f"{path} is not a run: {CONFIG} is missing; `etude runs list` shows the runs")


def find_policy(path: Path) -> Artefact:
    """The policy at `path`: the best one of a run, that of a checkpoint, or an artefact in any folder."""
    if (path / CONFIG).is_file():
        return RunFolder(path).policy()
    kept = checkpoints(path)
    for folder in [kept[-1]] if kept else [path]:
        for candidate in (folder / POLICY, folder):
            if (candidate / MANIFEST).is_file():
                return Artefact(candidate)
    root = find_root(path)
    raise CheckpointError(f"{path} holds no policy: give the run folder {root}, or a step-… folder in it")
