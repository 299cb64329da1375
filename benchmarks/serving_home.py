"""What the benchmarks of the server share: policies that serve, servers as processes, requests as bytes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml

import etude
from etude.adapters.objects import open_blobs
from etude.bootstrap.experience import experience
from etude.bootstrap.release import open_registry
from etude.contracts.query import Where
from etude.contracts.release import Action, Exposure, Mode, Serving
from etude.experience.datasets import DatasetConfig, create
from etude.learning.run_folder import find_policy

KINDS = ("summarise", "translate", "prove", "refactor")
TEXTS = (
    "please summarise the minutes of the meeting about the new office",
    "translate this letter of complaint to French and keep its tone",
    "prove that the sum of two odd numbers is even, step by step",
    "refactor this function so that it has no side effects",
)
OPTIONS: list[dict[str, Any]] = [
    {
        "name": f"model-{i:02d}",
        "description": f"model number {i}, which is good at {KINDS[i % 4]} and the like",
        "usd_per_mtok_in": round(0.1 * (i + 1), 2),
        "usd_per_mtok_out": round(0.4 * (i + 1), 2),
    }
    for i in range(20)
]
PLAIN, TEXT, ALLOCATION, WORKFLOW = "choice:plain", "choice:text", "allocation", "workflow"
PARTS = {"ingest": "etude.bootstrap.ingesting", "loop": "etude.cli loop run"}
"""Modules that the server's own processes run."""
VARIANTS = 512
"""Different requests of each kind, in turns."""


def begin(folder: Path, *, policies: Sequence[str]) -> None:
    """Settings in this folder, which becomes the current one."""
    os.chdir(folder)
    served = {name: "served" for name in policies if not name.startswith("choice:")}
    settings = {
        "experience": {"folder": str(folder / ".etude"), "policies": served},
        "serving": {"requests_per_s": 1e6},
    }
    (folder / "etude.yaml").write_text(yaml.safe_dump(settings))


def learn_choice(slot: str, seed: int, *, rows: int = 1500) -> str:
    """A policy from logged decisions among the options; its version."""
    rng, folder = np.random.default_rng(seed), Path(f"{slot.replace(':', '-')}-{seed}")
    skill = rng.random((len(KINDS), len(OPTIONS)))
    for _ in range(rows):
        kind, option = int(rng.integers(len(KINDS))), int(rng.integers(len(OPTIONS)))
        with etude.task(KINDS[kind]) as task:
            name, among = OPTIONS[option]["name"], OPTIONS
            context = context_of(slot, kind, rng)
            task.decided(slot, name, options=among, propensity=1 / 20, policy="uniform", context=context)
            task.outcome(success=bool(rng.random() < skill[kind, option]))
    with experience() as opened:
        create(
            opened.store,
            open_blobs(folder / "dataset"),
            problem=slot,
            where=Where(problem=slot),
            version=1,
            config=DatasetConfig(),
            time=datetime.now(UTC),
        )
    return register(slot, Path(etude.train("choice", out=folder / "run", dataset=folder / "dataset").folder.path))


def context_of(slot: str, kind: int, rng: np.random.Generator) -> Any:
    if slot == TEXT:
        return f"{TEXTS[kind]}, part {int(rng.integers(100))}"
    numbers = {"size": float(rng.integers(1, 1000)), "hour": int(rng.integers(24))}
    return {"kind": KINDS[kind], "premium": bool(rng.random() < 0.5)} | numbers


def learn_allocation() -> str:
    short = {"run.max_steps": 16384, "ppo.envs": 64, "ppo.steps": 64, "ppo.epochs": 1, "run.device": "cpu"}
    return register(ALLOCATION, Path(etude.train("allocation", out="allocation", settings=short).folder.path))


def learn_workflow(*, scenarios: int) -> str:
    chosen = {"office.scenarios": scenarios, "run.device": "cpu", "run.threads": 1}
    run = etude.train("workflow", out="workflow", preset="office", settings=chosen)
    return register(WORKFLOW, Path(run.folder.path))


def register(slot: str, run: Path) -> str:
    """A version that may be promoted."""
    registry = open_registry()
    version = registry.register(find_policy(run), slot, actor="benchmark")
    registry.record(slot, Action.GATES_PASSED, version, actor="benchmark")
    registry.approve(slot, version, by="benchmark")
    return version


def promote(slot: str, version: str) -> None:
    open_registry().promote_directly(slot, version, by="benchmark", reason="benchmark")


