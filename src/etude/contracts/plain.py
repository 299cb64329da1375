"""Converts any Python value to the types of JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from msgspec import Struct

LARGEST = 10**300
"""Larger integers are stored as their length: some readers would read them as infinity."""
MAX_DEPTH = 100
"""Maximum depth of nesting; deeper values are left out."""


def plain(value: Any, above: tuple[int, ...] = ()) -> Any:
    """The value in the types of JSON; a value that JSON cannot express becomes its `repr`.

    Containers `above` it are not entered again, so a cycle ends.
    """
    kind = type(value)  # of most values, and quicker than to ask what they are instances of
    if (kind is str and value.isascii()) or kind is bool or value is None:
        return value
    if kind is float and math.isfinite(value):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Integral):
        whole = int(value)
        return whole if -LARGEST < whole < LARGEST else f"<integer of {whole.bit_length()} bits>"
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else str(value)
    if id(value) in above or len(above) > MAX_DEPTH:
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
