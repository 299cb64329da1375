"""What is known when a choice is made, as numbers: contexts in, rows of features out.

A context is a text, a number, or a mapping of texts, numbers, truth values and lists of words. Text becomes its word
vector, its hashed words, counts of its surface, and the clusters it falls into, at several sizes: prompts come in
kinds, and which kind says most about who does well. A word that occurs again and again under the same key is a
category; numbers are standardised and cut into bins. Each block of features is centred and has mean square 1 over the
rows it was fitted to, so that a block's weight is its share of the prior.
"""

from __future__ import annotations

import math
import re
import zlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.contracts.errors import DataError
from etude.contracts.plain import plain
from etude.contracts.ports import TextEncoder
from etude.text.ngrams import WORD, NGramEncoder, words
from etude.text.sentence import sentences, unit
from etude.text.static import StaticEncoder

Rows = NDArray[np.float32]
TEXT, NUMBER = "text", "number"
"""Keys of a context that is a text or a number itself."""
MAX_CHARS = 20_000
"""Maximum number of characters of a text that are read."""
WORD_COLUMNS = 256
"""Columns that words are hashed to."""
CLUSTERS = (8, 16, 32, 64)
"""Numbers of clusters; each is found REPEATS times, from other starts."""
REPEATS = 8
ROWS = 256
"""Maximum number of texts whose clusters are found at once."""
MIN_PER_CLUSTER = 12
"""Rows per cluster below which there are fewer clusters."""
FAR = 2.0
"""How fast the clusters of a text fade that is farther from them than 90 % of the texts they were made from."""
MAX_VALUES = 256
"""Maximum number of values of a category; the others count as unknown."""
BINS = 8
Context = Mapping[str, Any]


def read_context(given: Any, *, where: str = "context") -> dict[str, Any]:
    """A context as a mapping; DataError names what is neither text nor number."""
    if given is None:
        return {}
    if isinstance(given, str):
        return {TEXT: str(plain(given))}
    if isinstance(given, bool | int | float):
        return {NUMBER: _value(given, where)}
    if isinstance(given, Mapping):
        return {str(key): _value(value, f"{where}.{key}") for key, value in given.items() if value is not None}
    raise DataError(f"{where} is {given!r:.80}: expected a text, a number, or a mapping of these")


def is_finite(number: float) -> bool:
    """Whether it is finite, and no whole number beyond any float."""
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def _value(value: Any, where: str) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and is_finite(value):
        return float(value)
    if isinstance(value, str):
        return str(plain(value))
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple(str(plain(one)) for one in value)
    raise DataError(f"{where} is {value!r:.80}: expected a text, a finite number, true or false, or a list of texts")


