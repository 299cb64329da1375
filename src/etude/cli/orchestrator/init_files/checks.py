"""The verifier of whole workflows that workers.yaml names: it works out the answer again, without the tools."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any


def is_right(instruction: str, workflow_inputs: Mapping[str, Any], output: Any) -> tuple[bool, str]:
    """Whether the output is what the instruction asks for, and if not, what was expected."""
    expected = answer(instruction.lower(), str(next(iter(workflow_inputs.values()), "")))
    return str(output).strip() == expected.strip(), f"expected {expected.strip()!r}"


def answer(asked: str, text: str) -> str:
    """The steps that an instruction of this folder may ask for, in the order in which they are done."""
    lines = text.split("\n")
    if found := re.search(r"contain(?:ing)? (?:the word )?(\w+)", asked):
        lines = [line for line in lines if found[1] in line.lower()]
    if "duplicate" in asked:
        lines = sorted(set(lines), key=lines.index)
    if "sort" in asked:
        lines = sorted(line for line in lines if line)
    text = "\n".join(lines)
    if "first sentence" in asked:
        # A full stop after three letters or fewer belongs to an abbreviation, one before a digit to a number.
        ends = re.search(r"\w{4}[.!?](?=\s|$)", text)
        text = text[: ends.end()] if ends else text
    if found := re.search(r"(\d+) most frequent", asked):
        by_count = Counter(sorted(re.sub(r"\W", " ", text.lower()).split())).most_common(int(found[1]))
        text = "\n".join(word for word, _ in by_count)
    if "upper case" in asked or "capitals" in asked:
        text = text.upper()
    return str(len(text.split())) if "count" in asked else text
