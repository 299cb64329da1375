"""The clock of all that is wired here. A simulation of days in minutes sets its own for its process."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]


def _system() -> datetime:
    return datetime.now(UTC)


_clock: Clock = _system


def set_clock(clock: Clock | None) -> None:
    """Use another clock from now on; None is the clock of the system again."""
    global _clock
    _clock = clock or _system


def now() -> datetime:
    return _clock()


def now_ns() -> int:
    """Nanoseconds since 1970."""
    return time.time_ns() if _clock is _system else int(_clock().timestamp() * 1e9)
