"""Similarity of instructions to task types, from the types' descriptions alone: it needs no training data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from etude.contracts.ports import TextEncoder, Vectors
from etude.problems.catalogue import TaskType
from etude.problems.workflow.examples import described, readable
from etude.text.sentence import sentences, unit

WHOLE, NAME, PART, WHERE = range(4)
"""The numbers for a text and a task type: similarity of the whole text, of the name, of the best part; its place."""
SIMILARITIES = 4
DOUBLINGS = 3
"""Times that the length of parts doubles: parts have 2, 4 and 8 tokens."""
CHUNK = 512
"""Texts per batch: the tokens of more would take gigabytes."""


class SimilarityEncoder:
    """Compares texts with task types.

    A whole text is similar to the type that it is mostly about. A long text is about several types, each in a few
    words, so the part most similar to a description counts too, with its place in the text. For names, each word is
    compared with its nearest word in the text, and words that are rare among names weigh more.
    """

    def __init__(self, encoder: TextEncoder, task_types: Sequence[TaskType]) -> None:
        self.encoder = encoder
        self.types = sentences(encoder, [described(entry) for entry in task_types] or [""])  # (T, width)
        names = encoder.tokens([readable(entry.name) for entry in task_types] or [""])
        distinct, which = np.unique(np.concatenate(names), axis=0, return_inverse=True)
        self.words = unit(distinct.astype(np.float64))  # (distinct words, width)
        self.starts = np.cumsum([0, *map(len, names)])[:-1]  # where each name's words begin in `which`
        self.which = which.ravel()  # (words of all names,): the index of each in `words`
        often = np.bincount(np.concatenate([np.unique(own) for own in np.split(self.which, self.starts[1:])]))
        rarity = np.log((1 + len(names)) / often)[self.which]
        self.weights = (rarity / np.add.reduceat(rarity, self.starts).repeat([*map(len, names)])).astype(np.float32)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """(texts, T, SIMILARITIES): all but WHERE in standard deviations from the mean over the types."""
        found = np.zeros((len(texts), len(self.types), SIMILARITIES), np.float32)
        for start in range(0, len(texts), CHUNK):
            for row, tokens in enumerate(self.encoder.tokens(texts[start : start + CHUNK]), start):
                self._compare(tokens, found[row])
        spread = found[..., :WHERE]
        spread -= spread.mean(1, keepdims=True)
        spread /= np.maximum(spread.std(1, keepdims=True), 1e-6)
        return torch.from_numpy(found)

    def _compare(self, tokens: Vectors, found: Vectors) -> None:
        """Writes the similarity of one text's tokens (tokens, width) to every type into `found` (T, SIMILARITIES)."""
        tokens = tokens / max(float(np.abs(tokens).max()), 1e-30)  # squares of large float32 values would overflow
        products = tokens @ self.types.T  # (tokens, T): the product of a part is the sum over its tokens
        found[:, WHOLE] = products.sum(0)  # not normalised: the text's length is the same for all types

        parts = [(1, tokens, products)]
        for _ in range(DOUBLINGS):
            size, vectors, sums = parts[-1]
            if len(vectors) > size:
                parts.append((2 * size, vectors[:-size] + vectors[size:], sums[:-size] + sums[size:]))
        parts = parts[1:] or parts
        lengths = np.concatenate([np.linalg.norm(vectors, axis=1) for _, vectors, _ in parts])
        similarity = np.concatenate([sums for _, _, sums in parts]) / np.maximum(lengths, 1e-12)[:, None]
        middle = np.concatenate([np.arange(len(vectors)) + size / 2 for size, vectors, _ in parts]) / len(tokens)
        best = similarity.argmax(0)
        found[:, PART], found[:, WHERE] = similarity[best, np.arange(len(best))], middle[best]
        near = tokens / np.maximum(np.linalg.norm(tokens, axis=1, keepdims=True), 1e-12)
        nearest = (self.words @ near.T).max(1)[self.which]
        found[:, NAME] = np.add.reduceat(nearest * self.weights, self.starts)
