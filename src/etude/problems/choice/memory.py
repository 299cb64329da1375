"""A bounded sample of past rows, to show decisions like a new one: rows in, similar ones with their outcomes out.

It keeps no text: only where a row is recorded, which clusters, categories and bins of numbers its context belongs to,
and its outcomes. Two contexts are similar as far as they belong to the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.learning.outcome_model import Observed
from etude.problems.choice.contexts import Context, ContextReader
from etude.problems.choice.contexts import Rows as Features
from etude.problems.choice.rows import Row

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_ROWS = 2_000
MEMBER = 0.5
"""Probability of a category from which a context belongs to it."""
FADED = 0.01
"""Membership of a cluster from which a context belongs to it: it fades with the distance."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """n past rows in the order of time. D features."""

    total: int  # rows that these are a sample of
    sources: tuple[str, ...]  # (n,) where each is recorded
    members: NDArray[np.uint8]  # (n, ⌈D / 8⌉) bits: the columns of clusters, categories and bins it belongs to
    outcomes: Observed

    def __len__(self) -> int:
        return len(self.sources)

    def take(self, rows: Ints) -> Memory:
        sources = tuple(self.sources[row] for row in rows.tolist())
        return Memory(total=self.total, sources=sources, members=self.members[rows], outcomes=self.outcomes.take(rows))

    def plus(self, later: Memory) -> Memory:
        """A sample of the rows of both, in proportion to how many they are."""
        total = self.total + later.total
        share = round(MAX_ROWS * later.total / max(1, total))
        new = later.take(_evenly(len(later), max(MAX_ROWS - len(self), share)))
        old = self.take(_evenly(len(self), MAX_ROWS - len(new)))
        a, b = old.outcomes, new.outcomes
        return Memory(
            total=total,
            sources=old.sources + new.sources,
            members=np.concatenate([old.members, new.members]),
            outcomes=Observed(
                rows=a.rows + b.rows,
                row=np.concatenate([a.row, b.row + a.rows]),
                option=np.concatenate([a.option, b.option]),
                value=np.concatenate([a.value, b.value]),
                weight=np.concatenate([a.weight, b.weight]),
            ),
        )

    def similarity(self, reader: ContextReader, context: Context) -> Floats:
        """(n,) share of the context's clusters, categories and bins that a row has too; each block counts the same."""
        asked = _members(reader, reader([context]))[0]
        blocks = [block for block in reader.blocks.values() if asked[slice(*block)].any()]
        weight = np.zeros(len(asked))
        for low, high in blocks:
            weight[low:high] = asked[low:high] / asked[low:high].sum() / len(blocks)
        return np.asarray(np.unpackbits(self.members, axis=1, count=len(asked)) @ weight)

    def outcome(self, option: int, kind: int) -> Floats:
        """(n,) the outcomes of an option; nan where they are not known."""
        o, found = self.outcomes, np.full(len(self), np.nan)
        own = o.option == option
        found[o.row[own]] = o.value[own, kind]
        return found

    def tensors(self) -> dict[str, NDArray[Any]]:
        o = self.outcomes
        return {
            "total": np.array([self.total]),
            "sources": np.array(bytearray("\n".join(self.sources), "utf-8"), np.uint8),
            "members": self.members,
            "row": o.row.astype(np.int32),
            "option": o.option.astype(np.int32),
            "value": o.value.astype(np.float32),
            "weight": o.weight.astype(np.float32),
        }

    @classmethod
    def from_state(cls, tensors: Mapping[str, NDArray[Any]]) -> Memory:
        rows = len(tensors["members"])
        return cls(
            total=int(tensors["total"][0]),
            sources=tuple(tensors["sources"].tobytes().decode().split("\n"))[:rows],
            members=tensors["members"],
            outcomes=Observed(
                rows=rows,
                row=tensors["row"].astype(np.int64),
                option=tensors["option"].astype(np.int64),
                value=tensors["value"].astype(np.float64),
                weight=tensors["weight"].astype(np.float64),
            ),
        )


def remember(
    reader: ContextReader,
    rows: Sequence[Row],
    seen: Observed,
    *,
    features: Features | None = None,
    total: int | None = None,
) -> Memory:
    """The memory of rows with these outcomes; `features` if they are read, `total` if they are a sample of more."""
    kept = _evenly(len(rows), MAX_ROWS)
    some = [rows[row] for row in kept.tolist()]
    read = reader([row.context for row in some]) if features is None else features[kept]
    return Memory(
        total=len(rows) if total is None else total,
        sources=tuple(row.source.replace("\n", " ") for row in some),
        members=np.packbits(_members(reader, read), axis=1),
        outcomes=seen.take(kept),
    )


def _members(reader: ContextReader, features: Features) -> NDArray[np.bool_]:
    """(n, D): which clusters, categories and bins contexts belong to."""
    raw = features / np.where(reader.scale > 0, reader.scale, 1) + reader.mean
    found = np.zeros(raw.shape, bool)
    for name, (low, high) in reader.blocks.items():
        if name.startswith("number "):
            low, high = low + 1, high - 1  # the first column is its value, the last says that it is not known
        elif name != "clusters" and not name.startswith("category "):
            continue
        found[:, low:high] = raw[:, low:high] > (FADED if name == "clusters" else MEMBER)
    return found


def _evenly(n: int, count: int) -> Ints:
    """At most `count` of n indices, in equal steps."""
    return np.unique(np.linspace(0, n - 1, max(0, min(n, count))).round().astype(np.int64))
