"""`etude init`: what is in the folder it makes, and where it refuses to make one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from etude.contracts.work import Input
from etude.orchestrator.instructions import inputs_of, read_instructions
from etude.orchestrator.workers_file import read_workers
from etude.problems.workflow.examples import read_examples
from tests.tiny import etude, refused

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "my tools"
    assert etude("init", made) == 0
    for name in ("tools", "checks"):  # modules of the folder that another test imported
        monkeypatch.delitem(sys.modules, name, raising=False)
    return made


def load(file: Path) -> Any:
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_prints_the_commands_of_the_readme(tmp_path: Path, capsys: Captured) -> None:
    assert etude("init", tmp_path / "my tools") == 0
    printed = capsys.readouterr().out
    commands = [line for line in (tmp_path / "my tools" / "README.md").read_text().splitlines() if line[:6] == "etude "]
    assert len(commands) == 9
    shown = [line.strip() for line in printed.splitlines()[2:]]
    assert shown == [f"cd '{tmp_path / 'my tools'}'", *commands]


def test_without_a_name_it_fills_the_current_folder(capsys: Captured) -> None:
    assert etude("init") == 0
    assert Path("workers.yaml").exists()
    assert "cd " not in capsys.readouterr().out


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "notes").write_text("mine")
    message = refused(capsys, "init", tmp_path)
    assert message == f"error: {tmp_path}: is not empty, it has 'notes': choose another folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    assert "is a file: choose another name" in refused(capsys, "init", tmp_path / "notes")


def test_experts_and_instructions_are_for_the_workers_of_the_file(folder: Path) -> None:
    crew = read_workers(folder / "workers.yaml").crew
    assert crew is not None
    assert crew.judge is not None
    experts = read_examples(folder / "experts.json", crew.catalogue, max_nodes=10)
    assert len(experts) == 10
    used = {worker for record in json.loads((folder / "experts.json").read_text()) for worker in selected(record)}
    assert used == {worker.name for worker in crew.catalogue.workers}
    learned, held_out = (read_instructions(folder / name) for name in ("instructions.txt", "held_out.txt"))
    assert (len(set(learned)), len(set(held_out))) == (64, 40)
    assert not notes(learned) & notes(held_out)
    there = {path.name for path in (folder / "notes").iterdir()}
    assert {path.name for path in notes(learned) | notes(held_out)} == there


def selected(record: Any) -> list[str]:
    workers: list[str] = record["targets"]["model_selections"]
    return workers


def notes(instructions: list[str]) -> set[Path]:
    return {inputs_of(instruction)["note"] for instruction in instructions}


def test_one_of_the_two_tools_is_right_about_every_note_and_the_cheaper_one_about_some(folder: Path) -> None:
    tools, checks = load(folder / "tools.py"), load(folder / "checks.py")
    texts = [path.read_text() for path in (folder / "notes").iterdir()]

    def right(tool: Callable[..., str]) -> int:
        outputs = [tool((Input(output=text, name="note"),)) for text in texts]
        asked = "Give the first sentence of the note"
        return sum(checks.is_right(asked, {"note": text}, out)[0] for text, out in zip(texts, outputs, strict=True))

    assert right(tools.split_sentences) == len(texts) == 12
    assert right(tools.up_to_full_stop) == 4


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("Sort the lines and remove duplicates", "a fig\na pear\nfig."),
        ("Find the lines that contain pear and write them in upper case", "A PEAR\nA PEAR"),
        ("Count the words in the lines containing fig", "3"),
        ("List the 2 most frequent words", "a\nfig"),
    ],
)
def test_the_verifier_works_out_the_answer(folder: Path, asked: str, expected: str) -> None:
    checks, text = load(folder / "checks.py"), "a pear\nfig.\na pear\na fig\n"
    assert checks.is_right(asked, {"note": text}, expected)[0]
    assert checks.is_right(asked, {"note": text}, "something else") == (False, f"expected {expected!r}")
