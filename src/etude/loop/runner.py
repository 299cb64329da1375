"""Runs a job as a process of this machine: a job with its dataset in, a finished run folder or a failure out.

The process is `etude train`, so a job that is started again resumes its run from the newest checkpoint. It ends with
the process that started it, and is stopped when it exceeds its memory or its time.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.contracts.errors import EtudeError
from etude.contracts.jobs import Cost, Ended, Job, RunningJob
from etude.contracts.training import JobError as Failure
from etude.contracts.training import Progress
from etude.files.durable import make_folder
from etude.learning.run_folder import CONFIG, RunFolder
from etude.learning.tracking import METRICS_FILE
from etude.loop.config import LoopConfig
from etude.problems.table import find_spec

STOP_S = 20.0
"""Seconds between the request to end and the kill."""
TAIL_BYTES = 1 << 16
KEEP = "--keep"
"""Flag of problems whose runs may keep the policy that they started from."""
WRONG_INPUT, TRY_AGAIN = 2, 75
"""Exit status of a command that has to be corrected, where trying again gives the same; and of one whose store or disk
could not be reached."""
LAUNCH = """
import ctypes, os, signal, sys
nice, parent = int(sys.argv[1]), int(sys.argv[2])
os.nice(nice)
if sys.platform == "linux":
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its parent
if os.getppid() != parent:
    sys.exit("the loop has ended")
os.execv(sys.argv[3], sys.argv[3:])
"""
"""What the process does before it becomes the command; not in a function after the fork, which threads make unsafe."""

Command = Callable[[Job, Path | None], Sequence[str]]
"""Function from a job and the policy that it continues to a command line."""


def train_command(config: Path | None = None) -> Command:
    """The command line of `etude train` for a job, with these settings."""

    def command(job: Job, checkpoint: Path | None) -> list[str]:
        request = job.request
        options: dict[str, object] = {
            "--method": job.method,
            "--out": job.run,
            "--dataset": job.dataset,
            "--algorithm": request.algorithm,
            "--checkpoint": checkpoint,
            "--device": request.compute.device,
            "--config": config,
        }
        if any(flag.name == KEEP for flag in find_spec(job.problem).flags):
            options[KEEP] = "always"  # gates and a canary judge what was learned: a run need not be sure of it
        given = [text for name, value in options.items() if value for text in (name, str(value))]
        settings = [
            text for name, value in request.hyperparameters.items() for text in ("--set", f"{name}={json.dumps(value)}")
        ]
        return [sys.executable, "-m", "etude.cli", "train", job.problem, *given, *settings, "--no-progress"]

    return command


class ProcessRunner:
    """A JobRunner on this machine."""

    def __init__(self, config: LoopConfig, *, logs: Path, command: Command) -> None:
        self._config, self._logs, self._command = config, logs, command

    def start(self, job: Job, *, checkpoint: Path | None) -> RunningJob | None:
        folder = RunFolder(Path(job.run))
        if folder.path.is_dir() and folder.in_use():
            return None
        if (version := finished_version(folder)) is not None:
            return FinishedJob(version)
        make_folder(self._logs)
        log = self._logs / f"{job.id}.log"
        compute, config = job.request.compute, self._config
        with log.open("ab") as file:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-c", LAUNCH, str(config.nice), str(os.getpid())),
                    *self._command(job, checkpoint),
                ],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        return ProcessJob(
            process=process,
            folder=folder,
            log=log,
            began=time.monotonic(),
            gpus=compute.gpus,
            config=config,
            max_bytes=_smallest(config.max_memory_mb, 1e6, compute.memory_gb, 1e9),
            max_s=_smallest(config.max_hours, 3600, compute.max_minutes, 60),
            used_s=3600 * job.cost.wall_hours,
        )


def finished_version(folder: RunFolder) -> str | None:
    """The policy of a run that has ended; None if there is something left to do."""
    if not (folder.path / CONFIG).is_file() or folder.summary() is None:
        return None
    return folder.policy().version


def _smallest(setting: float | None, unit: float, requested: float | None, requested_unit: float) -> float | None:
    """The lower one of a setting and of what a request allows; None if neither limits."""
    limits = [x * u for x, u in ((setting, unit), (requested, requested_unit)) if x is not None]
    return min(limits, default=None)


@dataclass(frozen=True)
class FinishedJob:
    """A job whose run had ended before: there is nothing to start."""

    version: str

    def poll(self) -> Ended:
        return Ended(version=self.version)

    def progress(self) -> Progress:
        return Progress(share=1.0, eta_s=0.0)

    def cost(self) -> Cost:
        return Cost()

    def stop(self) -> None:
        pass


@dataclass(kw_only=True)
class ProcessJob:
    """A job that runs as a process."""

    process: subprocess.Popen[bytes]
    folder: RunFolder
    log: Path
    began: float  # monotonic
    gpus: int
    config: LoopConfig
    max_bytes: float | None
    max_s: float | None
    used_s: float  # by earlier attempts
    cpu_s: float = 0.0
    wall_s: float = 0.0
    ended: Ended | None = None

    def poll(self) -> Ended | None:
        if self.ended is None:
            self._measure()
            self.ended = self._exceeded() or self._exited()
        return self.ended

    def progress(self) -> Progress:
        return read_progress(self.folder.path)

    def cost(self) -> Cost:
        cpu_hours, wall_hours = self.cpu_s / 3600, self.wall_s / 3600
        gpu_hours = wall_hours * self.gpus
        usd = cpu_hours * self.config.usd_per_cpu_hour + gpu_hours * self.config.usd_per_gpu_hour
        return Cost(usd=usd, cpu_hours=cpu_hours, gpu_hours=gpu_hours, wall_hours=wall_hours)

    def stop(self) -> None:
        if self.ended is None:
            self._measure()
            self._end()
            self.ended = Ended()

    def _measure(self) -> None:
        self.cpu_s = max(self.cpu_s, sum(_cpu_s(pid) for pid in _tree(self.process.pid)))
        self.wall_s = time.monotonic() - self.began

    def _exceeded(self) -> Ended | None:
        memory = sum(_resident_bytes(pid) for pid in _tree(self.process.pid)) if self.max_bytes is not None else 0
        if self.max_bytes is not None and memory > self.max_bytes:
            message = f"used {memory / 1e6:,.0f} MB of memory, its limit is {self.max_bytes / 1e6:,.0f} MB: raise it"
            return self._failed("MemoryLimit", f"{message} (loop.max_memory_mb), or train on less")
        if self.max_s is not None and self.used_s + self.wall_s > self.max_s:
            message = f"ran for {self.max_s / 3600:.2g} hours, its limit (loop.max_hours): raise it"
            return self._failed("TimeLimit", f"{message} and `etude jobs retry`, which resumes the run")
        return None

    def _failed(self, kind: str, message: str) -> Ended:
        self._end()
        return Ended(error=Failure(kind=kind, message=message))

    def _exited(self) -> Ended | None:
        """How the process ended; None if it runs."""
        if not self._reap(os.WNOHANG):
            return None
        status = self.process.returncode
        if status == 0:
            return self._completed()
        said = read_error(self.log)
        if status < 0:
            name = signal.Signals(-status).name
            message = f"its process was ended by {name}" + (f"; it said: {said}" if said else "")
            return Ended(error=Failure(kind="Killed", message=message, retryable=True))
        kind = {WRONG_INPUT: "WrongInput", TRY_AGAIN: "StoreError"}.get(status, "Unexpected")
        message = said or f"its process ended with status {status}; its output is in {self.log}"
        return Ended(error=Failure(kind=kind, message=message, retryable=status != WRONG_INPUT))

    def _completed(self) -> Ended:
        try:
            version = finished_version(self.folder)
        except EtudeError as error:
            return Ended(error=Failure(kind=type(error).__name__, message=str(error), retryable=True))
        if version is None:
            message = f"its process ended without a policy in {self.folder.path}; its output is in {self.log}"
            return Ended(error=Failure(kind="Unexpected", message=message, retryable=True))
        return Ended(version=version)

    def _end(self) -> None:
        """End the process and those it started."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while not self._reap(os.WNOHANG):
            if time.monotonic() > deadline:
                self._signal(signal.SIGKILL)
                self._reap(0)
                break
            time.sleep(0.02)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def _reap(self, options: int) -> bool:
        """Whether the process has ended; its CPU time is then known exactly."""
        if self.process.returncode is not None:
            return True
        pid, status, usage = os.wait4(self.process.pid, options)
        if pid == 0:
            return False
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_s = max(self.cpu_s, usage.ru_utime + usage.ru_stime)
        self.wall_s = time.monotonic() - self.began
        return True


