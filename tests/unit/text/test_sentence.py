from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.testing import assert_allclose

from etude.contracts.ports import Vectors
from etude.text.sentence import CHUNK, sentences


class Lengths:
    """As many tokens as the text has characters: the first (1, 0), the others (0, scale)."""

    name, width = "lengths", 2

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        assert len(texts) <= CHUNK
        return [np.array([(self.scale, 0)] + [(0, self.scale)] * (len(t) - 1), np.float32) for t in texts]


def test_a_sentence_is_the_mean_at_unit_length() -> None:
    found = sentences(Lengths(), ["a", "aaaa"])
    assert found.dtype == np.float32
    assert_allclose(found, [[1, 0], np.array([1, 3]) / np.sqrt(10)], rtol=1e-6)


def test_zero_stays_zero() -> None:
    assert sentences(Lengths(0), ["ab"]).tolist() == [[0, 0]]


def test_scale_does_not_matter_even_at_the_ends_of_float32() -> None:
    for scale in (1e-38, 3e38):
        assert_allclose(sentences(Lengths(scale), ["aaaa"]), [np.array([1, 3]) / np.sqrt(10)], rtol=1e-5)


def test_no_texts() -> None:
    assert sentences(Lengths(), []).shape == (0, 2)


def test_many_texts_keep_their_order() -> None:
    texts = ["a" * (1 + i % 7) for i in range(2 * CHUNK + 3)]
    found = sentences(Lengths(), texts)
    assert_allclose(found[:, 1] / found[:, 0], [len(text) - 1 for text in texts], rtol=1e-5)
