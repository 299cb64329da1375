from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from etude.contracts.errors import WorkersError
from etude.contracts.ports import Worker
from etude.contracts.work import Fault, Reply, Subtask, WorkerError
from etude.orchestrator.workers.recorded import RecordedWorker, Recording, read_recordings


class Waits(list[float]):
    """Stands in for sleeping: what was waited."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def subtask(task_type: str = "summarise", instruction: str = "Sum it up", attempt: int = 1) -> Subtask:
    return Subtask(workflow="w1", node=0, attempt=attempt, instruction=instruction, task_type=task_type)


def recording(**fields: Any) -> Recording:
    return Recording(**({"task_type": "summarise"} | fields))


def reply(recordings: list[Recording], task: Subtask, **options: Any) -> Reply:
    return asyncio.run(RecordedWorker("w", recordings, **options).do(task))


def test_a_worker_is_a_worker() -> None:
    made: Worker = RecordedWorker("w", [recording()])
    assert made.name == "w"


def test_it_serves_the_instruction_or_else_the_task_type() -> None:
    both = [recording(output="any"), recording(instruction="Sum it up", output="this", cost_usd=0.2)]
    assert reply(both, subtask()) == Reply(output="this", cost_usd=0.2)
    assert reply(both, subtask(instruction="Another")) == Reply(output="any", cost_usd=None)
    assert RecordedWorker("w", both).max_usd(subtask()) == 0.2


def test_several_are_served_in_turn() -> None:
    several = [recording(fault="timeout", cost_usd=0.1), recording(output="second"), recording(output="third")]
    with pytest.raises(WorkerError, match="recorded: timeout") as caught:
        reply(several, subtask(attempt=1))
    assert (caught.value.fault, caught.value.cost_usd) == (Fault.TIMEOUT, 0.1)
    assert [reply(several, subtask(attempt=n)).output for n in (2, 3, 5)] == ["second", "third", "second"]


def test_it_takes_its_time() -> None:
    waits = Waits()
    reply([recording(latency_ms=1500)], subtask(), sleep=waits)
    assert waits == [1.5]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (subtask("translate"), "no recording of 'translate': recorded are summarise"),
        (subtask(instruction="Another"), "'Another': recorded are 1 others"),
    ],
)
def test_what_is_not_recorded_fails_and_says_what_is(task: Subtask, said: str) -> None:
    worker = RecordedWorker("w", [recording(instruction="Sum it up")])
    with pytest.raises(WorkerError) as caught:
        asyncio.run(worker.do(task))
    assert caught.value.fault == Fault.UNKNOWN
    assert said in str(caught.value)
    assert worker.max_usd(task) is None


@pytest.mark.parametrize("fields", [{"fault": "tired"}, {"latency_ms": -1.0}, {"cost_usd": float("nan")}])
def test_values_that_cannot_be_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(WorkersError, match="a recording of 'summarise' has"):
        RecordedWorker("w", [recording(**fields)])


def test_nothing_recorded_does_not_pass_the_check() -> None:
    asyncio.run(RecordedWorker("w", [recording()]).check())
    with pytest.raises(WorkersError, match="nothing is recorded"):
        asyncio.run(RecordedWorker("w", []).check())


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "recordings.jsonl"
    path.write_text(
        '{"task_type": "a", "output": {"x": [1]}, "latency_ms": 40}\n\n{"task_type": "b", "fault": "refusal"}'
    )
    assert read_recordings(path) == [
        Recording(task_type="a", output={"x": [1]}, latency_ms=40.0),
        Recording(task_type="b", fault="refusal"),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"output": 1}', "missing required field `task_type`"),
        (b'{"task_type": 3}', "Expected `str`, got `int`"),
        (b'{"task_type": "a", "fualt": "timeout"}', "unknown field `fualt`"),
        (b'{"task_type": "a", "fault": "tired"}', "'tired': expected one of timeout, rate_limit"),
        (b'{"task_type": "a", "latency_ms": -1}', "latency_ms -1"),
        (b'{"task_type": "a"', "is no recording"),
        (b"\xff", "is no recording"),
        (b'{"task_type": "a", "output": ' + b"[" * 100_000, "is no recording"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: bytes, said: str) -> None:
    path = tmp_path / "recordings.jsonl"
    path.write_bytes(b'{"task_type": "a"}\n\n' + line + b"\n")
    with pytest.raises(WorkersError) as caught:
        read_recordings(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert said in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(WorkersError, match=str(path)):
            read_recordings(path)
