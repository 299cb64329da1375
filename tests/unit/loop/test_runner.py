"""A job as a process: it completes, fails, exceeds limits, is stopped, resumes, and dies with its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from etude.contracts.jobs import Cost, Ended, Job, RunningJob
from etude.contracts.training import Compute, TrainingRequest
from etude.learning.run_folder import RunFolder
from etude.loop.config import LoopConfig
from etude.loop.runner import FinishedJob, ProcessRunner, read_progress, train_command

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
CONFIG = LoopConfig(nice=1, max_memory_mb=None, max_hours=None)


def make_job(folder: Path, **compute: float) -> Job:
    request = TrainingRequest(id="a", time=NOW, problem="choice:model", compute=Compute(**compute))  # type: ignore[arg-type]
    return Job(id="a", slot="choice:model", request=request, created=NOW, dataset="d", run=str(folder / "run"))


def start(folder: Path, code: str, config: LoopConfig = CONFIG, **compute: float) -> RunningJob:
    runner = ProcessRunner(config, logs=folder / "logs", command=lambda job, _: [sys.executable, "-c", code])
    started = runner.start(make_job(folder, **compute), checkpoint=None)
    assert started is not None
    return started


def ended(job: RunningJob, *, within_s: float = 20.0) -> Ended:
    deadline = time.monotonic() + within_s
    while (found := job.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def write_run(folder: Path, *, summary: bool = True) -> None:
    best = folder / "best" / "step-000000000001"
    best.mkdir(parents=True)
    (folder / "checkpoints").mkdir()
    (best / "manifest.json").write_text(
        json.dumps({"format": 2, "problem": "choice", "method": "m", "step": 1, "code": "0", "files": {}})
    )
    (folder / "config.json").write_text(json.dumps({"method": "m", "budget": "400,000"}))
    if summary:
        (folder / "summary.json").write_text("{}")


WRITE_RUN = """
import json, pathlib
best = pathlib.Path({folder!r}) / "best/step-000000000001"
best.mkdir(parents=True)
manifest = {{"format": 2, "problem": "choice", "method": "m", "step": 1, "code": "0", "files": {{}}}}
(best / "manifest.json").write_text(json.dumps(manifest))
(best.parents[1] / "config.json").write_text(json.dumps({{"method": "m", "budget": ""}}))
(best.parents[1] / "summary.json").write_text("{{}}")
sum(i * i for i in range(1_000_000))
"""


def test_completed_job_has_its_version_and_its_cost(tmp_path: Path) -> None:
    job = start(
        tmp_path, WRITE_RUN.format(folder=str(tmp_path / "run")), replace(CONFIG, usd_per_cpu_hour=3600.0), gpus=2
    )
    found = ended(job)
    assert found.error is None
    assert found.version == RunFolder(tmp_path / "run").policy().version
    cost = job.cost()
    assert 0.01 < cost.usd - cost.gpu_hours * CONFIG.usd_per_gpu_hour < 10, "USD per CPU second"
    assert cost.gpu_hours == pytest.approx(2 * cost.wall_hours)


def test_process_without_a_policy_is_no_success(tmp_path: Path) -> None:
    error = ended(start(tmp_path, "pass")).error
    assert error is not None
    assert "without a policy" in error.message
    assert error.retryable


@pytest.mark.parametrize(
    ("code", "kind", "retryable", "message"),
    [
        ("print('error: the dataset is wrong'); raise SystemExit(2)", "WrongInput", False, "the dataset is wrong"),
        ("print('error: the bucket is away'); raise SystemExit(75)", "StoreError", True, "the bucket is away"),
        ("raise RuntimeError('a bug')", "Unexpected", True, "RuntimeError: a bug"),
        ("import os; os.kill(os.getpid(), 9)", "Killed", True, "ended by SIGKILL"),
    ],
)
def test_failures_say_what_happened(tmp_path: Path, code: str, kind: str, retryable: bool, message: str) -> None:
    error = ended(start(tmp_path, code)).error
    assert error is not None
    assert (error.kind, error.retryable) == (kind, retryable)
    assert message in error.message


def test_memory_limit(tmp_path: Path) -> None:
    greedy = "x = bytearray(150_000_000); x[::4096] = b'1' * len(x[::4096]); import time; time.sleep(60)"
    error = ended(start(tmp_path, greedy, replace(CONFIG, max_memory_mb=100.0))).error
    assert error is not None
    assert (error.kind, error.retryable) == ("MemoryLimit", False)
    assert "its limit is 100 MB" in error.message


def test_time_limit_counts_earlier_attempts(tmp_path: Path) -> None:
    sleeper = ProcessRunner(
        CONFIG, logs=tmp_path, command=lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    used = make_job(tmp_path, max_minutes=1.0)
    fresh = sleeper.start(used, checkpoint=None)
    assert fresh is not None
    assert fresh.poll() is None
    fresh.stop()
    job = Job(**{name: getattr(used, name) for name in used.__struct_fields__} | {"cost": Cost(wall_hours=1 / 60)})
    late = sleeper.start(job, checkpoint=None)
    assert late is not None
    error = ended(late).error
    assert error is not None
    assert error.kind == "TimeLimit"


def test_stop_ends_the_process_and_those_it_started(tmp_path: Path) -> None:
    code = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path({path!r}).write_text(str(child.pid))
time.sleep(60)
"""
    note = tmp_path / "pid"
    job = start(tmp_path, code.format(path=str(note)))
    pid = int(wait_for(note.read_text))
    job.stop()
    assert job.poll() == Ended()
    wait_gone(pid)


