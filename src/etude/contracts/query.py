"""Which trajectories: a few conditions that all must hold, as a value and as the text after `--where`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from etude.contracts.errors import DataError


class Where(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Conditions that all must hold; null does not matter."""

    problem: str | None = None
    """The kind of decision."""
    policy: str | None = None
    """The version that decided."""
    agent: str | None = None
    """Which agent did it."""
    user: str | None = None
    """For whom."""
    group: str | None = None
    """The kind of user."""
    tenant: str | None = None
    """Whose rules of redaction held."""
    outcome: Literal["success", "failure", "unknown"] | None = None
    """How it ended."""
    since: datetime | None = None
    """Began then or later."""
    until: datetime | None = None
    """Began before."""
    min_reward: float | None = None
    """At least this."""
    max_reward: float | None = None
    """At most this."""
    min_confidence: float | None = None
    """Of the reward."""
    feedback: bool | None = None
    """Whether anybody said anything of it."""

    def __str__(self) -> str:
        """As `parse` reads it; empty for everything."""
        parts = []
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None:
                continue
            key, sign = WRITTEN.get(name, (name, "="))
            text = value.isoformat() if isinstance(value, datetime) else str(value)
            text = text.lower() if isinstance(value, bool) else text
            parts.append(f"{key}{sign}{_quoted(text)}")
        return " and ".join(parts)


WRITTEN = {
    "since": ("time", ">="),
    "until": ("time", "<"),
    "min_reward": ("reward", ">="),
    "max_reward": ("reward", "<="),
    "min_confidence": ("confidence", ">="),
}
"""Fields that `--where` calls otherwise."""

_TOKEN = re.compile(r"""\s*(?:(and|AND|,)(?=\s|$|[a-z])|([a-z_]+)\s*(>=|<=|=|<|>)\s*("[^"]*"|'[^']*'|[^\s,]+))""")


def parse(text: str) -> Where:
    """`problem=workflow and outcome=success and time>=2026-11-01 and reward>=0.5`; DataError says what is wrong."""
    found, place = Where(), 0
    text = text.strip()
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise DataError(
                f"--where {text!r}: cannot read {text[place:].strip()[:40]!r}: expected conditions such as "
                "`problem=workflow and outcome=success and time>=2026-11-01`"
            )
        place = token.end()
        if token[1] is None:
            name, value = _condition(token[2], token[3], token[4].strip("\"'"))
            if getattr(found, name) is not None:
                raise DataError(f"--where {text!r}: {token[2]}{token[3]} stands there twice: keep one of them")
            found = replace(found, **{name: value})
    return found


def _condition(key: str, sign: str, text: str) -> tuple[str, Any]:
    name = next((field for field, written in WRITTEN.items() if written == (key, sign)), key if sign == "=" else "")
    readers: dict[str, Callable[[str], Any]] = {
        **dict.fromkeys(("problem", "policy", "agent", "user", "group", "tenant"), str),
        "outcome": _outcome,
        **dict.fromkeys(("since", "until"), _time),
        **dict.fromkeys(("min_reward", "max_reward", "min_confidence"), float),
        "feedback": _flag,
    }
    if name not in readers:
        known = [f"{k}{s}" for k, s in (WRITTEN.get(field, (field, "=")) for field in readers)]
        close = difflib.get_close_matches(f"{key}{sign}", known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise DataError(f"--where: unknown condition {key}{sign}{text}: {hint}there are {', '.join(known)}")
    try:
        return name, readers[name](text)
    except ValueError as error:
        raise DataError(f"--where: {key}{sign}{text}: {error}") from error


def _outcome(text: str) -> str:
    if text not in ("success", "failure", "unknown"):
        raise ValueError(f"outcome is {text!r}: expected success, failure or unknown")
    return text


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError("expected a date or time such as 2026-11-01 or 2026-11-01T08:00:00+00:00") from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"is {text!r}: expected true or false")
    return text == "true"


def _quoted(text: str) -> str:
    return f'"{text}"' if re.search(r"[\s,]", text) else text
