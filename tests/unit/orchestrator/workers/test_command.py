from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etude.contracts.errors import WorkersError
from etude.contracts.ports import Worker
from etude.contracts.work import Fault, Input, Reply, Subtask, WorkerError
from etude.orchestrator.inputs import WorkflowInputs
from etude.orchestrator.workers import command as module
from etude.orchestrator.workers.command import CommandWorker

INPUTS = (Input(task_type="search", output={"hits": ["ü"]}), Input(task_type="read", output="a $(date) 'story'"))


def subtask(**changes: Any) -> Subtask:
    fields: dict[str, Any] = {"workflow": "w1", "node": 3, "attempt": 1, "instruction": "Sum it up", "inputs": INPUTS}
    return Subtask(**(fields | {"task_type": "summarise", "description": "Shortens texts"} | changes))


def worker(command: list[str] | str, **options: Any) -> CommandWorker:
    return CommandWorker("w", command=command, **options)


def reply(command: list[str] | str, task: Subtask | None = None, **options: Any) -> Reply:
    return asyncio.run(worker(command, **options).do(task or subtask()))


def failure(command: list[str] | str, task: Subtask | None = None, **options: Any) -> WorkerError:
    with pytest.raises(WorkerError) as caught:
        reply(command, task, **options)
    return caught.value


