from __future__ import annotations

import asyncio
import contextvars
import functools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from etude.contracts.errors import WorkersError
from etude.contracts.ports import Worker
from etude.contracts.work import Fault, Input, Reply, Subtask, WorkerError
from etude.orchestrator.inputs import WorkflowInputs
from etude.orchestrator.workers.callable import NAMES, CallableWorker, import_callable, in_thread

INPUTS = (Input(task_type="search", output="hits"),)


def subtask(**changes: Any) -> Subtask:
    fields: dict[str, Any] = {"workflow": "w1", "node": 0, "attempt": 1, "instruction": "Sum it up", "inputs": INPUTS}
    return Subtask(**(fields | {"task_type": "summarise", "description": "Shortens"} | changes))


def reply(call: Callable[..., Any], **options: Any) -> Reply:
    return asyncio.run(CallableWorker("w", call, **options).do(subtask()))


def failure(call: Callable[..., Any], **options: Any) -> WorkerError:
    with pytest.raises(WorkerError) as caught:
        reply(call, **options)
    return caught.value


async def later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


class Tool:
    async def __call__(self, task: Subtask) -> str:
        return await later(task.task_type)  # type: ignore[no-any-return]

    def method(self, instruction: str) -> str:
        return instruction


async def by_name(inputs: tuple[Input, ...], *, description: str) -> Any:
    return await later((inputs, description))


def positional_only(instruction: Any, /) -> Any:
    return instruction.node


@pytest.mark.parametrize(
    ("call", "output"),
    [
        (lambda task: task.instruction, "Sum it up"),
        (lambda subtask: subtask.node, 0),
        (lambda instruction, task_type: (instruction, task_type), ("Sum it up", "summarise")),
        (lambda instruction, more=3: more, 3),
        (lambda **known: sorted(known), sorted(NAMES)),
        (lambda *given: given[0].node, 0),
        (by_name, (INPUTS, "Shortens")),
        (functools.partial(by_name, inputs=()), ((), "Shortens")),
        (Tool(), "summarise"),
        (Tool().method, "Sum it up"),
        (positional_only, 0),
        (lambda task: later(task.node), 0),  # a coroutine, made in a thread
        (lambda task: None, None),
        (type, Subtask),
    ],
)
def test_it_is_called_as_it_wants_to_be(call: Callable[..., Any], output: Any) -> None:
    made = reply(call)
    assert made.output == output
    assert made.cost_usd is None


def test_a_worker_is_a_worker() -> None:
    made: Worker = CallableWorker("w", str)
    assert made.name == "w"


def test_a_reply_is_taken_as_it_is_and_an_output_has_the_price_of_a_call() -> None:
    assert reply(lambda task: Reply(output=1, cost_usd=0.2), usd_per_call=0.5) == Reply(output=1, cost_usd=0.2)
    assert reply(lambda task: 1, usd_per_call=0.5) == Reply(output=1, cost_usd=0.5)
    assert CallableWorker("w", str, usd_per_call=0.5).max_usd(subtask()) == 0.5


def raising(error: BaseException) -> Callable[[Subtask], Any]:
    def call(task: Subtask) -> Any:
        raise error

    return call


def raising_async(error: BaseException) -> Callable[[Subtask], Coroutine[Any, Any, Any]]:
    async def call(task: Subtask) -> Any:
        raise error

    return call


@pytest.mark.parametrize("kind", [raising, raising_async])
@pytest.mark.parametrize(
    ("error", "fault", "said"),
    [
        (TimeoutError("late"), Fault.TIMEOUT, "TimeoutError: late"),
        (ConnectionResetError("gone"), Fault.UNAVAILABLE, "ConnectionResetError: gone"),
        (FileNotFoundError(2, "missing"), Fault.UNAVAILABLE, "FileNotFoundError: [Errno 2] missing"),
        (ValueError("bad"), Fault.UNKNOWN, "ValueError: bad"),
        (KeyError(), Fault.UNKNOWN, "KeyError"),
        (asyncio.CancelledError(), Fault.UNKNOWN, "ancelled"),  # something of its own, not the attempt
        (StopIteration(3), Fault.UNKNOWN, "StopIteration"),
    ],
)
def test_what_it_raises_has_a_fault(kind: Any, error: BaseException, fault: Fault, said: str) -> None:
    found = failure(kind(error), usd_per_call=0.5)
    assert found.fault == fault
    assert said in str(found)


def test_its_own_worker_error_is_left_as_it_is() -> None:
    error = WorkerError("no", fault=Fault.REFUSAL, cost_usd=0.1)
    assert failure(raising(error), usd_per_call=0.5) is error


def test_a_thread_that_wants_to_exit_ends_nothing_else() -> None:
    assert "SystemExit: 3" in str(failure(lambda task: sys.exit(3)))


