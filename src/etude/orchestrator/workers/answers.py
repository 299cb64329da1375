"""JSON in the answers of language models, which may be in a code fence or have prose around it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a text, without those inside another, in their order."""
    decoder, start = json.JSONDecoder(), text.find("{")
    while start >= 0:
        end = start + 1
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            yield value
        start = text.find("{", end)
