"""Checks what a caller of `etude.task` gives. DataError names the argument, its value, and what is expected."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, Literal

from etude.contracts.decision import Preferences
from etude.contracts.errors import DataError, EventError
from etude.contracts.option import Option, option_name, read_options, why_not
from etude.contracts.plain import plain
from etude.contracts.suggestions import did_you_mean
from etude.experience.cleaning import check_id

MAX_NAME_CHARS, MAX_ID_CHARS = 256, 128
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@+-]*")
CONTEXT = "expected a text, a finite number, True or False, or a mapping of names to these or to lists of texts"


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


def read_text(name: str, value: Any, expected: str = "a text") -> str:
    if not isinstance(value, str):
        raise wrong(name, value, expected)
    return str(plain(value))


def read_name(name: str, value: Any, *, such_as: str | None = None) -> str | None:
    """A name of 1 to 256 characters, or None."""
    if value is None:
        return None
    example = f", such as {such_as!r}" if such_as else ""
    if not isinstance(value, str) or not 0 < len(plain(value)) <= MAX_NAME_CHARS:
        raise wrong(name, value, f"a text of 1 to {MAX_NAME_CHARS} characters{example}")
    return str(plain(value))


def read_required_name(name: str, value: Any, *, such_as: str) -> str:
    found = read_name(name, value, such_as=such_as)
    if found is None:
        raise wrong(name, value, f"a text of 1 to {MAX_NAME_CHARS} characters, such as {such_as!r}")
    return found


def read_id(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARS or not ID.fullmatch(value):
        raise wrong(
            name, value, f"1 to {MAX_ID_CHARS} letters, digits and any of _ . : + -, such as the `id` of a task"
        )
    try:
        check_id(name, value)
    except EventError as error:
        raise DataError(str(error)) from error
    return value


def read_number(name: str, value: Any, *, unit: str = "", high: float | None = None) -> float | None:
    """A finite number of at least 0, or None."""
    if value is None:
        return None
    given = _scalar(value)
    number = _float(given) if isinstance(given, Real | Decimal) and not isinstance(given, bool) else math.nan
    if not 0 <= number <= (math.inf if high is None else high) or math.isinf(number):
        span = "a finite number of at least 0" if high is None else f"a number from 0 to {high:g}"
        raise wrong(name, value, f"{span}{unit}")
    return number


def read_count(name: str, value: Any) -> int | None:
    if value is None:
        return None
    given = _scalar(value)
    if isinstance(given, bool) or not isinstance(given, Integral) or int(given) < 0:
        raise wrong(name, value, "a whole number of at least 0")
    return int(given)


def read_flag(name: str, value: Any) -> bool | None:
    given = _scalar(value)
    if given is not None and not isinstance(given, bool):
        raise wrong(name, value, "True or False, or None if it is unknown")
    return given


def read_quality(value: Any) -> dict[str, float] | None:
    """Scores by name, each from 0 to 1."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        example = value if isinstance(value, float) and 0 <= value <= 1 else 0.8
        raise wrong("quality", value, f"a mapping such as {{'judge': {example!r}}}")
    scores = {}
    for key, given in value.items():
        if not isinstance(key, str) or not key:
            raise DataError(f"quality has the key {shown(key)}: expected the name of a score, such as 'judge'")
        score = read_number(f"quality[{key!r}]", given, high=1.0)
        if score is None:
            raise wrong(f"quality[{key!r}]", given, "a number from 0 to 1; leave out a score that is unknown")
        scores[str(plain(key))] = score
    return scores


def read_thumbs(value: Any) -> Literal["up", "down"] | None:
    if value is None:
        return None
    if value == "up":
        return "up"
    if value == "down":
        return "down"
    raise wrong("thumbs", value, "'up' or 'down'")


def read_stars(value: Any) -> int | None:
    if value is None:
        return None
    given = _scalar(value)
    if isinstance(given, bool) or not isinstance(given, Integral) or not 1 <= int(given) <= 5:
        raise wrong("stars", value, "a whole number from 1, bad, to 5, very good")
    return int(given)


def read_rating(thumbs: Any, stars: Any, comment: Any) -> dict[str, Any]:
    """The parts of a rating that are given; DataError if there are none."""
    given = {
        "thumbs": read_thumbs(thumbs),
        "stars": read_stars(stars),
        "comment": None if comment is None else read_text("comment", comment),
    }
    if all(part is None for part in given.values()):
        raise DataError("feedback is empty: give thumbs='up' or 'down', stars from 1 to 5, or a comment")
    return {name: part for name, part in given.items() if part is not None}


def read_metadata(value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong("metadata", value, "a mapping of names and values")
    return value


def read_context(value: Any) -> Any:
    """The context of a choice in the types of JSON; names without a value are left out."""
    if not isinstance(value, Mapping):
        return _context_value("context", value)
    found = {}
    for key, given in value.items():
        if not isinstance(key, str):
            raise DataError(f"context has the key {shown(key)}: expected a text")
        where, given = f"context[{key!r}]", _scalar(given)
        if isinstance(given, list | tuple):
            if not all(isinstance(one, str) for one in given):
                raise DataError(f"{where} is {shown(given)}: expected a list of texts, a text, a number, True or False")
            found[str(plain(key))] = [plain(one) for one in given]
        elif given is not None:
            found[str(plain(key))] = _context_value(where, given)
    return found


def _context_value(where: str, value: Any) -> Any:
    given = _scalar(value)
    if given is None or isinstance(given, str | bool):
        return plain(given)
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


def one_of(options: Any, eligible: Any) -> tuple[Any, str]:
    """What was offered, and under which of the two names of the argument."""
    if options is not None and eligible is not None:
        raise DataError("options and eligible are given: they are two names of one argument; give options alone")
    return (options, "options") if eligible is None else (eligible, "eligible")


def read_offer(offered: Any, where: str, preferences: Preferences) -> dict[str, Any]:
    """The options that may be chosen, as offered, by name. DataError if there are none."""
    read = read_options(offered, where=where)
    ruled_out = {option.name: why_not(option, preferences) for option in read}
    if all(ruled_out.values()):
        reasons = "; ".join(f"{name!r}: {why}" for name, why in list(ruled_out.items())[:3])
        raise DataError(f"none of the {len(read)} {where} may be chosen ({reasons}): offer another, or ask for less")
    return {name: option for (name, why), option in zip(ruled_out.items(), offered, strict=True) if why is None}


def read_choice(name: str, value: Any, options: Sequence[Option] | Mapping[str, Any], where: str) -> str:
    """The name of one of the options, which is given as it was offered or by its name."""
    names = list(options) if isinstance(options, Mapping) else [option.name for option in options]
    found = option_name(value)
    if found not in names:
        hint = did_you_mean(found, names)
        raise DataError(
            f"{name} is {shown(value)}, which is not among the {where}: {hint}expected one of "
            f"{', '.join(map(repr, names[:10]))}{', …' if len(names) > 10 else ''}"
        )
    return found


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond any float
        return math.inf


def _scalar(value: Any) -> Any:
    """The Python value of a NumPy scalar and the like."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
