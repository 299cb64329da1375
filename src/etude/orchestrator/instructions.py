"""Instructions to carry out, with their inputs: from a file, or generated from the descriptions in a catalogue."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec

from etude.contracts.errors import DataError
from etude.orchestrator.inputs import Inputs, WorkflowInputs, file_or_text
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.examples import CONNECTIVES, OPENINGS, wording

MAX_INSTRUCTION_CHARS = 20_000
SIZES = (0.15, 0.3, 0.3, 0.15, 0.1)
"""Shares of instructions with 1, 2, … task types."""


class Instruction(str):
    """An instruction that brings its own inputs."""

    inputs: Inputs

    def __new__(cls, text: str, inputs: Inputs) -> Instruction:
        made = super().__new__(cls, text)
        made.inputs = inputs
        return made


def inputs_of(instruction: str) -> Inputs:
    """The inputs that an instruction brings; none for a plain text."""
    return instruction.inputs if isinstance(instruction, Instruction) else {}


def read_instructions(path: Path) -> list[str]:
    """One per line: text, or JSON with its inputs, {"instruction": "…", "inputs": {"report": "@report.txt"}}.

    Blank lines and those that begin with # are skipped. DataError names the line that is wrong.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): expected a file of instructions") from error
    found = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        text, problem = line.decode("utf-8", "surrogateescape").strip(), ""
        if text.startswith("{"):
            text = _parsed(line, path, number)
        if not text.isascii() and any("\udc80" <= mark <= "\udcff" for mark in text):
            problem = f"{line[:40]!r} is not UTF-8: save it as UTF-8"
        elif len(text) > MAX_INSTRUCTION_CHARS:
            problem = f"{len(text):,} characters, expected at most {MAX_INSTRUCTION_CHARS:,}: shorten it"
        elif any(not mark.isprintable() and mark != "\t" for mark in text):
            problem = f"{text[:40]!r} holds control characters: expected one instruction per line"
        if problem:
            raise DataError(f"{path}:{number}: {problem}")
        if text and not text.startswith("#"):
            found.append(text)
    if not found:
        raise DataError(f"{path}: holds no instruction: expected one per line")
    return found


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    instruction: str
    inputs: dict[str, Any] = {}


EXAMPLE = '{"instruction": "Count the words", "inputs": {"report": "@report.txt"}}'


def _parsed(line: bytes, path: Path, number: int) -> Instruction:
    """A line of JSON. Texts are values, @FILE is a file in the folder of this one; every file is checked."""
    try:
        given = msgspec.json.decode(line, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}:{number}: is no instruction ({error}): expected such as {EXAMPLE}") from error
    if not given.instruction.strip():
        raise DataError(f"{path}:{number}: the instruction is empty: say what is to be done")
    try:
        inputs = {
            name: file_or_text(name, value, folder=path.parent) if isinstance(value, str) else value
            for name, value in given.inputs.items()
        }
        WorkflowInputs(inputs)
    except DataError as error:
        raise DataError(f"{path}:{number}: {error}") from error
    return Instruction(given.instruction.strip(), inputs)


def make_up(catalogue: Catalogue, count: int, *, seed: int) -> list[str]:
    """Generate up to `count` different instructions, each for one to five task types in random order."""
    rng, found = Random(seed), dict[str, None]()
    kinds = range(len(catalogue.task_types))
    for _ in range(20 * count):
        if len(found) == count:
            break
        size = min(len(kinds), rng.choices(range(1, len(SIZES) + 1), SIZES)[0])
        asked = [wording(catalogue, kind, rng) for kind in rng.sample(kinds, size)]
        text = rng.choice(OPENINGS) + asked[0] + "".join(rng.choice(CONNECTIVES) + part for part in asked[1:])
        found.setdefault(f"{text}.")
    return list(found)
