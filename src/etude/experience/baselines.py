"""Rolling baselines: each raw number is compared with the latest numbers before it.

A window holds the last N numbers and sums them exactly (`math.fsum`) on demand: removed numbers leave no rounding
error, and a window restored from its numbers continues as if it had never been saved.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from operator import mul
from typing import Literal

import msgspec

from etude.contracts.errors import StoreError
from etude.contracts.reward import Baseline

Method = Literal["none", "zscore", "minmax"]
Key = tuple[str | None, ...]
"""Numbers of equal keys are compared: the component, how it was measured, and the problem."""

MIN_COUNT = 10
"""Minimum number of values in a window for a comparison."""
NEUTRAL = 0.5
MAX_MAGNITUDE = 1e150
"""Maximum magnitude of a measurement: the square of a larger one overflows."""


class Window:
    """The last `size` numbers, and their mean, deviation, lowest and highest."""

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        self.values: deque[float] = deque(maxlen=size)
        for value in values:
            self.add(value)

    @property
    def size(self) -> int:
        assert self.values.maxlen is not None
        return self.values.maxlen

    def add(self, value: float) -> None:
        assert -MAX_MAGNITUDE <= value <= MAX_MAGNITUDE
        self.values.append(value)

    def baseline(self, method: Method, floor: float = 0.0) -> Baseline:
        """The baseline that the next number is compared with."""
        n = len(self.values)
        if n == 0:
            return Baseline(method=method, floor=floor)
        if method == "minmax":
            return Baseline(method=method, count=n, low=min(self.values), high=max(self.values), floor=floor)
        shifted = [value - self.values[0] for value in self.values]  # numbers that are all the same deviate by 0
        centre = math.fsum(shifted) / n
        deviations = [value - centre for value in shifted]
        variance = math.fsum(map(mul, deviations, deviations)) / n
        mean, std = math.fsum(self.values) / n, math.sqrt(variance)
        return Baseline(method=method, count=n, mean=mean, std=std, floor=floor)


def compared(raw: float, baseline: Baseline) -> float:
    """From 0 to 1, more is better: by the logistic curve of the deviations from the mean, or between low and high.

    Neutral where the baseline has too few numbers, or all its numbers are the same and there is no floor.
    """
    if baseline.method == "none":
        return raw
    if baseline.count < MIN_COUNT:
        return NEUTRAL
    if baseline.method == "minmax":
        width = max(baseline.high - baseline.low, 2 * baseline.floor)
        low = baseline.low - max(0.0, (width - (baseline.high - baseline.low)) / 2)  # widened to both sides
        return min(max((raw - low) / width, 0.0), 1.0) if width > 0 else NEUTRAL
    std = max(baseline.std, baseline.floor)
    if std == 0:
        return NEUTRAL
    z = (raw - baseline.mean) / std
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0  # below, the exponential overflows


def certainty(baseline: Baseline | None) -> float:
    """Reliability of a value under this baseline, from 0 to 1."""
    return 1.0 if baseline is None or baseline.method == "none" else min(1.0, baseline.count / MIN_COUNT)


class Baselines:
    """A window for each key, made with its first number."""

    def __init__(self) -> None:
        self._windows: dict[Key, Window] = {}

    def take(self, key: Key, raw: float, *, method: Method, size: int, floor: float = 0.0) -> Baseline:
        """The baseline before this number; the number is then added to it."""
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = Window(size)
        before = window.baseline(method, floor)
        window.add(raw)
        return before

    def state(self) -> bytes:
        """The windows as JSON."""
        windows = self._windows.items()
        return msgspec.json.encode([_StoredWindow(key=k, size=w.size, values=list(w.values)) for k, w in windows])

    @classmethod
    def from_state(cls, state: bytes) -> Baselines:
        made = cls()
        try:
            stored = msgspec.json.decode(state, type=list[_StoredWindow])
        except msgspec.DecodeError as error:
            raise StoreError(
                f"stored baselines cannot be read ({error}): remove them, and they start again; `etude reward rescore` "
                "gives rewards that do not depend on it"
            ) from error
        made._windows = {window.key: Window(window.size, window.values) for window in stored}
        return made


class _StoredWindow(msgspec.Struct, frozen=True, kw_only=True):
    key: Key
    size: int
    values: list[float]
