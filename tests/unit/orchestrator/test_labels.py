"""Labels of people: what they change in an execution, which file they are in, and files that are wrong."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from etude.contracts.errors import LogError
from etude.orchestrator.labels import Label, append_label, read_labels
from etude.orchestrator.log import log_files
from tests.unit.orchestrator.lines import execution, write_log


def label(id: str, success: bool) -> Label:
    return Label(id=id, success=success, time="2026-11-16T10:00:00+00:00")


def test_the_last_label_counts_and_the_file_is_private_and_no_log(tmp_path: Path) -> None:
    write_log(tmp_path, execution())
    file = read_labels(tmp_path).file
    for one in (label("a", True), label("b", True), label("a", False)):
        append_label(file, one)
    assert read_labels(tmp_path).by_id == {"a": label("a", False), "b": label("b", True)}
    assert read_labels(tmp_path / "executions.jsonl") == read_labels(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert log_files(tmp_path) == [tmp_path / "executions.jsonl"]


def test_a_label_overrides_the_outcome_and_the_reward(tmp_path: Path) -> None:
    write_log(tmp_path)
    for one in (label("e1", False), label("e2", True)):
        append_label(tmp_path / "labels.jsonl", one)
    labels = read_labels(tmp_path)
    no = labels.apply(execution(success_by="self", reward=8.0))
    assert (no.success, no.success_by, no.reward, no.execution_result.success) == (False, "person", -2.0, False)
    assert no.error == "a person said that it did not succeed"
    yes = labels.apply(execution(id="e2", success=False, reward=-2.0, error="count was skipped"))
    assert (yes.success, yes.success_by, yes.reward, yes.error) == (True, "person", 8.0, "count was skipped")
    other = execution(id="e3")
    assert labels.apply(other) is other


def test_labels_of_other_logs(tmp_path: Path) -> None:
    write_log(tmp_path)
    assert read_labels(tmp_path).check() == ""
    for id in ("a", "b", "c", "d", "e1"):
        append_label(tmp_path / "labels.jsonl", label(id, True))
    labels = read_labels(tmp_path)
    with pytest.raises(
        LogError, match=r"labels.jsonl: belongs to other logs: none of its 5 ids, such as 'a', 'b', 'c'"
    ):
        labels.check()
    labels.apply(execution())
    said = "4 of 5 labels are of executions that are not in the log, such as 'a', 'b', 'c'; they change nothing"
    assert labels.check() == f"{tmp_path}/labels.jsonl: {said}"


def test_a_damaged_line_is_named_and_a_torn_one_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    append_label(file, label("a", True))
    with file.open("ab") as torn:
        torn.write(b'{"id": "b", "succ')
    assert list(read_labels(tmp_path).by_id) == ["a"]
    append_label(file, label("c", True))
    with pytest.raises(LogError, match=r"labels.jsonl:2: .*correct the line, or remove it"):
        read_labels(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"labels.jsonl: cannot be written \(No such file or directory\)"):
        append_label(tmp_path / "missing" / "labels.jsonl", label("a", True))
