"""A worker that replays recorded answers: for tests, demonstrations and comparisons without cost."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from etude.contracts.errors import WorkersError
from etude.contracts.ports import Worker
from etude.contracts.work import Fault, Reply, Subtask, WorkerError

FAULTS = frozenset(Fault)


class Recording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One attempt as it went: an output, or a fault."""

    task_type: str
    instruction: str | None = None  # None: whatever the instruction
    output: Any = None
    fault: str | None = None  # a Fault, where it failed
    latency_ms: float = 0.0
    cost_usd: float | None = None  # None: what the catalogue says


class RecordedWorker(Worker):
    """Serves what is recorded for the task type and instruction, or else for the task type alone.

    Several of one kind are served in turn: the first to the first attempt, and after the last the first again.
    """

    def __init__(
        self,
        name: str,
        recordings: Sequence[Recording],
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.name, self._sleep = name, sleep
        self._recordings: dict[tuple[str, str | None], list[Recording]] = {}
        for recording in recordings:
            if problem := _problem(recording):
                raise WorkersError(f"a recording of {recording.task_type!r} {problem}")
            self._recordings.setdefault((recording.task_type, recording.instruction), []).append(recording)

    async def check(self) -> None:
        if not self._recordings:
            raise WorkersError("nothing is recorded: give at least one recording")

    def max_usd(self, subtask: Subtask) -> float | None:
        found = self._found(subtask)
        return found.cost_usd if found else None

    async def do(self, subtask: Subtask) -> Reply:
        found = self._found(subtask)
        if found is None:
            raise WorkerError(self._missing(subtask), fault=Fault.UNKNOWN, cost_usd=0.0)
        await self._sleep(found.latency_ms / 1000)
        if found.fault is not None:
            raise WorkerError(f"recorded: {found.fault}", fault=Fault(found.fault), cost_usd=found.cost_usd)
        return Reply(output=found.output, cost_usd=found.cost_usd)

    def _found(self, subtask: Subtask) -> Recording | None:
        for instruction in (subtask.instruction, None):
            if served := self._recordings.get((subtask.task_type, instruction)):
                return served[(subtask.attempt - 1) % len(served)]
        return None

    def _missing(self, subtask: Subtask) -> str:
        types = sorted({task_type for task_type, _ in self._recordings})
        if subtask.task_type in types:
            known = f"recorded are {sum(kind == subtask.task_type for kind, _ in self._recordings)} others"
            return f"no recording of {subtask.task_type!r} for the instruction {subtask.instruction[:100]!r}: {known}"
        return f"no recording of {subtask.task_type!r}: recorded are {', '.join(types[:20]) or 'none'}"


def read_recordings(path: Path) -> list[Recording]:
    """A file of recordings, one per line in JSON; WorkersError with path and line for one that is none."""
    decoder = msgspec.json.Decoder(Recording)
    recordings = []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise WorkersError(f"{path}: cannot be read ({error.strerror}): expected a file of recordings") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                recordings.append(decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise WorkersError(f"{path}:{number}: is no recording ({error}): expected such as {EXAMPLE}") from error
            if problem := _problem(recordings[-1]):
                raise WorkersError(f"{path}:{number}: {problem}")
    return recordings


EXAMPLE = '{"task_type": "summarise", "instruction": null, "output": "…", "latency_ms": 40, "cost_usd": 0.001}'


def _problem(recording: Recording) -> str:
    """What is wrong with the values of a recording; "" where nothing is."""
    if recording.fault is not None and recording.fault not in FAULTS:
        return f"has the fault {recording.fault!r}: expected one of {', '.join(Fault)}"
    for name, value in (("latency_ms", recording.latency_ms), ("cost_usd", recording.cost_usd)):
        if value is not None and not 0 <= value < math.inf:
            return f"has {name} {value!r}: expected a number of at least 0"
    return ""
