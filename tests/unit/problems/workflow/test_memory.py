"""Votes of similar past queries: closed form against brute force, what each column means, and the way to disk."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.problems.workflow.examples import Example, Targets
from etude.problems.workflow.memory import START, Memory, fit_memory
from etude.text.ngrams import NGramEncoder
from etude.text.sentence import sentences
from etude.text.tfidf import count_matrix
from tests.language import chain, examples

ENCODER = NGramEncoder(32)
TYPES = 6
WORDS = ("fetch", "mail", "draw", "the report", "a letter", "now", "Übersetzung", "总结")


def expected_votes(found: list[Example], memory: Memory) -> np.ndarray:
    """(examples, columns): 1 where a plan contains what a column stands for, looked for one by one."""
    pairs, links = memory.pairs.tolist(), memory.links.tolist()
    rows = []
    for t in (example.targets for example in found):
        steps = [list(step) for step in zip((START, *t.task_types), (*t.task_types, memory.types), strict=True)]
        linked = [[t.task_types[j], t.task_types[i]] for i, earlier in enumerate(t.dependencies) for j in earlier]
        rows.append(
            [kind in t.task_types for kind in range(memory.types)]
            + [pair in steps for pair in pairs]
            + [link in linked for link in links]
        )
    return np.array(rows, float)


def kernel(texts: list[str], past: list[str]) -> np.ndarray:
    """(texts, past) similarity: TF-IDF cosine of n-grams, counted over the past, and near sentence vectors."""
    counts = [Counter(dict(zip(*row, strict=True))) for row in map(grams, past)]
    seen = Counter(gram for row in counts for gram in row)

    def weigh(text: str) -> dict[int, float]:
        indices, values = grams(text)
        idf = [math.log((1 + len(past)) / (1 + seen[i])) + 1 for i in indices]
        raw = [(1 + math.log(value)) * weight for value, weight in zip(values, idf, strict=True)]
        length = math.sqrt(sum(x * x for x in raw)) or 1.0
        return {i: x / length for i, x in zip(indices, raw, strict=True)}

    rows, columns = [weigh(text) for text in texts], [weigh(text) for text in past]
    lexical = np.array([[sum(x * b.get(i, 0.0) for i, x in a.items()) for b in columns] for a in rows])
    cosine = sentences(ENCODER, texts).astype(float) @ sentences(ENCODER, past).T
    similarity: np.ndarray = 0.7 * lexical + 0.3 * ((cosine + 1) / 2) ** 6
    return similarity


def grams(text: str) -> tuple[list[int], list[float]]:
    counts = count_matrix([text])
    return counts.indices.tolist(), counts.data.tolist()


def solved(texts: list[str], found: list[Example], memory: Memory, ridge: float, past: list[str]) -> np.ndarray:
    """Kernel ridge regression from `found` to `texts`, n-grams weighed as among `past`."""
    said = [example.instruction for example in found]
    everything = kernel(texts + said, past)
    places = [past.index(text) for text in said]
    inner = everything[len(texts) :, places] + ridge * np.eye(len(found))
    answer: np.ndarray = everything[: len(texts), places] @ np.linalg.solve(inner, expected_votes(found, memory))
    return answer


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(WORDS), min_size=1), st.lists(st.integers(0, 5), min_size=1, max_size=3)),
        min_size=2,
        max_size=8,
    ),
    st.sampled_from([0.05, 0.2, 2.0]),
)
def test_the_vote_for_a_past_query_is_that_of_a_memory_without_it(
    drawn: list[tuple[list[str], list[int]]], ridge: float
) -> None:
    found = [chain(" ".join(said), kinds) for said, kinds in drawn]
    memory, left_out = fit_memory(ENCODER, found, types=TYPES, ridge=ridge)
    assert left_out.shape == (len(found), memory.columns)
    past = [example.instruction for example in found]
    for i in range(len(found)):
        others = found[:i] + found[i + 1 :]
        np.testing.assert_allclose(left_out[i], solved([past[i]], others, memory, ridge, past)[0], atol=2e-4)


def test_the_answer_for_a_new_text_is_kernel_ridge_regression() -> None:
    found = examples(12)
    memory, _ = fit_memory(ENCODER, found, types=TYPES, ridge=0.3)
    new = [example.instruction for example in examples(5, seed=9)]
    expected = solved(new, found, memory, 0.3, [example.instruction for example in found])
    np.testing.assert_allclose(memory.votes(ENCODER, new), expected, atol=2e-4)


def test_a_text_seen_before_speaks_for_its_plan_above_others() -> None:
    found = [chain("fetch the report", [0, 5]), chain("draw a house", [4]), chain("count to ten", [3])]
    memory, _ = fit_memory(ENCODER, found, types=TYPES)
    votes = memory.votes(ENCODER, ["fetch the report", "draw a house", "fetch reports", "now draw it"])[:, :TYPES]
    assert set(votes[0].topk(2).indices.tolist()) == {0, 5}
    assert votes[1].argmax() == 4
    assert set(votes[2].topk(2).indices.tolist()) == {0, 5}
    assert votes[3].argmax() == 4


@pytest.mark.parametrize("text", ["", " ", "\0", "zzz" * 5000, "总结报告", "🙂", "\ud800"])
def test_any_text_gets_finite_votes(text: str) -> None:
    memory, _ = fit_memory(ENCODER, examples(5), types=TYPES)
    assert memory.votes(ENCODER, [text]).isfinite().all()


def test_columns_are_types_then_pairs_with_start_and_stop_then_links() -> None:
    diamond = Targets(task_types=(2, 0, 0, 3), dependencies=((), (0,), (0,), (1, 2)))
    found = [Example(instruction="a", targets=diamond), chain("b", [2, 3])]
    memory, _ = fit_memory(ENCODER, found, types=4)
    stop = 4
    assert memory.pairs.tolist() == [[START, 2], [2, 0], [0, 0], [0, 3], [3, stop], [2, 3]]
    assert memory.links.tolist() == [[2, 0], [0, 3], [2, 3]]  # source, target
    assert memory.columns == 4 + 6 + 3
    rows = expected_votes(found, memory)
    assert rows[0].tolist() == [*(1, 0, 1, 1), *(1, 1, 1, 1, 1, 0), *(1, 1, 0)]
    assert rows[1].tolist() == [*(0, 0, 1, 1), *(1, 0, 0, 0, 1, 1), *(0, 0, 1)]
    # With next to no smoothing, the memory repeats its training data.
    exact, _ = fit_memory(ENCODER, found, types=4, ridge=1e-6)
    np.testing.assert_allclose(exact.votes(ENCODER, ["a", "b"]), rows, atol=1e-3)


def test_plans_without_links_have_no_columns_for_them() -> None:
    memory, left_out = fit_memory(ENCODER, [chain("a", [0]), chain("b", [1])], types=2)
    assert memory.links.shape == (0, 2)
    assert left_out.shape == (2, 2 + 4)


def test_more_smoothing_gives_smaller_votes() -> None:
    found = examples(8)
    sure, unsure = (fit_memory(ENCODER, found, types=TYPES, ridge=ridge)[0] for ridge in (0.1, 5.0))
    texts = [example.instruction for example in found]
    assert sure.votes(ENCODER, texts).abs().sum() > 2 * unsure.votes(ENCODER, texts).abs().sum()


def test_state_goes_to_tensors_and_back_with_weights_at_half_precision() -> None:
    memory, _ = fit_memory(ENCODER, examples(20), types=TYPES)
    state = memory.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    assert state["weights"].dtype == torch.float16
    back = Memory.from_state(state, types=TYPES)
    texts = [example.instruction for example in examples(6, seed=4)]
    before, after = memory.votes(ENCODER, texts), back.votes(ENCODER, texts)
    torch.testing.assert_close(after, before, atol=5e-3, rtol=0)
    assert after.dtype == before.dtype == torch.float32
    assert torch.equal(back.pairs, memory.pairs)
    assert torch.equal(back.links, memory.links)
    assert back.columns == memory.columns
    again = Memory.from_state(back.state_dict(), types=TYPES)
    assert torch.equal(again.votes(ENCODER, texts), after)
