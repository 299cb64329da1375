"""What holds for every mutation of every prompt; benchmarks/prompt_mutations.py tries a hundred thousand more."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from etude.contracts.errors import PromptError
from etude.problems.prompt.mutations import MUTATIONS, Prompt, mutate, violations
from etude.problems.prompt.mutations.document import PLACEHOLDER
from tests.unit.problems.prompt.mutations.random_prompts import random_chat, random_prompt

PROMPTS = 120


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_nothing_is_lost_all_is_reverted_and_twice_is_once(mutation: str) -> None:
    changed = 0
    for seed in range(PROMPTS):
        rng = Random(seed)
        prompt: Prompt = random_chat(rng) if seed % 10 == 0 else random_prompt(rng)
        changed += holds(prompt, mutation, seed)
    assert changed > PROMPTS / 10


@given(text=st.text(min_size=1, max_size=200), mutation=st.sampled_from(MUTATIONS), seed=st.integers(0, 9))
@settings(max_examples=150, deadline=None)
def test_it_holds_for_any_text(text: str, mutation: str, seed: int) -> None:
    try:
        mutate(text, mutation)
    except PromptError:
        assume(False)  # test_bad_prompts.py has these
    holds(text, mutation, seed)


def holds(prompt: Prompt, mutation: str, seed: int) -> bool:
    found = mutate(prompt, mutation, seed=seed)
    assert found.revert() == prompt
    assert type(found.prompt) is type(prompt)
    assert found.changed == (found.prompt != prompt) == (found.reason is None)
    assert not violations(prompt, found.prompt)
    assert not mutate(found.prompt, mutation, seed=seed + 1).changed
    assert mutate(prompt, mutation, seed=seed) == found
    assert bool(found.diff()) == found.changed
    return found.changed


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("Read {a} and {b}.", "Read {a}.", "the placeholder {b} is lost"),
        ("Read it.", "Read it {c}.", "the placeholder {c} is new"),
        ("Run `x`.", "Run x.", "the code x is lost"),
        ("```\na\n```", "```\nb\n```", "the code a is lost"),
        ("See [a](http://b.c).", "See a.", "the link http://b.c is lost"),
        ("Take 3 of 4.", "Take 3.", "the number 4 is lost"),
        ("Read:\n\n> this", "Read: this", "the quoted material > this is lost"),
        ("Say 1, 1 and 1.", "Say 1 and 1.", "the number 1 is lost"),
    ],
)
def test_a_loss_is_seen(before: str, after: str, what: str) -> None:
    assert what in violations(before, after)


def test_additions_have_no_placeholders_and_no_digits_that_a_template_would_read() -> None:
    for mutation in MUTATIONS:
        for seed in range(20):
            for edit in mutate("Write a function and a text. {x}", mutation, seed=seed).edits:
                assert PLACEHOLDER.search(edit.added) is None
