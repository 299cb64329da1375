"""Features of prompts."""

from __future__ import annotations

import numpy as np
import pytest

from etude.contracts.errors import PromptError
from etude.problems.prompt.features import NAMES, features


def value(prompt: object, name: str) -> float:
    return float(features(prompt)[NAMES.index(name)])  # type: ignore[arg-type]


@pytest.mark.parametrize("prompt", ["x", "# A\n\n- b\n\n" * 500, ({"role": "user", "content": "Hello there"},)])
def test_they_are_finite_and_small(prompt: object) -> None:
    found = features(prompt)  # type: ignore[arg-type]
    assert found.shape == (len(NAMES),)
    assert found.dtype == np.float32
    assert np.all((found >= 0) & (found <= 2))


@pytest.mark.parametrize(
    ("name", "more", "less"),
    [
        ("characters", "word " * 200, "word"),
        ("headings", "# A\n\ntext\n\n## B", "A text"),
        ("lists", "- a\n- b", "a b"),
        ("numbered items", "1. a\n2. b", "- a\n- b"),
        ("code", "Run `x` and\n\n```\ny\n```", "Run x"),
        ("placeholders", "Use {a} and {{b}}", "Use a and b"),
        ("links", "See https://example.com", "See example"),
        ("quoted", "Read:\n\n> this", "Read this"),
        ("repeated sentences", "Be brief. Be brief. Be brief.", "Be brief. Be kind. Be fast."),
        ("polite words", "Please help, thank you", "Help"),
        ("vague words", "Make something nice and good", "Make a blue square"),
        ("has a format", "Return JSON", "Return it"),
        ("has a length", "In 3 sentences", "In English"),
        ("has a fallback", "If it is unclear, ask.", "Ask."),
        ("has examples", "For example, a cat", "A cat"),
        ("has a fixed form of answer", "Answer with yes or no", "Answer it"),
        ("asks a question", "What is it?", "Say what it is."),
        (
            "is English",
            "Write a text for the children and give it to me",
            "Schreibe einen Text über Katzen und Hunde bitte",
        ),
    ],
)
def test_what_a_prompt_has_shows(name: str, more: str, less: str) -> None:
    assert value(more, name) > value(less, name)


def test_messages_count() -> None:
    chat = ({"role": "system", "content": "You are a pirate and talk so."}, {"role": "user", "content": "{question}"})
    assert value(chat, "messages") > 0
    assert value(chat, "instructed by the system") == 1


def test_an_empty_prompt_has_none() -> None:
    with pytest.raises(PromptError, match="empty"):
        features("")
