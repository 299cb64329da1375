"""Sets of examples as one course: merged by name, split by seed, and made into what one training goes through."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from etude.contracts.errors import ConfigError
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.encode import TextReader
from etude.problems.workflow.examples import Example
from etude.problems.workflow.plan import Limits, Plan
from etude.problems.workflow.training_set import (
    ExampleSets,
    TrainingSet,
    make_training_set,
    merge_sets,
    split,
    to_plan,
)
from etude.text.ngrams import NGramEncoder
from tests.language import CATALOGUE, chain, examples

READER = TextReader(encoder=NGramEncoder(16))


def catalogue(types: str, workers: str = "", *, says: str = "") -> Catalogue:
    return Catalogue(
        task_types=tuple(TaskType(name=name, description=f"{says}{name}") for name in types),
        workers=tuple(Worker(name=name) for name in workers),
    )


FIRST = (catalogue("abc", "xy", says="first "), [chain("one", [0, 1], [0, 1]), chain("two", [2])])
SECOND = (catalogue("dca", "yz", says="second "), [chain("three", [0, 2, 1], [1, 0, 1])])


def named_plan(merged: ExampleSets, example: Example) -> Plan:
    return to_plan(merged.catalogue, example)


def test_sets_are_merged_by_name_and_each_plan_stays_what_it_was() -> None:
    merged = merge_sets([FIRST, SECOND])
    assert {t.name for t in merged.catalogue.task_types} == set("abcd")
    assert len(merged.catalogue.task_types) == 4
    assert sorted(w.name for w in merged.catalogue.workers) == list("xyz")
    assert merged.known.task_types == tuple(t.name for t in merged.catalogue.task_types)
    assert merged.known.workers == tuple(w.name for w in merged.catalogue.workers)
    assert merged.sets == (0, 0, 1)
    before = [to_plan(own, example) for own, found in (FIRST, SECOND) for example in found]
    assert [named_plan(merged, example) for example in merged.examples] == before


def test_of_two_descriptions_the_first_counts() -> None:
    merged = merge_sets([FIRST, SECOND])
    said = {t.name: t.description for t in merged.catalogue.task_types}
    assert said == {"a": "first a", "b": "first b", "c": "first c", "d": "second d"}


def test_each_set_offers_its_own_task_types() -> None:
    merged = merge_sets([FIRST, SECOND])
    names = merged.known.task_types
    offered = [{name for name, there in zip(names, row, strict=True) if there} for row in merged.offered.tolist()]
    assert offered == [set("abc"), set("acd")]


@given(st.lists(st.permutations("abcd").map("".join), min_size=1, max_size=3), st.data())
def test_merging_never_changes_what_a_plan_says(orders: list[str], data: st.DataObject) -> None:
    sets = []
    for order in orders:
        own = catalogue(order[: data.draw(st.integers(1, 4))], order[::-1])
        kinds = st.lists(st.integers(0, len(own.task_types) - 1), min_size=1, max_size=3)
        sets.append((own, [chain("x", chosen, [k % 4 for k in chosen]) for chosen in data.draw(st.lists(kinds))]))
    merged = merge_sets(sets)
    before = [to_plan(own, example) for own, found in sets for example in found]
    assert [named_plan(merged, example) for example in merged.examples] == before
    for example, number in zip(merged.examples, merged.sets, strict=True):
        assert all(merged.offered[number, kind] for kind in example.targets.task_types)


def test_one_set_keeps_its_order() -> None:
    assert merge_sets([FIRST]).catalogue == FIRST[0]
    assert merge_sets([FIRST]).examples == tuple(FIRST[1])


SETS = merge_sets([(CATALOGUE, examples(30))])


@given(st.integers(5, 30), st.floats(0.01, 0.99), st.integers(0, 5))
def test_a_split_has_both_parts_and_every_example_once(size: int, share: float, seed: int) -> None:
    learn, held_out = split(SETS, share=share, size=size, seed=seed)
    assert not set(learn) & set(held_out)
    assert len(learn) + len(held_out) == size
    assert len(held_out) == min(max(1, round(share * size)), size - 1)
    assert learn == sorted(learn)
    assert held_out == sorted(held_out)
    assert set(learn) | set(held_out) <= set(range(30))


def test_a_split_is_drawn_by_its_seed() -> None:
    assert split(SETS, share=0.2, size=None, seed=1) == split(SETS, share=0.2, size=None, seed=1)
    assert split(SETS, share=0.2, size=None, seed=1) != split(SETS, share=0.2, size=None, seed=2)
    learn, held_out = split(SETS, share=0.2, size=None, seed=1)
    assert (len(learn), len(held_out)) == (24, 6)
    assert sum(map(len, split(SETS, share=0.2, size=1000, seed=1))) == 30


def test_a_handful_is_too_few() -> None:
    few = replace(SETS, examples=SETS.examples[:4], sets=SETS.sets[:4])
    with pytest.raises(ConfigError, match=r"there are 4 examples .*at least 5"):
        split(few, share=0.2, size=None, seed=0)
    with pytest.raises(ConfigError, match="there are 3 examples"):
        split(SETS, share=0.2, size=3, seed=0)


def make(
    merged: ExampleSets, learn: Sequence[int], held_out: Sequence[int], *, augmentations: int = 0, seed: int = 0
) -> TrainingSet:
    limits = Limits(max_nodes=4)
    return make_training_set(
        merged, learn, held_out, reader=READER, limits=limits, augmentations=augmentations, ridge=0.2, seed=seed
    )


def test_a_training_set_learns_from_some_and_validates_on_others() -> None:
    learn, held_out = [0, 2, 4, 6, 8], [1, 3]
    training_set = make(SETS, learn, held_out, augmentations=7)
    drafts, validation, encoded = training_set.drafts, training_set.validation, training_set.policy_context.encoded
    assert len(drafts["length"]) == 5 + 7
    assert drafts["instruction"].tolist() == list(range(12))
    assert validation["instruction"].tolist() == [12, 13]
    assert len(encoded.mask) == len(encoded.votes) == 14
    assert validation["length"].tolist() == [0, 0]
    assert training_set.expected == [named_plan(SETS, SETS.examples[i]) for i in held_out]
    for row, i in enumerate(learn):
        kinds = SETS.examples[i].targets.task_types
        assert drafts["types"][row, : len(kinds)].tolist() == list(kinds)
    # The encoded rows have these texts: a validation row reads its instruction.
    tokens = READER.encoder.tokens([plan.instruction for plan in training_set.expected])
    for row, own in zip((12, 13), tokens, strict=True):
        assert encoded.vectors is not None
        assert encoded.mask[row].sum() == len(own)
        assert torch.equal(encoded.vectors[encoded.tokens[row, : len(own)]], torch.from_numpy(own).half())


def test_held_out_examples_are_not_in_the_memory_and_no_example_votes_for_itself() -> None:
    learn, held_out = list(range(10)), list(range(10, 14))
    training_set = make(SETS, learn, held_out)
    assert training_set.memory.grams.shape[0] == 10
    texts = [SETS.examples[i].instruction for i in learn + held_out]
    fitted = training_set.memory.votes(READER.encoder, texts)
    found = training_set.policy_context.encoded.votes
    torch.testing.assert_close(found[10:], fitted[10:])
    own = [SETS.examples[i].targets.task_types[0] for i in learn]
    assert (found[range(10), own] < fitted[range(10), own]).all()


def test_a_memory_holds_so_many_and_votes_for_the_rest_as_for_new_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    learn, held_out = list(range(10)), list(range(10, 14))
    whole = make(SETS, learn, held_out, augmentations=5)
    monkeypatch.setattr("etude.problems.workflow.training_set.MAX_PAST_QUERIES", 6)
    capped = make(SETS, learn, held_out, augmentations=5)
    order = random.Random(0).sample(learn, 10)  # whichever set comes first, each is remembered
    assert order != learn
    small = make(SETS, order[:6], held_out)
    assert (whole.memory.grams.shape[0], capped.memory.grams.shape[0]) == (10, 6)
    texts = [SETS.examples[i].instruction for i in order]
    votes = capped.policy_context.encoded.votes
    # Those it holds vote for each other, not for themselves; the rest is asked like anything new.
    assert torch.equal(votes[:6], small.policy_context.encoded.votes[:6])
    torch.testing.assert_close(votes[6:10], small.memory.votes(READER.encoder, texts[6:]))
    torch.testing.assert_close(votes[15:], small.policy_context.encoded.votes[6:])
    assert len(votes) == 10 + 5 + 4
    # All are learned from nevertheless.
    for name in ("types", "links", "length"):
        assert torch.equal(capped.drafts[name][:10], whole.drafts[name][:10][order])


def test_every_example_offers_the_task_types_of_its_own_set() -> None:
    one = catalogue("abc", says="do ")
    other = catalogue("cde", says="make ")
    sets = [
        (one, [chain(f"one {i}", [i % 3, 0]) for i in range(6)]),
        (other, [chain(f"two {i}", [2]) for i in range(6)]),
    ]
    merged = merge_sets(sets)
    learn, held_out = [0, 1, 2, 6, 7, 8], [3, 9]
    training_set = make(merged, learn, held_out, augmentations=40)
    names = [set("abc"), set("cde")]

    def offers(row: torch.Tensor) -> set[str]:
        return {merged.known.task_types[i] for i in row.nonzero()[:, 0].tolist()}

    assert [offers(row) for row in training_set.validation["offered"]] == names
    assert [offers(row) for row in training_set.drafts["offered"][:6]] == [names[0]] * 3 + [names[1]] * 3
    made = [offers(row) for row in training_set.drafts["offered"][6:]]
    assert names[0] in made
    assert names[1] in made
    assert all(own in names for own in made)
    used = torch.nn.functional.one_hot(training_set.drafts["types"] + 1, 6).amax(1)[:, 1:].bool()
    assert not (used & ~training_set.drafts["offered"]).any()


def test_the_same_seed_makes_the_same_training_set() -> None:
    first, same, other = (make(SETS, range(8), [9], augmentations=30, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(first.drafts[name], same.drafts[name]) for name in first.drafts)
    assert torch.equal(first.policy_context.encoded.tokens, same.policy_context.encoded.tokens)
    assert not torch.equal(first.drafts["types"], other.drafts["types"])


def test_an_expert_who_named_no_worker_plans_for_none() -> None:
    assert [node.worker for node in to_plan(CATALOGUE, chain("x", [0, 1])).nodes] == [None, None]
    plan = to_plan(CATALOGUE, chain("x", [0, 1], [0, 1]))
    assert [(node.task_type, node.dependencies, node.worker) for node in plan.nodes] == [
        ("fetch", (), "quick"),
        ("translate", (0,), "careful"),
    ]
