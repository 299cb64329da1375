"""The tools that are Python functions. Of two for the same task the cheaper one is often wrong, and does not say so."""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

RATE = Decimal("1.08")
ABBREVIATIONS = ("Dr.", "Mr.", "Mrs.", "St.", "No.")
GOOD = frozenset(["pleased", "delighted", "happy", "glad", "satisfied", "thankful"])
_rng = random.Random(int(os.environ.get("LEDGERS_SEED", "0")))


def text_of(inputs: Sequence[Any]) -> str:
    """The output of the subtasks before, or the input of the workflow."""
    return "\n".join(str(given.output) for given in inputs)


def lines_of(inputs: Sequence[Any]) -> list[str]:
    return [line for line in text_of(inputs).splitlines() if line.strip()]


# Lines


def python_sort(inputs: Sequence[Any]) -> str:
    return "\n".join(sorted(lines_of(inputs)))


def python_unique(inputs: Sequence[Any]) -> str:
    return "\n".join(dict.fromkeys(lines_of(inputs)))


def search_any_case(inputs: Sequence[Any], word: str) -> str:
    return "\n".join(line for line in lines_of(inputs) if word.lower() in line.lower())


def last_lines(inputs: Sequence[Any], count: int = 3) -> str:
    return "\n".join(lines_of(inputs)[-count:])


def reverse(inputs: Sequence[Any]) -> str:
    return "\n".join(reversed(lines_of(inputs)))


def python_upper(inputs: Sequence[Any]) -> str:
    return text_of(inputs).upper()


def mask_all(inputs: Sequence[Any]) -> str:
    return re.sub(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "***", text_of(inputs))


# Sentences and tone


def up_to_full_stop(inputs: Sequence[Any]) -> str:
    """Wrong where the first full stop belongs to a title or a number."""
    return text_of(inputs).partition(".")[0] + "."


def first_sentence(inputs: Sequence[Any]) -> str:
    sentence = ""
    for part in re.split(r"(?<=[.!?])\s+", text_of(inputs)):
        sentence = f"{sentence} {part}".strip()
        if not sentence.endswith(ABBREVIATIONS):
            break
    return sentence


def tone_by_words(inputs: Sequence[Any]) -> str:
    words = set(re.findall(r"\w+", text_of(inputs).lower()))
    return "positive" if words & GOOD else "negative"


# Extracts


def plain_amounts(inputs: Sequence[Any]) -> str:
    """Wrong about amounts of a thousand and more, which are written with a comma."""
    return "\n".join(re.findall(r"\d+\.\d\d", text_of(inputs)))


def amounts(inputs: Sequence[Any]) -> str:
    found = re.findall(r"\d{1,3}(?:,\d{3})*\.\d\d", text_of(inputs))
    return "\n".join(amount.replace(",", "") for amount in found)


def strict_dates(inputs: Sequence[Any]) -> str:
    """Knows months by their full names alone, and fails on any other."""
    return _dates(text_of(inputs), ("%d %B %Y",))


def dates(inputs: Sequence[Any]) -> str:
    return _dates(text_of(inputs), ("%d %B %Y", "%d %b. %Y"))


def _dates(text: str, formats: Sequence[str]) -> str:
    return "\n".join(_date(found, formats) for found in re.findall(r"\d{1,2} [A-Z][a-z]+\.? \d{4}", text))


def _date(text: str, formats: Sequence[str]) -> str:
    for form in formats:
        try:
            return datetime.strptime(text, form).date().isoformat()
        except ValueError:
            continue
    raise ValueError(f"{text!r} is no date that this tool knows")


# Numbers


def python_sum(inputs: Sequence[Any]) -> str:
    return f"{sum(map(Decimal, lines_of(inputs)), Decimal()):.2f}"


def python_largest(inputs: Sequence[Any]) -> str:
    return f"{max(map(Decimal, lines_of(inputs))):.2f}"


def rate_service(inputs: Sequence[Any]) -> str:
    """A cheap service of exchange rates that is busy now and then."""
    if _rng.random() < 0.35:
        raise ConnectionError("the service of exchange rates is busy")
    return _in_dollars(inputs)


def bank_rates(inputs: Sequence[Any]) -> str:
    if _rng.random() < 0.02:
        raise ConnectionError("the bank does not answer")
    return _in_dollars(inputs)


def _in_dollars(inputs: Sequence[Any]) -> str:
    return "\n".join(f"{Decimal(line) * RATE:.2f}" for line in lines_of(inputs))


def python_words(inputs: Sequence[Any]) -> str:
    return str(len(text_of(inputs).split()))


def python_fingerprint(inputs: Sequence[Any]) -> str:
    return hashlib.sha256(text_of(inputs).encode()).hexdigest()
