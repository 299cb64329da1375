"""What a prompt is: a text, or chat messages. Prompts from outside are checked here, with errors that say what to "
"do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from etude.contracts.errors import PromptError

Message = Mapping[str, Any]
"""A chat message as clients send it: `role`, `content` (a text, or a list of parts of which some are texts), and any
other fields, which stay as they are."""
Prompt = str | tuple[Message, ...] | list[Message]
"""A text, Markdown or plain, or the messages of a chat."""

MAX_CHARS = 1_000_000
"""Maximum length of a prompt in characters, all messages together."""
MAX_MESSAGES = 1_000
WRITTEN_FOR_MODEL = ("system", "developer", "user")
"""Roles whose messages are instructions; what models and tools said is never changed."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """One text of a prompt, and where it is: nowhere in particular in a plain text."""

    text: str
    role: str = "user"
    message: int | None = None
    part: int | None = None


def texts(prompt: Prompt) -> tuple[Text, ...]:
    """The texts of a prompt that a mutation may change, in order. PromptError if it cannot be mutated."""
    if not isinstance(prompt, str | tuple | list):
        raise PromptError(
            f"the prompt is {type(prompt).__name__}: expected a text, or a list of messages with role and content"
        )
    if not isinstance(prompt, str) and len(prompt) > MAX_MESSAGES:
        raise PromptError(
            f"the prompt has {len(prompt):,} messages: expected at most {MAX_MESSAGES:,}; send the last ones"
        )
    found = all_texts(prompt)
    _check(found)
    return tuple(each for each in found if each.role in WRITTEN_FOR_MODEL)


def all_texts(prompt: Prompt) -> tuple[Text, ...]:
    """Every text of a prompt, without the checks of its size and characters."""
    if isinstance(prompt, str):
        return (Text(text=prompt),)
    return tuple(each for number, message in enumerate(prompt) for each in _texts_of(number, message))


def replaced(prompt: Prompt, changed: Mapping[tuple[int | None, int | None], str]) -> Prompt:
    """The prompt with some texts replaced, by their message and part; all else is the same."""
    if isinstance(prompt, str):
        return changed.get((None, None), prompt)
    found = [_message(message, number, changed) for number, message in enumerate(prompt)]
    return tuple(found) if isinstance(prompt, tuple) else found


def _texts_of(number: int, message: Any) -> Iterator[Text]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise PromptError(
            f"message {number} of the prompt is {message!r:.60}: expected an object with role and content"
        )
    role, content = message["role"], message.get("content")
    if isinstance(content, str):
        yield Text(text=content, role=role, message=number)
    elif isinstance(content, list | tuple):
        for place, part in enumerate(content):
            if isinstance(part, Mapping) and isinstance(part.get("text"), str):
                yield Text(text=part["text"], role=role, message=number, part=place)
    elif content is not None:
        raise PromptError(
            f"message {number} of the prompt has the content {content!r:.60}: expected a text, a list of parts, or null"
        )


def _check(found: tuple[Text, ...]) -> None:
    length = sum(len(each.text) for each in found)
    if length > MAX_CHARS:
        raise PromptError(
            f"the prompt has {length:,} characters: expected at most {MAX_CHARS:,}; leave the data out and mutate "
            f"the "
            "instructions alone, with a placeholder such as {document} where the data goes"
        )
    if not any(each.text.strip() for each in found if each.role in WRITTEN_FOR_MODEL):
        raise PromptError("the prompt is empty: give a text, or a message of a user or of the system that has one")
    for each in found:
        _check_characters(each)


def _check_characters(each: Text) -> None:
    where = "the prompt" if each.message is None else f"message {each.message} of the prompt"
    at = each.text.find("\0")
    if at >= 0:
        raise PromptError(f"{where} is binary: it has a NUL at character {at}; give the text that it holds")
    try:
        each.text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{where} has half a surrogate pair at character {error.start}: decode it as UTF-8, or as UTF-16 in pairs"
        ) from error


def _message(message: Message, number: int, changed: Mapping[tuple[int | None, int | None], str]) -> Message:
    if (number, None) in changed:
        return {**message, "content": changed[number, None]}
    places = {part: text for (at, part), text in changed.items() if at == number and part is not None}
    if not places:
        return message
    content = [
        {**part, "text": places[place]} if place in places else part for place, part in enumerate(message["content"])
    ]
    return {**message, "content": content if isinstance(message["content"], list) else tuple(content)}
