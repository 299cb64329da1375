from __future__ import annotations

import sys

import numpy as np
import pytest

from etude.contracts.errors import MissingExtraError
from etude.text import packages
from etude.text.sentence import sentences
from etude.text.static import StaticEncoder
from tests.unit.text.weights import needs_static


@needs_static
def test_tokens_are_rows_of_the_table_without_special_ones() -> None:
    encoder = StaticEncoder()
    hello, again = encoder.tokens(["hello", "hello hello"])
    assert encoder.width == 256
    assert hello.shape == (1, 256)  # no <s> before it
    np.testing.assert_array_equal(again, np.repeat(hello, 2, 0))


@needs_static
def test_paraphrases_are_nearer_than_other_texts() -> None:
    texts = ["How do I cancel my subscription?", "I want to end my membership", "Draw a picture of a red bicycle"]
    base, same, other = sentences(StaticEncoder(), texts)
    assert base @ same > base @ other + 0.2


@needs_static
def test_long_texts_are_cut() -> None:
    short, long = StaticEncoder(max_tokens=5), StaticEncoder()
    text = "the quick brown fox jumps over the lazy dog " * 1000
    assert len(long.tokens([text])[0]) == 256
    np.testing.assert_array_equal(short.tokens([text])[0], long.tokens([text])[0][:5])
    assert short.name != long.name


@needs_static
def test_the_package_itself_is_not_imported() -> None:
    StaticEncoder().tokens(["a"])
    assert "wordllama" not in sys.modules


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"'wordllama', which is not installed: pip install 'etude\[text\]'"):
        StaticEncoder()


@needs_static
@pytest.mark.parametrize("library", ["tokenizers", "safetensors"])
def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    from etude.text.tokeniser import read_tokeniser

    read_tokeniser.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"'{library}'.*etude\[text\]"):
        StaticEncoder()