# Text


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Sets of cluster centres, each set of a size and a start."""

    centres: Rows  # (Σk, width), set after set
    sizes: tuple[int, ...]  # k of each set
    reach: NDArray[np.float64]  # (sets,) distance within which 90 % of the texts lie

    @cached_property
    def _squares(self) -> Rows:
        return np.asarray(np.einsum("ij,ij->i", self.centres, self.centres))

    @cached_property
    def _columns(self) -> NDArray[np.int64]:
        """(sets, largest size) the columns of each set, of a smaller one with its first column again and again."""
        starts, size, most = np.cumsum([0, *self.sizes[:-1]])[:, None], np.array(self.sizes)[:, None], max(self.sizes)
        return np.where(np.arange(most) < size, starts + np.arange(most), starts)

    def nearest(self, x: Rows) -> tuple[NDArray[np.int64], Rows]:
        """(n, sets) each: the column of the nearest centre, and the distance to it."""
        if len(x) > ROWS:
            parts = [self.nearest(x[start : start + ROWS]) for start in range(0, len(x), ROWS)]
            return np.concatenate([own for own, _ in parts]), np.concatenate([distance for _, distance in parts])
        squares, columns = self._squares - 2 * (x @ self.centres.T), self._columns
        own = columns[np.arange(len(columns)), squares[:, columns].argmin(2)]
        length = np.einsum("ij,ij->i", x, x)[:, None]
        return own, np.sqrt(np.maximum(squares[np.arange(len(x))[:, None], own] + length, 0))

    def of(self, x: Rows) -> Rows:
        """(n, Σk): membership, faded for texts far from any centre."""
        own, distance = self.nearest(x)
        found = np.zeros((len(x), len(self.centres)), np.float32)
        faded = np.exp(-FAR * np.maximum(distance / np.maximum(self.reach, 1e-9) - 1, 0))
        found[np.arange(len(x))[:, None], own] = faded
        return found


def make_clusters(x: Rows, seed: int) -> Clusters:
    sizes = [k for k in CLUSTERS if k * MIN_PER_CLUSTER <= len(x)] or [max(1, min(CLUSTERS[0], len(x) // 2))]
    starts = [(k, seed * 1000 + r * 10 + i) for i, k in enumerate(sizes) for r in range(REPEATS)]
    sets = [k_means(x, k, start) for k, start in starts]
    sizes = [len(centres) for centres in sets]
    clusters = Clusters(centres=np.concatenate(sets), sizes=tuple(sizes), reach=np.ones(len(sets)))
    return replace(clusters, reach=np.quantile(clusters.nearest(x)[1], 0.9, axis=0).astype(np.float64))


def k_means(x: Rows, k: int, seed: int, rounds: int = 20) -> Rows:
    """Lloyd's algorithm on at most 200 rows per centre, from random rows; rows that are the same give one centre."""
    rng = np.random.default_rng(seed)
    some = x[rng.permutation(len(x))[: max(200 * k, 2000)]]
    centres = some[rng.choice(len(some), k, replace=False)]
    centres = centres[np.sort(np.unique(centres, axis=0, return_index=True)[1])]
    k = len(centres)
    for _ in range(rounds):
        own = (np.einsum("ij,ij->i", centres, centres) - 2 * (some @ centres.T)).argmin(1)
        count = np.bincount(own, minlength=k)
        member = np.zeros((len(some), k), np.float32)
        member[np.arange(len(some)), own] = 1
        centres = np.where(count[:, None] > 0, member.T @ some / count.clip(1)[:, None], centres).astype(np.float32)
    return centres


@dataclass(frozen=True, kw_only=True)
class Text:
    """Texts before they are standardised."""

    vectors: Rows  # (n, width) at unit length
    surface: Rows  # (n, features)
    words: Rows  # (n, WORD_COLUMNS) signed counts of hashed words

    def __len__(self) -> int:
        return len(self.vectors)


def read_texts(encoder: TextEncoder, texts: Sequence[str]) -> Text:
    """Where an encoder reads each word by itself, a word is encoded once, and a text's vector is the mean."""
    short = [text[:MAX_CHARS] for text in texts]
    by_word = encoder if isinstance(encoder, StaticEncoder | NGramEncoder) else None
    total = np.zeros((len(short), encoder.width))
    lexical = np.zeros((len(short), WORD_COLUMNS), np.float32)
    surface = np.zeros((len(short), SURFACE), np.float32)
    for row, text in enumerate(short):
        pieces = WORD.findall(text)
        slots = np.array(list({_slot(piece) for piece in pieces}), np.int64)
        lexical[row] = np.bincount(slots >> 1, 1.0 - 2.0 * (slots & 1), minlength=WORD_COLUMNS)
        surface[row] = _surface(text, len(pieces), len(slots))
        if by_word is not None and pieces:
            np.add.reduce([_word_vector(by_word, piece) for piece in pieces], out=total[row])
    vectors = unit(total) if by_word is not None else sentences(encoder, short)
    return Text(vectors=vectors, surface=surface, words=lexical)


@lru_cache(2**17)
def _slot(piece: str) -> int:
    """Column of a word, with the sign in the lowest bit."""
    word = next(words(piece), "")
    return (zlib.crc32(word.encode("utf-8", "surrogatepass")) * 0x9E3779B1 >> 8) % (2 * WORD_COLUMNS)


@lru_cache(2**16)
def _word_vector(encoder: StaticEncoder | NGramEncoder, piece: str) -> Rows:
    """The sum of a word's token vectors."""
    return np.asarray(encoder.tokens([piece])[0].sum(0))


