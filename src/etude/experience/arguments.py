"""Checks what a caller of `etude.task` gives. DataError names the argument, its value, and what is expected."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Literal

from etude.contracts.arguments import MAX_NAME_CHARS, read_name, read_number, scalar, shown, wrong
from etude.contracts.decision import Preferences
from etude.contracts.errors import DataError, EventError
from etude.contracts.option import Option, option_name, read_options, why_not
from etude.contracts.plain import plain
from etude.contracts.suggestions import did_you_mean
from etude.experience.cleaning import check_id

MAX_ID_CHARS = 128
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@+-]*")


def read_text(name: str, value: Any, expected: str = "a text") -> str:
    if not isinstance(value, str):
        raise wrong(name, value, expected)
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


def read_propensity(value: Any) -> float | None:
    """The probability of an action, or None if it is unknown."""
    try:
        probability = read_number("propensity", value, high=1.0)
    except DataError:
        probability = 0.0
    if probability == 0:
        raise wrong("propensity", value, "the probability of the action, above 0 and at most 1")
    return probability


def read_flag(name: str, value: Any) -> bool | None:
    given = scalar(value)
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
    given = scalar(value)
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
