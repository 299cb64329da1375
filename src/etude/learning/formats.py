"""Numbers as text for people, the same in the terminal and on the page; what is not finite is a dash."""

from __future__ import annotations

import math
from collections.abc import Callable

Format = Callable[[float], str]


def whole(x: float) -> str:
    return fixed(x, 0)


def fixed(x: float, digits: int) -> str:
    return _minus(f"{x:,.{digits}f}") if math.isfinite(x) else "–"


def signed(x: float, digits: int = 0) -> str:
    return _minus(f"{x:+,.{digits}f}") if math.isfinite(x) else "–"


def percent(x: float) -> str:
    return f"{100 * x:.0f}\N{NO-BREAK SPACE}%" if math.isfinite(x) else "–"


def plain(x: float) -> str:
    return _minus(f"{x:.3g}") if math.isfinite(x) else "–"


def compact(x: float) -> str:
    """1,500,000 as 1.5M."""
    if not math.isfinite(x):
        return "–"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= size:
            return f"{x / size:.3g}{letter}"
    return f"{x:.3g}"


def usd(x: float) -> str:
    """Three digits that count, however small the price."""
    if not math.isfinite(x):
        return "–"
    digits = 2 if x == 0 or abs(x) >= 1 else 2 - math.floor(math.log10(abs(x)))
    text = f"{abs(x):,.{digits}f}"
    return ("−" if x < 0 else "") + "$" + (text.rstrip("0").rstrip(".") if digits > 2 else text)


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "–"
    minutes = seconds / 60
    return f"{seconds:.1f} s" if minutes < 2 else f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _minus(text: str) -> str:
    """A minus sign as wide as a plus; a zero has none."""
    return text.removeprefix("-") if not text.strip("-0.,") else text.replace("-", "−", 1)
