"""Parameters of a task type: found by patterns, converted, completed and checked."""

from __future__ import annotations

from typing import Any

import pytest

from etude.contracts.work import Fault, WorkerError
from etude.orchestrator.parameters import Parameters

PROPERTIES: dict[str, Any] = {
    "count": {"type": "integer", "minimum": 1},
    "share": {"type": ["number", "null"]},
    "loud": {"type": "boolean", "default": False},
    "language": {"type": "string", "enum": ["French", "German"]},
    "tags": {"type": "array"},
}
PATTERNS = {
    "count": r"top (\w+)",
    "share": r"([\d.]+) of it",
    "loud": r"loud: (\w+)",
    "language": r"into (\w+)",
    "tags": r"tags (\[.*?\])",
}


def parameters(*required: str, **patterns: str) -> Parameters:
    schema = {"type": "object", "properties": PROPERTIES, "required": list(required)}
    return Parameters(schema, patterns=patterns or PATTERNS)


def refusal(of: Parameters, instruction: str) -> str:
    with pytest.raises(WorkerError) as refused:
        of.completed(of.found_in(instruction))
    assert (refused.value.fault, refused.value.cost_usd) == (Fault.WRONG_INPUT, 0.0)
    return str(refused.value)


def test_patterns_fill_parameters_of_every_type() -> None:
    of = parameters("count")
    found = of.found_in('Top 3, 0.5 of it, loud: Yes, into French, tags ["a", 1]')
    assert found == {"count": 3, "share": 0.5, "loud": True, "language": "French", "tags": ["a", 1]}
    assert of.completed(found) == found
    assert of.completed({"count": 2}) == {"count": 2, "loud": False}
    assert of.always_set == {"count", "loud"}


def test_a_group_that_does_not_take_part_sets_nothing() -> None:
    assert parameters(count=r"top(?: (\d+))?").found_in("the top of it") == {}


@pytest.mark.parametrize(
    ("instruction", "reported"),
    [
        (
            "List the words",
            r"it needs the parameter 'count', and the instruction does not say it: say it in words that",
        ),
        ("List the top ten", "the parameter 'count' is 'ten' in the instruction: expected integer"),
        ("List the top 0", "$.count: 0 is less than the minimum of 1"),
        ("List the top 3 into Latin", "$.language: 'Latin' is not one of"),
        ("List the top 3, loud: perhaps", "'loud' is 'perhaps' in the instruction: expected boolean"),
        ("List the top 3 with tags [x]", "'tags' is '[x]' in the instruction: expected array"),
    ],
)
def test_what_is_missing_or_wrong_is_named(instruction: str, reported: str) -> None:
    assert reported in refusal(parameters("count"), instruction)


def test_what_no_pattern_can_find_says_so() -> None:
    assert "declare a pattern for it, or give it a default" in refusal(parameters("language", count="top (.)"), "x")


def test_an_answer_of_a_model_is_read_for_what_is_declared() -> None:
    of = parameters()
    assert of.read_answer('```json\n{"count": 3, "language": null, "more": 1}\n```', 0.1) == {"count": 3}
    for nonsense in ("I do not know", "[1]", ""):
        with pytest.raises(WorkerError, match="expected a JSON object") as refused:
            of.read_answer(nonsense, 0.1)
        assert (refused.value.fault, refused.value.cost_usd) == (Fault.INVALID_OUTPUT, 0.1)
