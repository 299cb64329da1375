from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.problems.prompt.sentence_features import NAMES, sentence_features


def found(sentence: str, name: str) -> float:
    return float(sentence_features(sentence)[NAMES.index(name)])


@pytest.mark.parametrize(
    ("sentence", "name"),
    [
        ("If the upload fails, say so.", "begins with a condition"),
        ("- Unless it is small, use metres.", "begins with a condition"),
        ("Stop as soon as a value is missing.", "trouble"),
        ("Stop as soon as a value is missing.", "reactions"),
        ("Furthermore, paint the fence.", "begins with a connective"),
        ("2. Write it down.", "begins with a verb"),
        ("Use no more than 80 words.", "bounds"),
        ("Use no more than 80 words.", "amounts"),
        ("Use no more than 80 words.", "numbers"),
        ("Use no more than 80 words.", "constraint length"),
        ("Past tense, please.", "style"),
        ("Past tense, please.", "polite words"),
        ("## Rules", "is a heading"),
        ("My uncle was there, too.", "words about the author"),
    ],
)
def test_what_a_sentence_does_is_seen(sentence: str, name: str) -> None:
    assert found(sentence, name) > 0
    assert found("The sea", name) == 0


def test_a_condition_in_the_middle_is_none_at_the_beginning() -> None:
    assert found("Stop if it fails.", "begins with a condition") == 0
    assert found("Stop if it fails.", "conditions") == 1


@given(st.text(max_size=200))
def test_any_text_has_small_numbers_and_the_same_again(text: str) -> None:
    values = sentence_features(text)
    assert values.shape == (len(NAMES),)
    assert np.isfinite(values).all()
    assert ((values >= 0) & (values <= 2)).all()
    assert np.array_equal(values, sentence_features(text))
