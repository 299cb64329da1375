"""Bad input: an error of its own type that says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from etude.contracts.errors import DataError, PromptError
from etude.problems.prompt.mutations import MUTATIONS, mutate
from etude.problems.prompt.mutations.prompts import MAX_CHARS


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "empty: give a text"),
        (" \n\t", "empty"),
        ((), "empty"),
        ([{"role": "assistant", "content": "I am a model."}], "empty"),
        ("a" * 10_000_000, "10,000,000 characters: expected at most 1,000,000"),
        ("PNG\0\0", "binary: it has a NUL at character 3"),
        ("a \ud800 b", "half a surrogate pair at character 2"),
        ("Run\n\n```py\nx", "code fence ``` on line 3 is never closed: close it"),
        (b"bytes", "the prompt is bytes: expected a text"),
        ([{"content": "x"}], "message 0 of the prompt"),
        ([{"role": "user", "content": 3}], "message 0 of the prompt has the content 3"),
        ([{"role": "user", "content": "x"}] * 1001, "1,001 messages: expected at most 1,000"),
    ],
)
def test_it_says_what_is_wrong_and_what_to_do(prompt: Any, message: str) -> None:
    for mutation in MUTATIONS:
        with pytest.raises(PromptError, match=message) as raised:
            mutate(prompt, mutation)
        assert isinstance(raised.value, DataError)


@pytest.mark.parametrize(
    ("name", "message"), [("expand", "did you mean 'expansion'"), ("", "there are try-catch-style")]
)
def test_an_unknown_mutation(name: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        mutate("Write it.", name)


def test_the_largest_prompt_grows_and_is_reverted() -> None:
    prompt = "Write a function. " + "x" * (MAX_CHARS - 18)
    found = mutate(prompt, "expansion")
    assert len(str(found.prompt)) > MAX_CHARS
    assert found.revert() == prompt
    assert found.diff()


@pytest.mark.parametrize(
    "text", ["[" * 5000, "{" * 5000, "<a " * 2000, ">" * 3000, "*a " * 3000, "please " * 3000, "Be brief. " * 2000]
)
def test_hostile_repetition_takes_no_more_than_seconds(text: str) -> None:
    for mutation in MUTATIONS:
        assert mutate(text, mutation).revert() == text
