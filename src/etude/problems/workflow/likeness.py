"""How alike instructions and task types are, by what describes the types alone: it holds for those never seen, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from etude.contracts.ports import TextEncoder, Vectors
from etude.problems.workflow.catalogue import TaskType
from etude.problems.workflow.examples import described, readable
from etude.text.sentence import sentences, unit

WHOLE, NAME, PART, WHERE = range(4)
"""What is said about a text and a task type."""
LIKENESS = 4
WINDOWS = (2, 4, 8)
"""Lengths of the parts of a text, in tokens."""
CHUNK = 512
"""Texts at once: the tokens of more would take gigabytes."""


class Likeness:
    """Texts compared with task types.

    A text as a whole resembles the type that it mostly speaks of. A long one speaks of several, each in a few words:
    the part of it that resembles a description most, and where it stands; and for each word of a name the nearest one
    in the text, where rare words of names count more.
    """

    def __init__(self, encoder: TextEncoder, task_types: Sequence[TaskType]) -> None:
        self.encoder = encoder
        self.types = sentences(encoder, [described(entry) for entry in task_types] or [""])  # (T, width)
        names = encoder.tokens([readable(entry.name) for entry in task_types] or [""])
        words = [[word.tobytes() for word in name.astype(np.float16)] for name in names]
        often = Counter(word for name in words for word in set(name))
        rarity = [np.array([np.log((1 + len(names)) / often[word]) for word in name]) for name in words]
        self.words = unit(np.concatenate(names).astype(np.float64))  # (words of all names, width)
        self.weights = np.concatenate([own / own.sum() for own in rarity]).astype(np.float32)
        self.starts = np.cumsum([0, *map(len, words)])[:-1]  # of each name

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """(texts, T, LIKENESS): each but WHERE in standard deviations from its mean over the types."""
        found = np.zeros((len(texts), len(self.types), LIKENESS), np.float32)
        for start in range(0, len(texts), CHUNK):
            for row, tokens in enumerate(self.encoder.tokens(texts[start : start + CHUNK]), start):
                self._compare(tokens.astype(np.float64), found[row])
        spread = found[..., :WHERE]
        spread -= spread.mean(1, keepdims=True)
        spread /= np.maximum(spread.std(1, keepdims=True), 1e-6)
        return torch.from_numpy(found)

    def _compare(self, tokens: NDArray[np.float64], found: Vectors) -> None:
        """Tokens (tokens, width) of one text with every type: into (T, LIKENESS)."""
        sums = np.concatenate([np.zeros_like(tokens[:1]), tokens.cumsum(0)])
        sizes = [size for size in WINDOWS if size <= len(tokens)] or [len(tokens)]
        parts = unit(np.concatenate([sums[-1:], *(sums[size:] - sums[:-size] for size in sizes)])) @ self.types.T
        middle = np.concatenate([np.arange(len(tokens) - size + 1) + size / 2 for size in sizes]) / len(tokens)
        found[:, WHOLE], found[:, PART], found[:, WHERE] = parts[0], parts[1:].max(0), middle[parts[1:].argmax(0)]
        nearest = (self.words @ unit(tokens).T).max(1)
        found[:, NAME] = np.add.reduceat(nearest * self.weights, self.starts)
