"""Formats numbers for people, the same in the terminal and on pages; a non-finite number is a dash."""

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


def percent_range(low: float, high: float) -> str:
    return f"{100 * low:.0f}–{100 * high:.0f}"


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
    """A price with three significant digits, however small."""
    if not math.isfinite(x):
        return "–"
    digits = 2 if x == 0 or abs(x) >= 1 else 2 - math.floor(math.log10(abs(x)))
    text = f"{abs(x):,.{digits}f}"
    return ("−" if x < 0 else "") + "$" + (text.rstrip("0").rstrip(".") if digits > 2 else text)


def duration(seconds: float) -> str:
    """Such as 8.5s, 2m 05s and 1h 20m."""
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours else f"{minutes}m {rest:02d}s" if minutes else f"{seconds:.1f}s"


def points(share: float) -> str:
    """A difference of two shares in percentage points, such as +17."""
    return signed(100 * share)


def change(share: float) -> str:
    """A relative change in words, such as 12 % less."""
    return f"{percent(abs(share))} {'less' if share < 0 else 'more'}" if math.isfinite(share) else "–"


def plural(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _minus(text: str) -> str:
    """A minus sign as wide as a plus; a zero has none."""
    return text.removeprefix("-") if not text.strip("-0.,") else text.replace("-", "−", 1)
