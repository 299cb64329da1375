"""Numbers that describe a prompt, for a policy that chooses mutations: cheap, from its structure and its words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from etude.problems.prompt.mutations.prompts import Prompt
from etude.problems.prompt.mutations.task import Task, task_of
from etude.problems.prompt.mutations.wording import any_of

WORD = re.compile(r"[^\W_]+")
SENTENCE_END = re.compile(r"[.!?。！？](?:\s|$)")

VAGUE = any_of(
    r"some|something|somehow|stuff|things?|good|nice|better|great|cool|interesting|various|several|etc|and so on|"
    r"kind of",
    r"sort of|maybe|perhaps|a bit|appropriate|relevant|useful|proper(?:ly)?|as needed|whatever|anything|help me with",
)
POLITE = any_of(r"please|kindly|thanks?|thank you|could you|would you|i would like|sorry|hello|hi|hey|hope|appreciate")
SELF = any_of(r"i|i'm|i've|my|me|we|our|us")
EXAMPLES = any_of(r"for example|e\.g\.|for instance|such as|examples?|sample|input:|output:|q:|a:")
FORMAT = any_of(
    r"json|markdown|tables?|bullets?|bullet points?|csv|yaml|xml|html|format(?:ted)?|headings?|lists? of|schema|"
    r"template"
)
LENGTH = any_of(
    r"(?:words?|sentences?|paragraphs?|characters?|lines?|pages?|minutes?)",
    r"short|brief(?:ly)?|concise(?:ly)?|long|detailed|in detail|at most|no more than|up to",
)
READER = any_of(
    r"audience|readers?|tone|style|formal|casual|friendly|professional|beginners?|experts?|children|customers?"
)
SOURCES = any_of(r"sources?|cite|citations?|references?|based on|according to|evidence|context|given text|provided")
LIMITING = any_of(r"only|must|never|always|do not|don't|avoid|without|exactly|make sure|ensure|required|should")
FALLBACK = any_of(
    r"if [^.?!]{0,60}\b(?:missing|unclear|cannot|can't|not|unknown|empty|unsure|fails?|invalid|don't)",
    r"otherwise|in case|instead of|fall ?back",
)
STEPS = any_of(r"steps?|first|then|next|finally|after that|afterwards|step by step")
JOINTS = re.compile(r",\s+and\b|\band then\b|\band\b|;|,")
ROLE = any_of(r"you are|act as|your role|as an? (?:expert|senior)|pretend")
NEGATION = any_of(r"not|no|never|don't|cannot|without|avoid")

Feature = Callable[[Task], float]


def features(prompt: Prompt) -> NDArray[np.float32]:
    """float32 (len(NAMES),): shares and flags from 0 to 1, and log-scaled counts of about that size.

    PromptError if the prompt cannot be mutated.
    """
    task = task_of(prompt)
    return np.array([measure(task) for measure in FEATURES.values()], dtype=np.float32)


def _scaled(count: float, scale: float) -> float:
    """A count on a logarithmic scale on which `scale` is 1."""
    return min(2.0, math.log1p(count) / math.log1p(scale))


def _count(pattern: re.Pattern[str], scale: float) -> Feature:
    return lambda task: _scaled(len(pattern.findall(task.words)), scale)


def _has(pattern: re.Pattern[str]) -> Feature:
    return lambda task: float(pattern.search(task.words) is not None)


def _blocks(kind: str, scale: float) -> Feature:
    """Blocks at any depth."""
    return lambda task: _scaled(
        sum(leaf.kind == kind for document in task.documents for leaf in document.leaves), scale
    )


def _lists(task: Task) -> float:
    return _scaled(sum(block.kind == "list" for document in task.documents for block in document.blocks), 6)


def _inventory(name: str, scale: float) -> Feature:
    return lambda task: _scaled(sum(getattr(document.inventory, name).total() for document in task.documents), scale)


def _words_per_sentence(task: Task) -> float:
    return _scaled(len(WORD.findall(task.words)) / max(1, len(SENTENCE_END.findall(task.words))), 40)


def _repeated_words(task: Task) -> float:
    words = WORD.findall(task.words)
    return 1 - len(set(words)) / len(words) if words else 0.0


def _repeated_sentences(task: Task) -> float:
    parts = [" ".join(WORD.findall(part)) for part in SENTENCE_END.split(task.words)]
    found = [part for part in parts if part]
    return 1 - len(set(found)) / len(found) if found else 0.0


def _share_of_prose(task: Task) -> float:
    length = sum(len(document.text) for document in task.documents)
    return min(1.0, sum(len(document.prose) for document in task.documents) / length)


def _numbered(task: Task) -> float:
    items = [len(b.blocks) for d in task.documents for b in d.blocks if b.kind == "list" and b.marker[0] == "1"]
    return _scaled(sum(items), 10)


def _role_of_target(task: Task) -> float:
    return float(task.texts[task.target].role != "user")


FEATURES: Mapping[str, Feature] = {
    "characters": lambda task: _scaled(sum(len(document.text) for document in task.documents), 4000),
    "words": lambda task: _scaled(len(WORD.findall(task.words)), 600),
    "words per sentence": _words_per_sentence,
    "messages": lambda task: _scaled(len(task.texts) - 1, 10),
    "instructed by the system": _role_of_target,
    "share of prose": _share_of_prose,
    "headings": _blocks("heading", 10),
    "lists": _lists,
    "numbered items": _numbered,
    "paragraphs": _blocks("paragraph", 20),
    "quoted": _inventory("quoted", 5),
    "code": _inventory("code", 5),
    "placeholders": _inventory("placeholders", 8),
    "links": _inventory("links", 5),
    "numbers": _inventory("numbers", 15),
    "repeated words": _repeated_words,
    "repeated sentences": _repeated_sentences,
    "vague words": _count(VAGUE, 8),
    "polite words": _count(POLITE, 5),
    "words about the author": _count(SELF, 8),
    "limiting words": _count(LIMITING, 8),
    "negations": _count(NEGATION, 6),
    "step words": _count(STEPS, 5),
    "joints of clauses": _count(JOINTS, 20),
    "has a role": _has(ROLE),
    "has a format": _has(FORMAT),
    "has a length": _has(LENGTH),
    "has a reader": _has(READER),
    "has sources": _has(SOURCES),
    "has examples": _has(EXAMPLES),
    "has a fallback": _has(FALLBACK),
    "asks a question": lambda task: float("?" in task.words),
    "is English": lambda task: float(task.is_english),
    "has a fixed form of answer": lambda task: float(task.is_strict or task.wants_json),
}
NAMES = tuple(FEATURES)
"""The names of the numbers, in their order."""
