"""`etude label`: what is shown, what keys do, and how a later session continues."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from etude.cli.orchestrator.label import choose
from etude.orchestrator.labels import Label, append_label, read_labels
from etude.orchestrator.record import Execution
from tests.tiny import etude, refused
from tests.unit.orchestrator.lines import execution, node, write_log

Captured = pytest.CaptureFixture[str]
Press = Callable[..., str]


@pytest.fixture
def press(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> Press:
    """Run the command with these keys on stdin; returns what it printed."""

    def run(logs: Path, *keys: str, options: tuple[str, ...] = ()) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{key}\n" for key in keys)))
        assert etude("label", "--logs", logs, *options) == 0
        return capsys.readouterr().out

    return run


def some(count: int) -> list[Execution]:
    return [execution(f"instruction {i}", id=f"e{i}", success_by="self") for i in range(count)]


def given(logs: Path) -> dict[str, bool]:
    return {label.id: label.success for label in read_labels(logs).by_id.values()}


def test_keys_label_skip_go_back_and_quit(tmp_path: Path, press: Press) -> None:
    logs = write_log(tmp_path, *some(4))
    reported = press(logs, "y", "n", "b", "Y", "x", "s", "q")
    assert given(logs) == {"e0": True, "e1": True}
    assert "'x' is no key: y yes   n no" in reported
    assert reported.count("2 of 4\nasked") == 2  # the second was shown again
    assert "2 labels given: 2 yes, 0 no" in reported
    assert "2 of 2 self-declared successes were right" in reported
    assert f"2 of 4 workflows are labelled in {logs}/labels.jsonl" in reported
    assert f"next: etude prepare --logs {logs}" in reported


def test_the_next_session_continues(tmp_path: Path, press: Press) -> None:
    logs = write_log(tmp_path, *some(3))
    press(logs, "n")
    reported = press(logs, "y", "y")
    assert "1 of 2\nasked     instruction 1" in reported
    assert given(logs) == {"e0": False, "e1": True, "e2": True}
    assert "3 of 3 workflows are labelled" in press(logs)


def test_what_is_shown_of_an_execution(tmp_path: Path, press: Press) -> None:
    made = execution(nodes=(node(0), node(2, 0, status="failed"), node(1, status="dropped")), success=False)
    made = msgspec.structs.replace(
        made,
        error="send was failed",
        success_by="judge",
        execution_result=msgspec.structs.replace(made.execution_result, outputs={"0": "x" * 1000}),
    )
    logs = write_log(tmp_path, made, execution(id="gone", success=False, ended="cancelled"), b"{}\n")
    lines = press(logs).splitlines()
    assert lines[1:8] == [
        "1 of 1",
        "asked     Draft it and send it",
        "plan      draft by small; send by small after draft (failed)",
        f"output    draft: {'x' * 393}… (1,007 characters)",
        "error     send was failed",
        "result    no success, a language model as judge",
        "y yes   n no   s skip   b back   q quit",
    ]
    assert given(logs) == {}


def test_a_sample_is_random_by_seed_and_unlabelled_first() -> None:
    ids = [f"e{i}" for i in range(100)]
    first = choose(ids, set(), sample=10, seed=0)
    assert first == choose(ids, set(), sample=10, seed=0)
    assert first != choose(ids, set(), sample=10, seed=1)
    assert first != ids[:10]
    later = choose(ids, set(first[:4]), sample=10, seed=0)
    assert later[:6] == first[4:]  # it continues where it stopped
    assert not set(later) & set(first[:4])
    rest = choose(ids, set(ids) - {"e3"}, sample=2, seed=0)
    assert rest[0] == "e3"
    assert len(rest) == 2
    assert choose(ids, set(ids), sample=None, seed=0) == []


def test_a_sample_on_the_command_line(tmp_path: Path, press: Press) -> None:
    logs = write_log(tmp_path, *some(20))
    press(logs, *"yyyyy", options=("--sample", "3"))
    assert len(given(logs)) == 3


def test_labels_of_other_logs_are_refused_or_warned_about(tmp_path: Path, press: Press, capsys: Captured) -> None:
    logs = write_log(tmp_path, *some(2))
    append_label(logs / "labels.jsonl", Label(id="elsewhere", success=True, time="t"))
    before = (logs / "labels.jsonl").read_bytes()
    assert "none of its 1 ids, such as 'elsewhere', is in the log" in refused(capsys, "label", "--logs", logs)
    assert (logs / "labels.jsonl").read_bytes() == before
    append_label(logs / "labels.jsonl", Label(id="e0", success=True, time="t"))
    assert "warning: " in press(logs, "q")


def test_a_log_without_workflows(tmp_path: Path, capsys: Captured) -> None:
    logs = write_log(tmp_path, execution(success=False, ended="cancelled"))
    assert "holds no workflow that was carried out" in refused(capsys, "label", "--logs", logs)
