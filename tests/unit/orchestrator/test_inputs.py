"""Inputs of a workflow: from values, from files, from the instruction, and as private files."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from etude.contracts.errors import DataError
from etude.orchestrator import inputs as module
from etude.orchestrator.inputs import WorkflowInputs, parse_inputs, text_in


def test_values_and_files_become_values_and_private_files(tmp_path: Path) -> None:
    report, picture = tmp_path / "report.md", tmp_path / "picture.png"
    report.write_text("ein Bericht über Äpfel")
    picture.write_bytes(b"\x89PNG\xff")
    given = WorkflowInputs({"report": report, "picture": picture, "text": "a", "raw": b"b", "tags": ["ü", 1, None]})
    assert {name: one.value for name, one in given.items()} == {
        "report": "ein Bericht über Äpfel",
        "picture": b"\x89PNG\xff",
        "text": "a",
        "raw": b"b",
        "tags": ["ü", 1, None],
    }
    paths = {name: Path(one.path) for name, one in given.items()}
    assert [path.name for path in paths.values()] == ["report.md", "picture.png", "text.txt", "raw.bin", "tags.json"]
    assert paths["report"].read_text() == "ein Bericht über Äpfel"
    assert json.loads(paths["tags"].read_text()) == ["ü", 1, None]
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths.values()} == {0o400}
    assert stat.S_IMODE(paths["text"].parent.stat().st_mode) == 0o700
    assert given["text"].path == str(paths["text"])
    given.close()
    assert not paths["text"].parent.exists()
    assert report.exists()


def test_a_record_has_sizes_and_hashes_and_no_content() -> None:
    story = "a story of ana@example.com " * 4
    described = WorkflowInputs({"report": story, "pin": "1234"}).described()
    assert described == {
        "report": {"bytes": len(story), "sha256": hashlib.sha256(story.encode()).hexdigest()},
        "pin": {"bytes": 4},  # its hash would give it away
    }


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({"a b": "x"}, "'a b' is no name of an input"),
        ({"1a": "x"}, "expected a letter"),
        ({3: "x"}, "3 is no name"),
        ({"a": "x", "A": "y"}, "'a' and 'A' differ in capitals alone"),
        ({"a": Path("nowhere.txt")}, "'a': nowhere.txt cannot be read (No such file or directory)"),
        ({"a": object()}, "'a' cannot be used (Object of type object is not JSON serializable)"),
        ({"a": float("nan")}, "'a' cannot be used"),
        ({"a": "\ud800"}, "'a' cannot be used"),
    ],
)
def test_what_cannot_be_used_is_named(given: dict[Any, Any], reported: str) -> None:
    with pytest.raises(DataError) as refused:
        WorkflowInputs(given)
    assert reported in str(refused.value)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_INPUT_BYTES", 10)
    (tmp_path / "big.txt").write_text("x" * 11)
    with pytest.raises(DataError, match="'big' has 11 bytes, expected at most 10"):
        WorkflowInputs({"big": tmp_path / "big.txt"})


@pytest.mark.parametrize(
    ("instruction", "text"),
    [
        ("Sort the lines and count the words: pear, apple, fig", "pear, apple, fig"),
        ("Note: count the words: pear", "pear"),
        ("Count the words:\npear\nfig\n", "pear\nfig"),
        ('Count the words of "pear, fig" please', "pear, fig"),
        ('Find "note: important" in it', "note: important"),
        ('Translate: he said "hello" to me', 'he said "hello" to me'),
        ('Translate: "hello"', "hello"),
        ("Translate “hello” and «salut»", "salut"),
        ("Count the words:\n```text\nnote: pear\nfig\n```\nthen sort: all", "note: pear\nfig"),
        ("Call them at 10:30", None),
        ("Count the words:", None),
        ("Count the report's words in Ana's folder", None),
    ],
)
def test_the_text_in_an_instruction(instruction: str, text: str | None) -> None:
    assert text_in(instruction) == text
    found = WorkflowInputs({}, instruction=instruction)
    assert [(name, one.value) for name, one in found.items()] == ([] if text is None else [("text", text)])
    assert list(WorkflowInputs({"report": "x"}, instruction=instruction)) == ["report"]


def test_inputs_of_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("report.txt").write_text("a story")
    Path("two words").write_text("a story")
    given = ["a=report.txt", "b=@two words", "c=plain text, e.g. this.", "d=@@x", "e:=[1, 2]", 'f:="report.txt"', "g="]
    assert parse_inputs([*given, "h=x=y", "i=3.5", "j=https://example.com/a.txt"]) == {
        "a": Path("report.txt"),
        "b": Path("two words"),
        "c": "plain text, e.g. this.",
        "d": "@x",
        "e": [1, 2],
        "f": "report.txt",
        "g": "",
        "h": "x=y",
        "i": "3.5",
        "j": "https://example.com/a.txt",
    }


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        (["report"], "'report' is no input: expected NAME=FILE"),
        (["a=reprot.txt"], 'no file reprot.txt: correct the path; if it is a text, write a:="reprot.txt"'),
        (["a=data/reprot"], "no file data/reprot"),
        (["a=@plain"], "no file plain: correct the path"),
        (["a=."], "'a': . is a folder: give a file"),
        (["a=x", "a=y"], "'a' is given twice"),
        (["a:=[1"], "'[1', which is no JSON"),
        (["a b=x"], "'a b' is no name"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(
    given: list[str], reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as refused:
        parse_inputs(given)
    assert reported in str(refused.value)
