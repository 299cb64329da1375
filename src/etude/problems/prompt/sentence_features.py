"""Numbers that describe one sentence of a prompt: what it does there, by how it is built and by common words.

Embeddings say what a sentence is about. Whether it asks, adds a task, sets a limit, or says what to do when something
goes wrong shows in closed classes of words — conjunctions, connectives, modals, quantities — and in how it begins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from etude.problems.prompt import features
from etude.problems.prompt.kinds import KINDS, kind_probabilities
from etude.problems.prompt.mutations import constraints, expansion, fallbacks
from etude.problems.prompt.mutations.sentences import verb_of
from etude.problems.prompt.mutations.wording import any_of

MARK = re.compile(r"^[-*+>#\s]*(?:\d+[.)]\s+)?")
"""What a line of Markdown may begin with."""

CONDITIONS = (
    r"if|unless|whenever|wherever|when|where|should|in case|in the event|once|as (?:soon|long) as|provided|assuming|"
    r"suppose|supposing|otherwise|failing|lest|except|until|even if|had|were"
)
CONDITION = any_of(
    r"if|unless|whenever|wherever|in case|in the event|provided that|otherwise|should (?:it|you|the|any)"
)
SEQUELS = (
    r"and|also|too|besides|moreover|furthermore|additionally|in addition|on top|plus|likewise|similarly|then|next|"
    r"after(?:wards?)?|subsequently|thereafter|later|lastly|finally|meanwhile|while|simultaneously|at the same time|"
    r"once|when (?:done|finished|ready)|apart from|aside from|beyond|along with|together with|another|second(?:ly)?|"
    r"third(?:ly)?|last|further"
)
SEQUEL = any_of(
    r"also|too|as well|besides|moreover|furthermore|additionally|in addition|on top|then|next|afterwards?|"
    r"subsequently|thereafter|later|finally|lastly|meanwhile|another|while|once"
)
BOUND = any_of(
    r"at (?:most|least)|(?:no|not) (?:more|less|fewer|longer|later|earlier)|more than|less than|fewer|under|below|"
    r"above|over|up to|within|maximum|minimum|max|min|exactly|precisely|between|limit(?:s|ed)?|only|just|alone|"
    r"nothing|none|without|each|every|per|in total|altogether|until|before|beyond|exceed(?:s|ing)?|stick to|keep|stay"
)
MODAL = any_of(r"must|may|should|shall|has to|have to|needs? to|can|cannot|could|would|will|might|ought to")
BACK = any_of(r"it|its|this|that|these|those|them|they|their|the same|such|above|so|here|there")
YOU = any_of(r"you|your|yours")
PAST = any_of(r"was|were|had|did|been|has|have|\w+ed")
TROUBLE = any_of(
    r"missing|absent|unclear|unknown|unsure|uncertain|ambiguous|empty|blank|invalid|errors?|exceptions?|wrong|fail\w*|"
    r"problems?|trouble|doubt|conflict\w*|contradict\w*|inconsistent|incomplete|incorrect|unavailable|unable|"
    r"impossible|unexpected|unreadable|corrupt\w*|damaged|broken|breaks?|crash\w*|times? out|timeouts?|lacks?|"
    r"cannot|can't|could not|does not|doesn't|is not|isn't|are not|aren't|not (?:enough|found|sure|clear|possible)"
)
STYLE = any_of(
    r"tense|first person|second person|third person|voice|spelling|punctuation|grammar|vocabulary|wording|jargon|"
    r"plain|simple|formal(?:ly)?|informal(?:ly)?|tone|style|rhym(?:e|es|ing)|capitals?|abbreviations?|syllables?"
)
TIME = any_of(
    r"(?:mon|tues|wednes|thurs|fri|satur|sun)days?|today|tomorrow|tonight|yesterday|deadline|o'clock|noon|midnight|"
    r"mornings?|evenings?|seconds?|minutes?|hours?|days?|weeks?|months?|years?"
)
AMOUNT = any_of(
    r"words?|characters?|letters?|sentences?|lines?|paragraphs?|pages?|items?|points?|entries|rows?|columns?|digits?|"
    r"bytes?|kilobytes?|megabytes?|gigabytes?|percent|euros?|dollars?|pounds?|requests?|times|budget|cost|memory"
)
REACTION = any_of(
    r"say so|tell me|let me know|ask|stop|abort|halt|skip|ignore|omit|leave|report|log|raise|retry|try again|repeat|"
    r"flag|mark|warn|alert|notify|inform|mention|state|note|explain why|undo|roll back|revert|fall back|default|"
    r"instead|rather than|exit|return|point out|continue|go on|proceed"
)

Feature = Callable[[str, str], float]
"""Of a sentence, and of its words in lower case on one line without marks of Markdown."""


@lru_cache(65_536)
def sentence_features(sentence: str) -> NDArray[np.float32]:
    """float32 (len(NAMES),): flags and small counts, from 0 to 2. The same array for the same sentence."""
    words = " ".join(MARK.sub("", sentence).lower().replace("’", "'").split())
    found = [measure(sentence, words) for measure in FEATURES.values()]
    return np.array([*found, *kind_probabilities(sentence).values()], dtype=np.float32)


def _begins(words_of_beginning: str) -> Feature:
    pattern = re.compile(rf"(?:{words_of_beginning})\b")
    return lambda sentence, words: float(pattern.match(words) is not None)


def _count(pattern: re.Pattern[str]) -> Feature:
    return lambda sentence, words: min(2.0, float(len(pattern.findall(words))))


def _has(text: str) -> Feature:
    return lambda sentence, words: float(text in sentence)


def _asks(sentence: str, words: str) -> float:
    return float(bool(verb_of(MARK.sub("", sentence))))


FEATURES: Mapping[str, Feature] = {
    "words": lambda sentence, words: min(2.0, math.log1p(words.count(" ") + 1) / math.log1p(40)),
    "is short": lambda sentence, words: float(words.count(" ") < 6),
    "is an item": lambda sentence, words: float(sentence[:1] in "-*+"),
    "is a heading": _has("#"),
    "numbers": _count(re.compile(r"\d+")),
    "commas": _count(re.compile(",")),
    "semicolons": _has(";"),
    "code": _has("`"),
    "paths": _has("/"),
    "asks a question": _has("?"),
    "exclaims": _has("!"),
    "introduces": lambda sentence, words: float(sentence.endswith(":")),
    "is not whole": lambda sentence, words: float(words[-1:] not in {".", "!", "?", ":"}),
    "begins with a verb": _asks,
    "begins with a condition": _begins(CONDITIONS),
    "begins with a connective": _begins(SEQUELS),
    "conditions": _count(CONDITION),
    "connectives": _count(SEQUEL),
    "bounds": _count(BOUND),
    "modals": _count(MODAL),
    "references": _count(BACK),
    "addresses": _count(YOU),
    "past": _count(PAST),
    "trouble": _count(TROUBLE),
    "reactions": _count(REACTION),
    "style": _count(STYLE),
    "times": _count(TIME),
    "amounts": _count(AMOUNT),
    "vague words": _count(features.VAGUE),
    "polite words": _count(features.POLITE),
    "words about the author": _count(features.SELF),
    "examples": _count(features.EXAMPLES),
    "format": _count(features.FORMAT),
    "length": _count(features.LENGTH),
    "reader": _count(features.READER),
    "sources": _count(features.SOURCES),
    "limiting words": _count(features.LIMITING),
    "negations": _count(features.NEGATION),
    "steps": _count(features.STEPS),
    "role": _count(features.ROLE),
    "fallback": _count(fallbacks.PRESENT),
    **{f"constraint {name}": _count(pattern) for name, pattern in constraints.TYPES.items()},
    **{f"detail {name}": _count(pattern) for name, pattern in expansion.PRESENT.items()},
}
NAMES = (*FEATURES, *(f"kind {kind}" for kind in KINDS))
"""The names of the numbers, in their order."""