MARKS = np.frombuffer(b"\n?!,.:;$\\(=_[>\"'*", np.uint8)
SIGNS = tuple(re.compile(sign) for sign in (r"\bdef |\breturn\b", r"\b[A-D][).]|\([A-D]\)", r"^\w+: ", r"\?\s*$"))
SURFACE = 4 + len(MARKS) + 4 + len(SIGNS)


def _surface(text: str, words: int, distinct: int) -> NDArray[np.float64]:
    """Counts of characters, words, digits and marks; shares; signs of code and of multiple-choice questions."""
    counts = np.bincount(np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8), minlength=256)
    digits, capitals, others = (int(counts[low:high].sum()) for low, high in ((48, 58), (65, 91), (128, 256)))
    found = np.zeros(SURFACE)
    found[:4] = len(text), words, distinct, digits
    found[4 : 4 + len(MARKS)] = counts[MARKS]
    np.log1p(found, out=found)
    rest = [x / max(1, len(text)) for x in (digits, capitals, others)]
    found[4 + len(MARKS) :] = [*rest, len(text) / (1 + words), *(sign.search(text) is not None for sign in SIGNS)]
    return found


# Contexts


@dataclass(frozen=True, kw_only=True)
class ContextReader:
    """Reads contexts as it was fitted to. D features in blocks."""

    encoder: TextEncoder
    categories: Mapping[str, tuple[str, ...]]  # by key, the known values
    numbers: Mapping[str, tuple[float, float, tuple[float, ...]]]  # by key: mean, deviation, edges of bins
    has_text: bool
    centre: Rows  # (width,) of the word vectors
    surface: Rows  # (2, SURFACE) mean and deviation
    idf: Rows  # (WORD_COLUMNS,)
    clusters: Clusters | None
    mean: Rows  # (D,)
    scale: Rows  # (D,)
    blocks: Mapping[str, tuple[int, int]]  # by name: from, to
    guesses: Mapping[str, Rows]  # by key of a category: (text features + 1, values), for contexts that lack it

    @property
    def width(self) -> int:
        return len(self.mean)

    def text_of(self, context: Context) -> str:
        """The texts of a context that are no categories, one after the other."""
        return "\n".join(
            value for key, value in context.items() if isinstance(value, str) and key not in self.categories
        )

    def __call__(self, contexts: Sequence[Context]) -> Rows:
        """(n, D)."""
        return (self._raw(contexts)[0] - self.mean) * self.scale

    def _raw(self, contexts: Sequence[Context]) -> tuple[Rows, dict[str, tuple[int, int]]]:
        n, texts = len(contexts), list[tuple[str, Rows]]()
        if self.has_text:
            texts = self._text_blocks(read_texts(self.encoder, [self.text_of(context) for context in contexts]))
        widths = self._widths + [(name, block.shape[1]) for name, block in texts]
        ends = list(accumulate((width for _, width in widths), initial=0))
        found, columns = np.zeros((n, ends[-1]), np.float32), iter(ends)
        for key, place in self._places.items():
            low = next(columns)
            for row, context in enumerate(contexts):
                value = context.get(key, ())
                for one in value if isinstance(value, tuple) else (value,):
                    if one in place:
                        found[row, low + place[one]] = 1
            if key in self.guesses and (lacking := [row for row, one in enumerate(contexts) if key not in one]):
                texts_of = [block[lacking] for _, block in texts]
                found[lacking, low : low + len(place)] = _guess(texts_of, self.guesses[key])
        for key, (mean, deviation, edges) in self.numbers.items():
            low = next(columns)
            for row, context in enumerate(contexts):
                value = context.get(key)
                if isinstance(value, float) and math.isfinite(value):
                    found[row, low] = min(3.0, max(-3.0, (value - mean) / deviation))
                    found[row, low + 1 + bisect_left(edges, value)] = 1
                else:
                    found[row, low + len(edges) + 2] = 1
        for low, (_, block) in zip(columns, texts, strict=False):
            found[:, low : low + block.shape[1]] = block
        return found, {name: (ends[i], ends[i + 1]) for i, (name, _) in enumerate(widths)}

    @cached_property
    def _places(self) -> dict[str, dict[str, int]]:
        """By key of a category, the column of each value in its block."""
        return {key: {value: i for i, value in enumerate(known)} for key, known in self.categories.items()}

    @cached_property
    def _widths(self) -> list[tuple[str, int]]:
        """The blocks of categories and numbers with their columns: of a number its value, its bins, and whether it is
        unknown."""
        found = [(f"category {key}", len(known)) for key, known in self.categories.items()]
        return found + [(f"number {key}", len(edges) + 3) for key, (_, _, edges) in self.numbers.items()]

    def _text_blocks(self, text: Text) -> list[tuple[str, Rows]]:
        joint = self.joint(text)
        vectors, surface = joint[:, : len(self.centre)], joint[:, len(self.centre) :]
        lexical = text.words * self.idf
        lexical /= np.linalg.norm(lexical, axis=1, keepdims=True) + 1e-9
        clusters = self.clusters.of(joint) if self.clusters is not None else np.zeros((len(text), 0), np.float32)
        return [("clusters", clusters), ("vectors", vectors), ("surface", surface), ("words", lexical)]

    def joint(self, text: Text) -> Rows:
        """(n, width + SURFACE): what clusters are made of."""
        vectors = text.vectors - self.centre
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-9
        surface = np.clip((text.surface - self.surface[0]) / self.surface[1], -3, 3) / math.sqrt(SURFACE)
        return np.concatenate([vectors, surface], 1).astype(np.float32)

    def weights(self, text: float) -> NDArray[np.float64]:
        """(D,) weight of each feature, with this weight for text."""
        found = np.ones(self.width)
        for name, (low, high) in self.blocks.items():
            if name in TEXT_WEIGHTS:
                found[low:high] = text * TEXT_WEIGHTS[name]
        return found

    def tensors(self) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {
            name: getattr(self, name) for name in ("centre", "surface", "idf", "mean", "scale")
        }
        found |= {f"guess.{key}": table for key, table in self.guesses.items()}
        if self.clusters is not None:
            found |= {"clusters": self.clusters.centres, "reach": self.clusters.reach}
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "categories": {key: list(values) for key, values in self.categories.items()},
            "numbers": {key: [mean, deviation, list(edges)] for key, (mean, deviation, edges) in self.numbers.items()},
            "has_text": self.has_text,
            "clusters": list(self.clusters.sizes) if self.clusters is not None else None,
            "blocks": {name: list(block) for name, block in self.blocks.items()},
        }

    @classmethod
    def from_state(
        cls, tensors: Mapping[str, NDArray[Any]], about: Mapping[str, Any], encoder: TextEncoder
    ) -> ContextReader:
        sizes = about["clusters"]
        return cls(
            encoder=encoder,
            categories={key: tuple(values) for key, values in about["categories"].items()},
            numbers={
                key: (mean, deviation, tuple(edges)) for key, (mean, deviation, edges) in about["numbers"].items()
            },
            has_text=about["has_text"],
            clusters=Clusters(centres=tensors["clusters"], sizes=tuple(sizes), reach=tensors["reach"])
            if sizes
            else None,
            blocks={name: (low, high) for name, (low, high) in about["blocks"].items()},
            guesses={key: tensors[f"guess.{key}"] for key in about["categories"] if f"guess.{key}" in tensors},
            **{name: tensors[name] for name in ("centre", "surface", "idf", "mean", "scale")},
        )


