from __future__ import annotations

import json
from pathlib import Path

import pytest

from etude.contracts.errors import DataError
from etude.problems.prompt.data import read_prompts
from etude.problems.prompt.kinds import KINDS
from etude.problems.prompt.masks import cannot
from etude.problems.prompt.mutations import MUTATIONS, mutate
from etude.problems.prompt.reader import State
from etude.problems.prompt.rewards import RULES, RuleRewards, score

EXTRACTION = "Extract the invoice number, the date and the total from the text below."


def test_every_kind_has_a_rule_for_every_mutation() -> None:
    assert set(RULES) == set(KINDS)
    assert all(set(RULES[kind]) == {*MUTATIONS, "words"} for kind in KINDS)


def test_a_mutation_that_the_kind_needs_is_worth_more_than_one_that_it_does_not() -> None:
    rewards = RuleRewards(mutation_cost=0.05)

    def reward(text: str, mutation: str) -> float:
        assert cannot(text, mutation) is None
        return rewards(0, State(prompt=text), mutation, lambda: State(prompt=mutate(text, mutation).prompt))

    assert reward(EXTRACTION, "try-catch-style") > 0.5
    assert reward("Write a short story about a lamp that cannot sleep.", "try-catch-style") < 0


def test_a_text_that_is_too_long_scores_less() -> None:
    text = f"{EXTRACTION} " + " ".join(f"The {word} of the order is in its line {word}." for word in range(60))
    longer = text + " " + " ".join(f"The {word} of the order is in its row {word}." for word in range(60))
    assert score(longer, "extraction") < score(text, "extraction")


def test_a_file_has_texts_and_objects_and_no_prompt_twice(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [f"Write about number {i}." for i in range(10)]
    chat = [{"role": "user", "content": "Say hello."}]
    rows = [*map(json.dumps, lines), json.dumps({"prompt": lines[0], "id": 7}), "", json.dumps({"prompt": chat})]
    path.write_text("\n".join(rows))
    assert read_prompts(path) == [*lines, chat]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1 is no JSON"),
        ("3", "line 1 is 3: expected"),
        ('{"text": "a"}', "expected a text, or an object with prompt"),
        ('{"prompt": ""}', "line 1: the prompt is empty"),
        ('[{"content": 3}]', "line 1: message 0 of the prompt"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=message):
        read_prompts(path)


def test_too_few_prompts_and_no_file_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    with pytest.raises(DataError, match="cannot be read"):
        read_prompts(path)
    path.write_text('"one"\n"two"\n')
    with pytest.raises(DataError, match="has 2 different prompts"):
        read_prompts(path)
