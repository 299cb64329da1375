"""The sockets: what a room needs of another, as Protocols that state what every implementation guarantees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
"""Rows of float32: (tokens, width) of one text, or (texts, width)."""


class TextEncoder(Protocol):
    """Texts to vectors.

    Any `str` is a text: empty, enormous, binary-like, of any script, with lone surrogates. None of them raises; only
    a service that does not answer does. The same texts give the same vectors, in any process, and how texts are
    grouped into calls changes no more than the last digits.
    """

    @property
    def name(self) -> str:
        """Identifies the vectors (model, version, width, length): another name, other vectors. It holds no secret."""

    @property
    def width(self) -> int:
        """The length of every vector."""

    def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        """For each text, in order, a new array (tokens, width), finite, of at least one token.

        An empty or blank text gives one zero vector; of a long one the beginning counts.
        """
