"""One vector per text, from an encoder's vectors per token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from etude.contracts.ports import TextEncoder, Vectors

CHUNK = 512
"""Texts per batch: the tokens of more would take gigabytes before they are averaged."""


def sentences(encoder: TextEncoder, texts: Sequence[str]) -> Vectors:
    """The mean of each text's token vectors at unit length, (texts, width); zero stays zero."""
    found = np.zeros((len(texts), encoder.width))
    for start in range(0, len(texts), CHUNK):
        chunk = encoder.tokens(texts[start : start + CHUNK])
        found[start : start + CHUNK] = [tokens.mean(0, dtype=np.float64) for tokens in chunk]
    return unit(found)


def unit(vectors: NDArray[np.float64]) -> Vectors:
    """Each row at unit length; zero rows stay zero. In float64, because squares of float32 values can overflow."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
