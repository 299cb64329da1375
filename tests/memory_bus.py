"""An event bus in memory: a model for the contract tests, and fast for others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, islice, takewhile
from threading import Condition

from msgspec.structs import replace

from etude.adapters.delivery import (
    ACK_WAIT_S,
    BACKOFF_S,
    DAY_S,
    MAX_DELIVERIES,
    REMEMBERED_S,
    WaitingLog,
    backoff,
    check_stream,
    exhausted,
    may_expire,
)
from etude.contracts.bus import DeadLetter, Delivery, Message
from etude.contracts.errors import BusError
from etude.contracts.subjects import STREAMS, stream_of


@dataclass(kw_only=True)
class _Given:
    """A message that was delivered to a group and is not acknowledged."""

    attempt: int
    due: float  # time of redelivery


@dataclass(kw_only=True)
class _Group:
    cursor: int = 0  # number of the last delivered message
    given: dict[int, _Given] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Kept:
    message: Message
    time: float


class MemoryBus:
    """An in-memory EventBus."""

    def __init__(
        self,
        *,
        ack_wait_s: float = ACK_WAIT_S,
        max_deliveries: int = MAX_DELIVERIES,
        backoff_s: Sequence[float] = BACKOFF_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ack_wait_s, self._max_deliveries, self._backoff_s = ack_wait_s, max_deliveries, tuple(backoff_s)
        self._clock = clock
        self._numbers, self._dead_numbers = count(1), count(1)
        self._kept: dict[str, dict[int, _Kept]] = {stream: {} for stream in STREAMS}
        self._groups: dict[str, dict[str, _Group]] = {stream: {} for stream in STREAMS}
        self._seen: dict[tuple[str, str], float] = {}
        self._dead: dict[int, DeadLetter] = {}
        self._changed = Condition()
        self._waiting, self._closed = WaitingLog("the bus in memory"), False

    def publish(self, messages: Sequence[Message]) -> None:
        streams = [stream_of(message.subject) for message in messages]
        with self._changed:
            self._check_open()
            for message, stream in zip(messages, streams, strict=True):
                key, now = (message.subject, message.id), self._clock()
                if now - self._seen.get(key, float("-inf")) >= REMEMBERED_S:
                    self._seen[key] = now
                    self._kept[stream][next(self._numbers)] = _Kept(message=message, time=now)
            self._changed.notify_all()

    def pull(self, stream: str, group: str, *, limit: int, timeout_s: float) -> list[Delivery]:
        check_stream(stream)
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                self._check_open()
                self._expire(stream)
                found = self._give(stream, group, limit)
                left = deadline - time.monotonic()
                if found or left <= 0:
                    return found
                self._changed.wait(min(left, 0.01))  # redeliveries become due by the clock

    def ack(self, deliveries: Sequence[Delivery]) -> None:
        with self._changed:
            self._check_open()
            for delivery in deliveries:
                self._done(delivery)

    def renew(self, deliveries: Sequence[Delivery]) -> None:
        with self._changed:
            for given in self._given(deliveries):
                given.due = self._clock() + self._ack_wait_s + backoff(self._backoff_s, given.attempt)

    def release(self, deliveries: Sequence[Delivery]) -> None:
        with self._changed:
            for given in self._given(deliveries):
                given.attempt, given.due = given.attempt - 1, self._clock()
            self._changed.notify_all()

    def bury(self, delivery: Delivery, *, reason: str) -> None:
        with self._changed:
            self._check_open()
            self._bury(delivery, reason)

    def dead_letters(self, *, after: int = 0, limit: int = 100) -> list[DeadLetter]:
        with self._changed:
            self._check_open()
            return [letter for number, letter in self._dead.items() if number > after][:limit]

    def replay(self, numbers: Sequence[int]) -> int:
        with self._changed:
            self._check_open()
            letters = [self._dead.pop(number) for number in numbers if number in self._dead]
            for letter in letters:
                kept = _Kept(message=letter.message, time=self._clock())
                self._kept[stream_of(letter.message.subject)][next(self._numbers)] = kept
            self._changed.notify_all()
        return len(letters)

    def pending(self, stream: str, group: str) -> int:
        check_stream(stream)
        with self._changed:
            self._check_open()
            state = self._groups[stream].get(group, _Group())
            return sum(number > state.cursor or number in state.given for number in self._kept[stream])

    def erase(self, match: Callable[[Message], bool]) -> int:
        with self._changed:
            self._check_open()
            found = [(s, n) for s, kept in self._kept.items() for n, k in kept.items() if match(k.message)]
            dead = [number for number, letter in self._dead.items() if match(letter.message)]
            for stream, number in found:
                self._remove(stream, number)
            for number in dead:
                del self._dead[number]
            return len(found) + len(dead)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _give(self, stream: str, group: str, limit: int) -> list[Delivery]:
        state, kept, now = self._groups[stream].setdefault(group, _Group()), self._kept[stream], self._clock()
        found: list[Delivery] = []
        for number in sorted((n for n, g in state.given.items() if g.due <= now), key=lambda n: state.given[n].due):
            if len(found) == limit:
                break
            given = state.given[number]
            handle = (stream, group, number)
            delivery = Delivery(message=kept[number].message, attempt=given.attempt, handle=handle)
            if given.attempt >= self._max_deliveries:
                self._bury(delivery, exhausted(given.attempt))
                continue
            given.attempt += 1
            given.due = now + self._ack_wait_s + backoff(self._backoff_s, given.attempt)
            found.append(replace(delivery, attempt=given.attempt))
        for number in list(islice((n for n in kept if n > state.cursor), limit - len(found))):
            state.cursor = number
            state.given[number] = _Given(attempt=1, due=now + self._ack_wait_s + backoff(self._backoff_s, 1))
            found.append(Delivery(message=kept[number].message, attempt=1, handle=(stream, group, number)))
        return found

    def _given(self, deliveries: Sequence[Delivery]) -> list[_Given]:
        """Deliveries that no other consumer has received meanwhile."""
        self._check_open()
        found = []
        for delivery in deliveries:
            stream, group, number = delivery.handle
            given = self._groups[stream][group].given.get(number)
            if given is not None and given.attempt == delivery.attempt:
                found.append(given)
        return found

    def _bury(self, delivery: Delivery, reason: str) -> None:
        if self._done(delivery):
            number = next(self._dead_numbers)
            time = datetime.fromtimestamp(self._clock(), UTC)
            self._dead[number] = DeadLetter(
                number=number, message=delivery.message, reason=reason, attempts=delivery.attempt, time=time
            )

    def _done(self, delivery: Delivery) -> bool:
        """Remove a delivery; return whether the group still had it."""
        stream, group, number = delivery.handle
        had = self._groups[stream][group].given.pop(number, None) is not None
        if all(g.cursor >= number and number not in g.given for g in self._groups[stream].values()):
            self._kept[stream].pop(number, None)
        return had

    def _expire(self, stream: str) -> None:
        """Remove old messages if they may expire, else warn: every message here is unacknowledged."""
        oldest = self._clock() - STREAMS[stream] * DAY_S
        old = list(takewhile(lambda item: item[1].time < oldest, self._kept[stream].items()))
        if old and may_expire(stream, self._groups[stream]):
            for number, _ in old:
                self._remove(stream, number)
        elif old:
            self._waiting.warn(stream, len(old), self._clock() - old[0][1].time, self._groups[stream])

    def _remove(self, stream: str, number: int) -> None:
        del self._kept[stream][number]
        for group in self._groups[stream].values():
            group.given.pop(number, None)

    def _check_open(self) -> None:
        if self._closed:
            raise BusError("the bus is closed: make another one")
