"""A language model as the judge of prompts, at any OpenAI-compatible URL: which of two is better, or how good one is.

Two prompts are shown in both orders, since judges prefer a place. Where the service gives the probabilities of its
tokens they are the answer, so that a judge that is not sure says so; else the text is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from etude.contracts.errors import ConfigError, EndpointError
from etude.problems.prompt.mutations import Prompt
from etude.problems.prompt.reader import text_of
from etude.text.service import JsonService

PAIR = """Two prompts ask a language model for the same thing. Decide which prompt will get the better answer: it \
should be clear, complete and no longer than it needs to be.

Prompt A:
<<<
{a}
>>>

Prompt B:
<<<
{b}
>>>

Which prompt is better? Reply with one letter, A or B."""
SINGLE = """Rate how good an answer a language model will give to this prompt, from 1 (poor) to 9 (excellent). A good \
prompt is clear, complete and no longer than it needs to be.

Prompt:
<<<
{a}
>>>

Reply with one digit."""
MAX_CHARS = 6_000
"""Characters of a prompt that a judge reads: half of them at its beginning, half at its end."""
REFUSED = "status 4"
"""How a service that does not know a field answers."""


class Judge:
    """`calls` counts the requests that were answered."""

    def __init__(self, named: str, *, api_key: str | None = None, timeout_s: float = 120.0) -> None:
        url, _, model = named.partition("#")
        if not url or not model or not model.isprintable():
            raise ConfigError(
                f"judge is {named.partition('?')[0]!r}: expected URL#MODEL, such as http://localhost:11434/v1#qwen3"
            )
        self._service = JsonService(
            url, "/chat/completions", of="a language model", api_key=api_key, timeout_s=timeout_s
        )
        self.model, self.calls = model, 0
        self._gives_probabilities = True

    def compare(self, a: Prompt, b: Prompt) -> float:
        """How sure the judge is that `a` is better, from 0 to 1: the mean over both orders."""
        one, other = _cut(text_of(a)), _cut(text_of(b))
        first = self._share(PAIR.format(a=one, b=other), "AB")
        second = self._share(PAIR.format(a=other, b=one), "AB")
        return (first + 1 - second) / 2

    def score(self, prompt: Prompt) -> float:
        """How good a prompt is, from 0 to 1."""
        found = self._probabilities(SINGLE.format(a=_cut(text_of(prompt))), "123456789")
        total = sum(found.values())
        return sum((int(digit) - 1) / 8 * p for digit, p in found.items()) / total if total else 0.5

    def _share(self, asked: str, letters: str) -> float:
        """The probability of the first of two letters; one half where neither was said."""
        found = self._probabilities(asked, letters)
        total = sum(found.values())
        return found[letters[0]] / total if total else 0.5

    def _probabilities(self, asked: str, among: str) -> dict[str, float]:
        """Of each of the characters, as the first of the answer."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": asked}],
            "max_tokens": 1 if self._gives_probabilities else 4,
            "temperature": 0,
        }
        try:
            reply = self._asked({**body, "logprobs": True, "top_logprobs": 20} if self._gives_probabilities else body)
        except EndpointError as error:
            if not self._gives_probabilities or REFUSED not in str(error):
                raise
            self._gives_probabilities = False
            return self._probabilities(asked, among)
        return _said(reply, among)

    def _asked(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        data = self._service.post(body)
        try:
            choice = json.loads(data)["choices"][0]
            if not isinstance(choice["message"]["content"], str | None):
                raise TypeError("content is no text")
        except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
            shown = self._service.readable(data)
            raise EndpointError(f"{self._service.shown} answered {shown!r}: expected a chat completion") from error
        self.calls += 1
        return dict(choice)


def _said(choice: Mapping[str, Any], among: str) -> dict[str, float]:
    """From the probabilities of the first token where there are any, else from the text."""
    found = dict.fromkeys(among, 0.0)
    for token, log_prob in _first_token(choice):
        name = token.strip().upper()
        if name in found:
            found[name] += math.exp(min(0.0, log_prob))
    if sum(found.values()) > 0:
        return found
    text = (choice["message"]["content"] or "").strip(" \n\t*\"'`(.").upper()
    if text[:1] in found and not text[1:2].isalnum():
        found[text[0]] = 1.0
    return found


def _first_token(choice: Mapping[str, Any]) -> Sequence[tuple[str, float]]:
    try:
        first = choice["logprobs"]["content"][0]
        return [(str(one["token"]), float(one["logprob"])) for one in first["top_logprobs"]]
    except (KeyError, IndexError, TypeError, ValueError):
        return ()


def _cut(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[: MAX_CHARS // 2]}\n[…]\n{text[-MAX_CHARS // 2 :]}"
