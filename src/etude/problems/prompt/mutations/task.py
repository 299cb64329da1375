"""What a mutation is given: the text that it changes as a document, what the whole prompt asks for, and a seed."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from etude.problems.prompt.kinds import kind_of
from etude.problems.prompt.mutations.document import Document, parse
from etude.problems.prompt.mutations.prompts import Prompt, Text, texts
from etude.problems.prompt.mutations.wording import CHANGED, SHOWN, STRICT, WANTS_JSON, any_of, deliverable, words

T = TypeVar("T")

INPUT_NAME = re.compile(
    r"\{\{?\s*([A-Za-z][A-Za-z_ ]{2,30})\s*\}?\}|</?([A-Za-z][A-Za-z_-]{2,30})>|\[([A-Z][A-Z_ ]{2,30})\]"
)
MAX_NAME_WORDS = 3
ENGLISH = words(
    "a about all an and any are as at be by can do each for from give has have how i if in into is it make me "
    "my no not of on or our please should than that the this to us use we what when which who why will with "
    "write you your"
)
ENGLISH_SHARE = 0.12
MIN_LANGUAGE_WORDS = 8
LATIN = 0x24F
"""The last letter of the extended Latin alphabet."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A prompt that is about to be mutated."""

    texts: tuple[Text, ...]
    target: int
    """Which of the texts instructs: additions go there."""
    documents: tuple[Document, ...]
    """One per text."""
    seed: int = 0

    @property
    def document(self) -> Document:
        return self.documents[self.target]

    @cached_property
    def words(self) -> str:
        """The author's own words in all texts, in lower case, on one line."""
        return " ".join(document.lowered for document in self.documents)

    @cached_property
    def kind(self) -> str:
        return kind_of("\n".join(document.prose for document in self.documents))

    @cached_property
    def deliverable(self) -> str:
        """What is to be made, in one word; empty where that is not plain."""
        return deliverable(self.kind, self.words)

    @cached_property
    def way(self) -> str:
        """The kind; of code, whether it is made, changed, or has a face."""
        if self.kind == "code" and CHANGED.search(self.words):
            return "change of code"
        return "interface" if self.kind == "code" and self.deliverable in SHOWN else self.kind

    @cached_property
    def is_english(self) -> bool:
        """Whether the words are English as far as can be seen; very short prompts count as English."""
        words = re.findall(r"[^\W\d_]+", self.words)
        if len(words) < MIN_LANGUAGE_WORDS:
            return not any(ord(letter) > LATIN for letter in self.words)
        return sum(word in ENGLISH for word in words) >= ENGLISH_SHARE * len(words)

    @cached_property
    def input_name(self) -> str:
        """What the prompt works on, by the name of its first placeholder: `the customer message`; else empty."""
        for document in self.documents:
            for match in INPUT_NAME.finditer(document.text):
                words = re.split(r"[_\s-]+", next(filter(None, match.groups())).strip().lower())
                if words[-1] in INPUTS and len(words) <= MAX_NAME_WORDS:
                    return " ".join(words)
        return ""

    @cached_property
    def has_material(self) -> bool:
        """Whether the prompt comes with something to work on: a placeholder, a quotation, or a text that it names."""
        quoted = any(document.has_quotes for document in self.documents)
        return quoted or bool(self.input_name) or MATERIAL.search(self.words) is not None

    @cached_property
    def wants_json(self) -> bool:
        return not (self.kind == "code" and self.deliverable) and WANTS_JSON.search(self.words) is not None

    @cached_property
    def is_strict(self) -> bool:
        """Whether the answer has one fixed form that nothing may be put around."""
        return STRICT.search(self.words) is not None

    def column(self, count: int) -> int:
        """The same of several phrasings in rows that belong together."""
        return random.Random(self.seed).randrange(count)

    def pick(self, options: Sequence[T]) -> T:
        """One of several phrasings, by the seed."""
        return options[random.Random(f"{self.seed}{options[0]!r:.20}").randrange(len(options))]


INPUTS = words(
    "abstract article chat code comment content context contract conversation data description diff doc "
    "document documents email feedback history input invoice issue letter log logs mail message notes page "
    "passage post query question report request resume review snippet story text thread ticket transcript"
)
"""Last words of placeholders that name what a prompt works on, not a setting such as {tone}."""


def task_of(prompt: Prompt, *, seed: int = 0) -> Task:
    """PromptError if the prompt cannot be mutated."""
    found = texts(prompt)
    documents = tuple(parse(each.text) for each in found)
    return Task(texts=found, target=_target(found, documents), documents=documents, seed=seed)


def _target(found: Sequence[Text], documents: Sequence[Document]) -> int:
    """The last text of a user that says more than data does, else the first of the system."""
    if len(found) == 1:
        return 0
    users = [number for number, each in enumerate(found) if each.role == "user" and _instructs(documents[number])]
    if users:
        return users[-1]
    return next((number for number, document in enumerate(documents) if _instructs(document)), len(found) - 1)


def _instructs(document: Document) -> bool:
    """Whether there are words besides placeholders, labels and data."""
    text = document.prose
    return len(re.findall(r"[^\W\d_]{2,}", WITHOUT.sub(" ", text))) >= MIN_WORDS


MATERIAL = any_of(
    r"(?:context|text|document|documents|passage|article|transcript|manual|faq|knowledge base|sources?) ?:",
    r"(?:the|this|following|given|these|provided) (?:context|text|documents?|passage|article|transcript|report|"
    r"material)",
)
MIN_WORDS = 3
WITHOUT = re.compile(r"\{[^{}]*\}|<[^<>]*>|\[[^\[\]]*\]|^\s*[\w ]{1,30}:", re.M)
