"""Contexts in groups that people can read."""

from __future__ import annotations

import random
from typing import Any

import pytest

from etude.problems.choice.contexts import fit_contexts
from etude.problems.choice.groups import ALL, MAX_GROUPS, OTHERS, group_contexts, information
from etude.text.ngrams import NGramEncoder


def grouped(contexts: list[dict[str, Any]], chosen: list[int] | None = None) -> list[str]:
    reader, _ = fit_contexts(contexts, NGramEncoder())
    return group_contexts(reader, contexts, chosen or [0] * len(contexts))


def test_by_the_category_that_says_most_about_who_is_chosen() -> None:
    contexts = [{"plan": ("free", "paid")[i % 2], "country": "abcde"[i % 5]} for i in range(60)]
    for key in ("plan", "country"):
        chosen = [int(context[key] in ("paid", "b")) for context in contexts]
        assert grouped(contexts, chosen) == [context[key] for context in contexts]


def test_by_the_category_with_the_fewest_values_if_all_get_the_same() -> None:
    contexts = [{"country": "abcde"[i % 5], "plan": ("free", "paid")[i % 2]} for i in range(60)]
    assert grouped(contexts) == [context["plan"] for context in contexts]


def test_by_texts_if_they_say_more_than_a_category() -> None:
    kinds = ("please pay the invoice of order {}", "a late goal decided match {}")
    contexts = [{"text": kinds[i % 2].format(i), "plan": ("free", "paid")[i // 2 % 2]} for i in range(120)]
    found = grouped(contexts, [i % 2 for i in range(120)])
    assert not set(found[::2]) & set(found[1::2])


def test_groups_by_chance_say_nothing() -> None:
    rng = random.Random(0)
    chosen = [rng.randrange(3) for _ in range(300)]
    assert abs(information([f"g{rng.randrange(10)}" for _ in chosen], chosen)) < 0.02
    assert information([f"g{one}" for one in chosen], chosen) > 1
    assert information(["all"] * 300, chosen) == pytest.approx(0)


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
