"""Tools that workers.yaml names. Each takes a subtask and returns its output."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

ABBREVIATION = re.compile(r"\b(Dr|Mr|Mrs|St|No|e\.g|i\.e)\.$")


def text_of(inputs: Any) -> str:
    """What a subtask works on: the output of the subtask before it, or the input of the workflow."""
    return "\n".join(str(given.output) for given in inputs)


def unique(inputs: Any) -> str:
    return "\n".join(dict.fromkeys(text_of(inputs).splitlines()))


def search(inputs: Any, word: str) -> str:
    """The lines that contain a word; `word` is a parameter, found in the instruction."""
    return "\n".join(line for line in text_of(inputs).splitlines() if word.lower() in line.lower())


def frequent(inputs: Any, count: int = 3) -> str:
    words = Counter(re.findall(r"\w+", text_of(inputs).lower()))
    return "\n".join(sorted(words, key=lambda word: (-words[word], word))[:count])


def up_to_full_stop(inputs: Any) -> str:
    """Cheap, and wrong where a full stop does not end the sentence, as in "Dr. Lund" or "3.5 km"."""
    return text_of(inputs).partition(".")[0] + "."


def split_sentences(inputs: Any) -> str:
    """More expensive, and knows abbreviations and numbers."""
    sentence = ""
    for part in re.split(r"(?<=[.!?])\s+", text_of(inputs)):
        sentence = f"{sentence} {part}".strip()
        if not ABBREVIATION.search(sentence):
            break
    return sentence
