"""Numbers that describe a prompt, for a policy that chooses mutations: cheap, from its structure and its words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np

from etude.problems.prompt.mutations.document import Document
from etude.problems.prompt.mutations.prompts import Prompt
from etude.problems.prompt.mutations.task import Task, task_of

Array = np.ndarray
WORD = re.compile(r"[^\W_]+")
VAGUE = re.compile(
    r"\b(?:some|something|somehow|stuff|things?|good|nice|better|great|interesting|various|several|etc|and so on|kind of|"
    r"sort of|maybe|perhaps|a bit|appropriate|relevant|useful|proper(?:ly)?|as needed)\b"
)
POLITE = re.compile(r"\b(?:please|kindly|thanks?|thank you|could you|would you|i would like|sorry|hello|hi|hope)\b")
EXAMPLE = re.compile(r"\b(?:for example|e\.g\.|for instance|such as|examples?|input:|output:|q:|a:)")
FORMAT = re.compile(r"\b(?:json|markdown|table|bullets?|bullet points?|csv|yaml|xml|html|format|list of|headings?)\b")
LENGTH = re.compile(
    r"\b(?:words?|sentences?|paragraphs?|characters?|lines?|pages?|short|brief|concise|long|detailed)\b"
)
LIMITING = re.compile(
    r"\b(?:only|must|never|always|do not|don't|avoid|without|at most|at least|no more than|exactly)\b"
)
FALLBACK = re.compile(
    r"\bif\b[^.?!]{0,60}\b(?:missing|unclear|cannot|not|unknown|empty|unsure|fails?|invalid)\b|\botherwise\b"
)
STEPS = re.compile(r"\b(?:step|first|then|next|finally|after that|afterwards)\b")
CLAUSES = re.compile(r",\s+(?:and\s+|then\s+)?|\band\b|;|\bthen\b")
QUESTION = re.compile(r"\?")


def features(prompt: Prompt) -> Array:
    """float32 (len(NAMES),): shares and flags in [0, 1], and log-scaled counts of about that size."""
    task = task_of(prompt)
    return np.array([find(task) for find in FEATURES.values()], dtype=np.float32)


def _count(pattern: re.Pattern[str], scale: float) -> Callable[[Task], float]:
    """Occurrences, log-scaled so that `scale` of them are 1."""
    return lambda task: _scaled(len(pattern.findall(task.words)), scale)


def _scaled(count: float, scale: float) -> float:
    return min(2.0, math.log1p(count) / math.log1p(scale))


def _flag(pattern: re.Pattern[str]) -> Callable[[Task], float]:
    return lambda task: float(pattern.search(task.words) is not None)


def _blocks(*kinds: str, scale: float) -> Callable[[Task], float]:
    return lambda task: _scaled(
        sum(block.kind in kinds for document in task.documents for block in _all(document)), scale
    )


def _all(document: Document) -> tuple[object, ...]:
    return (*document.blocks, *(leaf for leaf in document.leaves if leaf not in document.blocks))


def _repetition(task: Task) -> float:
    words = WORD.findall(task.words)
    return 1 - len(set(words)) / len(words) if words else 0.0


def _repeated_sentences(task: Task) -> float:
    sentences = [" ".join(WORD.findall(part)) for part in re.split(r"[.!?]\s", task.words)]
    sentences = [sentence for sentence in sentences if sentence]
    return 1 - len(set(sentences)) / len(sentences) if sentences else 0.0


FEATURES: dict[str, Callable[[Task], float]] = {
    "characters": lambda task: _scaled(sum(len(document.text) for document in task.documents), 4000),
    "words": lambda task: _scaled(len(WORD.findall(task.words)), 600),
    "messages": lambda task: _scaled(len(task.texts) - 1, 10),
    "vague words": _count(VAGUE, 8),
    "polite words": _count(POLITE, 5),
}
NAMES = tuple(FEATURES)
