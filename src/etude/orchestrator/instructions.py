"""Instructions to carry out: read from a file, or generated from the descriptions in a catalogue."""

from __future__ import annotations

from pathlib import Path
from random import Random

from etude.contracts.errors import DataError
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.examples import CONNECTIVES, OPENINGS, wording

MAX_INSTRUCTION_CHARS = 20_000
SIZES = (0.15, 0.3, 0.3, 0.15, 0.1)
"""Shares of instructions with 1, 2, … task types."""


def read_instructions(path: Path) -> list[str]:
    """One per line; blank lines and those that begin with # are skipped. DataError names the line that is wrong."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): expected a file of instructions") from error
    found = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        text, problem = line.decode("utf-8", "surrogateescape").strip(), ""
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
