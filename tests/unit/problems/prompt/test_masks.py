"""Masks: the reasons why a mutation makes no sense, exactly where it changes nothing."""

from __future__ import annotations

from random import Random

import pytest

from etude.contracts.errors import PromptError
from etude.problems.prompt.masks import cannot, reasons
from etude.problems.prompt.mutations import MUTATIONS, mutate
from tests.unit.problems.prompt.mutations.random_prompts import random_chat, random_prompt


@pytest.mark.parametrize(
    ("mutation", "prompt", "reason"),
    [
        ("context-reduction", "Write a function that reverses a string.", "nothing to reduce"),
        ("task-decomposition", "Do this:\n\n1. Read it\n2. Sort it", "already decomposed"),
        ("task-decomposition", "Translate hello to French.", "one step"),
        ("try-catch-style", "Answer the question. If you are not sure, say so.", "already says what to do"),
        ("constraint-addition", "Summarise the text in 3 bullet points, using only the text.", "has the constraints"),
    ],
)
def test_it_says_why(mutation: str, prompt: str, reason: str) -> None:
    assert reason in str(cannot(prompt, mutation))


def test_a_mask_is_a_mutation_that_changes_nothing() -> None:
    rng = Random(5)
    seen = set()
    for prompt in [*(random_prompt(rng) for _ in range(60)), *(random_chat(rng) for _ in range(10))]:
        for mutation, reason in reasons(prompt).items():
            found = mutate(prompt, mutation, seed=3)
            assert found.changed == (reason is None)
            assert found.reason == reason
            seen.add((mutation, reason is None))
    assert len(seen) >= 9  # nearly every mutation both ways


def test_masks_are_of_every_mutation() -> None:
    assert tuple(reasons("Write it.")) == MUTATIONS


def test_a_mistyped_mutation_is_named() -> None:
    with pytest.raises(PromptError, match="did you mean 'context-reduction'"):
        cannot("Write it.", "context-reducton")