def state(pid: int) -> str:
    """The kernel's letter for a process: Z for one that is dead and not reaped, "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_gone(pid: int, *, within_s: float = 30.0) -> bool:
    """Whether a process that is not our child has ended; init reaps it when it likes."""
    ends_s = time.monotonic() + within_s
    while state(pid) not in ("", "Z", "X") and time.monotonic() < ends_s:
        time.sleep(0.005)
    return state(pid) in ("", "Z", "X")


def children() -> set[str]:
    """Our child processes, of all threads, those that are dead and not reaped too."""
    return {pid for task in Path("/proc/self/task").glob("*/children") for pid in task.read_text().split()}


@pytest.fixture
def leaves_no_child() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


def test_a_worker_is_a_worker() -> None:
    made: Worker = worker(["cat"])
    assert made.name == "w"


@pytest.mark.parametrize("command", [["cat"], "cat"])
def test_the_subtask_comes_as_json(command: list[str] | str) -> None:
    assert reply(command).output == {
        "instruction": "Sum it up",
        "task_type": "summarise",
        "description": "Shortens texts",
        "inputs": [{"task_type": given.task_type, "output": given.output} for given in INPUTS],
    }


def test_inputs_of_the_workflow_are_files_and_parameters_are_variables() -> None:
    given = WorkflowInputs({"report": "a story\n", "picture": b"\x89\xff"})
    task = subtask(workflow_inputs=given, parameters={"count": 3, "loud": True}, inputs=())
    try:
        assert reply(["cat", "{input.report}"], task).output == "a story"
        assert reply(["cat"], task, stdin="{param.count} times {input.report}").output == "3 times a story"
        line = 'wc -c < "$ETUDE_INPUT_PICTURE"; cat "$ETUDE_INPUT_REPORT"; echo "$ETUDE_PARAM_COUNT $ETUDE_PARAM_LOUD"'
        assert reply(line, task).output.split() == ["2", "a", "story", "3", "true"]
        asked = reply(["cat"], task).output
        assert asked["parameters"] == {"count": 3, "loud": True}
        assert asked["files"] == {"report": given["report"].path, "picture": given["picture"].path}
    finally:
        given.close()


def test_an_input_of_any_length_is_a_file() -> None:
    story = "word " * 1_000_000
    made = (Input(task_type="read", output=story),)
    assert reply(["wc", "-c", "{input_file}"], subtask(inputs=made)).output.split()[0] == "5000000"
    assert reply(["cat", "{input_file}"], subtask()).output == INPUTS[-1].output
    where = reply(["echo", "{input_file}"], subtask()).output
    assert not Path(where).exists()
    given = WorkflowInputs({"report": "a story"})
    task = subtask(workflow_inputs=given, inputs=(Input(name="report", output="a story"),))
    assert reply(["cat", "{input_file}"], task).output == "a story"
    given.close()


@pytest.mark.parametrize(
    ("command", "task", "reported"),
    [
        (["echo", "{input}"], subtask(inputs=(Input(task_type="read", output="é" * 20_000),)), "40,000 bytes"),
        (["echo", "{input_file}"], subtask(inputs=()), "no input to put into a file"),
        (["echo", "{input.report}"], subtask(), "it needs the input 'report', and the workflow has none"),
        (["echo", "{param.count}"], subtask(), "uses the parameter 'count', which is not set"),
        (["cat"], subtask(parameters={"text": "x" * 40_000}), "the variable ETUDE_PARAM_TEXT is too long"),
    ],
)
def test_what_cannot_be_passed_is_wrong_input_before_it_starts(
    command: list[str], task: Subtask, reported: str
) -> None:
    raised = failure(command, task)
    assert (raised.fault, raised.cost_usd) == (Fault.WRONG_INPUT, 0.0)
    assert reported in str(raised)


def test_bytes_are_no_text() -> None:
    given = WorkflowInputs({"picture": b"\x89\xff"})
    task = subtask(workflow_inputs=given, inputs=(Input(name="picture", output=b"\x89\xff"),))
    raised = failure(["cat"], task, stdin="{input}")
    assert "'picture' is not UTF-8 text" in str(raised)
    assert "{input.picture} in `command`" in str(raised)


def test_arguments_are_filled_in_and_nothing_runs_them() -> None:
    made = reply(["printf", "%s|", "{task_type}", "{input}", "{{x}}"], subtask(task_type="{input}"))
    assert made.output == "{input}|a $(date) 'story'|{x}|"


def test_a_line_for_the_shell_is_run_as_it_stands() -> None:
    assert reply("echo '{input}' | tr a-z A-Z; echo $ETUDE_TASK_TYPE $ETUDE_WORKFLOW $ETUDE_NODE").output == (
        "{INPUT}\nsummarise w1 3"
    )


@pytest.mark.parametrize(
    ("written", "output"),
    [
        ('{"a": [1, 2]}\n', {"a": [1, 2]}),
        ("  [1]  ", [1]),
        ("[1\n", "[1"),
        ("17\n", "17"),
        ('"x"', '"x"'),
        ("two\nlines\n\n", "two\nlines\n"),
        ("", ""),
        ('["\\ud800"]', '["\\ud800"]'),  # half a character could not be written down again
        ("[NaN]", "[NaN]"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_objects_and_lists_are_decoded_and_all_else_is_text(written: str, output: Any, tmp_path: Path) -> None:
    (tmp_path / "out").write_text(written)
    assert reply(["cat", "out"], cwd=tmp_path).output == output


def test_bytes_are_read_as_utf8(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes("süß".encode("latin-1"))
    assert reply(["cat", "out"], cwd=tmp_path).output == "s\ufffd\ufffd"


def test_variables_are_added_to_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE", "1")
    assert reply("echo $THERE $MORE", env={"MORE": "2"}).output == "1 2"


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (64, Fault.WRONG_INPUT),
        (65, Fault.WRONG_INPUT),
        (69, Fault.UNAVAILABLE),
        (75, Fault.RATE_LIMIT),
        (124, Fault.TIMEOUT),
        (1, Fault.UNKNOWN),
    ],
)
def test_the_exit_code_says_what_was_wrong(code: int, fault: Fault) -> None:
    error = failure(f"echo first >&2; echo the reason >&2; exit {code}", usd_per_call=0.5)
    assert (error.fault, error.cost_usd) == (fault, 0.5)
    assert str(error).endswith(f"ended with exit code {code}: the reason")


def test_a_signal_is_named() -> None:
    error = failure(["sh", "-c", "kill -9 $$"])
    assert error.fault == Fault.UNKNOWN
    assert "SIGKILL" in str(error)


def test_a_call_has_its_price_or_none() -> None:
    assert reply("true", usd_per_call=0.5).cost_usd == 0.5
    assert worker("true", usd_per_call=0.5).max_usd(subtask()) == 0.5
    assert reply("true").cost_usd is None


def test_too_much_output_is_invalid_and_ends_it() -> None:
    begun_s = time.monotonic()
    error = failure("yes; sleep 60", max_bytes=10_000)
    assert error.fault == Fault.INVALID_OUTPUT
    assert "10,000 bytes" in str(error)
    assert time.monotonic() - begun_s < 5
    assert reply(["printf", "%s", "x" * 100], max_bytes=100).output == "x" * 100


def test_stderr_may_be_long() -> None:
    error = failure("yes no | head -c 999999 >&2; exit 1", max_bytes=10)
    assert str(error).endswith(": no")


def test_stdin_need_not_be_read() -> None:
    task = subtask(instruction="x" * 1_000_000)
    assert reply("echo done", task).output == "done"
    assert reply("cat | wc -c", task).output > "1000000"


def test_a_text_of_any_length_goes_to_stdin() -> None:
    task = subtask(instruction="x " * 1_000_000)
    assert reply(["wc", "-w"], task, stdin="{instruction}").output.strip() == "1000000"
    with pytest.raises(WorkersError, match=r"stdin has an unknown variable {inptu}"):
        worker(["wc"], stdin="{inptu}")


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (subtask(instruction="a\0b"), "null"),
        (subtask(instruction="x" * 10_000_000), "too long"),
        (subtask(inputs=(Input(task_type="t", output={(1, 2): 3}),)), "no JSON"),
    ],
)
def test_what_cannot_be_given_is_wrong_input(task: Subtask, said: str) -> None:
    error = failure(["echo", "{instruction}"], task, usd_per_call=0.5)
    assert (error.fault, error.cost_usd) == (Fault.WRONG_INPUT, 0.0)
    assert said in str(error)


def test_half_characters_are_no_trouble() -> None:
    assert reply(["echo", "{instruction}"], subtask(instruction="a\ud800", workflow="\ud800")).output == "a?"


def test_a_program_that_is_not_there_is_unavailable() -> None:
    error = failure(["no-such-program"], usd_per_call=0.5)
    assert (error.fault, error.cost_usd) == (Fault.UNAVAILABLE, 0.0)


def cancelled(command: list[str] | str, pids: Path, *, count: int, times: int = 1) -> list[int]:
    """The processes that wrote their ids to `pids`, once an attempt that they belong to was cancelled."""

    async def run() -> list[int]:
        attempt = asyncio.create_task(worker(command, cwd=pids.parent).do(subtask()))
        while not pids.exists() or len(pids.read_text().split()) < count:
            await asyncio.sleep(0.002)
        for _ in range(times):
            attempt.cancel()
            await asyncio.sleep(0.005)
        with pytest.raises(asyncio.CancelledError):
            await attempt
        return [int(pid) for pid in pids.read_text().split()]

    return asyncio.run(run())


@pytest.mark.usefixtures("leaves_no_child")
def test_cancelled_nothing_of_it_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_S", 60.0)
    command = ["sh", "-c", "sh -c 'sleep 60 & echo $! >> pids; wait' & echo $$ $! >> pids; wait"]
    begun_s = time.monotonic()
    pids = cancelled(command, tmp_path / "pids", count=3)
    assert time.monotonic() - begun_s < 30  # SIGTERM was enough
    assert [pid for pid in pids if not is_gone(pid)] == []


@pytest.mark.usefixtures("leaves_no_child")
@pytest.mark.parametrize("times", [1, 3])
def test_what_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.05)
    retry_only = "trap '' TERM; sh -c 'sleep 60; sleep 60' & echo $$ $! > pids; wait; sleep 60"
    pids = cancelled(retry_only, tmp_path / "pids", count=2, times=times)
    assert [pid for pid in pids if not is_gone(pid)] == []


@pytest.mark.usefixtures("leaves_no_child")
@pytest.mark.parametrize("turns", range(6))
def test_cancelled_while_it_starts_nothing_of_it_stays(tmp_path: Path, turns: int) -> None:
    async def run() -> None:
        attempt = asyncio.create_task(worker("echo $$ > pid; sleep 60", cwd=tmp_path).do(subtask()))
        for _ in range(turns):
            await asyncio.sleep(0)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt

    asyncio.run(run())
    assert not (tmp_path / "pid").exists() or is_gone(int((tmp_path / "pid").read_text() or 0))


def test_what_it_leaves_in_the_background_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRAIN_S", 60.0)
    begun_s = time.monotonic()
    made = reply("sleep 60 & echo $! > pid; echo done", cwd=tmp_path)
    assert made.output == "done"
    assert time.monotonic() - begun_s < 30
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_one_that_leaves_the_group_with_the_pipe_keeps_nothing_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DRAIN_S", 0.05)
    code = "import os, time; os.setsid(); open('pid', 'w').write(str(os.getpid())); time.sleep(60)"
    leaves = f'{sys.executable} -S -c "{code}" & while ! test -s pid; do sleep 0.01; done; echo done'
    try:
        assert reply(leaves, cwd=tmp_path).output == "done"
    finally:
        os.kill(int((tmp_path / "pid").read_text()), 9)


def test_a_loop_that_is_shut_down_leaves_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        asyncio.get_running_loop().create_task(worker("echo $$ > pid; sleep 60", cwd=tmp_path).do(subtask()))
        while not (tmp_path / "pid").exists():
            await asyncio.sleep(0.002)

    asyncio.run(run())
    assert is_gone(int((tmp_path / "pid").read_text() or 0))


def test_many_run_at_once(tmp_path: Path) -> None:
    """Each ends when all have begun."""

    async def run() -> list[Reply]:
        waits = "touch begun-{task_type}; until test -e go; do sleep 0.02; done; echo {task_type}"
        made = worker(["sh", "-c", waits], cwd=tmp_path)
        tasks = [asyncio.create_task(made.do(subtask(task_type=f"t{i}"))) for i in range(20)]
        async with asyncio.timeout(60):
            while len(list(tmp_path.glob("begun-*"))) < 20:
                await asyncio.sleep(0.01)
        (tmp_path / "go").touch()
        return await asyncio.gather(*tasks)

    assert [made.output for made in asyncio.run(run())] == [f"t{i}" for i in range(20)]


@pytest.mark.usefixtures("leaves_no_child")
def test_without_a_thread_to_wait_for_it_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    error = failure("sleep 60")
    assert error.fault == Fault.UNAVAILABLE


def check(command: list[str] | str, **options: Any) -> None:
    asyncio.run(worker(command, **options).check())


def test_check_finds_the_program(tmp_path: Path) -> None:
    script = tmp_path / "tool"
    script.write_text("#!/bin/sh\necho here\n")
    with pytest.raises(WorkersError, match=r"'\./tool' may not be executed: chmod \+x"):
        check(["./tool"], cwd=tmp_path)
    script.chmod(0o755)
    check(["./tool"], cwd=tmp_path)
    check(["tool"], env={"PATH": str(tmp_path)})
    check("anything | at all")
    with pytest.raises(WorkersError, match="'tool' is not there: install it"):
        check(["tool"])
    with pytest.raises(WorkersError, match="no folder"):
        check(["cat"], cwd=tmp_path / "missing")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([], "expected a program"),
        ([""], "expected a program"),
        (["a\0"], "expected a program"),
        ("  ", "expected a line"),
        (["{input}"], "only stand in its arguments"),
        (["echo", "{imput}"], "argument 1 of command has an unknown variable {imput}: did you mean {input}?"),
    ],
)
def test_a_command_that_cannot_be_is_refused(command: list[str] | str, said: str) -> None:
    with pytest.raises(WorkersError) as caught:
        worker(command)
    assert said in str(caught.value)


def test_json_is_what_any_reader_reads(tmp_path: Path) -> None:
    reply("cat > asked", subtask(instruction="ü\ud800\n"), cwd=tmp_path)
    assert json.loads((tmp_path / "asked").read_bytes())["instruction"] == "ü\ud800\n"
