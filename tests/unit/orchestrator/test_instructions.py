"""Instructions from files and from nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.contracts.errors import DataError
from etude.orchestrator.instructions import MAX_INSTRUCTION_CHARS, inputs_of, make_up, read_instructions
from tests.language import CATALOGUE


def test_one_a_line_without_blanks_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "asked.txt"
    file.write_text("# what people ask\nMail it\n\n  Print the 報告  \r\n")
    assert read_instructions(file) == ["Mail it", "Print the 報告"]


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        (b"mail \xff it", "is not UTF-8"),
        (b"x" * (MAX_INSTRUCTION_CHARS + 1), f"expected at most {MAX_INSTRUCTION_CHARS:,}"),
        (b"mail\x00it", "control characters"),
        (b'{"instruction": 3}', "is no instruction (Expected `str`, got `int`"),
        (b'{"instruction": "Mail it", "input": {}}', "unknown field `input`"),
        (b'{"instruction": " "}', "the instruction is empty"),
        (b'{"instruction": "Mail it", "inputs": {"report": "@gone.txt"}}', "gone.txt: correct the path"),
        (b'{"instruction": "Mail it", "inputs": {"a b": 1}}', "'a b' is no name of an input"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, reported: str) -> None:
    file = tmp_path / "asked.txt"
    file.write_bytes(b"Mail it\n" + line + b"\n")
    with pytest.raises(DataError, match=r"asked\.txt:2: ") as refused:
        read_instructions(file)
    assert reported in str(refused.value)


def test_a_line_of_json_brings_inputs(tmp_path: Path) -> None:
    file, report = tmp_path / "asked.jsonl", tmp_path / "report.txt"
    report.write_text("a story")
    inputs = '{"report": "@report.txt", "to": "ana", "mark": "@@x", "tags": ["a", 1]}'
    file.write_text(f'Mail it\n{{"instruction": "Mail the report", "inputs": {inputs}}}\n')
    plain, mail = read_instructions(file)
    assert (plain, inputs_of(plain)) == ("Mail it", {})
    assert mail == "Mail the report"
    assert inputs_of(mail) == {"report": report, "to": "ana", "mark": "@x", "tags": ["a", 1]}


def test_a_file_without_any_or_without_a_file(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(DataError, match="holds no instruction"):
        read_instructions(tmp_path / "empty.txt")
    with pytest.raises(DataError, match="cannot be read"):
        read_instructions(tmp_path / "nowhere.txt")


def test_made_up_ones_differ_name_what_there_is_and_come_again_with_the_seed() -> None:
    made = make_up(CATALOGUE, 100, seed=3)
    assert len(set(made)) == len(made) == 100
    assert made == make_up(CATALOGUE, 100, seed=3) != make_up(CATALOGUE, 100, seed=4)
    words = {word for t in CATALOGUE.task_types for word in f"{t.name} {t.description}".lower().split()}
    assert all(words & set(text.lower().replace(".", "").replace(",", "").split()) for text in made)


def test_a_catalogue_of_one_task_type_has_few() -> None:
    one = CATALOGUE.withdrawn(*(t.name for t in CATALOGUE.task_types[1:]))
    assert 1 <= len(make_up(one, 100, seed=0)) < 100
