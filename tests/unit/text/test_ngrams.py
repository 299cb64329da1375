from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.text.ngrams import COLUMNS, NGramEncoder, words
from etude.text.sentence import sentences
from etude.text.tfidf import count_matrix


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, World!", ["hello", "world"]),
        ("file_search don't e-mail", ["file", "search", "don", "t", "e", "mail"]),
        ("12 of 3,456 in 2024 by gpt4", ["0", "of", "0", "0", "in", "0", "by", "gpt0"]),
        ("«ЁЛКА» “ÉTUDE”", ["ёлка", "étude"]),
        ("हिन्दी में।", ["हिन्दी", "में"]),
        ("日本語、です。", ["日本語", "です"]),
        ("ﬁle ＡＢＣ", ["file", "abc"]),
        ("e\u0301tude étude", ["étude", "étude"]),
        ("🎉 done", ["🎉", "done"]),
        ("x" * 130, ["x" * 64, "x" * 64, "xx"]),
        ("…!? \x00\x01", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert list(words(text)) == expected


def test_one_token_per_word_at_unit_length() -> None:
    (tokens,) = NGramEncoder(64).tokens(["three little words"])
    assert tokens.shape == (3, 64)
    np.testing.assert_allclose(np.linalg.norm(tokens, axis=1), 1, rtol=1e-6)


def test_long_texts_are_cut() -> None:
    encoder = NGramEncoder(max_tokens=3)
    np.testing.assert_array_equal(encoder.tokens(["a b c d e"])[0], encoder.tokens(["a b c"])[0])


def test_words_that_look_alike_are_near() -> None:
    base, near, far = sentences(NGramEncoder(), ["translation", "translations", "deployment"])
    assert base @ near > 0.7
    assert abs(base @ far) < 0.4


def test_numbers_are_all_alike_and_case_does_not_count() -> None:
    one, other = NGramEncoder().tokens(["Invoice 17", "INVOICE 2048"])
    np.testing.assert_array_equal(one, other)


def test_unrelated_words_are_near_orthogonal() -> None:
    """The signs cancel what collisions add: without them every pair would lean to one side."""
    rng = np.random.default_rng(0)
    made = ["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), 8)) for _ in range(200)]
    vectors = np.concatenate(NGramEncoder().tokens(made))
    cosines = (vectors @ vectors.T)[np.triu_indices(200, 1)]
    assert abs(cosines.mean()) < 0.01
    assert cosines.std() < 0.1


CODE = "from etude.text.tfidf import *; print(count_matrix(['a stable hash']).indices.tolist())"


def test_the_hash_is_the_same_in_every_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", CODE], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{count_matrix(['a stable hash']).indices.tolist()}\n"}


def test_vectors_are_these_on_every_machine() -> None:
    (tokens,) = NGramEncoder(8).tokens(["étude"])
    # étude: the sum of 10 n-grams and the word, at unit length
    np.testing.assert_allclose(tokens[0] * np.sqrt(19), [-2, 2, 1, 1, 0, -2, -2, 1], atol=1e-5)
    assert count_matrix(["étude"]).indices.tolist() == [24465, 66814, 77423, 130798, 174341]


def dense(texts: list[str]) -> np.ndarray:
    counts = count_matrix(texts)
    matrix = np.zeros(counts.shape, np.float32)
    for row in range(len(texts)):
        part = slice(counts.indptr[row], counts.indptr[row + 1])
        assert (np.diff(counts.indices[part]) > 0).all()
        matrix[row, counts.indices[part]] = counts.data[part]
    return matrix


def test_counts_are_of_words_bigrams_and_characters() -> None:
    once, twice, turned = dense(["ab cde", "ab cde ab cde", "cde ab"])
    # ab: itself and "<ab>"; cde: itself, "<cde" and "cde>"; and the bigram.
    assert once.sum() == 2 + 3 + 1
    assert twice.sum() == 2 * (2 + 3) + 3
    assert once @ turned == 2 + 3  # all but the bigram
    assert twice.max() == 2


def test_counts_of_nothing() -> None:
    assert count_matrix([]).shape == (0, COLUMNS)
    empty = count_matrix(["", "a", "?"])
    assert empty.indptr.tolist() == [0, 0, 1, 1]


@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=40), max_size=5))
def test_counts_of_any_texts_are_a_sparse_matrix(texts: list[str]) -> None:
    counts = count_matrix(texts)
    assert [array.dtype.name for array in (counts.data, counts.indices)] == ["float32", "int32"]
    assert counts.shape == (len(texts), COLUMNS)
    assert counts.indptr[-1] == len(counts.data) == len(counts.indices)
    assert (counts.data >= 1).all()
    assert ((counts.indices >= 0) & (counts.indices < COLUMNS)).all()


def test_a_tf_idf_kernel_finds_the_nearest_instruction() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    texts = [
        "Translate this letter into French",
        "Summarise the quarterly report in three lines",
        "Deploy the service to the staging cluster",
        "translate these two letters to french please",
    ]
    counts = count_matrix(texts)
    matrix = sparse.csr_array((counts.data, counts.indices, counts.indptr), shape=counts.shape)
    idf = np.log(len(texts) / np.maximum(1, np.bincount(counts.indices, minlength=COLUMNS))) + 1
    weighted = matrix.multiply(idf[None]).tocsr()
    kernel = (weighted @ weighted.T).toarray()
    assert kernel[3, :3].argmax() == 0


def test_three_thousand_instructions_within_two_seconds() -> None:
    rng = np.random.default_rng(0)
    letters = rng.integers(97, 123, (20_000, 10), dtype=np.uint8)
    known = [bytes(row[: 2 + i % 9]).decode() for i, row in enumerate(letters)]
    texts = [" ".join(known[i] for i in row) for row in rng.integers(0, len(known), (3000, 40))]
    begin = time.process_time()
    assert count_matrix(texts).data.sum() > 3000 * 40 * 2
    assert time.process_time() - begin < 2
