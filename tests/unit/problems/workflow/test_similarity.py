"""Similarity of texts and task types: by descriptions alone, whatever the texts, the names and the catalogue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.contracts.ports import Vectors
from etude.problems.catalogue import TaskType
from etude.problems.workflow.similarity import NAME, PART, SIMILARITIES, WHERE, WHOLE, SimilarityEncoder
from etude.text.ngrams import NGramEncoder

ENCODER = NGramEncoder(64)
TYPES = (
    TaskType(name="send_mail", description="Send a letter or a parcel by mail."),
    TaskType(name="bookFlight", description="Reserve a seat on an aeroplane."),
    TaskType(name="Weather.send_forecast", description="Tell whether it rains tomorrow."),
)
COMPARE = SimilarityEncoder(ENCODER, TYPES)


@pytest.mark.parametrize("kind", [WHOLE, NAME, PART])
@pytest.mark.parametrize(
    ("text", "meant"), [("mail a parcel", 0), ("reserve a seat on the flight", 1), ("the weather forecast, please", 2)]
)
def test_the_type_that_is_meant_is_the_nearest(kind: int, text: str, meant: int) -> None:
    assert int(COMPARE([text])[0, :, kind].argmax()) == meant


def test_a_long_text_says_where_it_speaks_of_each() -> None:
    filler = "and so on and on and on"
    first, second = "reserve a seat on an aeroplane", "send a letter by mail"
    where = COMPARE([f"{first} {filler} {second}", f"{second} {filler} {first}"])[..., WHERE]
    assert where[0, 1] < 0.4 < 0.6 < where[0, 0]
    assert where[1, 0] < 0.4 < 0.6 < where[1, 1]


def test_rare_words_of_names_count_more() -> None:
    """Half of each name stands in the text: the common word of three, the rare one of the last."""
    types = [TaskType(name=name) for name in ("get_apples", "get_umbrellas", "get_windows", "paint_zebras")]
    similarity = SimilarityEncoder(ENCODER, types)(["get zebras"])[0, :, NAME]
    assert similarity[3] - similarity[:3].max() > 1


def test_numbers_are_spread_over_the_types() -> None:
    similarity = COMPARE(["mail it", "rain"])[..., :WHERE]
    torch.testing.assert_close(similarity.mean(1), torch.zeros(2, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(similarity.std(1, correction=0), torch.ones(2, 3), atol=1e-4, rtol=0)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.text(max_size=60), max_size=4),
    st.lists(
        st.tuples(st.text("ab_.-Z", min_size=1, max_size=8), st.text(max_size=30)), max_size=3, unique_by=lambda t: t[0]
    ),
)
def test_any_texts_and_any_catalogue(texts: list[str], entries: list[tuple[str, str]]) -> None:
    types = [TaskType(name=name, description=description) for name, description in entries]
    similarity = SimilarityEncoder(ENCODER, types)(texts)
    assert similarity.shape == (len(texts), max(1, len(types)), SIMILARITIES)
    assert similarity.isfinite().all()
    assert ((similarity[..., WHERE] >= 0) & (similarity[..., WHERE] <= 1)).all()


def test_texts_are_compared_one_by_one() -> None:
    texts = [f"mail {i} parcels" for i in range(600)]  # more than are read at once
    together, alone = COMPARE(texts), COMPARE(texts[599:])
    np.testing.assert_allclose(together[599:], alone, atol=1e-5)


def test_the_size_of_vectors_does_not_matter() -> None:
    class Loud(NGramEncoder):
        def tokens(self, texts: Sequence[str]) -> list[Vectors]:
            return [found * np.float32(1e30) for found in super().tokens(texts)]

    texts = ["mail a parcel", "one", "reserve a seat on the flight and tell whether it rains"]
    torch.testing.assert_close(SimilarityEncoder(Loud(64), TYPES)(texts), COMPARE(texts))
