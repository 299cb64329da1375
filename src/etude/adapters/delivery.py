"""What the buses share: when a message is delivered again, when it expires, and the warning while it waits."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Sequence

from etude.contracts.errors import BusError
from etude.contracts.subjects import DEAD_LETTERS, STORED_FIRST, STREAMS

ACK_WAIT_S = 30.0
MAX_DELIVERIES = 6
BACKOFF_S = (1.0, 5.0, 30.0, 120.0, 600.0)
"""Seconds of back-off after the first, second, … attempt; the last applies to all further ones."""
DAY_S = 86_400.0
REMEMBERED_S = 7 * DAY_S
"""Seconds for which ids are remembered to drop duplicates."""

WARN_S = 3600.0

log = logging.getLogger("etude")


class WaitingLog:
    """Warns about messages that are unacknowledged beyond their stream's retention, once per hour and stream."""

    def __init__(self, place: str) -> None:
        self._place, self._warned = place, dict[str, float]()

    def warn(self, stream: str, count: int, age_s: float, groups: Iterable[str]) -> None:
        if time.monotonic() - self._warned.get(stream, float("-inf")) >= WARN_S:
            self._warned[stream] = time.monotonic()
            log.warning(
                "%s: %d events of %s have not been acknowledged by %s, the oldest for %.0f days: they are kept until "
                "they are",
                *(self._place, count, stream, " and ".join(sorted(groups)) or "any consumer", age_s / DAY_S),
            )


def may_expire(stream: str, groups: Collection[str]) -> bool:
    """Whether unacknowledged messages of a stream expire."""
    return stream in STORED_FIRST and not groups


def check_stream(stream: str) -> None:
    streams = [name for name in STREAMS if name != DEAD_LETTERS]
    if stream not in streams:
        raise BusError(f"stream {stream!r} cannot be pulled from: expected one of {', '.join(streams)}")


def backoff(backoff_s: Sequence[float], attempt: int) -> float:
    """Seconds to wait after an attempt; attempts count from 1."""
    return backoff_s[min(attempt, len(backoff_s)) - 1] if backoff_s else 0.0


def exhausted(attempts: int) -> str:
    return f"given {attempts} times and never acknowledged"