def test_finished_run_is_not_repeated(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    job = start(tmp_path, "raise SystemExit(1)")
    assert isinstance(job, FinishedJob)
    assert job.poll().version == RunFolder(tmp_path / "run").policy().version


def test_nothing_starts_while_a_process_of_an_earlier_claim_trains(tmp_path: Path) -> None:
    runner = ProcessRunner(CONFIG, logs=tmp_path / "logs", command=lambda *_: [sys.executable, "-c", "pass"])
    with RunFolder(tmp_path / "run").locked():
        assert runner.start(make_job(tmp_path), checkpoint=None) is None
    later = runner.start(make_job(tmp_path), checkpoint=None)
    assert later is not None
    later.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="the lock of the run folder is the guarantee elsewhere")
def test_job_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.unit.loop.test_runner import start
start(Path({str(tmp_path)!r}), "import os, pathlib, time; pathlib.Path({str(note)!r}).write_text(str(os.getpid())); "
    "time.sleep(60)")
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    pid = int(wait_for(note.read_text))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_gone(pid)


def test_progress_comes_from_the_folder(tmp_path: Path) -> None:
    assert read_progress(tmp_path / "none").share == 0
    write_run(tmp_path / "run", summary=False)
    rows = [{"step": 50_000, "wall_s": 5.0}, {"step": 100_000, "wall_s": 10.0}]
    text = "\n".join(map(json.dumps, rows)) + '\n{"step": 110'
    (tmp_path / "run" / "metrics.jsonl").write_text(text)
    found = read_progress(tmp_path / "run")
    assert (found.step, found.steps, found.share, found.eta_s) == (100_000, 400_000, 0.25, 30.0)
    (tmp_path / "run" / "summary.json").write_text('{"stopped": "budget"}')
    assert read_progress(tmp_path / "run").share == 1


def test_command_is_that_of_the_problem(tmp_path: Path) -> None:
    request = TrainingRequest(
        id="a", time=NOW, problem="choice:model", algorithm="ppo", hyperparameters={"ppo.lr": 0.1, "run.device": "cpu"}
    )
    job = Job(id="a", slot="choice:model", request=request, created=NOW, dataset="d", run="runs/a")
    line = " ".join(train_command(Path("x.yaml"))(job, Path("runs/parent")))
    assert "etude.cli train choice --method from-logs --out runs/a --dataset d --algorithm ppo" in line
    assert "--checkpoint runs/parent --device auto --config x.yaml" in line
    assert '--set ppo.lr=0.1 --set run.device="cpu"' in line
    without = train_command()(job, None)
    assert "--checkpoint" not in without
    assert "--config" not in without
    assert "--keep" not in without


def test_a_run_of_the_loop_keeps_what_it_learned_since_gates_and_a_canary_judge_it() -> None:
    request = TrainingRequest(id="a", time=NOW, problem="workflow")
    job = Job(id="a", slot="workflow", request=request, created=NOW, dataset="d", run="runs/a")
    assert "--keep always" in " ".join(train_command()(job, None))


def wait_for(read: Callable[[], str]) -> str:
    deadline = time.monotonic() + 60
    while True:
        try:
            if found := read():
                return found
        except FileNotFoundError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
