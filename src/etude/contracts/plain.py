"""Whatever a program hands over, in words of JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from msgspec import Struct

LARGEST = 10**300
"""Whole numbers beyond it are told by their length: there are readers that would take them for infinite."""
DEEPEST = 100
"""Levels that are kept; what lies deeper is left out."""


def plain(value: Any, above: tuple[int, ...] = ()) -> Any:
    """In the types of JSON: of what JSON cannot say, the `repr`. Containers `above` it are not entered twice."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        whole = int(value)
        return whole if -LARGEST < whole < LARGEST else f"<integer of {whole.bit_length()} bits>"
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else str(value)
    if id(value) in above or len(above) > DEEPEST:
        return "…"
    above = (*above, id(value))
    try:
        if isinstance(value, Struct):
            return {name: plain(getattr(value, name), above) for name in value.__struct_fields__}
        if isinstance(value, Mapping):
            return {plain(str(key)): plain(item, above) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [plain(item, above) for item in value]
        return plain(repr(value))
    except Exception:  # of whatever class it may be
        return f"<{type(value).__name__}>"
