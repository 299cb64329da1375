"""The execution log: what is appended is read back, whatever kills the writer; what is damaged is named."""

from __future__ import annotations

import errno
import json
import os
import random
import stat
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.contracts.errors import LogError
from etude.contracts.trajectory import Trajectory
from etude.orchestrator import log as module
from etude.orchestrator.log import (
    Damaged,
    ExecutionLog,
    forget_in_log,
    forget_in_logs,
    log_catalogue,
    read_lines,
    read_log,
    to_line,
)
from etude.orchestrator.record import Execution, correction_of, failed_node
from etude.orchestrator.trajectories import to_trajectory
from etude.problems.catalogue import TaskType, Worker, read_catalogue
from tests.unit.orchestrator.lines import CATALOGUE, DOCUMENT, execution, executions, write_log

WRITER = """
import sys
from pathlib import Path
from etude.orchestrator.log import ExecutionLog
from tests.unit.orchestrator.lines import CATALOGUE, execution
log = ExecutionLog(Path(sys.argv[1]), CATALOGUE, redact=None)
number = int(sys.argv[2])
while True:
    log.write(execution("long " * 5_000, number=number))
    print(number, flush=True)
    number += 1
"""
ROOT = Path(__file__).parents[3]


def ids(path: Path) -> list[str]:
    """Of every line; `damaged` where one is."""
    return [line.id if isinstance(line, Execution) else "damaged" for line in read_log(path)]