def test_an_error_that_cannot_be_shown_is_named() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert str(failure(raising(OddError()))) == "OddError"
    assert len(str(failure(raising(ValueError("x" * 10_000))))) < 600


def test_sync_calls_run_at_the_same_time_in_threads_with_their_context() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    together = threading.Barrier(8)

    def call(task: Subtask) -> tuple[int, bool]:
        together.wait(5)
        return variable.get(), threading.current_thread().daemon

    async def run() -> list[Reply]:
        variable.set(7)
        return await asyncio.gather(*(CallableWorker("w", call).do(subtask()) for _ in range(8)))

    assert [made.output for made in asyncio.run(run())] == [(7, True)] * 8


def test_cancelled_an_async_call_is_cancelled_too() -> None:
    seen = []

    async def call(task: Subtask) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def run() -> None:
        attempt = asyncio.create_task(CallableWorker("w", call).do(subtask()))
        await asyncio.sleep(0)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt

    asyncio.run(run())
    assert seen == ["cancelled"]


@pytest.mark.parametrize("close_first", [True, False])
def test_cancelled_a_sync_call_is_left_and_what_comes_of_it_dropped(close_first: bool) -> None:
    go, ended = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def call(task: Subtask) -> Any:
        threads.append(threading.current_thread())
        go.wait(5)
        ended.set()
        return later(1)  # never awaited: a warning, which is an error, unless it is closed

    async def run() -> None:
        attempt = asyncio.create_task(CallableWorker("w", call).do(subtask()))
        while not threads:
            await asyncio.sleep(0.001)
        begun_s = time.monotonic()
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        assert time.monotonic() - begun_s < 4
        if not close_first:
            go.set()
            while not ended.is_set() or threads[0].is_alive():
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.001)

    asyncio.run(run())
    go.set()
    threads[0].join(5)
    assert ended.is_set()


def test_a_call_that_hangs_does_not_keep_the_program_from_ending(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import asyncio, time
from etude.orchestrator.workers.callable import in_thread
async def run():
    try:
        async with asyncio.timeout(0.05):
            await in_thread(lambda: time.sleep(3600))
    except TimeoutError:
        print("left")
asyncio.run(run())
""")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


def test_in_thread_gives_what_a_call_returns() -> None:
    async def run() -> int:
        return await in_thread(lambda: 3)

    assert asyncio.run(run()) == 3


@pytest.mark.parametrize("call", [lambda: 1, lambda a, b: 1, lambda instruction, b: 1, 3])
def test_what_cannot_be_called_with_a_subtask_is_refused(call: Any) -> None:
    with pytest.raises(WorkersError, match="cannot be called"):
        CallableWorker("w", call)


def test_it_may_name_inputs_of_the_workflow_and_parameters() -> None:
    task = subtask(workflow_inputs=WorkflowInputs({"report": "a story"}), parameters={"count": 3})

    def call(call: Callable[..., Any], **known: bool) -> Any:
        return asyncio.run(CallableWorker("w", call, parameters=known).do(task)).output

    assert call(lambda workflow_inputs, parameters: (workflow_inputs, parameters)) == (
        {"report": "a story"},
        {"count": 3},
    )
    assert call(lambda inputs, count: (inputs, count), count=True) == (INPUTS, 3)
    assert call(lambda inputs, limit=9: limit, count=True, limit=False) == 9
    with pytest.raises(WorkersError, match="requires 'limit', which not every subtask has"):
        call(lambda inputs, limit: limit, limit=False)


def test_a_callable_is_found_by_name() -> None:
    assert import_callable("json:loads")("[1]") == [1]
    assert import_callable("pathlib:Path.cwd")() == Path.cwd()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("json.loads", "expected package.module:function"),
        (":loads", "expected package.module:function"),
        ("json:", "expected package.module:function"),
        ("no_such_package.tools:f", "'no_such_package.tools' cannot be imported: ModuleNotFoundError"),
        ("json:lods", "json has no 'lods': did you mean 'loads'?"),
        ("json:JSONDecoder.decod", "JSONDecoder has no 'decod': did you mean 'decode'?"),
        ("math:pi", "is float, which cannot be called"),
        ("math:pi.no_such_thing", "has no 'no_such_thing'"),
        ("broken_tools:f", "ZeroDivisionError: division by zero"),
        ("leaving_tools:f", "SystemExit: 2"),
        ("..tools:f", "cannot be imported"),
    ],
)
def test_what_cannot_be_found_is_named(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_tools.py").write_text("1 / 0")
    (tmp_path / "leaving_tools.py").write_text("raise SystemExit(2)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WorkersError) as caught:
        import_callable(name)
    assert said in str(caught.value)
    assert repr(name) in str(caught.value)
