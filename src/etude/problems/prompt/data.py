"""A user's own prompts: a JSONL file in, prompts out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from etude.contracts.errors import DataError
from etude.problems.prompt.mutations import Prompt
from etude.problems.prompt.mutations.prompts import texts

MIN_PROMPTS = 10
MAX_SHOWN = 80


def read_prompts(path: Path) -> list[Prompt]:
    """One prompt per line: a text, or an object with `prompt`, a text or a list of chat messages. No prompt twice."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror or error}): expected a JSONL file of prompts"
        ) from error
    found: dict[str, Prompt] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            prompt = _prompt(line, f"{path}: line {number}")
            found.setdefault(msgspec.json.encode(prompt).decode(), prompt)
    if len(found) < MIN_PROMPTS:
        raise DataError(f"{path} has {len(found)} different prompts: expected at least {MIN_PROMPTS} to learn from")
    return list(found.values())


def _prompt(line: bytes, where: str) -> Prompt:
    try:
        read: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{where} is no JSON ({error}): expected a text, or an object with prompt") from error
    prompt = read.get("prompt") if isinstance(read, dict) else read
    if not isinstance(prompt, str | list):
        shown = line[:MAX_SHOWN].decode(errors="replace")
        raise DataError(f"{where} is {shown}: expected a text, or an object with prompt")
    try:
        texts(prompt)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    return prompt
