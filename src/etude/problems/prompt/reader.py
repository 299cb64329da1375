"""What a policy sees of a prompt: each sentence or the whole as an embedding, its kind, features, what was done."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.contracts.errors import ConfigError
from etude.contracts.ports import TextEncoder, Vectors
from etude.problems.prompt.features import NAMES, features
from etude.problems.prompt.kinds import KINDS, kind_of
from etude.problems.prompt.masks import cannot
from etude.problems.prompt.mutations import MUTATIONS, Prompt
from etude.problems.prompt.mutations.prompts import texts
from etude.problems.prompt.sentence_features import NAMES as SENTENCE_NAMES
from etude.problems.prompt.sentence_features import sentence_features
from etude.text.encoders import make_encoder
from etude.text.ngrams import NGramEncoder
from etude.text.sentence import sentences

Read = dict[str, NDArray[Any]]
"""What is seen of n states, as named arrays (n, …)."""
STOP = "stop"
ACTIONS = (*MUTATIONS, STOP)
KNOWN = (*(f"kind {kind}" for kind in KINDS), *NAMES)
"""Names of what is read of a prompt besides its sentences."""
SEEN = (*KNOWN, *(f"sentence: {name}" for name in SENTENCE_NAMES))
"""Names of all that is read besides embeddings."""
DONE, ENOUGH = "it was done before in this sequence", "the sequence has its maximum number of mutations"
SENTENCE = re.compile(r"(?<=[.!?:;])\s+|\s*\n\s*")
FIRST_SENTENCES, LAST_SENTENCES = 20, 12
"""Sentences that are read of a long prompt: the request is at its beginning or at its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """A prompt as it is now, and the mutations that led to it."""

    prompt: Prompt
    done: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Which mutations may be chosen: the same rules in practice and in serving."""

    max_mutations: int

    def masked(self, state: State) -> dict[str, str]:
        """The mutations that cannot be chosen now, with the reason."""
        if len(state.done) >= self.max_mutations:
            return dict.fromkeys(MUTATIONS, ENOUGH)
        reasons = ((m, DONE if m in state.done else cannot(state.prompt, m)) for m in MUTATIONS)
        return {mutation: reason for mutation, reason in reasons if reason is not None}


class PromptReader:
    """Reads prompts with one encoder."""

    def __init__(self, encoder: str, rules: Rules, *, embedding_only: bool = False) -> None:
        self.name, self.rules, self.embedding_only = encoder, rules, embedding_only

    @cached_property
    def encoder(self) -> TextEncoder:
        return prompt_encoder(self.name)

    @property
    def width(self) -> int:
        return self.encoder.width

    def read(self, states: Sequence[State], masked: Sequence[Collection[str]] | None = None) -> Read:
        """What is seen of n states; `masked` are their masked mutations, where they are known."""
        ruled_out = masked if masked is not None else [self.rules.masked(state) for state in states]
        known = self.known(states, [known_of(state.prompt) for state in states])
        vectors, places = self.sentences([state.prompt for state in states])
        return {**known, "legal": legal(ruled_out), "sentences": vectors[places]}

    def known(self, states: Sequence[State], features: Sequence[Vectors]) -> Read:
        """All but what may be chosen, and the embeddings."""
        done = [[float(mutation in state.done) for mutation in MUTATIONS] for state in states]
        return {"features": np.stack(features), "done": np.array(done, np.float32)}

    def sentences(self, prompts: Sequence[Prompt]) -> tuple[Vectors, NDArray[np.int64]]:
        """Vectors of different sentences, the first of zeros, and the sentences of each prompt (n, L).

        A vector is the embedding and the features of the sentence, (U, width + features). The whole prompt counts as
        one sentence where the policy sees its embedding alone."""
        place: dict[str, int] = {"": 0}
        rows = [[place.setdefault(s, len(place)) for s in self._sentences(prompt)] for prompt in prompts]
        table = np.zeros((len(rows), max(1, max(map(len, rows), default=1))), np.int64)
        for row, found in zip(table, rows, strict=True):
            row[: len(found)] = found
        vectors = self.embed(list(place))
        return (vectors if self.embedding_only else self._with_features(vectors, list(place))), table

    def alone(self, embedding: Vectors) -> Vectors:
        """An embedding without its text, as a sentence whose features are not known."""
        unknown = 0 if self.embedding_only else len(SENTENCE_NAMES)
        return np.concatenate([embedding, np.full(unknown, np.nan, np.float32)])

    def _with_features(self, vectors: Vectors, sentences: Sequence[str]) -> Vectors:
        none = np.zeros(len(SENTENCE_NAMES), np.float32)
        found = np.stack([sentence_features(one) if one else none for one in sentences])
        return np.concatenate([vectors, found], 1)

    def _sentences(self, prompt: Prompt) -> list[str]:
        if self.embedding_only:
            return [text_of(prompt)]
        found = [part for part in SENTENCE.split(text_of(prompt)) if part]
        if len(found) > FIRST_SENTENCES + LAST_SENTENCES:
            found = found[:FIRST_SENTENCES] + found[-LAST_SENTENCES:]
        return found

    def embed(self, texts: Sequence[str]) -> Vectors:
        """(texts, width) at a length of √width, so that its elements are about as large as other inputs."""
        return sentences(self.encoder, texts) * np.float32(self.width**0.5)


def legal(masked: Sequence[Collection[str]]) -> NDArray[np.bool_]:
    """(n, actions): what is not masked; *stop* always is."""
    return np.array([[action not in own for action in ACTIONS] for own in masked])


def text_of(prompt: Prompt) -> str:
    """What is written for the model, as one text."""
    return prompt if isinstance(prompt, str) else "\n\n".join(part.text for part in texts(prompt))


def known_of(prompt: Prompt) -> Vectors:
    """(len(KNOWN),) the kind, one-hot, and the features."""
    kind = kind_of(text_of(prompt))
    return np.concatenate([[float(kind == one) for one in KINDS], features(prompt)]).astype(np.float32)


def prompt_encoder(name: str) -> TextEncoder:
    """An encoder by its name; `ngrams-WIDTH` are hashed n-grams of any width."""
    base, _, width = name.partition("-")
    if base != "ngrams" or not width:
        return make_encoder(name)
    if not width.isdecimal() or not 8 <= int(width) <= 65_536:
        raise ConfigError(f"encoder {name!r}: expected a width from 8 to 65536, such as ngrams-1536")
    return NGramEncoder(int(width))
