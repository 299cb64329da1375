"""What `TextEncoder` promises, of every encoder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.contracts.ports import TextEncoder
from etude.text.cache import CachedEncoder
from etude.text.endpoint import EndpointEncoder
from etude.text.ngrams import NGramEncoder
from etude.text.static import StaticEncoder
from tests.unit.text.service import running
from tests.unit.text.weights import needs_minilm, needs_static

KINDS = [
    "ngrams",
    "endpoint",
    "cached",
    pytest.param("static", marks=needs_static),
    pytest.param("minilm", marks=needs_minilm),
]
MAX_TOKENS = {"ngrams": 256, "static": 256, "cached": 256, "minilm": 128, "endpoint": 1}

TEXTS = st.text(st.characters(exclude_categories=()), max_size=60)  # surrogates too

HARD = {
    "nul": "\x00",
    "binary": "%PDF-1.4\x00\x01\x7f\x80\xff\ufffe",
    "surrogate": "a\ud800b\udfff",
    "one enormous word": "a" * 10**6,
    "many words": "lorem ipsum " * 90_000,
    "no blanks": "漢字" * 500_000,
    "emoji": "👩‍👩‍👧" * 200_000,
    "combining marks": "a" + "\u0301\u0316" * 500_000,
    "blanks before a word": " " * 10**6 + "word",
    "scripts": "Привет мир مرحبا هيّا हिन्दी ไทย 日本語 ελληνικά עברית",
    "special tokens": "[CLS] [PAD] [MASK] </s> <unk>",
    "punctuation": "?!… —",
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def encoder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextEncoder]:
    with ExitStack() as stack:
        yield make(kind, stack, tmp_path_factory.mktemp("text"))


def make(kind: str, stack: ExitStack, folder: Path) -> TextEncoder:
    if kind == "ngrams":
        return NGramEncoder()
    if kind == "static":
        return StaticEncoder()
    if kind == "cached":
        return CachedEncoder(NGramEncoder(), folder / "cache.sqlite")
    if kind == "endpoint":
        return EndpointEncoder(stack.enter_context(running()).url, "m")
    from etude.text.minilm import MiniLMEncoder

    return MiniLMEncoder()


def check(encoder: TextEncoder, texts: list[str], longest: int) -> list[np.ndarray]:
    found = encoder.tokens(texts)
    assert len(found) == len(texts)
    for text, tokens in zip(texts, found, strict=True):
        assert tokens.dtype == np.float32
        assert 1 <= tokens.shape[0] <= longest
        assert tokens.shape[1:] == (encoder.width,)
        assert np.isfinite(tokens).all()
        assert tokens.base is None  # a part of a batch would keep all of it in memory
        if not text.strip():
            assert tokens.shape[0] == 1
            assert not tokens.any()
    return found


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, max_size=4))
def test_any_text_has_finite_vectors(encoder: TextEncoder, kind: str, texts: list[str]) -> None:
    check(encoder, texts, MAX_TOKENS[kind])


@settings(max_examples=25, deadline=None)
@given(texts=st.lists(TEXTS, min_size=2, max_size=4))
def test_the_company_of_a_text_does_not_change_its_vectors(encoder: TextEncoder, texts: list[str]) -> None:
    together = encoder.tokens([*texts, "a much longer text that the others are padded to, if they are padded at all"])
    for text, tokens in zip(texts, together[:-1], strict=True):
        np.testing.assert_allclose(encoder.tokens([text])[0], tokens, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("what", HARD)
def test_hard_texts_take_no_time(encoder: TextEncoder, kind: str, what: str) -> None:
    begin = time.process_time()
    check(encoder, [HARD[what]], MAX_TOKENS[kind])
    assert time.process_time() - begin < 2


def test_words_behind_a_million_blanks_are_read(encoder: TextEncoder) -> None:
    far, near = encoder.tokens([HARD["blanks before a word"], "word"])
    assert near.any()
    np.testing.assert_allclose(far, near, atol=1e-5)


@pytest.mark.parametrize("blank", ["", " ", "\n\t\u3000 "])
def test_a_blank_text_is_one_zero_vector(encoder: TextEncoder, kind: str, blank: str) -> None:
    assert check(encoder, ["full", blank], MAX_TOKENS[kind])[0].any()


def test_no_texts_no_vectors(encoder: TextEncoder) -> None:
    assert encoder.tokens([]) == []


def test_answers_are_the_callers_own(encoder: TextEncoder) -> None:
    first = encoder.tokens(["some words", "some words"])
    kept = first[1].copy()
    first[0][:] = 7
    np.testing.assert_array_equal(first[1], kept)
    np.testing.assert_array_equal(encoder.tokens(["some words"])[0], kept)


def test_texts_differ_and_the_name_says_of_what(encoder: TextEncoder) -> None:
    one, other = encoder.tokens(["translate the letter", "deploy a database"])
    assert one.shape != other.shape or not np.allclose(one, other)
    assert encoder.name


def test_names_tell_vectors_apart() -> None:
    names = [
        NGramEncoder().name,
        NGramEncoder(128).name,
        NGramEncoder(max_tokens=8).name,
        CachedEncoder(NGramEncoder(), Path("unused")).name,
        *(EndpointEncoder(url, "m").name for url in ("http://a/v1", "http://b/v1")),
        EndpointEncoder("http://a/v1", "n").name,
        EndpointEncoder("http://a/v1", "m", max_bytes=100).name,
    ]
    assert len(set(names)) == len(names)
