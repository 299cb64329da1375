"""Whatever a program hands over, in words of JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from msgspec import Struct

DEEPEST = 100
"""Levels that are kept; what lies deeper is left out."""


def plain(value: Any, above: tuple[int, ...] = ()) -> Any:
    """In the types of JSON: of what JSON cannot say, the `repr`. Containers `above` it are not entered twice."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else str(value)
    if id(value) in above or len(above) > DEEPEST:
        return "…"
    above = (*above, id(value))
    if isinstance(value, Struct):
        return {name: plain(getattr(value, name), above) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item, above) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, above) for item in value]
    try:
        return plain(repr(value))
    except Exception:  # of whatever class it may be
        return f"<{type(value).__name__}>"
