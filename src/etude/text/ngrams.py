"""Hashed n-grams: texts in, vectors or sparse counts out. Nothing to download, and the same on every machine.

A word is the text between blanks and punctuation, lower-cased, with every number as one "0".
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from etude.contracts.ports import Vectors
from etude.text.sentence import unit

COLUMNS = 2**18
"""Columns of the sparse counts."""

# Blanks, control characters, the punctuation of ASCII (with _), Latin, Arabic, Devanagari, typography, CJK, full width.
SEPARATORS = r"\s\x00-/:-@\[-`{-\x9f«»¡¿،؛؟۔।॥‐-‧‰-⁞、-〿！-／：-＠［-｀｛-･"
# Long runs, as in scripts without blanks or in binary data, are cut into pieces of 64 characters to bound the cost.
WORD = re.compile(f"[^{SEPARATORS}]{{1,64}}")
NUMBER = re.compile(r"\d+")


class NGramEncoder:
    """One token per word: the signed-hash sum of its character 3–5-grams and of the word itself, at unit length."""

    def __init__(self, width: int = 256, *, max_tokens: int = 256) -> None:
        self.name = f"ngrams-1/{width}/{max_tokens}"  # 1 is the version: change it with the hash or the n-grams
        self.width, self.max_tokens = width, max_tokens

    def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        found = [[_word_vector(word, self.width) for word in islice(words(text), self.max_tokens)] for text in texts]
        return [np.stack(vectors) if vectors else np.zeros((1, self.width), np.float32) for vectors in found]


def words(text: str) -> Iterator[str]:
    """The words of a text, normalised as for the n-grams."""
    return (_word(found[0]) for found in WORD.finditer(text))


@lru_cache(2**16)
def _word(piece: str) -> str:
    return NUMBER.sub("0", unicodedata.normalize("NFKC", piece).lower())


@lru_cache(2**14)
def _word_vector(word: str, width: int) -> Vectors:
    marked = f"<{word}>"  # the marks distinguish beginnings and endings from the inside
    vector = np.zeros(width)
    for gram in (marked, *(gram for n in (3, 4, 5) for gram in _characters(marked, n))):
        code = _hash(gram)
        vector[(code >> 1) % width] += 1 if code & 1 else -1
    return unit(vector)


def columns(text: str) -> NDArray[np.int32]:
    """The columns of its words, word bigrams and the character 4-grams within words, each as often as it occurs."""
    found = list(words(text))
    single = [column for word in found for column in _word_columns(word)]
    double = [_hash(f"2 {first} {second}") % COLUMNS for first, second in pairwise(found)]
    return np.array(single + double, np.int32)


@lru_cache(2**16)
def _word_columns(word: str) -> tuple[int, ...]:
    features = [f"1 {word}", *(f"c {gram}" for gram in _characters(f"<{word}>", 4))]
    return tuple(_hash(feature) % COLUMNS for feature in features)


def _characters(word: str, n: int) -> Iterator[str]:
    return (word[start : start + n] for start in range(len(word) - n + 1))


def _hash(text: str) -> int:
    """32 bits, the same in every process. CRC-32 is linear; the multiplication (Fibonacci hashing) is not."""
    code = zlib.crc32(text.encode("utf-8", "surrogatepass"))
    return (code * 0x9E3779B97F4A7C15 >> 32) & 0xFFFFFFFF
