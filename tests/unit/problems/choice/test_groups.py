"""Contexts in groups that people can read."""

from __future__ import annotations

from typing import Any

from etude.problems.choice.contexts import fit_contexts
from etude.problems.choice.groups import ALL, MAX_GROUPS, OTHERS, group_contexts
from etude.text.ngrams import NGramEncoder


def grouped(contexts: list[dict[str, Any]]) -> list[str]:
    reader, _ = fit_contexts(contexts, NGramEncoder())
    return group_contexts(reader, contexts)


def test_by_the_category_with_the_fewest_values() -> None:
    contexts = [{"plan": ("free", "paid")[i % 2], "country": "abcde"[i % 5]} for i in range(60)]
    assert grouped(contexts) == [context["plan"] for context in contexts]


def test_small_categories_are_one_group() -> None:
    contexts = [{"topic": f"t{min(i % 40, i % 17):02d}"} for i in range(400)]
    found = grouped(contexts)
    assert len(set(found)) == MAX_GROUPS
    assert OTHERS in found
    assert found[0] == "t00"


def test_texts_by_the_words_of_their_cluster() -> None:
    kinds = {"invoice": "please pay the invoice of order {}", "goal": "a late goal decided match {}"}
    contexts = [{"text": text.format(i)} for i in range(60) for text in kinds.values()]
    found = grouped(contexts)
    invoices, goals = set(found[::2]), set(found[1::2])
    assert not invoices & goals
    assert any("invoice" in name for name in invoices)
    assert any("goal" in name for name in goals)


def test_numbers_alone_are_one_group() -> None:
    assert set(grouped([{"size": float(i)} for i in range(20)])) == {ALL}