def read_progress(folder: Path) -> Progress:
    """How far a run is, from its folder: the last line of its metrics, and its budget."""
    row, config = read_metrics_row(folder), _read_json(folder / CONFIG)
    step, wall_s = int(row.get("step") or 0), float(row.get("wall_s") or 0.0)
    if _read_json(folder / "summary.json"):
        return Progress(step=step, steps=step, share=1.0, eta_s=0.0)
    # Of a budget in words, such as `400,000`, or `40 epochs`.
    found = re.match(r"[\d,]+", str(config.get("budget", "")))
    steps = int(found[0].replace(",", "") or 0) if found else 0
    share = min(1.0, step / steps) if steps else 0.0
    return Progress(step=step, steps=steps, share=share, eta_s=wall_s * (1 - share) / share if share else None)


def read_metrics_row(folder: Path) -> dict[str, Any]:
    """The last complete line of a run's metrics; empty if there is none."""
    for line in reversed(_tail(folder / METRICS_FILE).splitlines()):
        try:
            row = json.loads(line)
        except ValueError:  # the beginning of a line, or one that is being written
            continue
        if isinstance(row, dict):
            return row
    return {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_error(log: Path) -> str:
    """What the command said last that went wrong."""
    lines = [line.strip() for line in _tail(log).decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1]


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read()
    except OSError:
        return b""


def _tree(pid: int) -> Iterator[int]:
    """A process and those below it, where the system lists them."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _tree(int(child))


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0 if sys.platform == "linux" else _resident_by_ps(pid)


def _resident_by_ps(pid: int) -> int:
    found = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return int(found.stdout.strip() or 0) * 1024


def _cpu_s(pid: int) -> float:
    """User and system time of a process and of its ended children so far; 0 where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