def start(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@given(st.lists(executions, max_size=4))
@settings(max_examples=50, deadline=None)
def test_what_is_written_is_read(written: list[Execution]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with ExecutionLog(Path(folder), CATALOGUE, redact=None) as log:
            for one in written:
                log.write(one)
        assert list(read_log(Path(folder))) == written
        assert read_catalogue(Path(folder) / "catalogue.json") == CATALOGUE


@given(st.lists(executions, min_size=1, max_size=3), st.data())
@settings(max_examples=100, deadline=None)
def test_a_log_cut_anywhere_loses_at_most_its_last_line(written: list[Execution], data: st.DataObject) -> None:
    lines = [to_line(one) for one in written]
    offset = data.draw(st.integers(0, sum(map(len, lines))))
    ends = [sum(map(len, lines[: i + 1])) for i in range(len(lines))]
    whole = [one for one, end in zip(written, ends, strict=True) if end - 1 <= offset]  # a newline may be missing
    left = b"".join(lines)[:offset]
    tail = b"" if offset in {end - 1 for end in ends} else left[left.rfind(b"\n") + 1 :]
    with tempfile.TemporaryDirectory() as name:
        folder = write_log(Path(name), left)
        read = list(read_log(folder))
        assert [line for line in read if isinstance(line, Execution)] == whole
        assert [line.torn for line in read if isinstance(line, Damaged)] == ([True] if tail else [])
        with ExecutionLog(folder, CATALOGUE, redact=None) as log:
            log.write(execution(id="after"))
        assert list(read_log(folder)) == [*whole, execution(id="after")]
        torn = folder / "executions.torn"
        assert (torn.read_bytes() if torn.exists() else b"") == (tail + b"\n" if tail else b"")


def test_a_last_line_that_lacks_only_its_newline_is_whole(tmp_path: Path) -> None:
    folder = write_log(tmp_path, to_line(execution(id="a"))[:-1])
    with ExecutionLog(folder, CATALOGUE, redact=None) as log:
        log.write(execution(id="b"))
    assert ids(folder) == ["a", "b"]
    assert not (folder / "executions.torn").exists()


def test_torn_lines_are_all_kept(tmp_path: Path) -> None:
    folder = write_log(tmp_path, execution(id="a"), b'{"id": "b", ')
    ExecutionLog(folder, CATALOGUE, redact=None).close()
    with (folder / "executions.jsonl").open("ab") as file:
        file.write(b"x" * 200_000)
    ExecutionLog(folder, CATALOGUE, redact=None).close()
    assert (folder / "executions.torn").read_bytes() == b'{"id": "b", \n' + b"x" * 200_000 + b"\n"
    assert ids(folder) == ["a"]


def test_a_killed_writer_loses_no_line_it_finished(tmp_path: Path) -> None:
    expected = 0
    for seed in range(3):
        with start(WRITER, tmp_path, expected) as writer:
            assert writer.stdout is not None
            reported = [int(writer.stdout.readline()) for _ in range(random.Random(seed).randrange(1, 200))]
            writer.kill()
            reported += map(int, writer.stdout.read().split())
        assert reported[0] == expected
        numbers = [line.number for line in read_log(tmp_path) if isinstance(line, Execution)]
        assert numbers == list(range(len(numbers)))  # it may have died between the line and its report
        assert reported[-1] + 1 <= len(numbers) <= reported[-1] + 2
        with ExecutionLog(tmp_path, CATALOGUE, redact=None) as log:
            log.write(execution(number=len(numbers)))
        expected = len(numbers) + 1
        assert [line.number for line in read_log(tmp_path) if isinstance(line, Execution)] == list(range(expected))


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with start(WRITER, tmp_path, 0) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(LogError, match=rf"another process is logging in {tmp_path}: .* another folder"):
            ExecutionLog(tmp_path, CATALOGUE, redact=None)
        writer.kill()
    with ExecutionLog(tmp_path, CATALOGUE, redact=None) as log:
        with pytest.raises(LogError, match="another process"):
            ExecutionLog(tmp_path, CATALOGUE, redact=None)
        log.write(execution(id="mine"))
    assert ids(tmp_path)[-1] == "mine"
    ExecutionLog(tmp_path, CATALOGUE, redact=None).close()


def test_a_full_disk_leaves_whole_lines_only(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from etude.contracts.errors import LogError
from etude.orchestrator.log import ExecutionLog
from tests.unit.orchestrator.lines import CATALOGUE, execution
log = ExecutionLog(Path(sys.argv[1]), CATALOGUE, redact=None)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, most))
written = 0
try:
    while True:
        log.write(execution(id=str(written)))
        written += 1
except LogError as error:
    print(error)
print(log.path.read_bytes().endswith(b"\\n"), log.path.stat().st_size < 5_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
log.write(execution(id=str(written)))
log.close()
print(written)
"""
    with start(code, tmp_path) as writer:
        out, err = writer.communicate(timeout=240)
    assert writer.returncode == 0, err
    message, state, written = out.splitlines()
    assert message.startswith(f"{tmp_path}/executions.jsonl: File too large (errno 27)")
    assert state == "True True"
    assert int(written) > 1
    assert ids(tmp_path) == [str(i) for i in range(int(written) + 1)]


def test_where_a_line_cannot_be_taken_back_nothing_follows_it(tmp_path: Path) -> None:
    (tmp_path / "executions.jsonl").symlink_to("/dev/full")  # neither written nor truncated
    log = ExecutionLog(tmp_path, CATALOGUE, redact=None)
    with pytest.raises(LogError, match=r"executions.jsonl: No space left on device \(errno 28\).*another folder"):
        log.write(execution())
    with pytest.raises(LogError, match="closed"):
        log.write(execution())
    log.close()


def test_a_closed_log_takes_nothing(tmp_path: Path) -> None:
    log = ExecutionLog(tmp_path, CATALOGUE, redact=None)
    log.close()
    log.close()
    with pytest.raises(LogError, match=r"executions.jsonl: the log is closed: open it again to append 'e1'"):
        log.write(execution())
    assert ids(tmp_path) == []


def test_a_deleted_log_takes_nothing(tmp_path: Path) -> None:
    with ExecutionLog(tmp_path, CATALOGUE, redact=None) as log:
        log.write(execution())
        log.path.unlink()
        with pytest.raises(LogError, match="deleted"):
            log.write(execution())


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_is_no_folder(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="is a file or lies in one"):
        ExecutionLog(tmp_path / place, CATALOGUE, redact=None)


def test_the_catalogue_s_numbers_may_change_its_ids_not(tmp_path: Path) -> None:
    ExecutionLog(tmp_path, CATALOGUE, redact=None).close()
    ExecutionLog(tmp_path, CATALOGUE.updated("small", usd_per_call=9.0, available=False), redact=None).close()
    assert log_catalogue(tmp_path) == CATALOGUE
    others = {
        r"other workers \(id 2 is 'none', not 'new'\)": CATALOGUE.added(Worker(name="new")),
        r"other task types \(id 3 is 'none', not 'file'\)": CATALOGUE.added(TaskType(name="file")),
        r"other workers \(id 0 is 'small', not 'large'\)": CATALOGUE.withdrawn("small"),
        r"other task types \(id 0 is 'draft', not 'send'\)": msgspec.structs.replace(
            CATALOGUE, task_types=CATALOGUE.task_types[::-1]
        ),
    }
    for message, other in others.items():
        with pytest.raises(LogError, match=rf"catalogue.json: the log was begun with {message}.*another folder"):
            ExecutionLog(tmp_path, other, redact=None)
    ExecutionLog(tmp_path, CATALOGUE, redact=None).close()  # refusing gives the lock back


def test_executions_whose_catalogue_is_lost_are_not_added_to(tmp_path: Path) -> None:
    (write_log(tmp_path, execution()) / "catalogue.json").unlink()
    with pytest.raises(LogError, match=r"no catalogue.json: restore it"):
        ExecutionLog(tmp_path, CATALOGUE, redact=None)
    (tmp_path / "catalogue.json").write_text("{")
    with pytest.raises(LogError, match=r"catalogue.json: .*truncated"):
        ExecutionLog(tmp_path, CATALOGUE, redact=None)
    assert ids(tmp_path) == ["e1"]


class Broken:
    def __repr__(self) -> str:
        raise ValueError


def endless() -> list[Any]:
    made: list[Any] = []
    made.extend([made, made])
    return made


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


UNUSUAL: dict[str, tuple[Any, Any]] = {
    "complex": (1 + 2j, "(1+2j)"),
    "broken repr": ([Broken()], ["<Broken>"]),
    "keys": ({(1, 2): {None: 3}}, {"(1, 2)": {"None": 3}}),
    "half a character": ("a\ud800", "a\\ud800"),
    "numpy": ([np.float64(1.5), np.int64(2)], [1.5, 2]),
    "endless": (endless(), ["…", "…"]),
    "not a number": (float("nan"), None),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_outputs_of_any_kind_are_logged(name: str) -> None:
    output, logged = UNUSUAL[name]
    result = msgspec.structs.replace(execution().execution_result, outputs={"0": output, "1": {1, 2}})
    line = json.loads(to_line(execution(execution_result=result)))
    assert line["execution_result"]["outputs"]["0"] == logged
    assert line["execution_result"]["outputs"]["1"] == [1, 2]
    assert line["nodes"][0]["task_type"] == 0


def test_a_deep_output_is_logged_down_to_a_depth() -> None:
    result = msgspec.structs.replace(execution().execution_result, outputs={"0": nested(100_000)})
    line = to_line(execution(execution_result=result))
    assert 90 < line.count(b"[") < 130
    assert "…" in line.decode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "dear"])
def test_a_cost_that_is_no_number_is_refused(value: Any, tmp_path: Path) -> None:
    with ExecutionLog(tmp_path, CATALOGUE, redact=None) as log:
        with pytest.raises(LogError, match=r"'e1' cannot be logged \(Expected `float`.*\$.cost"):
            log.write(execution(cost=value))
        log.write(execution(id="next"))
    assert ids(tmp_path) == ["next"]


BAD: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"hello\n", "malformed"),
    "cut off, then more": (to_line(execution())[:100] + b"\n", "truncated"),
    "two in a line": (to_line(execution()).rstrip() * 2 + b"\n", "trailing characters"),
    "zeros of a disk": (b"\0" * 50 + b"\n", "malformed"),
    "not text": (to_line(execution()).replace(b"Draft", b"\xff\xfe"), "can't decode byte 0xff"),
    "a number": (b"12\n", "Expected `object`, got `int`"),
    "a list": (b"[]\n", "Expected `object`, got `list`"),
    "nothing in it": (b"{}\n", "missing required field"),
    "no instruction": (msgspec.json.encode({**DOCUMENT, "instruction": None}) + b"\n", "$.instruction"),
    "cost as text": (msgspec.json.encode({**DOCUMENT, "cost": "0.1"}) + b"\n", "got `str` - at `$.cost`"),
    "cost beyond numbers": (to_line(execution()).replace(b'"cost":0.02', b'"cost":1e999'), "out of range"),
    "a plan without graph": (msgspec.json.encode({**DOCUMENT, "planner_outputs": {}}) + b"\n", "workflow_graph"),
    "nested": (b"[" * 100_000 + b"\n", "recursion"),
    "wrong inside": (to_line(execution()).replace(b'"status":"done"', b'"status":7', 1), "$.nodes[0].status"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_line_is_named_and_the_others_read(name: str, tmp_path: Path) -> None:
    line, reason = BAD[name]
    first, damaged, last = read_log(write_log(tmp_path, execution(id="a"), line, execution(id="b")))
    assert (first, last) == (execution(id="a"), execution(id="b"))
    assert isinstance(damaged, Damaged)
    assert (damaged.file, damaged.line, damaged.torn) == (tmp_path / "executions.jsonl", 2, False)
    assert reason in damaged.reason
    assert str(damaged) == f"{tmp_path}/executions.jsonl:2: {damaged.reason}"


def test_lines_of_later_versions_are_read(tmp_path: Path) -> None:
    line = json.loads(to_line(execution()))
    line["mood"], line["nodes"][0]["mood"], line["planner_outputs"]["mood"] = 1, 2, 3
    assert list(read_log(write_log(tmp_path, line))) == [execution()]


def test_the_document_s_line_is_read(tmp_path: Path) -> None:
    (read,) = read_log(write_log(tmp_path, DOCUMENT))
    assert isinstance(read, Execution)
    assert (read.instruction, read.success, read.cost) == ("Summarize document...", True, 0.045)
    assert read.planner_outputs is not None
    assert read.planner_outputs.model_selections == (1, 0, 1)
    assert read.planner_outputs.workflow_graph.adjacency == ((0, 1, 0), (0, 0, 1), (0, 0, 0))
    assert (read.planner_outputs.task_types, read.policy, read.nodes, read.decisions) == ((), "", (), ())
    assert read.id.startswith("e-")  # by its content, so that it can be labelled
    assert read.reward == pytest.approx(10 - 0.1 * 0.045 - 0.01 * 1200 + 0.1)  # one of its outputs is empty
    (read,) = read_log(write_log(tmp_path, {**DOCUMENT, "reward": -3.0}))
    assert isinstance(read, Execution)
    assert read.reward == -3.0


def test_a_line_of_an_earlier_etude_is_read(tmp_path: Path) -> None:
    """It had what a decision was made from next to the choice, not in its context."""
    choice, live = {"correction": "switch", "worker": 1}, [[0.01, 9.0, 0.5, True, None]]
    eligible = {"corrections": ["retry", "switch"], "workers": [1]}
    old = {"at_ms": 4.0, "failed": 1, "eligible": eligible, "choice": choice, "propensity": 0.5, "policy": "v1"}
    plan = {"at_ms": 0.0, "eligible": {"task_types": [0]}, "choice": {"task_type": 0}, "policy": "v1"}
    line = json.loads(to_line(execution())) | {"decisions": [plan, {**old, "live": live}]}
    (read,) = read_log(write_log(tmp_path, line))
    assert isinstance(read, Execution)
    first, second = read.decisions
    assert (first.problem, first.context, first.action, first.propensity) == ("workflow", None, {"task_type": 0}, None)
    assert (second.context, second.eligible, second.action) == ({"failed": 1, "live": live}, eligible, choice)
    assert (correction_of(second), failed_node(second), failed_node(first)) == ("switch", 1, None)
    assert read.reward == execution().reward


def test_what_is_logged_is_redacted_and_for_its_owner_alone(tmp_path: Path) -> None:
    def redact(trajectory: Trajectory) -> Trajectory:
        return msgspec.structs.replace(trajectory, task=trajectory.task.replace("Ann", "[NAME]"))

    folder = tmp_path / "logs"
    with ExecutionLog(folder, CATALOGUE, redact=redact) as log:
        log.append(to_trajectory(execution("Write to Ann"), CATALOGUE))
    assert [one.instruction for one in read_log(folder) if isinstance(one, Execution)] == ["Write to [NAME]"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    (folder / "executions.jsonl").chmod(0o644)  # as earlier ones were
    ExecutionLog(folder, CATALOGUE, redact=redact).close()
    assert stat.S_IMODE((folder / "executions.jsonl").stat().st_mode) == 0o600


def test_users_are_forgotten_and_all_else_is_left_as_it_is(tmp_path: Path) -> None:
    others = [to_line(execution(id="b", user="u2")), to_line(execution(id="c")), b'{"torn": "u1\n']
    lines = [to_line(execution(id="a", user="u1")), *others, b'{"user":"u1", damaged\n']
    write_log(tmp_path, *lines)
    write_log(tmp_path, execution(id="d", user="u3"), name="older.jsonl")
    (tmp_path / "executions.torn").write_bytes(b'{"id":"e","user":"u3","instr\n{"id":"f"\n')
    kept = b'{"id":"b","success":true,"time":"2026-11-16T10:00:00+00:00"}\n'
    (tmp_path / "labels.jsonl").write_bytes(kept.replace(b'"b"', b'"a"') + kept + kept.replace(b'"b"', b'"d"'))
    assert forget_in_log(tmp_path, ["u1", "u3"]) == 4
    assert (tmp_path / "labels.jsonl").read_bytes() == kept
    assert (tmp_path / "executions.jsonl").read_bytes() == b"".join(others)
    assert (tmp_path / "older.jsonl").read_bytes() == b""
    assert (tmp_path / "executions.torn").read_bytes() == b'{"id":"f"\n'
    assert forget_in_log(tmp_path, ["u1", "u3"]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(
        ["catalogue.json", "executions.jsonl", "executions.torn", "labels.jsonl", "older.jsonl"]
    )


def test_forgetting_waits_for_no_writer_and_says_where_it_could_not(tmp_path: Path) -> None:
    busy, free = tmp_path / "busy", tmp_path / "free"
    for folder in (busy, free):
        write_log(folder, execution(user="u1"))
    with ExecutionLog(busy, CATALOGUE, redact=None):
        erased, failed = forget_in_logs([busy, free, tmp_path / "gone"], ["u1"])
    assert erased == 1
    assert list(failed) == [busy, tmp_path / "gone"]
    assert "another process is logging" in failed[busy]
    assert len(ids(busy)) == 1


def test_a_folder_s_logs_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_log(tmp_path, execution(id="2"), name="b.jsonl")
    write_log(tmp_path, b"\n  \n", execution(id="0"), b"\r\n", to_line(execution(id="1"))[:-1], name="a.jsonl")
    write_log(tmp_path, b"no log", name=".a.jsonl")
    write_log(tmp_path, b"no log", name="executions.torn")
    (tmp_path / "c.jsonl").mkdir()
    assert ids(tmp_path) == ["0", "1", "2"]
    assert ids(tmp_path / "b.jsonl") == ["2"]
    assert [(line.file.name, line.number) for line in read_lines(tmp_path)] == [
        ("a.jsonl", 3),
        ("a.jsonl", 5),
        ("b.jsonl", 1),
    ]


def test_no_log_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=rf"{tmp_path}: holds no \*.jsonl: .*etude collect"):
        read_log(tmp_path)
    with pytest.raises(LogError, match=r"missing: does not exist: expected a folder of execution logs"):
        read_log(tmp_path / "missing")
    write_log(tmp_path, execution())
    (tmp_path / "catalogue.json").unlink()
    with pytest.raises(LogError, match=r"catalogue.json: does not exist: put the catalogue there"):
        log_catalogue(tmp_path / "executions.jsonl")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_log_that_may_not_be_read(tmp_path: Path) -> None:
    write_log(tmp_path, execution())
    (tmp_path / "executions.jsonl").chmod(0)
    with pytest.raises(LogError, match="Permission denied"):
        list(read_log(tmp_path))
    with pytest.raises(LogError, match="Permission denied"):
        ExecutionLog(tmp_path, CATALOGUE, redact=None)


def test_a_line_too_long_for_memory_is_read_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 2_000)
    monkeypatch.setattr(module, "BLOCK", 300)
    with ExecutionLog(tmp_path, CATALOGUE, redact=None) as log:
        with pytest.raises(LogError, match=r"'e1' has .* bytes: a line of a log has less than 2,000"):
            log.write(execution("x" * 2_000))
        log.write(execution(id="a"))
    with (tmp_path / "executions.jsonl").open("ab") as file:
        file.write(b"x" * 9_999 + b"\n" + to_line(execution(id="b")) + b"y" * 7_000)
    assert ids(tmp_path) == ["a", "damaged", "b", "damaged"]
    assert [line.size for line in read_lines(tmp_path)][1::2] == [10_000, 7_000]
    with ExecutionLog(tmp_path, CATALOGUE, redact=None) as log:
        log.write(execution(id="c"))
    assert ids(tmp_path) == ["a", "damaged", "b", "c"]
    assert (tmp_path / "executions.torn").read_bytes() == b"y" * 7_000 + b"\n"


def test_a_log_larger_than_memory_is_read_line_by_line(tmp_path: Path) -> None:
    line = to_line(execution("x" * 10_000))
    write_log(tmp_path, line * 2_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_log(tmp_path)) == 2_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_line_that_is_taken_back_takes_no_other_thread_s_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_written, other_written = threading.Event(), threading.Event()
    write = module._write

    def full(handle: int, data: bytes) -> None:
        monkeypatch.setattr(module, "_write", write)
        os.write(handle, data[:100])
        half_written.set()
        other_written.wait(0.2)
        raise OSError(errno.ENOSPC, "No space left on device")

    def append_other(log: ExecutionLog) -> None:
        half_written.wait()
        log.write(execution(id="other"))
        other_written.set()

    with ExecutionLog(tmp_path, CATALOGUE, redact=None) as log, ThreadPoolExecutor(1) as threads:
        monkeypatch.setattr(module, "_write", full)
        other = threads.submit(append_other, log)
        with pytest.raises(LogError, match="No space left"):
            log.write(execution())
        other.result()
    assert ids(tmp_path) == ["other"]
