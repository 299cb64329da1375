"""Contexts become features: what is read, what is a category, what is not known, and that nothing else matters."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from etude.contracts.errors import DataError
from etude.problems.choice import contexts as module
from etude.problems.choice.contexts import (
    MAX_CHARS,
    SURFACE,
    WORD_COLUMNS,
    Clusters,
    Context,
    ContextReader,
    fit_contexts,
    read_context,
    read_texts,
)
from etude.text.encoders import make_encoder
from etude.text.ngrams import NGramEncoder

TOPICS = {
    "sums": ("add", "number", "integral", "matrix", "prove"),
    "poems": ("rhyme", "moon", "verse", "tender", "sonnet"),
    "code": ("function", "compile", "loop", "python", "bug"),
}


def make_contexts(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    rng, found = random.Random(seed), []
    for i in range(count):
        topic = rng.choice(sorted(TOPICS))
        found.append(
            read_context(
                {
                    "text": " ".join(rng.choices(TOPICS[topic], k=6)) + f" number {i}",
                    "topic": topic,
                    "urgent": rng.random() < 0.5,
                    "size": rng.random() * 100,
                    "tools": rng.sample(["search", "run", "mail"], 2),
                }
            )
        )
    return found


@pytest.fixture(scope="module")
def fitted() -> tuple[ContextReader, module.Rows]:
    return fit_contexts(make_contexts(240), NGramEncoder())


@pytest.fixture
def reader(fitted: tuple[ContextReader, module.Rows]) -> ContextReader:
    return fitted[0]


def block(reader: ContextReader, name: str, context: Context) -> module.Rows:
    low, high = reader.blocks[name]
    return reader([context])[0, low:high]


def raw(reader: ContextReader, name: str, context: Context) -> module.Rows:
    low, high = reader.blocks[name]
    return reader._raw([context])[0][0, low:high]


# Reading


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, {}),
        ("hello", {"text": "hello"}),
        ("", {"text": ""}),
        (3, {"number": 3.0}),
        (0.5, {"number": 0.5}),
        (True, {"number": "true"}),
        ({"a": "x", "b": 2, "c": False, "d": ["x", "y"], "e": ("z",), "f": None, "g": []}, None),
        ({1: "x"}, {"1": "x"}),
        ("\ud800 alone", {"text": "\\ud800 alone"}),
        ({"a": ["\udcff"]}, {"a": ("\\udcff",)}),
    ],
)
def test_what_is_read(given: Any, read: dict[str, Any] | None) -> None:
    whole = {"a": "x", "b": 2.0, "c": "false", "d": ("x", "y"), "e": ("z",), "g": ()}
    assert read_context(given) == (whole if read is None else read)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1], r"context is \[1\]: expected a text, a number, or a mapping"),
        (b"x", "context is b'x': expected"),
        (float("nan"), "context is nan: expected a text, a finite number"),
        (10**400, "context is 1000.*: expected a text, a finite number"),
        ({"a": {"b": 1}}, r"context\.a is \{'b': 1\}: expected a text, a finite number"),
        ({"a": float("inf")}, r"context\.a is inf: expected"),
        ({"a": 10**400}, r"context\.a is 1000.*: expected"),
        ({"size": ["x", 1]}, r"context\.size is \['x', 1\]: expected .* a list of texts"),
    ],
)
def test_an_error_names_the_key_and_the_value(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        read_context(given)
    assert len(str(error.value)) < 300
    with pytest.raises(DataError, match=r"^line 3: "):
        read_context(given, where="line 3: context")


# Kinds of features


def test_blocks_are_of_categories_numbers_and_text(reader: ContextReader) -> None:
    assert list(reader.blocks) == [
        *("category tools", "category topic", "category urgent", "number size"),
        *("clusters", "vectors", "surface", "words"),
    ]
    assert reader.categories["topic"] == ("code", "poems", "sums")
    assert reader.categories["urgent"] == ("false", "true")
    assert reader.categories["tools"] == ("mail", "run", "search")
    ends = [high for _, high in reader.blocks.values()]
    assert [low for low, _ in reader.blocks.values()] == [0, *ends[:-1]]
    assert ends[-1] == reader.width
    widths = {name: high - low for name, (low, high) in reader.blocks.items()}
    assert (widths["surface"], widths["words"]) == (SURFACE, WORD_COLUMNS)


def test_each_block_is_centred_with_mean_square_one(fitted: tuple[ContextReader, module.Rows]) -> None:
    reader, features = fitted
    assert features.mean(0) == pytest.approx(np.zeros(reader.width), abs=1e-5)
    for name, (low, high) in reader.blocks.items():
        assert np.square(features[:, low:high]).sum(1).mean() == pytest.approx(1, abs=1e-3), name


def test_a_word_that_occurs_again_and_again_is_a_category() -> None:
    few = [{"kind": "ab"[i % 2], "id": f"x{i}", "note": "long " * 20, "rare": f"v{2 * i // 3}"} for i in range(60)]
    reader, _ = fit_contexts(few, NGramEncoder())
    assert list(reader.categories) == ["kind"]  # `id` never recurs, `note` is too long, `rare` recurs too little
    assert reader.text_of(few[0]) == f"x0\n{'long ' * 20}\nv0"
    same = [{"text": "ab"[i % 2]} for i in range(60)]
    assert fit_contexts(same, NGramEncoder())[0].categories == {}  # a text is a text


def test_a_category_has_at_most_so_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_VALUES", 3)
    listed = [{"tags": (name,)} for name in "aaaaabbbbccccdddee"]
    reader, features = fit_contexts(listed, NGramEncoder())
    assert reader.categories == {"tags": ("a", "b", "c")}
    assert features[0] != pytest.approx(features[5])
    assert features[-1] == pytest.approx(features[-5])  # d and e are unknown both


def test_categories_are_indicators_and_lists_have_several(reader: ContextReader) -> None:
    context = read_context({"text": "moon", "topic": "poems", "tools": ["run", "mail", "never seen"]})
    assert raw(reader, "category topic", context).tolist() == [0, 1, 0]
    assert raw(reader, "category tools", context).tolist() == [1, 1, 0]


def test_an_unknown_value_is_none_of_the_known(reader: ContextReader) -> None:
    unknown = read_context({"text": "moon verse", "topic": "cooking"})
    assert raw(reader, "category topic", unknown).tolist() == [0, 0, 0]
    assert np.isfinite(reader([unknown])).all()
    assert raw(reader, "category topic", read_context({"text": "a", "topic": 3})).tolist() == [0, 0, 0]


@pytest.mark.parametrize("topic", sorted(TOPICS))
def test_a_missing_category_is_guessed_from_the_text(reader: ContextReader, topic: str) -> None:
    share = raw(reader, "category topic", {"text": " ".join(TOPICS[topic])})
    assert share.sum() == pytest.approx(1, abs=1e-3)
    assert reader.categories["topic"][int(share.argmax())] == topic
    assert share.max() > 0.6
    assert "tools" not in reader.guesses  # a list may have any number of values


def test_numbers_are_standardised_and_cut_into_bins() -> None:
    sizes = [{"size": float(i)} for i in range(80)]
    reader, _ = fit_contexts(sizes, NGramEncoder())
    mean, deviation, edges = reader.numbers["size"]
    assert (mean, deviation) == pytest.approx((39.5, np.arange(80).std()))
    assert len(edges) == 7
    table = reader._raw([{"size": 0.0}, {"size": 45.0}, {"size": 79.0}, {}, {"size": "big"}, {"size": 1e9}])[0]
    assert table[:, 0] == pytest.approx([-39.5 / deviation, 5.5 / deviation, 39.5 / deviation, 0, 0, 3])
    assert table[:, 1:].argmax(1).tolist() == [0, 4, 7, 8, 8, 7]
    assert (table[:, 1:].sum(1) == 1).all()
    constant, features = fit_contexts([{"size": 2.0}] * 9, NGramEncoder())
    assert (features == 0).all()
    assert np.isfinite(constant([{"size": 5.0}])).all()


def test_texts_of_a_topic_share_clusters(reader: ContextReader) -> None:
    first, second = {"text": "rhyme moon verse number 3"}, {"text": "tender sonnet moon verse number 8"}
    other = {"text": "python function compile bug number 3"}
    own, near, far = (raw(reader, "clusters", context) > 0.01 for context in (first, second, other))
    assert own.sum() > 0
    assert (own & near).sum() > 2 * (own & far).sum()


def test_clusters_fade_with_the_distance() -> None:
    clusters = Clusters(centres=np.array([[0.0], [10.0]], np.float32), sizes=(2,), reach=np.array([1.0]))
    found = clusters.of(np.array([[0.5], [1.0], [2.0], [9.0]], np.float32))
    assert found == pytest.approx(np.array([[1, 0], [1, 0], [np.exp(-2), 0], [0, 1]]))


def test_texts_that_occur_again_and_again_have_one_cluster_each() -> None:
    """Of two equal centres, rounding would decide."""
    again = [{"text": text} for text in ("add the numbers", "a tender moon", "fix this loop")] * 80
    reader, features = fit_contexts(again, NGramEncoder())
    assert reader.clusters is not None
    assert max(reader.clusters.sizes) <= 3
    assert reader(again[:3]) == pytest.approx(features[:3], abs=1e-5)
    alone = np.concatenate([reader([context]) for context in again[:3]])
    assert alone == pytest.approx(features[:3], abs=1e-5)


def test_text_has_the_weight_that_is_asked_for(reader: ContextReader) -> None:
    half = reader.weights(0.5)
    low, high = reader.blocks["clusters"]
    assert (half[low:high] == 0.5).all()
    assert (half[slice(*reader.blocks["words"])] == 0.15).all()
    assert (half[slice(*reader.blocks["category topic"])] == 1).all()
    assert (reader.weights(0)[slice(*reader.blocks["vectors"])] == 0).all()


# Any text


@pytest.mark.parametrize("encoder", ["ngrams", "fast"])
@pytest.mark.parametrize(
    "text", ["", " ", "🙂", "总结这份报告", "\x00\x01", "a" * 100_000, "word " * 50_000, "\\ud800", "\ud800"]
)
def test_any_text_has_features(encoder: str, text: str) -> None:
    read = read_texts(make_encoder(encoder), [text, "plain words"])
    for table in (read.vectors, read.surface, read.words):
        assert table.shape[0] == 2
        assert np.isfinite(table).all()


def test_only_the_beginning_of_an_enormous_text_is_read(reader: ContextReader) -> None:
    start = "moon verse " * (MAX_CHARS // 11 + 1)
    assert reader([{"text": start + "python bug"}]) == pytest.approx(reader([{"text": start + "sonnet " * 9}]))


def test_an_empty_text_or_context_is_read(reader: ContextReader) -> None:
    for context in ({"text": ""}, {}, {"never seen": "x"}, {"text": "🙂"}):
        assert np.isfinite(reader([context])).all()
    assert reader([]).shape == (0, reader.width)


def test_case_and_digits_of_words_do_not_matter() -> None:
    read = read_texts(NGramEncoder(), ["Add 17 Moons", "add 42 moons", "add 42 sonnets"])
    assert read.words[0] == pytest.approx(read.words[1])
    assert read.words[0] != pytest.approx(read.words[2])
    assert np.linalg.norm(read.vectors, axis=1) == pytest.approx(np.ones(3), abs=1e-5)


def test_the_surface_counts_what_a_text_looks_like() -> None:
    code, question = read_texts(NGramEncoder(), ["def f(x): return x", "Which one? (A) yes (B) no?"]).surface
    assert code[-4] == 1  # code
    assert question[-4] == 0
    assert question[-3] == 1  # of several answers
    assert (code[-1], question[-1]) == (0, 1)  # ends with a question mark
    assert question[0] == pytest.approx(np.log1p(26))


# The same everywhere


def test_features_are_the_same_alone_in_a_batch_and_again(fitted: tuple[ContextReader, module.Rows]) -> None:
    reader, features = fitted
    contexts = make_contexts(240)
    assert reader(contexts) == pytest.approx(features, abs=1e-5)
    alone = np.concatenate([reader([context]) for context in contexts[:20]])
    assert alone == pytest.approx(features[:20], abs=1e-5)
    again, same = fit_contexts(contexts, NGramEncoder())
    assert (same == features).all()
    assert again.to_json() == reader.to_json()
    assert not np.array_equal(fit_contexts(contexts, NGramEncoder(), seed=1)[1], features)  # other clusters


def test_the_order_of_keys_does_not_matter_to_categories_and_numbers(reader: ContextReader) -> None:
    context = make_contexts(1)[0]
    assert (reader([context]) == reader([dict(reversed(context.items()))])).all()


def test_tensors_and_json_give_the_reader_back(reader: ContextReader) -> None:
    back = ContextReader.from_state(reader.tensors(), reader.to_json(), NGramEncoder())
    contexts = [*make_contexts(5, seed=3), {"text": "moon"}, {}]
    assert (back(contexts) == reader(contexts)).all()
    assert back.blocks == reader.blocks
    bare, _ = fit_contexts([{"size": float(i)} for i in range(9)], NGramEncoder())
    again = ContextReader.from_state(bare.tensors(), bare.to_json(), NGramEncoder())
    assert (again([{"size": 3.0}]) == bare([{"size": 3.0}])).all()
    assert again.clusters is None


@pytest.mark.parametrize("count", [1, 2, 3, 20])
def test_few_contexts_are_enough(count: int) -> None:
    contexts = make_contexts(count)
    reader, features = fit_contexts(contexts, NGramEncoder())
    assert features.shape == (count, reader.width)
    assert np.isfinite(features).all()
    assert np.isfinite(reader([{"text": "moon"}])).all()
