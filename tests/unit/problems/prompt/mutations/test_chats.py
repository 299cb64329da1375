"""Chats keep their shape, and mutations change the message that instructs."""

from __future__ import annotations

from typing import Any

import pytest

from etude.problems.prompt.mutations import MUTATIONS, mutate

SYSTEM = {"role": "system", "content": "You are a support agent for Acme. Please answer the question of the customer."}
TEMPLATE = {"role": "user", "content": "{question}"}
REQUEST = {"role": "user", "content": "Write a function that reverses a string.", "name": "ana"}
TOOL = {"role": "tool", "content": "Please ``` do 3 things", "tool_call_id": "1"}
CALL: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}


def test_a_message_that_is_a_placeholder_is_not_the_one_that_instructs() -> None:
    found = mutate((SYSTEM, TEMPLATE), "expansion").prompt
    assert isinstance(found, tuple)
    assert found[1] == TEMPLATE
    assert str(found[0]["content"]).startswith(SYSTEM["content"])


def test_the_last_request_of_a_user_is() -> None:
    found = mutate((SYSTEM, REQUEST, CALL, TOOL), "expansion").prompt
    assert isinstance(found, tuple)
    assert found[0] == SYSTEM
    assert found[1]["name"] == "ana"
    assert found[1]["content"] != REQUEST["content"]
    assert found[2] is CALL
    assert found[3] is TOOL


def test_parts_stay_parts() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/x.png"}}
    chat = [{"role": "user", "content": [{"type": "text", "text": "Please describe the picture in 3 words."}, image]}]
    found = mutate(chat, "context-reduction")
    assert found.prompt == [
        {"role": "user", "content": [{"type": "text", "text": "Describe the picture in 3 words."}, image]}
    ]
    assert found.revert() == chat
    assert [(edit.message, edit.part) for edit in found.edits] == [(0, 0)]
    assert "message 0 (user)" in found.diff()


def test_reduction_reads_every_message_of_people_and_none_of_models_and_tools() -> None:
    polite = {"role": "assistant", "content": "Please wait. Thanks!"}
    found = mutate((SYSTEM, REQUEST, polite, TOOL), "context-reduction")
    assert [edit.message for edit in found.edits] == [0]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_messages_given_are_not_changed(mutation: str) -> None:
    chat = (dict(SYSTEM), dict(REQUEST))
    mutate(chat, mutation)
    assert chat == (SYSTEM, REQUEST)