def expose(slot: str, candidate: str) -> None:
    """A canary of all tasks."""
    exposure = Exposure(release="benchmark", candidate=candidate, mode=Mode.CANARY, share=1.0)
    _record(slot, Action.STARTED, candidate, exposure)


def take_back(slot: str, candidate: str) -> None:
    """End the canary, as a rollback does."""
    _record(slot, Action.STOPPED, candidate, None)


def _record(slot: str, action: Action, version: str, exposure: Exposure | None) -> None:
    def change(serving: Serving) -> Serving:
        return msgspec.structs.replace(serving, exposure=exposure)

    open_registry().record(slot, action, version, actor="benchmark", change=change)


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server as a process."""

    port: int
    process: subprocess.Popen[Any]
    ready_s: float

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def rss_mb(self) -> dict[str, float]:
        """Memory of the server, of the process that stores events, and of the loop if there is one."""
        found = {"server": _rss_mb(self.process.pid)}
        for pid, command in _children(self.process.pid):
            found |= {name: _rss_mb(pid) for name, module in PARTS.items() if module in command}
        return found

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _children(parent: int) -> Iterator[tuple[int, str]]:
    """Processes that a process has started, with their command lines."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                yield int(folder.name), (folder / "cmdline").read_text().replace("\0", " ")


def _rss_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return 0.0 if found is None else int(found[1]) / 1024


def make_key() -> str:
    made = subprocess.run(
        [sys.executable, "-m", "etude.cli", "keys", "create", "--role", "admin"],
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.strip()


@contextmanager
def serving(*, core: int | None = None, log: str = "serve.log", loop: bool = False) -> Iterator[Running]:
    """`etude serve` on a free port, from when it is ready."""
    command = [sys.executable, "-m", "etude.cli", "serve", "--port", "0", "--loop" if loop else "--no-loop"]
    with process(command, core, log) as found:
        began, running = found
        port = _port(running, log)
        while _status(port, "/ready") != 200:
            time.sleep(0.01)
        yield Running(port=port, process=running, ready_s=time.monotonic() - began)


@contextmanager
def process(
    command: Sequence[str], core: int | None, log: str, *, more: Mapping[str, str] | None = None
) -> Iterator[tuple[float, subprocess.Popen[Any]]]:
    """A process on one core, and when it was started; it is interrupted at the end."""
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    with Path(log).open("w") as output:
        began = time.monotonic()
        running = subprocess.Popen([*pinned, *command], stdout=output, stderr=output, env=os.environ | dict(more or {}))
        try:
            yield began, running
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(20)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def _port(running: subprocess.Popen[Any], log: str) -> int:
    while True:
        said = Path(log).read_text()
        found = re.search(r"serving at \S+:(\d+);", said)
        if found is not None:
            return int(found[1])
        if running.poll() is not None:
            raise SystemExit(said)
        time.sleep(0.01)


def _status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def post(port: int, key: str, path: str, body: Any) -> dict[str, Any]:
    """One request, by itself."""
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def until_it_decides(port: int, key: str, slot: str) -> None:
    """Until the policy of a slot decides, not what stands in for it."""
    while "fallback" in post(port, key, "/v1/decisions", bodies(slot)[0]):
        time.sleep(0.1)


def bodies(slot: str, *, seed: int = 1) -> list[dict[str, Any]]:
    """Requests for decisions, all different."""
    rng = np.random.default_rng(seed)
    if slot == ALLOCATION:
        return [{"problem": slot, "context": rng.random(94).round(3).tolist()} for _ in range(VARIANTS)]
    if slot == WORKFLOW:
        return [{"problem": slot, "context": text} for text in instructions(seed)]
    return [
        {"problem": slot, "context": context_of(slot, int(rng.integers(4)), rng), "options": OPTIONS}
        for _ in range(VARIANTS)
    ]


def instructions(seed: int) -> list[str]:
    """Instructions of the simulated office that its planner has not seen."""
    from etude.problems.workflow.office.scenarios import generate

    return list(generate(900_000 + seed, VARIANTS).instructions)


def requests(path: str, key: str, made: Sequence[Any]) -> list[bytes]:
    """As bytes for HTTP/1.1."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    )
    found = []
    for body in made:
        encoded = msgspec.json.encode(body)
        found.append(f"{head}content-length: {len(encoded)}\r\n\r\n".encode() + encoded)
    return found
