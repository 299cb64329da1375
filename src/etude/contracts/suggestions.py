"""A hint for a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """`did you mean X? ` for the closest known name, to be put before what follows; empty where none is close."""
    close = closest(name, known, cutoff=cutoff)
    return f"did you mean {close!r}? " if close is not None else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """`: did you mean X?`, to end a message with; empty where none is close."""
    hint = did_you_mean(name, known)
    return f": {hint.rstrip()}" if hint else ""


def closest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)
