"""Texts as tensors, and a catalogue that has changed since training: what was known by name keeps its place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.encode import (
    MAX_TOKENS,
    KnownNames,
    PolicyContext,
    encode_instructions,
    make_policy_context,
    to_drafts,
    type_columns,
)
from etude.problems.workflow.examples import Example, Targets
from etude.problems.workflow.grammar import Rules
from etude.problems.workflow.memory import Memory, fit_memory
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.similarity import SimilarityEncoder
from etude.text.ngrams import NGramEncoder
from etude.text.sentence import sentences
from tests.language import CATALOGUE, chain

ENCODER = NGramEncoder(16)
LIMITS = Limits(max_nodes=4)
KNOWN = KnownNames(task_types=("a", "b", "c"), workers=("w", "v"))
A, B, C, STOP, START = range(5)
MEMORY: Memory = fit_memory(ENCODER, [chain("one", [A, B]), chain("two", [C, A]), chain("three", [B])], types=3)[0]


def catalogue(types: Sequence[str], workers: Sequence[str] = ()) -> Catalogue:
    return Catalogue(
        task_types=tuple(TaskType(name=name, description=f"does {name}") for name in types),
        workers=tuple(Worker(name=name) for name in workers),
    )


def context_of(types: Sequence[str], workers: Sequence[str] = ()) -> PolicyContext:
    texts = ["one", "two and more"]
    own = catalogue(types, workers)
    encoded = encode_instructions(
        ENCODER, texts, MEMORY.votes(ENCODER, texts), SimilarityEncoder(ENCODER, own.task_types)(texts)
    )
    return make_policy_context(ENCODER, own, LIMITS, KNOWN, MEMORY, encoded)


def named(pairs: torch.Tensor, types: Sequence[str]) -> list[tuple[str, str]]:
    names = dict(enumerate(types)) | {len(types): "stop", -1: "start", -2: "gone"}
    return [(names[first], names[second]) for first, second in pairs.tolist()]


PAIRS = [("start", "a"), ("a", "b"), ("b", "stop"), ("start", "c"), ("c", "a"), ("a", "stop"), ("start", "b")]
LINKS = [("a", "b"), ("c", "a")]


@pytest.mark.parametrize(
    "types",
    [("a", "b", "c"), ("c", "a", "b"), ("new", "b", "a", "newer", "c"), ("b",), ("c", "new"), ("new", "newer")],
    ids=" ".join,
)
def test_pairs_links_and_rows_follow_the_names(types: Sequence[str]) -> None:
    found = context_of(types)
    here = {*types, "start", "stop"}
    assert named(found.pairs, types) == [tuple(name if name in here else "gone" for name in p) for p in PAIRS]
    votes = torch.arange(float(2 * MEMORY.columns)).view(2, -1)
    for a, first in enumerate(types):
        for b, second in enumerate(types):
            code, link = torch.full((2, 1), a * len(types) + b), (first, second)
            own = votes[:, MEMORY.columns - len(LINKS) + LINKS.index(link)] if link in LINKS else torch.zeros(2)
            assert torch.equal(found.votes_for(code, votes)[:, 0], own)
    assert found.type_row.tolist() == [KNOWN.task_types.index(t) if t in KNOWN.task_types else -1 for t in types]
    columns = type_columns(found, votes)
    for i, name in enumerate(types):
        own = votes[:, KNOWN.task_types.index(name)] if name in KNOWN.task_types else torch.zeros(2)
        assert torch.equal(columns[:, i], own)


def test_workers_are_known_by_name_too() -> None:
    assert context_of("abc", ["v", "new", "w"]).worker_row.tolist() == [1, -1, 0]
    without_workers = context_of("abc")
    assert without_workers.worker_row.tolist() == [-1]
    assert without_workers.worker_text.shape == (1, ENCODER.width)


def test_an_entry_is_read_by_its_name_and_description() -> None:
    found = make_policy_context(ENCODER, CATALOGUE, LIMITS, KNOWN, MEMORY, context_of("a").encoded)
    texts = [f"{t.name}: {t.description}" for t in CATALOGUE.task_types]
    np.testing.assert_array_equal(found.type_text, sentences(ENCODER, texts))
    odd = Catalogue(task_types=(TaskType(name="Send.e_mail", description="now"), TaskType(name="send")))
    found = make_policy_context(ENCODER, odd, LIMITS, KNOWN, MEMORY, context_of("a").encoded)
    np.testing.assert_array_equal(found.type_text, sentences(ENCODER, ["Send e mail: now", "send: "]))


def test_encoded_instructions_have_a_row_for_each_text_padded_and_masked() -> None:
    texts = ["", "one two three", "one"]
    votes, similarity = torch.rand(3, 5), torch.rand(3, 2, 4)
    encoded = encode_instructions(ENCODER, texts, votes, similarity)
    assert encoded.tokens.shape == (3, 3)
    assert encoded.vectors is not None
    assert encoded.vectors.shape == (4, 16)  # nothing, one, two, three
    assert encoded.vectors.dtype == torch.float16
    assert encoded.mask.tolist() == [[True, False, False], [True, True, True], [True, False, False]]
    for row, tokens in enumerate(ENCODER.tokens(texts)):
        read = encoded.vectors[encoded.tokens[row, : len(tokens)]]
        np.testing.assert_array_equal(read, tokens.astype(np.float16))
    assert not encoded.tokens[~encoded.mask].any()
    assert encoded.votes is votes
    assert encoded.similarity is similarity


def test_of_a_long_text_the_beginning_is_read() -> None:
    long = " ".join(f"w{chr(97 + i % 26)}{chr(97 + i // 26)}" for i in range(MAX_TOKENS + 70))
    encoded = encode_instructions(ENCODER, ["short", long], torch.zeros(2, 1), torch.zeros(2, 1, 4))
    assert encoded.mask.sum(1).tolist() == [1, MAX_TOKENS]
    assert encoded.vectors is not None
    read = encoded.vectors[encoded.tokens[1]]
    np.testing.assert_array_equal(read, ENCODER.tokens([long])[0][:MAX_TOKENS].astype(np.float16))


def test_where_the_encoder_is_fine_tuned_there_are_token_ids() -> None:
    def tokenise(texts: Sequence[str]) -> list[list[int]]:
        return [[len(word) for word in text.split()] for text in texts]

    encoded = encode_instructions(ENCODER, ["a bcd", "", "x " * 500], torch.zeros(3, 1), torch.zeros(3, 1, 4), tokenise)
    assert encoded.tokens.dtype == torch.int64
    assert encoded.tokens.shape == (3, MAX_TOKENS)
    assert encoded.tokens[0, :2].tolist() == [1, 3]
    assert encoded.mask.sum(1).tolist() == [2, 1, MAX_TOKENS]  # an empty text has one token, so that it can be read


def test_on_another_device_they_are_the_same() -> None:
    found = context_of("abc", ["w"]).to("cpu")
    assert found.rules.catalogue == catalogue("abc", ["w"])
    assert torch.equal(found.pairs, context_of("abc", ["w"]).pairs)


def test_expert_plans_become_finished_drafts() -> None:
    rules = Rules(catalogue("abc", ["w", "v"]), LIMITS)
    diamond = Targets(task_types=(2, 0, 0, 1), dependencies=((), (0,), (0,), (1, 2)), model_selections=(0, 1, 1, 0))
    drafts = to_drafts(rules, [Example(instruction="x", targets=diamond), chain("y", [1, 2])], [7, 3])
    assert drafts["types"].tolist() == [[2, 0, 0, 1], [1, 2, -1, -1]]
    assert drafts["workers"].tolist() == [[0, 1, 1, 0], [-1] * 4]
    assert drafts["length"].tolist() == [4, 2]
    assert drafts["instruction"].tolist() == [7, 3]
    assert drafts["links"][0].nonzero().tolist() == [[1, 0], [2, 0], [3, 1], [3, 2]]  # [i, j]: i depends on j
    assert drafts["links"][1].nonzero().tolist() == [[1, 0]]
    untouched = rules.begin(2)
    for name in untouched.keys() - {"types", "workers", "length", "links"}:
        assert torch.equal(drafts[name], untouched[name]), name
