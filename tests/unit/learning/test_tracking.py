"""Metrics go in and come out again, from a file or from each service's own reader; an interruption leaves no trace."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.contracts.errors import MissingExtraError, RunError
from etude.learning.tracking import (
    JsonlTracker,
    MlflowTracker,
    TensorBoardTracker,
    Tracker,
    WandbTracker,
    check_installed,
    make_trackers,
    read_metrics,
)


def no_time() -> float:
    return 0.0


def ticking() -> Callable[[], float]:
    """A clock that moves by a second at every look."""
    seconds = iter(range(1000))
    return lambda: float(next(seconds))


def log_steps(tracker: Tracker, steps: range) -> None:
    for step in steps:
        tracker.log(step, {"loss": 1 / (step + 1)})


def strict(line: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_a_line_is_a_strict_json_object_with_step_and_time(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "run" / "metrics.jsonl", clock=ticking())
    tracker.log(256, {"loss": 0.5, "kl": math.nan, "norm": math.inf, "gain": -math.inf})
    first = (tmp_path / "run" / "metrics.jsonl").read_text()  # before it is closed
    tracker.log(512, {"loss": 0.25})
    tracker.close()
    assert strict(first) == {
        "step": 256,
        "wall_s": 1.0,
        "loss": 0.5,
        "kl": "NaN",
        "norm": "Infinity",
        "gain": "-Infinity",
    }
    assert [line["wall_s"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1.0, 2.0]


names = st.text(min_size=1).filter(lambda name: name not in ("step", "wall_s"))
values = st.floats() | st.integers(-(2**53), 2**53)


@settings(deadline=None)
@given(history=st.lists(st.dictionaries(names, values, max_size=4), max_size=5))
def test_what_is_logged_is_read_back(history: list[dict[str, float]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    tracker = JsonlTracker(path, clock=no_time)
    for step, metrics in enumerate(history):
        tracker.log(step, metrics)
    tracker.close()
    for line in path.read_bytes().splitlines():
        strict(line.decode())
    expected = [{"step": step, "wall_s": 0.0, **metrics} for step, metrics in enumerate(history)]
    assert repr(read_metrics(path)) == repr(expected)  # repr: NaN is not equal to itself


def uninterrupted(path: Path, steps: int) -> bytes:
    tracker = JsonlTracker(path, clock=no_time)
    log_steps(tracker, range(steps))
    tracker.close()
    return path.read_bytes()


def test_a_run_killed_anywhere_and_resumed_leaves_the_file_of_one_never_interrupted(tmp_path: Path) -> None:
    whole = uninterrupted(tmp_path / "whole.jsonl", 6)
    killed, checkpoint = tmp_path / "killed.jsonl", 3
    after_checkpoint = whole.index(b'{"step": 4')
    for length in range(after_checkpoint, len(whole) + 1):
        killed.write_bytes(whole[:length])
        tracker = JsonlTracker(killed, resume_step=checkpoint, clock=no_time)
        log_steps(tracker, range(checkpoint + 1, 6))
        tracker.close()
        assert killed.read_bytes() == whole, f"killed after {length} bytes"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_time_goes_on_from_where_the_checkpoint_was(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for resume_step, steps in ((-1, range(1, 6)), (2, range(3, 5))):
        tracker = JsonlTracker(path, resume_step=resume_step, clock=ticking())
        log_steps(tracker, steps)
        tracker.close()
    assert [(line["step"], line["wall_s"]) for line in read_metrics(path)] == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_a_run_resumed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    whole = uninterrupted(tmp_path / "metrics.jsonl", 3)
    tracker = JsonlTracker(tmp_path / "metrics.jsonl", resume_step=-1, clock=no_time)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""
    log_steps(tracker, range(3))
    tracker.close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == whole
    JsonlTracker(tmp_path / "fresh.jsonl", resume_step=-1).close()
    assert read_metrics(tmp_path / "fresh.jsonl") == []


@pytest.mark.parametrize("torn", [b'{"step": 3, "lo', b"\0\0\0\0", b"{}\n", b"[1]\n", b'{"step": 3}', b"\xff\n"])
def test_a_torn_last_line_is_left_out_and_a_torn_middle_one_is_an_error(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = uninterrupted(path, 3)
    path.write_bytes(whole + torn)
    assert [line["step"] for line in read_metrics(path)] == [0, 1, 2]
    path.write_bytes(whole + torn.rstrip(b"\n")[:-1] + b"\n" + b'{"step": 4}\n')
    with pytest.raises(RunError, match="line 4 is not a JSON object with a step"):
        read_metrics(path)


def test_what_was_logged_survives_sigkill(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from etude.learning.tracking import make_trackers
for tracker in make_trackers(Path(sys.argv[1]), ["tensorboard"]):
    tracker.log(7, {"loss": 0.5})
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(tmp_path)], timeout=240)
    assert done.returncode == -9
    assert [(line["step"], line["loss"]) for line in read_metrics(tmp_path / "metrics.jsonl")] == [(7, 0.5)]
    assert scalars(tmp_path, "loss") == [(7, 0.5)]


def accumulated(run_folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_folder / "tensorboard"))
    events.Reload()
    return events


def scalars(run_folder: Path, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in accumulated(run_folder).Scalars(name)]


def test_tensorboard_reads_numbers(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path)
    tracker.log(10, {"loss": 0.5})
    tracker.log(20, {"loss": math.nan})
    tracker.close()
    events = accumulated(tmp_path)
    assert events.Tags()["scalars"] == ["loss"]
    (step, loss), (_, lost) = [(e.step, e.value) for e in events.Scalars("loss")]
    assert (step, loss) == (10, 0.5)
    assert math.isnan(lost)


def test_tensorboard_forgets_what_was_logged_after_the_checkpoint(tmp_path: Path) -> None:
    interrupted = TensorBoardTracker(tmp_path)
    for step in (10, 20, 30, 40):
        interrupted.log(step, {"loss": 1.0})
    interrupted.close()
    resumed = TensorBoardTracker(tmp_path, resume_step=20)
    resumed.log(30, {"loss": 2.0})
    resumed.close()
    assert scalars(tmp_path, "loss") == [(10, 1.0), (20, 1.0), (30, 2.0)]


def test_make_trackers_opens_the_file_and_each_one_named_once(tmp_path: Path) -> None:
    trackers = make_trackers(tmp_path, ["tensorboard", "tensorboard"])
    assert [type(tracker) for tracker in trackers] == [JsonlTracker, TensorBoardTracker]
    for tracker in trackers:
        tracker.log(1, {"loss": 0.5})
        tracker.close()
    trackers = make_trackers(tmp_path, ["tensorboard"], 0)
    for tracker in trackers:
        tracker.log(2, {"loss": 0.25})
        tracker.close()
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [2]
    assert scalars(tmp_path, "loss") == [(2, 0.25)]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_says_what_to_install(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(MissingExtraError, match=rf"pip install 'etude\[{name}\]'"):
        check_installed([name])


def wandb_history(run_folder: Path) -> list[dict[str, Any]]:
    """Rows of the offline run, read from its LevelDB log: a 7-byte head, then records of (crc, length, type, data)."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows = []
    for path in sorted(run_folder.glob("wandb/offline-run-*/run-*.wandb")):
        data, at = path.read_bytes(), 7
        assert len(data) < 2**15, "one block"
        while at < len(data):
            _, length, kind = struct.unpack_from("<IHB", data, at)
            assert kind == 1, "a whole record"
            record = Record.FromString(data[at + 7 : at + 7 + length])
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
            at += 7 + length
    return rows


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_an_offline_run_and_resumes_it_under_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    wandb.teardown()  # it reads the environment once
    monkeypatch.setenv("WANDB_MODE", "offline")
    for resume_step, steps in ((-1, (10, 20)), (20, (30,))):
        tracker = WandbTracker(tmp_path, resume_step)
        for step in steps:
            tracker.log(step, {"loss": step / 10})
        tracker.close()
    wandb.teardown()  # its background process may still be writing
    rows = wandb_history(tmp_path)
    assert [(row["_step"], row["loss"]) for row in rows] == [(10, 1.0), (20, 2.0), (30, 3.0)]
    identity = (tmp_path / "wandb-id.txt").read_text()
    files = [path.stem for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")]
    assert files == [f"run-{identity}"] * len(files)


@pytest.mark.filterwarnings("ignore")
def test_wandb_that_cannot_start_says_what_may_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb").teardown()  # it reads the environment once
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "too-short")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    with pytest.raises(RunError, match=r"W&B failed: .*WANDB_MODE=offline"):
        WandbTracker(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_one_run_across_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "a"
    first = MlflowTracker(folder)
    for step in (10, 20, 30):
        first.log(step, {"loss": step / 10, "kl": math.nan})
    resumed = MlflowTracker(folder, resume_step=20)  # killed: never closed
    for step in (30, 40):
        resumed.log(step, {"loss": step / 10})
    resumed.close()

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("etude")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(10, 1.0), (20, 2.0), (30, 3.0), (40, 4.0)]
    assert math.isnan(run.data.metrics["kl"])
    assert (run.info.run_name, run.info.status) == ("a", "FINISHED")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_that_cannot_start_says_what_may_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://at/all")
    with pytest.raises(RunError, match=r"MLflow failed: .*check MLFLOW_TRACKING_URI"):
        MlflowTracker(tmp_path)
