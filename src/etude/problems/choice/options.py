"""Options that a policy knows, and new ones read by their descriptions: each new option is a mixture of known ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from etude.contracts.option import DECLARED, Option, read_options
from etude.contracts.ports import TextEncoder
from etude.text.sentence import sentences

Floats = NDArray[np.float64]
PRICES = ("usd_per_mtok_in", "usd_per_mtok_out", "usd_per_call")
"""Numbers that are prices."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Offered:
    """n options of a decision, in terms of the K known ones."""

    values: Sequence[Any]  # as JSON
    options: tuple[Option, ...]
    is_new: NDArray[np.bool_]  # (n,)
    mix: Floats  # (n, K): the known option, or the mixture that a new one is like
    price: Floats  # (n,) list prices, as multiples of those of the most similar known option
    declared: Mapping[str, Floats]  # by kind of outcome, (n,) what an option says of itself; nan where it does not

    @cached_property
    def has_new(self) -> bool:
        return bool(self.is_new.any())

    @cached_property
    def are_known(self) -> bool:
        """Whether they are the known ones, in their order: what is expected of those needs no mixing."""
        return not self.has_new and np.array_equal(self.mix, np.eye(self.mix.shape[1]))


@dataclass(frozen=True, kw_only=True)
class OptionTable:
    """K known options with their vectors."""

    options: tuple[Option, ...]
    vectors: Floats  # (K, width + numbers)
    numbers: tuple[str, ...]  # that enter the vectors
    scale: Floats  # (2, numbers) mean and deviation of their logarithms
    width: float  # squared distance at which two options are alike by 1 / e

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(option.name for option in self.options)

    def offer(self, values: Sequence[Any], encoder: TextEncoder) -> Offered:
        """Options as they are offered; DataError for what is none."""
        options = read_options(values)
        mix, is_new = self.mixture(options, encoder), ~np.isin([option.name for option in options], self.names)
        alike = [self.options[i] for i in mix.argmax(1).tolist()]
        price = np.array([price_ratio(option, old) for option, old in zip(options, alike, strict=True)])
        declared = {kind: np.array([option.numbers.get(kind, np.nan) for option in options]) for kind in DECLARED}
        return Offered(values=values, options=options, is_new=is_new, mix=mix, price=price, declared=declared)

    def mixture(self, options: Sequence[Option], encoder: TextEncoder) -> Floats:
        """(n, K): each option as a mixture of the known ones: itself, or those that its description is like."""
        place = {name: i for i, name in enumerate(self.names)}
        known = np.array([place.get(option.name, -1) for option in options])
        mix, new = np.zeros((len(options), len(place))), np.flatnonzero(known < 0)
        mix[np.arange(len(options)), known] = known >= 0
        if len(new):
            mix[new] = self.likeness([options[i] for i in new.tolist()], encoder)
        return mix

    def likeness(self, new: Sequence[Option], encoder: TextEncoder) -> Floats:
        """(n, K): each new option as a mixture of the known ones, rows sum to 1."""
        found = _vectors(new, self.numbers, self.scale, encoder)
        squares = (found**2).sum(1)[:, None] - 2 * found @ self.vectors.T + (self.vectors**2).sum(1)
        near = np.exp(-(squares - squares.min(1, keepdims=True)) / self.width)
        mixed: Floats = near / near.sum(1, keepdims=True)
        return mixed

    def left_out(self) -> Floats:
        """(K, K): each known option as a mixture of the others."""
        K = len(self.options)
        squares = np.square(self.vectors[:, None] - self.vectors).sum(2) + np.where(np.eye(K, dtype=bool), np.inf, 0)
        near = np.exp(-(squares - squares.min(1, keepdims=True)) / self.width) if K > 1 else np.zeros((K, K))
        mixed: Floats = near / np.maximum(near.sum(1, keepdims=True), 1e-300)
        return mixed

    def to_json(self) -> dict[str, Any]:
        return {
            "options": msgspec.to_builtins(self.options),
            "numbers": list(self.numbers),
            "scale": self.scale.tolist(),
            "width": self.width,
        }

    @classmethod
    def from_state(cls, vectors: Floats, about: Mapping[str, Any]) -> OptionTable:
        return cls(
            options=msgspec.convert(about["options"], tuple[Option, ...]),
            vectors=vectors,
            numbers=tuple(about["numbers"]),
            scale=np.array(about["scale"]).reshape(2, -1),
            width=about["width"],
        )


def make_table(options: Sequence[Option], encoder: TextEncoder) -> OptionTable:
    shared = [set(option.numbers) for option in options]
    numbers = tuple(sorted(set.intersection(*shared))) if shared else ()
    logs = np.log1p(np.abs([[option.numbers[key] for key in numbers] for option in options])).reshape(len(options), -1)
    deviation = logs.std(0)
    scale = np.stack([logs.mean(0), np.where(deviation > 1e-9, deviation, np.inf)])
    vectors = _vectors(options, numbers, scale, encoder)
    squares = np.square(vectors[:, None] - vectors).sum(2)
    between = squares[squares > 1e-9]
    width = float(np.median(between)) / 4 if len(between) else 1.0  # a quarter: the nearest few count
    return OptionTable(options=tuple(options), vectors=vectors, numbers=numbers, scale=scale, width=width)


def _vectors(options: Sequence[Option], numbers: tuple[str, ...], scale: Floats, encoder: TextEncoder) -> Floats:
    text = sentences(encoder, [option.text for option in options]).astype(np.float64)
    given = [[option.numbers.get(key, np.nan) for key in numbers] for option in options]
    logs = (np.log1p(np.abs(np.array(given).reshape(len(options), -1))) - scale[0]) / scale[1]
    found: Floats = np.concatenate([text, np.nan_to_num(logs) / max(1, len(numbers)) ** 0.5], 1)
    return found


def price_ratio(new: Option, old: Option) -> float:
    """By how much the list prices of two options differ; 1 where they are not known."""
    ratios = [
        new.numbers[key] / old.numbers[key]
        for key in PRICES
        if old.numbers.get(key, 0) > 0 and new.numbers.get(key) is not None
    ]
    return sum(ratios) / len(ratios) if ratios else 1.0
