"""A query for trajectories: conditions that must all hold, as a value and as the text after `--where`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from etude.contracts.errors import DataError
from etude.contracts.suggestions import did_you_mean


class Where(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Conditions that must all hold; a field that is null is no condition."""

    problem: str | None = None
    """Name of the problem."""
    policy: str | None = None
    """Version of the policy that decided."""
    agent: str | None = None
    """Name of the agent."""
    user: str | None = None
    """User that the task was done for."""
    group: str | None = None
    """Group of the user."""
    tenant: str | None = None
    """Tenant whose redaction rules applied."""
    outcome: Literal["success", "failure", "unknown"] | None = None
    """Outcome of the task."""
    since: datetime | None = None
    """Earliest start, inclusive."""
    until: datetime | None = None
    """Latest start, exclusive."""
    min_reward: float | None = None
    """Minimum reward."""
    max_reward: float | None = None
    """Maximum reward."""
    min_confidence: float | None = None
    """Minimum confidence of the reward."""
    feedback: bool | None = None
    """Whether the trajectory has a rating."""

    def __str__(self) -> str:
        """The text that `parse` reads; empty for all trajectories."""
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
"""Fields with another name in `--where`."""

_TOKEN = re.compile(r"""\s*(?:(and|AND|,)(?=\s|$|[a-z])|([a-z_]+)\s*(>=|<=|=|<|>)\s*("[^"]*"|'[^']*'|[^\s,]+))""")


def parse(text: str) -> Where:
    """`problem=choice:model and outcome=success and time>=2026-11-01 and reward>=0.5`; DataError says what is wrong."""
    found, place = Where(), 0
    text = text.strip()
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise DataError(
                f"where {text!r}: cannot read {text[place:].strip()[:40]!r}: expected conditions such as "
                "`problem=choice:model and outcome=success and time>=2026-11-01`"
            )
        place = token.end()
        if token[1] is None:
            name, value = _condition(token[2], token[3], token[4].strip("\"'"))
            if getattr(found, name) is not None:
                raise DataError(f"where {text!r}: {token[2]}{token[3]} occurs twice: keep one of them")
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
        hint = did_you_mean(f"{key}{sign}", known, cutoff=0.5)
        raise DataError(f"where: unknown condition {key}{sign}{text}: {hint}there are {', '.join(known)}")
    try:
        return name, readers[name](text)
    except ValueError as error:
        raise DataError(f"where: {key}{sign}{text}: {error}") from error


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
