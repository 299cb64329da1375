"""Verifiers: of subtasks, by what any right output has; of whole workflows, by answers that no tool computed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any


@cache
def answers() -> Mapping[str, Sequence[str]]:
    found: Mapping[str, Sequence[str]] = json.loads((Path(__file__).parent / "answers.json").read_text())
    return found


def is_right(instruction: str, output: Any) -> tuple[bool, str]:
    """Whether the output is the answer; where several are asked for, each of them, in any order."""
    given = sorted(map(plain, output.values() if isinstance(output, dict) else [output]))
    expected = sorted(map(plain, answers()[instruction]))
    return given == expected, f"expected {expected!r:.200}, not {given!r:.200}"


def plain(text: Any) -> str:
    """Without the spaces at the ends of lines, and for a tone, without its full stop and capital."""
    found = "\n".join(line.strip() for line in str(text).strip().splitlines())
    return found.strip(".").lower() if found.lower().strip(".") in ("positive", "negative") else found


def is_sorted(output: Any) -> bool:
    return _lines(output) == sorted(_lines(output))


def is_unique(output: Any) -> bool:
    return len(set(_lines(output))) == len(_lines(output))


def is_upper(output: Any) -> bool:
    return str(output) == str(output).upper()


def is_masked(output: Any) -> bool:
    return "@" not in str(output)


def has_as_many_lines(inputs: Sequence[Any], output: Any) -> bool:
    return len(_lines(output)) == sum(len(_lines(given.output)) for given in inputs)


def _lines(text: Any) -> list[str]:
    return [line for line in str(text).splitlines() if line.strip()]
