"""Rolling baselines: raw numbers come in one after the other, each is compared with the last ones before it.

A window holds the last N numbers exactly. Its sums are whole numbers, as every float is one of some tiny unit: what
leaves the window leaves no rounding behind, and a window read back from its numbers goes on as if never written.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Literal

import msgspec

from etude.contracts.errors import StoreError
from etude.contracts.reward import Baseline

Method = Literal["none", "zscore", "minmax"]
Key = tuple[str | None, ...]
"""What is compared only with its like: a component, how it was measured, and the problem."""

YOUNG = 10
"""Numbers a window must hold before anything is judged by it."""
NEUTRAL = 0.5
LARGEST = 1e150
"""What is further from 0 is no measurement: its square is no float."""
UNIT = 1074
"""Every float is a whole number of 2**-UNIT."""


class Window:
    """The last `size` numbers, their mean, deviation, lowest and highest; each number costs the same few steps."""

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        self.size = size
        self.values: deque[float] = deque()
        self._sum = self._squares = 0
        self._lows: deque[float] = deque()  # rising: what no later number undercuts
        self._highs: deque[float] = deque()  # falling
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        assert -LARGEST <= value <= LARGEST
        if len(self.values) == self.size:
            self._drop(self.values.popleft())
        self.values.append(value)
        units = _units(value)
        self._sum += units
        self._squares += units * units
        while self._lows and self._lows[-1] > value:
            self._lows.pop()
        self._lows.append(value)
        while self._highs and self._highs[-1] < value:
            self._highs.pop()
        self._highs.append(value)

    def baseline(self, method: Method) -> Baseline:
        """What the next number is compared with."""
        n = len(self.values)
        if n == 0:
            return Baseline(method=method)
        if method == "minmax":
            return Baseline(method=method, count=n, low=self._lows[0], high=self._highs[0])
        spread = n * self._squares - self._sum * self._sum
        std = math.sqrt(spread / (n * n << 2 * UNIT))
        return Baseline(method=method, count=n, mean=self._sum / (n << UNIT), std=std)

    def _drop(self, value: float) -> None:
        units = _units(value)
        self._sum -= units
        self._squares -= units * units
        if self._lows[0] == value:
            self._lows.popleft()
        if self._highs[0] == value:
            self._highs.popleft()


def _units(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator << UNIT + 1 - denominator.bit_length()


def compared(raw: float, baseline: Baseline) -> float:
    """From 0 to 1, more is better: by the logistic curve of the deviations from the mean, or between low and high.

    Neutral where the baseline is young or all its numbers are the same.
    """
    if baseline.method == "none":
        return raw
    if baseline.count < YOUNG:
        return NEUTRAL
    if baseline.method == "minmax":
        width = baseline.high - baseline.low
        return min(max((raw - baseline.low) / width, 0.0), 1.0) if width > 0 else NEUTRAL
    if baseline.std == 0:
        return NEUTRAL
    z = (raw - baseline.mean) / baseline.std
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0  # beyond, the exponential is no float


def certainty(baseline: Baseline | None) -> float:
    """How far a value under this baseline can be relied on, from 0 to 1."""
    return 1.0 if baseline is None or baseline.method == "none" else min(1.0, baseline.count / YOUNG)


class Baselines:
    """A window for each key, made when its first number comes."""

    def __init__(self) -> None:
        self._windows: dict[Key, Window] = {}

    def take(self, key: Key, raw: float, *, method: Method, size: int) -> Baseline:
        """What stood there before this number; then it joins."""
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = Window(size)
        before = window.baseline(method)
        window.add(raw)
        return before

    def state(self) -> bytes:
        """As JSON."""
        kept = [_Kept(key=key, size=window.size, values=list(window.values)) for key, window in self._windows.items()]
        return msgspec.json.encode(kept)

    @classmethod
    def from_state(cls, state: bytes) -> Baselines:
        made = cls()
        try:
            kept = msgspec.json.decode(state, type=list[_Kept])
        except msgspec.DecodeError as error:
            raise StoreError(
                f"kept baselines cannot be read ({error}): remove them, and they begin anew; `etude reward rescore` "
                "gives rewards that do not depend on it"
            ) from error
        made._windows = {window.key: Window(window.size, window.values) for window in kept}
        return made


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    key: Key
    size: int
    values: list[float]