TEXT_WEIGHTS = {"clusters": 1.0, "vectors": 0.3, "surface": 0.3, "words": 0.3}


def fit_contexts(contexts: Sequence[Context], encoder: TextEncoder, *, seed: int = 0) -> tuple[ContextReader, Rows]:
    """A reader for contexts such as these, and their features."""
    strings, numbers, others = dict[str, list[str]](), dict[str, list[float]](), dict[str, list[str]]()
    for context in contexts:
        for key, value in context.items():
            if isinstance(value, float):
                numbers.setdefault(key, []).append(value)
            elif isinstance(value, tuple):
                others.setdefault(key, []).extend(value)
            else:
                strings.setdefault(key, []).append(value)
    categories = {key: _values(found) for key, found in others.items()}
    categories |= {key: _values(found) for key, found in strings.items() if key != TEXT and _is_category(found)}
    has_text = any(key not in categories for key in strings)
    blank = np.zeros(0, np.float32)
    reader = ContextReader(
        encoder=encoder,
        categories=dict(sorted(categories.items())),
        numbers={key: _bins(found) for key, found in sorted(numbers.items())},
        has_text=has_text,
        centre=blank,
        surface=np.zeros((2, 0), np.float32),
        idf=blank,
        clusters=None,
        mean=blank,
        scale=blank,
        blocks={},
        guesses={},
    )
    if has_text:
        text = read_texts(encoder, [reader.text_of(context) for context in contexts])
        deviation = text.surface.std(0)
        spread = np.where(deviation > 1e-6, deviation, np.inf)  # what is constant carries no information
        occurs = (text.words != 0).sum(0)
        reader = replace(
            reader,
            centre=text.vectors.mean(0),
            surface=np.stack([text.surface.mean(0), spread]).astype(np.float32),
            idf=(np.log((1 + len(text)) / (1 + occurs)) + 1).astype(np.float32),
        )
        reader = replace(reader, clusters=make_clusters(reader.joint(text), seed))
    raw, blocks = reader._raw(contexts)
    mean, scale = raw.mean(0), np.ones(raw.shape[1], np.float32)
    for low, high in blocks.values():
        power = float(np.square(raw[:, low:high] - mean[low:high]).sum(1).mean()) if high > low else 0.0
        scale[low:high] = 1 / math.sqrt(power) if power > 1e-9 else 0.0
    reader = replace(reader, mean=mean, scale=scale, blocks=blocks)
    if has_text and categories:
        reader = replace(reader, guesses=_guesses(reader, contexts, raw, blocks["clusters"][0]))
    return reader, (raw - mean) * scale


