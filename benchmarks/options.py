"""Command-line options that several benchmarks have."""

from __future__ import annotations

import json
from typing import Any


def setting(text: str) -> tuple[str, Any]:
    """KEY=VALUE of `--set` as an item of `etude.train(settings=…)`: the value as JSON, or as text if it is none."""
    key, _, value = text.partition("=")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
