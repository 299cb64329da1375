"""A kernel over queries: texts in, the similarity of any two of them out.

Shared n-grams, sentence vectors and surface features (length, digits, punctuation, code) each give a kernel; the
result is their weighted mean, centred over the past queries and with mean diagonal 1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from etude.contracts.ports import TextEncoder
from etude.text.sentence import sentences
from etude.text.tfidf import count_matrix, tfidf

Floats = NDArray[np.float64]
MAX_QUERY_CHARS = 20_000
"""Maximum number of characters of a query that are read."""
MIX = (0.4, 0.4, 0.2)
"""Weights of n-grams, sentence vectors and surface features in the kernel."""


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Features of queries, one query per row."""

    counts: csr_array  # (n, 2^18) of n-grams
    vectors: Floats  # (n, width) sentence vectors
    surface: Floats  # (n, features)
    length: Floats  # (n,) characters

    def take(self, rows: NDArray[np.intp]) -> Texts:
        parts = (self.counts, self.vectors, self.surface, self.length)
        counts, vectors, surface, length = (part[rows] for part in parts)
        return Texts(counts=counts, vectors=vectors, surface=surface, length=length)


def read_texts(encoder: TextEncoder, texts: Sequence[str]) -> Texts:
    short = [text[:MAX_QUERY_CHARS] for text in texts]
    return Texts(
        counts=count_matrix(short),
        vectors=sentences(encoder, short).astype(np.float64),
        surface=np.array([_surface(text) for text in short]).reshape(len(texts), -1),
        length=np.array([len(text) for text in texts], np.float64),
    )


MARKS = "\n?!,.:;$\\(=_[>\"'*"
SIGNS = tuple(re.compile(sign) for sign in (r"\bdef |\breturn\b", r"\b[A-D][).]|\([A-D]\)", r"^\w+: ", r"\?\s*$"))


def _surface(text: str) -> list[float]:
    """Surface features: length, digits, capitals, punctuation, code, multiple-choice options."""
    words, length = text.split(), max(1, len(text))
    digits = sum(map(str.isdigit, text))
    shares = [digits, sum(map(str.isupper, text)), sum(not c.isascii() for c in text)]
    counts = [len(text), len(words), len(set(words)), digits, *(text.count(mark) for mark in MARKS)]
    return [
        *np.log1p(counts),
        *(share / length for share in shares),
        sum(map(len, words)) / max(1, len(words)),
        *(float(bool(sign.search(text))) for sign in SIGNS),
    ]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """Similarity of texts to m past texts of a task type. Every part is centred and has mean diagonal 1."""

    grams: csr_array  # (m, 2^18) TF-IDF rows at unit length
    vectors: Floats  # (m, width) less `centre`, at unit length
    surface: Floats  # (m, features) less `mean`, in units of `deviation`
    centre: Floats  # (width,)
    mean: Floats  # (features,)
    deviation: Floats  # (features,)
    width: Floats  # (2,) squared length scales of vectors and of surface features
    columns: Floats  # (3, m) column means by which each part is centred
    scale: Floats  # (3,) divisors that give each part the mean diagonal 1

    def of(self, texts: Texts, idf: NDArray[np.float32]) -> Floats:
        """(n, m): similarity of n texts to the m past ones."""
        return self._centred(self._parts(*self._features(texts, idf)))

    def _features(self, texts: Texts, idf: NDArray[np.float32]) -> tuple[csr_array, Floats, Floats]:
        surface = np.clip((texts.surface - self.mean) / self.deviation, -3, 3)
        return tfidf(texts.counts, idf), unit_rows(texts.vectors - self.centre), surface

    def _parts(self, grams: csr_array, vectors: Floats, surface: Floats) -> Floats:
        """(3, n, m)."""
        lexical = (grams @ self._by_gram).toarray().astype(np.float64)
        near = _distances(vectors, self.vectors) / self.width[0]
        similar = _distances(surface, self.surface) / self.width[1]
        return np.stack([lexical, np.exp(-near), np.exp(-similar)])

    @cached_property
    def _by_gram(self) -> csr_array:
        """(2^18, m): the transpose, computed once because products with it are fast."""
        return csr_array(self.grams.T)

    def _centred(self, parts: Floats) -> Floats:
        total = self.columns.mean(1)[:, None, None]
        parts = parts - parts.mean(2, keepdims=True) - self.columns[:, None] + total
        kernel: Floats = np.tensordot(np.array(MIX) / self.scale, parts, 1)
        return kernel


def make_kernel(texts: Texts, idf: NDArray[np.float32]) -> tuple[Kernel, Floats]:
    """The kernel of these texts, and its matrix (m, m)."""
    m, mean, deviation = len(texts.length), texts.surface.mean(0), texts.surface.std(0)
    empty = np.zeros((0, 0))
    raw = Kernel(
        grams=tfidf(texts.counts, idf),
        vectors=empty,
        surface=empty,
        centre=texts.vectors.mean(0),
        mean=mean,
        deviation=np.where(deviation > 1e-6, deviation, np.inf),  # constant features carry no information
        width=np.ones(2),
        columns=np.zeros((3, m)),
        scale=np.ones(3),
    )
    grams, vectors, surface = raw._features(texts, idf)
    width = np.array([_typical(_distances(x, x)) for x in (vectors, surface)])
    raw = replace(raw, vectors=vectors, surface=surface, width=width)
    parts = raw._parts(grams, vectors, surface)
    raw = replace(raw, columns=parts.mean(1))
    diagonal = parts.diagonal(0, 1, 2).mean(1) - parts.mean((1, 2))  # the diagonal after centring
    kernel = replace(raw, scale=np.where(diagonal > 1e-9, diagonal, np.inf))
    return kernel, kernel._centred(parts)


def unit_rows(x: Floats) -> Floats:
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norms > 0, norms, 1)


def _distances(x: Floats, y: Floats) -> Floats:
    """(n, m): squared distances."""
    squares: Floats = (x * x).sum(1)[:, None] + (y * y).sum(1) - 2 * x @ y.T
    return squares.clip(0)


def _typical(squared: Floats) -> float:
    """The median of the squared distances between distinct points."""
    positive = squared[squared > 1e-6]
    return float(np.median(positive)) if len(positive) else 1.0
