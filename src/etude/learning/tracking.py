"""Trackers of a run's metrics: always a JSONL file; TensorBoard, Weights & Biases and MLflow on request.

A run resumed from the checkpoint of step N opens its trackers with `resume_step=N` and logs the steps after N again;
without a checkpoint N is −1.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal, Protocol

from etude.contracts.errors import MissingExtraError, RunError
from etude.files.durable import SHARED, replace_file

Metrics = Mapping[str, float]
TrackerName = Literal["tensorboard", "wandb", "mlflow"]

METRICS_FILE = "metrics.jsonl"
PROJECT = "etude"  # the project in W&B and the experiment in MLflow


class Tracker(Protocol):
    def log(self, step: int, metrics: Metrics) -> None:
        """Record the metrics of a step. Each step is logged once, in increasing order."""

    def close(self) -> None:
        """Write everything that is buffered, and end the tracker's run."""


def make_trackers(run_folder: Path, names: Sequence[TrackerName] = (), resume_step: int = -1) -> list[Tracker]:
    """The JSONL tracker, then those named."""
    trackers: list[Tracker] = []
    try:
        trackers.append(JsonlTracker(run_folder / METRICS_FILE, resume_step=resume_step))
        for name in dict.fromkeys(names):
            trackers.append(TRACKERS[name](run_folder, resume_step))
    except BaseException:
        for tracker in trackers:
            tracker.close()
        raise
    return trackers


def check_installed(names: Sequence[TrackerName]) -> None:
    """MissingExtraError for the first tracker whose package is missing, before anything is written."""
    for name in names:
        if find_spec(name) is None:
            raise MissingExtraError(needs=name, extra=name)


class JsonlTracker:
    """One strict JSON object per line: `step`, `wall_s` (seconds of training so far), then the metrics.

    Each line is flushed when it is logged, so it survives a crash of the process. NaN and infinity, which JSON cannot
    represent, become the strings "NaN", "Infinity" and "-Infinity".
    """

    def __init__(self, path: Path, *, resume_step: int = -1, clock: Callable[[], float] = time.monotonic) -> None:
        """Drops the lines after `resume_step`, and a torn last line."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._clock, self._began = clock, clock() - _cut_after(path, resume_step)
        self._file = path.open("ab")

    def log(self, step: int, metrics: Metrics) -> None:
        assert not {"step", "wall_s"} & set(metrics), "the tracker itself writes step and wall_s"
        line = {"step": step, "wall_s": round(self._clock() - self._began, 3)}
        text = json.dumps(line | {name: _to_json(value) for name, value in metrics.items()}, allow_nan=False)
        self._file.write(text.encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file. A last line that was torn by a crash is left out."""
    quoted = ("NaN", "Infinity", "-Infinity")
    return [{k: float(v) if v in quoted else v for k, v in record.items()} for _, record in _lines(path)]


def _cut_after(path: Path, step: int) -> float:
    """Removes the lines after `step`, atomically; returns the `wall_s` reached."""
    if not path.exists():
        return 0.0
    kept = [(line, record) for line, record in _lines(path) if record["step"] <= step]
    content = b"".join(line for line, _ in kept)
    if path.stat().st_size != len(content):
        replace_file(path, content, mode=SHARED)
    return max((float(record.get("wall_s", 0)) for _, record in kept), default=0.0)


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each line as bytes and parsed. Only the last line may be torn; RunError for any other invalid line."""
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if line.endswith(b"\n") and isinstance(record, dict) and isinstance(record.get("step"), int):
            yield line, record
        elif number < len(lines):
            raise RunError(f"{path}, line {number} is not a JSON object with a step: {line[:60]!r}. Remove that line")


def _to_json(value: float) -> float | str:
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else json.dumps(number)


class TensorBoardTracker:
    """Event files in the run's `tensorboard` folder, flushed at every step; `tensorboard --logdir runs` shows them."""

    def __init__(self, run_folder: Path, resume_step: int = -1) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard hides what was logged from this step on before the interruption.
        self._writer = SummaryWriter(str(run_folder / "tensorboard"), purge_step=resume_step + 1)

    def log(self, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """A W&B run, its files in the run's `wandb` folder; WANDB_MODE=offline needs no account and no network.

    W&B accepts each step once: for a resumed run it keeps the values that it already has.
    """

    def __init__(self, run_folder: Path, resume_step: int = -1) -> None:
        import wandb

        run_folder.mkdir(parents=True, exist_ok=True)
        resumed = (run_folder / "wandb-id.txt").exists()
        with _translated(wandb.errors.Error, "W&B", "`wandb login`, or WANDB_MODE=offline, may help"):
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=run_folder.resolve().name,
                dir=run_folder,
                id=_identity(run_folder / "wandb-id.txt", lambda: token_hex(4)),
                resume="allow" if resumed else None,
                settings=wandb.Settings(console="off"),  # the terminal belongs to the progress display
            )

    def log(self, step: int, metrics: Metrics) -> None:
        if step >= self._run.starting_step:
            self._run.log(dict(metrics), step=step, commit=True)

    def close(self) -> None:
        self._run.finish()


class MlflowTracker:
    """An MLflow run, at MLFLOW_TRACKING_URI or else in the run's own `mlflow.db`.

    MLflow deletes nothing: for a resumed run it keeps the values that it already has.
    """

    def __init__(self, run_folder: Path, resume_step: int = -1) -> None:
        import mlflow

        run_folder.mkdir(parents=True, exist_ok=True)
        own = f"sqlite:///{(run_folder / 'mlflow.db').resolve()}"
        hint, error = "check MLFLOW_TRACKING_URI and that its server is up", mlflow.exceptions.MlflowException
        self._metric, self._translated = mlflow.entities.Metric, partial(_translated, error, "MLflow", hint)
        with self._translated():
            self._client = mlflow.MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or own)
            self._run_id = _identity(run_folder / "mlflow-id.txt", lambda: self._new_run(run_folder))
            self._client.update_run(self._run_id, status="RUNNING")
            self._last_step = self._step_reached()

    def log(self, step: int, metrics: Metrics) -> None:
        if step <= self._last_step:
            return
        now_ms = int(time.time() * 1000)
        with self._translated():
            rows = [self._metric(name, float(value), now_ms, step) for name, value in metrics.items()]
            self._client.log_batch(self._run_id, metrics=rows)

    def close(self) -> None:
        with self._translated():
            self._client.set_terminated(self._run_id)

    def _new_run(self, run_folder: Path) -> str:
        experiment = self._client.get_experiment_by_name(PROJECT)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(PROJECT)
        run = self._client.create_run(experiment_id, run_name=run_folder.resolve().name)
        return str(run.info.run_id)

    def _step_reached(self) -> int:
        names = self._client.get_run(self._run_id).data.metrics
        histories = (self._client.get_metric_history(self._run_id, name) for name in names)
        return max((int(point.step) for history in histories for point in history), default=-1)


TRACKERS: dict[TrackerName, Callable[[Path, int], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}


def _identity(path: Path, new: Callable[[], str]) -> str:
    """The id of this run in a tracking service, kept in the run folder so that a resumed run is the same run."""
    if not path.exists():
        path.write_text(new(), "utf-8")
    return path.read_text("utf-8").strip()


@contextmanager
def _translated(errors: type[Exception], service: str, hint: str) -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise RunError(f"{service} failed: {error}. {hint}") from error