def _guess(blocks: Sequence[Rows], weights: Rows) -> Rows:
    """(n, values): how probable each value of a category is, by a text: a least-squares classifier, made shares."""
    x = np.concatenate([*blocks, np.ones((len(blocks[0]), 1), np.float32)], 1)
    share = (x @ weights).clip(0) ** 2
    return np.asarray(share / (share.sum(1, keepdims=True) + 1e-9), np.float32)


def _guesses(reader: ContextReader, contexts: Sequence[Context], raw: Rows, text: int) -> dict[str, Rows]:
    """Classifiers of categories with one value each, from the features of text, which begin at column `text`."""
    x = np.concatenate([raw[:, text:], np.ones((len(raw), 1), np.float32)], 1).astype(np.float64)
    gram, found = x.T @ x + np.diag([*np.full(x.shape[1] - 1, 3.0), 1e-3]), dict[str, Rows]()
    for name, (low, high) in reader.blocks.items():
        key = name.removeprefix("category ")
        if name.startswith("category ") and not any(isinstance(c.get(key), tuple) for c in contexts):
            found[key] = np.linalg.solve(gram, x.T @ raw[:, low:high].astype(np.float64)).astype(np.float32)
    return found


def _is_category(found: list[str]) -> bool:
    distinct = set(found)
    return len(distinct) <= MAX_VALUES and len(found) >= 2 * len(distinct) and max(map(len, distinct)) <= 64


def _values(found: list[str]) -> tuple[str, ...]:
    """The most frequent values."""
    values, counts = np.unique(np.array(found, dtype=object).astype(str), return_counts=True)
    return tuple(sorted(values[np.argsort(-counts, kind="stable")][:MAX_VALUES].tolist()))


def _bins(found: list[float]) -> tuple[float, float, tuple[float, ...]]:
    values = np.array(found)
    deviation = float(values.std())
    edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1]))
    return float(values.mean()), deviation if deviation > 1e-12 else 1.0, tuple(edges.tolist())
