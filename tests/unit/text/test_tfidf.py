"""TF-IDF: rows of unit length, in which rare n-grams weigh more."""

from __future__ import annotations

import numpy as np
import pytest

from etude.text.ngrams import COLUMNS
from etude.text.tfidf import count_matrix, inverse_document_frequency, tfidf

TEXTS = ["send the mail", "send the letter", "send the the the parcel", ""]


def test_rows_have_unit_length_and_a_text_without_words_is_zero() -> None:
    counts = count_matrix(TEXTS)
    rows = tfidf(counts, inverse_document_frequency(counts)).toarray()
    assert rows.shape == (len(TEXTS), COLUMNS)
    assert np.linalg.norm(rows, axis=1).tolist() == pytest.approx([1, 1, 1, 0], abs=1e-6)


def test_rare_and_repeated_ngrams_weigh_more() -> None:
    counts = count_matrix(TEXTS)
    idf = inverse_document_frequency(counts)
    document_frequency = (counts.toarray() > 0).sum(0)
    assert idf[document_frequency == 3] == pytest.approx(np.log(5 / 4) + 1)
    assert idf[document_frequency == 0] == pytest.approx(np.log(5) + 1)
    row, count = tfidf(counts, idf).toarray()[2], counts.toarray()[2]
    three_times, once = row[(count == 3) & (document_frequency == 3)], row[(count == 1) & (document_frequency == 3)]
    assert three_times / once[0] == pytest.approx(1 + np.log(3))
