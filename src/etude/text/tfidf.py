"""TF-IDF over hashed n-grams: texts in, sparse rows at unit length out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array

from etude.text.ngrams import COLUMNS, columns

Idf = NDArray[np.float32]
"""(2^18,): the inverse document frequency of each n-gram."""


def count_matrix(texts: Sequence[str]) -> csr_array:
    """(texts, 2^18): how often each n-gram occurs in each text."""
    rows = [np.unique(columns(text), return_counts=True) for text in texts]
    none = np.zeros(0, np.int32)
    counts = np.concatenate([none, *(counts for _, counts in rows)]).astype(np.float32)
    indices = np.concatenate([none, *(found for found, _ in rows)]).astype(np.int32)
    ends = np.cumsum([0, *(len(found) for found, _ in rows)], dtype=np.int32)
    return csr_array((counts, indices, ends), shape=(len(texts), COLUMNS))


def inverse_document_frequency(counts: csr_array) -> Idf:
    """Smoothed as if one more text had every n-gram, so that an n-gram never seen has a finite weight."""
    document_frequency = np.bincount(counts.indices, minlength=COLUMNS)
    idf: Idf = (np.log((1 + counts.shape[0]) / (1 + document_frequency)) + 1).astype(np.float32)
    return idf


def tfidf(counts: csr_array, idf: Idf) -> csr_array:
    """(texts, 2^18): TF-IDF with logarithmic term frequencies, each row at unit length."""
    rows = counts.astype(np.float32)
    rows.data = (1 + np.log(rows.data)) * idf[rows.indices]
    norms = np.sqrt(np.asarray(rows.multiply(rows).sum(1)).ravel())
    return csr_array(diags_array(1 / np.maximum(norms, 1e-9)) @ rows, dtype=np.float32)
