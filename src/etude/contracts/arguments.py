"""Checks arguments of a choice, of a policy as of `etude.task`: DataError names the argument, its value, and what is
expected."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from etude.contracts.decision import Preferences
from etude.contracts.errors import DataError
from etude.contracts.option import option_name
from etude.contracts.plain import plain

MAX_NAME_CHARS = 256
PLAIN = frozenset((str, float, int, bool, list, tuple, dict, type(None)))
"""Types that are no scalars of NumPy."""
CONTEXT = "expected a text, a finite number, True or False, or a mapping of names to these or to lists of texts"


def read_context(value: Any) -> Any:
    """The context of a choice in the types of JSON; names without a value are left out."""
    if not isinstance(value, Mapping):
        return _context_value("context", value)
    found = {}
    for key, given in value.items():
        if not isinstance(key, str):
            raise DataError(f"context has the key {shown(key)}: expected a text")
        where, given = f"context[{key!r}]", scalar(given)
        if isinstance(given, list | tuple):
            if not all(isinstance(one, str) for one in given):
                raise DataError(f"{where} is {shown(given)}: expected a list of texts, a text, a number, True or False")
            found[str(plain(key))] = [plain(one) for one in given]
        elif given is not None:
            found[str(plain(key))] = _context_value(where, given)
    return found


def _context_value(where: str, value: Any) -> Any:
    given = scalar(value)
    if given is None or isinstance(given, str | bool):
        return plain(given)
    if type(given) is float and math.isfinite(given):
        return given
    if isinstance(given, Real | Decimal) and math.isfinite(number := _float(given)):
        return plain(given) if isinstance(given, Integral) else number
    if isinstance(given, Mapping):
        raise DataError(
            f"{where} is {shown(value)}, a mapping inside a mapping: name its values one by one, such as 'user.plan'"
        )
    raise DataError(f"{where} is {shown(value)}: {CONTEXT if where == 'context' else CONTEXT.partition(', or a ')[0]}")


def read_preferences(
    *, quality_weight: Any, max_cost_usd: Any, max_latency_ms: Any, region: Any, allowed: Any
) -> Preferences:
    if allowed is not None and (
        isinstance(allowed, str | bytes | Mapping) or not isinstance(allowed, Sequence | set | frozenset)
    ):
        raise wrong("allowed", allowed, "a list of names of options")
    names = None if allowed is None else [option_name(one) for one in allowed]
    if names is not None and "" in names:
        raise wrong("allowed", allowed, "a list of names of options, none of them empty")
    return Preferences(
        quality_weight=read_number("quality_weight", quality_weight, high=1.0),
        max_cost_usd=read_number("max_cost_usd", max_cost_usd, unit=" USD"),
        max_latency_ms=read_number("max_latency_ms", max_latency_ms, unit=" milliseconds"),
        region=read_name("region", region, such_as="eu"),
        allowed=None if names is None else tuple(names),
    )


def read_name(name: str, value: Any, *, such_as: str | None = None) -> str | None:
    """A name of 1 to 256 characters, or None."""
    if value is None:
        return None
    example = f", such as {such_as!r}" if such_as else ""
    if not isinstance(value, str) or not 0 < len(plain(value)) <= MAX_NAME_CHARS:
        raise wrong(name, value, f"a text of 1 to {MAX_NAME_CHARS} characters{example}")
    return str(plain(value))


def read_number(name: str, value: Any, *, unit: str = "", high: float | None = None) -> float | None:
    """A finite number of at least 0, or None."""
    if value is None:
        return None
    given = scalar(value)
    number = _float(given) if isinstance(given, Real | Decimal) and not isinstance(given, bool) else math.nan
    if not 0 <= number <= (math.inf if high is None else high) or math.isinf(number):
        span = "a finite number of at least 0" if high is None else f"a number from 0 to {high:g}"
        raise wrong(name, value, f"{span}{unit}")
    return number


def read_count(name: str, value: Any) -> int | None:
    return None if value is None else read_required_count(name, value)


def read_required_count(name: str, value: Any) -> int:
    given = scalar(value)
    if isinstance(given, bool) or not isinstance(given, Integral) or int(given) < 0:
        raise wrong(name, value, "a whole number of at least 0")
    return int(given)


def shown(value: object) -> str:
    """A value in a message: its repr, shortened."""
    try:
        text = repr(plain(value)) if isinstance(value, str) else repr(value)
    except Exception:  # `__repr__` of any class may raise
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}…"


def text_of(value: object) -> str:
    """The text of a value; its class name if it has none."""
    try:
        return str(plain(str(value)))
    except Exception:  # `__str__` of any class may raise
        return f"<{type(value).__name__}>"


def wrong(name: str, value: object, expected: str) -> DataError:
    return DataError(f"{name} is {shown(value)}: expected {expected}")


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond any float
        return math.inf


def scalar(value: Any) -> Any:
    """The Python value of a NumPy scalar and the like."""
    if type(value) in PLAIN:
        return value
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
