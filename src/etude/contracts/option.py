"""The options of a choice: what the caller offers in, named options with descriptions and numbers out.

An option is a name (text, a number, a truth value), or a mapping with a `name`, and as far as they are known a
`description`, numbers (prices, speeds, limits) and words (regions).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from etude.contracts.decision import Preferences
from etude.contracts.errors import DataError
from etude.contracts.plain import plain

CHOICE = "choice:"
"""Prefix of the problem of a user's own choice."""
MAX_OPTIONS = 10_000
"""Maximum number of options of one decision."""
DECLARED = {"cost_usd": ("cost_usd", "usd_per_call"), "latency_ms": ("latency_ms",)}
"""Numbers of an option that say what a call of it costs or takes, at least."""
ROUNDING = 1e-6
"""Share by which a number may be above a limit: sums of floats are not exact."""


class Option(Struct, frozen=True, kw_only=True):
    """One option. Numbers and words are read from all its entries besides `name` and `description`."""

    name: str
    description: str = ""
    numbers: dict[str, float] = {}
    words: dict[str, tuple[str, ...]] = {}

    @property
    def text(self) -> str:
        """What it is, in words: its name and description."""
        return f"{self.name}: {self.description}" if self.description else self.name


def option_name(option: Any) -> str:
    """The name of an option as it was offered; the empty text if it has none."""
    if isinstance(option, Mapping):
        option = option.get("name")
    if isinstance(option, bool):
        return str(option).lower()
    if isinstance(option, int) or (isinstance(option, float) and math.isfinite(option)):
        return repr(option)
    return str(plain(option)).strip() if isinstance(option, str) else ""


def check_offer(offered: Any, *, where: str = "options") -> None:
    """DataError if it is no list, or too short or too long a one; what is in it is not looked at."""
    if isinstance(offered, str | bytes | Mapping) or not isinstance(offered, Sequence):
        raise DataError(f"{where} is {_shown(offered)}: expected a list of names, or of mappings with a name")
    if not offered:
        raise DataError(f"{where} is empty: offer at least one option")
    if len(offered) > MAX_OPTIONS:
        raise DataError(f"{where} has {len(offered):,} entries: expected at most {MAX_OPTIONS:,}")


def read_options(offered: Sequence[Any] | None, *, where: str = "options") -> tuple[Option, ...]:
    """The options that are offered; DataError names the first that is not valid."""
    check_offer(offered, where=where)
    assert offered is not None
    found: dict[str, Option] = {}
    for place, given in enumerate(offered):
        option = _option(given, f"{where}[{place}]")
        if option.name in found:
            first = list(found).index(option.name)
            raise DataError(
                f"{where}[{place}] has the name {option.name!r}, as {where}[{first}] has: give each its own"
            )
        found[option.name] = option
    return tuple(found.values())


def why_not(option: Option, preferences: Preferences) -> str | None:
    """Why the preferences rule an option out by what it says of itself; None if it may be chosen.

    It says so by its name, `available`, `regions`, `cost_usd`, `usd_per_call` and `latency_ms`; what it does not say
    rules nothing out.
    """
    wanted, regions = preferences, option.words.get("regions", option.words.get("region"))
    if option.numbers.get("available") == 0:
        return "it is not available"
    if wanted.allowed is not None and option.name not in wanted.allowed:
        return "it is not among allowed"
    if wanted.region is not None and regions is not None and wanted.region not in regions:
        return f"its regions are {', '.join(regions) or 'none'}, without {wanted.region!r}"
    for kind, limit in limits(preferences).items():
        for key in DECLARED[kind]:
            amount = option.numbers.get(key, 0.0)  # above a negative limit, too
            if exceeds(amount, limit):
                return f"its {key} is {amount:g}, above max_{kind} {limit:g}"
    return None


def limits(preferences: Preferences) -> dict[str, float]:
    """The largest cost and latency that may be, by kind, where there is a limit."""
    given = {"cost_usd": preferences.max_cost_usd, "latency_ms": preferences.max_latency_ms}
    return {kind: limit for kind, limit in given.items() if limit is not None}


def exceeds(amount: float, limit: float) -> bool:
    """Whether it is above the limit by more than rounding."""
    return amount > limit * (1 + ROUNDING)


def _option(given: Any, where: str) -> Option:
    name = option_name(given)
    if not name:
        raise DataError(f"{where} is {_shown(given)}: it has no name; expected a text, or a mapping with `name`")
    if not isinstance(given, Mapping):
        return Option(name=name)
    description, numbers, words = "", dict[str, float](), dict[str, tuple[str, ...]]()
    for key, value in given.items():
        if key == "name" or value is None:
            continue
        if key == "description":
            if not isinstance(value, str):
                raise DataError(f"{where}.description is {_shown(value)}: expected a text")
            description = str(plain(value))
        elif isinstance(value, int | float):  # a truth value counts as 0 or 1
            try:
                number = float(value)
            except OverflowError:  # a whole number beyond any float
                number = math.inf
            if not math.isfinite(number):
                raise DataError(f"{where}.{key} is {_shown(value)}: expected a finite number")
            numbers[str(key)] = number
        elif isinstance(value, str):
            words[str(key)] = (str(plain(value)),)
        elif isinstance(value, Sequence) and all(isinstance(one, str) for one in value):
            words[str(key)] = tuple(str(plain(one)) for one in value)
        else:
            raise DataError(f"{where}.{key} is {_shown(value)}: expected a number, a text or a list of texts")
    return Option(name=name, description=description, numbers=numbers, words=words)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
