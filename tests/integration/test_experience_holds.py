"""Bad input to the experience commands: it gets a one-line error or becomes a dead letter; the agent continues."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import etude as package
from etude.adapters.outbox import PRAGMAS, Outbox
from etude.bootstrap import experience as wiring
from etude.contracts.errors import DataError
from etude.contracts.examples import EXAMPLES
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Feedback, Trajectory
from tests.servers.nats import NatsServer
from tests.tiny import etude, json_output, refused

BASE: dict[str, Any] = json.loads(encode(EXAMPLES[Trajectory])) | {"time": "2026-11-15T08:00:00Z"}
COMMAND = [sys.executable, "-m", "etude.cli"]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    for collector in wiring._collector.made.values():
        collector.bus.close()
    wiring._collector.made.clear()


def line(id: str, **changes: Any) -> bytes:
    return json.dumps(BASE | {"id": id} | changes).encode()


def write(*lines: bytes, end: bytes = b"\n", start: bytes = b"") -> str:
    Path("events.jsonl").write_bytes(start + b"".join(one + end for one in lines))
    return "events.jsonl"


def nested(levels: int) -> bytes:
    """Without a type, and with an address that only who reads the JSON finds."""
    who = rb'"ana\u0040example.com"'
    deep = b"[" * levels + who + b"]" * levels
    start = b'{"id": "deep-%d", "time": "2026-11-15T08:00:00Z", "task": "x", "problem": "task", ' % levels
    return start + b'"metadata": {"a": %s}}' % deep


STRANGE = {
    "a list": (b"[]", "got `array`"),
    "a wrong type": (line("a", task=5), "$.task"),
    "a wrong value": (line("a", outcome={"success": "yes"}), "$.outcome.success"),
    "no time zone": (line("a", time="2026-11-15T08:00:00"), "timezone"),
    "the far future": (line("a", time="9999-12-31T23:59:59-14:00"), "ahead of the clock"),
    "another's subject": (line("a", type="what.is.this"), "what.is.this"),
    "a reward": (line("a", type="agent.rl.reward.v1"), "agent.rl.reward.v1"),
    "a newer version": (line("a", type="agent.rl.trajectory.v9"), "newer version"),
    "500 levels": (nested(500), "nested"),
    "100,000 levels": (nested(100_000), "nested too deeply"),
    "not UTF-8": (line("a").replace(b'"a"', b'"\xff"'), "JSON"),
    "a NUL": (line("a").replace(b'"a"', b'"\x00"'), "JSON"),
    "half a character": (line("a", task="\ud800"), "surrogate"),
    "1e400": (line("a", metadata={"n": 0}).replace(b'"n": 0', b'"n": 1e400'), "out of range"),
    "17 MB": (line("a", task="x" * (17 << 20)), "too large"),
}


def test_strange_lines_are_buried_each_with_its_reason_and_the_rest_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = write(line("first"), *(bad for bad, _ in STRANGE.values()), nested(150), line("last"))
    result = json_output(capsys, "ingest", file)
    assert (result["new"], result["dead_letters"]) == (3, len(STRANGE))
    letters = json_output(capsys, "experience", "dead-letters", "--limit", "100")
    assert len(letters) == len(STRANGE)
    for letter, (_, reason) in zip(letters, STRANGE.values(), strict=True):
        assert reason in letter["reason"]
    assert json_output(capsys, "ingest", file)["duplicate"] == 3
    shown = json_output(capsys, "experience", "show", "deep-150")
    assert "[EMAIL_1]" in json.dumps(shown)


def test_an_id_with_other_content_is_refused_and_feedback_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    said = json.loads(encode(EXAMPLES[Feedback])) | {"trajectory_id": "later", "time": "2026-11-15T08:00:00Z"}
    feedback = json.dumps(said).encode()
    first = json_output(capsys, "ingest", write(feedback, feedback, line("a"), line("a", task="another")))
    assert (first["new"], first["duplicate"], first["dead_letters"]) == (2, 1, 1)
    json_output(capsys, "ingest", write(line("later", decisions=[], turns=[])))
    story = json_output(capsys, "experience", "show", "later")
    assert len(story["feedback"]) == 1
    assert json_output(capsys, "reward", "explain", "later")


def test_files_of_other_systems(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        json_output(capsys, "ingest", write(line("a"), b"", line("b"), end=b"\r\n", start=b"\xef\xbb\xbf"))["new"] == 2
    )
    assert json_output(capsys, "ingest", write()) == {"dead_letters": 0, "reasons": {}}
    assert json_output(capsys, "ingest", write(b"", b"  ", start=b"\xef\xbb\xbf")) == {"dead_letters": 0, "reasons": {}}
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_bytes(line("c")))
    writer.start()
    assert json_output(capsys, "ingest", "pipe")["new"] == 1
    writer.join()


def test_numbers_beyond_any_sum_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    huge = {"cost_usd": 1e308, "latency_ms": 1e308}
    file = write(line("a", outcome=huge), line("b", outcome=huge), line("c", time="0001-01-01T00:00:00+14:00"))
    assert json_output(capsys, "ingest", file)["new"] == 3
    for command in (("stats",), ("list",), ("show", "a"), ("expire", "--days", "1e300")):
        assert etude("experience", *command) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("experience: {foldr: x}", "did you mean 'experience.folder'"),
        ("experience: {bus: 'kafka://x'}", "nats://host:4222"),
        ("experience: {store: 'mysql://[x'}", "clickhouse://"),
        ("experience: {keep_kinds: [nope]}", "expected some of"),
        ("experience: {reward_version: 77}", "no reward definition"),
        ("experience: {folder: events.jsonl}", "set another one"),
        ("{{{", "cannot be read as YAML"),
    ],
)
def test_wrong_settings_are_reported_and_the_agent_continues(
    settings: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "EXIT_TIMEOUT_S", 0.0)
    file = write(line("a"))
    Path("etude.yaml").write_text(settings)
    assert message in refused(capsys, "ingest", file)
    with package.task("x", user="u1") as task:
        task.turn(result=1)
    package.feedback(task.id, stars=5)


def test_an_unreadable_file_gives_a_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "is a folder" in refused(capsys, "ingest", ".")
    assert "no such file" in refused(capsys, "ingest", "vanished.jsonl")
    assert "no trajectory" in refused(capsys, "experience", "show", "nobody")
    assert "no cursor" in refused(capsys, "experience", "list", "--after", "nonsense")


@pytest.mark.parametrize("name", ["outbox.sqlite", "experience.sqlite"])
def test_a_damaged_file_is_reported_and_the_agent_continues(
    name: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    Path(".etude").mkdir()
    Path(".etude", name).write_bytes(b"nonsense" * 4096)
    with caplog.at_level(logging.ERROR, logger="etude"), package.task("x", user="u1") as task:
        assert task.decide("tone", options=["a"]) == "a"
    assert not task.collected
    assert name in caplog.text
    for command in ("ingest", write(line("a"))), ("experience", "stats"):
        assert name in refused(capsys, *command)
    Path(".etude", name).unlink()
    with package.task("x", user="u1") as task:
        ...
    assert task.collected  # without a new start of the agent


class OddError(Exception):
    """Says nothing, not even what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Locked(dict[str, Any]):
    """Changes while it is read, as a mapping of another thread does."""

    def items(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


def test_odd_values_never_reach_the_agent() -> None:
    with package.task("half a \ud800", user="\udcff") as task:
        task.turn(observation=Locked(a=1), result=10**400, error=OddError())
    assert task.collected
    with pytest.raises(OddError), package.task("x"):
        raise OddError


def test_wrong_arguments_are_refused_where_they_are_given() -> None:
    with package.task("x") as task:
        for cost in ("free", 10**400):
            with pytest.raises(DataError, match="cost_usd is "):
                task.turn(cost_usd=cost)  # type: ignore[arg-type]
        with pytest.raises(DataError, match=r"quality is \[1\]: expected a mapping"):
            task.outcome(quality=[1])
        task.turn(cost_usd=0.1)
    assert task.collected
    with pytest.raises(DataError, match=r"user is \['nobody'\]"):
        package.task("x", user=["nobody"])


def outcomes(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """By task."""
    rows = json_output(capsys, "experience", "list", "--limit", "1000")["rows"]
    stories = [json_output(capsys, "experience", "show", row["id"])["trajectory"] for row in rows]
    return {story["task"]: story["outcome"] for story in stories}


def test_tasks_that_are_nested_cancelled_or_left(capsys: pytest.CaptureFixture[str]) -> None:
    def left() -> Iterator[None]:
        with package.task("left"):
            yield

    async def waits() -> None:
        with package.task("cancelled"):
            await asyncio.sleep(60)

    async def cancels() -> None:
        waiting = asyncio.create_task(waits())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    steps = iter(left())
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    asyncio.run(cancels())
    with pytest.raises(ValueError, match="within"), package.task("outer"), package.task("inner"):
        raise ValueError("within")
    found = outcomes(capsys)
    assert {name: outcome.get("ended") for name, outcome in found.items()} == {
        "left": "cancelled",
        "cancelled": "cancelled",
        "outer": "failed",
        "inner": "failed",
    }


def collect(count: int) -> int:
    for i in range(count):
        with package.task(f"x{i}", user="u1") as task:
            task.turn(result=i)
        assert task.collected
    return count


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_threads_and_forked_children_collect(capsys: pytest.CaptureFixture[str]) -> None:
    threads = [threading.Thread(target=collect, args=(10,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(collect, [5] * 6) == [5] * 6
    assert json_output(capsys, "experience", "stats")["trajectories"] == 110


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_another_thread_makes_its_collector_does_not_wait_for_it() -> None:
    with wiring._collector._turn:
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os._exit(0 if collect(1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_full_disk_is_reported_and_stored_events_are_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = 0
    with monkeypatch.context() as patched:
        patched.setattr("etude.adapters.outbox.PRAGMAS", (*PRAGMAS, "max_page_count = 75"))
        small = Outbox(Path(".etude/outbox.sqlite"))
        patched.setattr(wiring, "open_outbox", lambda config: small)
        for _ in range(40):
            with package.task("x") as task:
                task.turn(result="x" * 9000)
            kept += task.collected
    assert 10 < kept < 40
    assert json_output(capsys, "experience", "stats")["trajectories"] == kept


def test_a_lock_held_by_another_process_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etude.adapters.outbox.PATIENCE_S", 0.2)
    assert json_output(capsys, "ingest", write(line("a")))["new"] == 1
    holder = sqlite3.connect(".etude/outbox.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with package.task("x") as task:
        ...
    assert not task.collected
    assert "end that, or do it again" in refused(capsys, "ingest", "events.jsonl")
    holder.close()
    with package.task("x") as task:
        ...
    assert task.collected


def test_an_interrupted_ingest_is_taken_up_again(capsys: pytest.CaptureFixture[str]) -> None:
    file = write(*(line(f"t-{i}", metadata={"text": "words " * 200}) for i in range(16000)))
    # Where the tests run in the background of a shell, they ignore interrupts, and so would what they start.
    heeds = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        [*COMMAND, "ingest", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heeds
    )
    while process.poll() is None and taken() < 200:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    before = taken()
    assert 0 < before < 16000
    result = json_output(capsys, "ingest", file)
    assert (result["new"], result["duplicate"]) == (16000 - before, before)
    stats = json_output(capsys, "experience", "stats")
    assert (stats["trajectories"], stats["rewards"]) == (16000, 16000)


def taken() -> int:
    """Trajectories stored so far, read over a second connection."""
    try:
        db = sqlite3.connect("file:.etude/experience.sqlite?mode=ro", uri=True)
        try:
            return int(db.execute("SELECT count(*) FROM trajectories").fetchone()[0])
        finally:
            db.close()
    except sqlite3.Error:
        return 0


def test_a_broker_that_comes_back_has_lost_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = NatsServer(tmp_path / "nats")
    Path("etude.yaml").write_text(f"experience: {{bus: '{server.url}'}}")
    with (tmp_path / "errors").open("wb") as errors:
        worker = subprocess.Popen([*COMMAND, "experience", "work"], stdout=subprocess.DEVNULL, stderr=errors)
    try:
        assert json_output(capsys, "ingest", write(*(line(f"a-{i}") for i in range(50))))["sent"] == 50
        until(50)
        server.kill()
        collect(5)  # into the outbox
        server.start()
        assert json_output(capsys, "ingest", write(*(line(f"b-{i}") for i in range(50)), b"nonsense"))["sent"] == 51
        until(105)
        worker.send_signal(signal.SIGINT)
        assert worker.wait(timeout=240) == 0
        assert "Traceback" not in (tmp_path / "errors").read_text()
        assert len(json_output(capsys, "experience", "dead-letters")) == 1
    finally:
        worker.kill()
        worker.wait()
        print((tmp_path / "errors").read_text())
        for collector in wiring._collector.made.values():
            collector.bus.close()
        server.stop()


def until(count: int) -> None:
    deadline = time.monotonic() + 60  # what a broker had delivered when it was killed is delivered again after its time
    while taken() < count:
        assert time.monotonic() < deadline, f"{taken()} of {count} came"
        time.sleep(0.05)


def test_a_clock_that_is_behind_is_no_reason_to_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    Path("etude.yaml").write_text("experience: {max_ahead_s: 1.0e+300}")
    ahead = (datetime.now(UTC) + timedelta(days=3)).isoformat()
    assert (
        json_output(capsys, "ingest", write(line("a", time=ahead), line("b", time="1969-01-01T00:00:00Z")))["new"] == 2
    )
