"""What the words of a prompt say about its answer; patterns over words in lower case on one line."""

from __future__ import annotations

import re


def any_of(*patterns: str) -> re.Pattern[str]:
    """One of the patterns, as whole words."""
    return re.compile(rf"\b(?:{'|'.join(patterns)})(?!\w)")


def words(text: str) -> frozenset[str]:
    """A set of words, written as a text."""
    return frozenset(text.split())


ANSWER_VERBS = "(?:answer|respond|reply|return|output|give|produce|provide|print|write|say|generate)"

WANTS_JSON = any_of(
    rf"{ANSWER_VERBS}\b[^.]{{0,60}}\bjson",
    r"(?:as|in|valid|only|strict|into|to) (?:a |an |valid |strict |pure )*json",
    r"json (?:only|object|array|schema|with|format)",
)
STRICT = any_of(
    r"(?:answer|respond|reply) (?:\w+ ){0,2}?(?:only|just|exactly) (?:with|in|using|yes|by)",
    rf"{ANSWER_VERBS} (?:\w+ ){{0,2}}?(?:only|just) (?:the|an?|valid|json|one|your|its|code|yes|true)",
    rf"{ANSWER_VERBS}\b[^.,;:]{{0,40}} (?:only|alone|and nothing else)(?=[.!]|$)",
    r"only (?:return|output|print)|only (?:respond|reply|answer|write|give) (?:with|the|yes|in)|nothing (?:else|but)",
    r"(?:no|without|do not (?:add|include|give)|don't (?:add|include|give)) (?:an? |any )?"
    r"(?:explanations?|other text|preamble|additional text|extra text|comments?|commentary)",
    r"(?:one|single)[- ]word|(?:with|in) one word|exactly one (?:word|label|letter)|yes or no",
)
"""The answer is of one fixed form, and nothing may be put around it."""

MADE = {
    "code": (
        "function component class script query endpoint api module page hook test parser server schema program app "
        "regex migration stylesheet command website form"
    ),
    "writing": (
        "email letter article essay story poem tweet post caption headline description slogan tagline speech "
        "review bio "
        "newsletter announcement text script reply title invitation"
    ),
    "planning": "plan roadmap schedule itinerary strategy timeline agenda curriculum checklist outline routine",
}
MAKING = (
    r"\b(?:write|create|make|draft|build|design|implement|compose|generate|develop|prepare|give me|need|want|craft|"
    r"produce|"
    r"code|fix|refactor|debug|rewrite|improve|propose|add|optimi[sz]e|test|review|rephrase|proofread|edit|polish)\b"
)
JOINING = "with|for|of|that|which|about|to|in|on|from|using|and|or|by|when|where|is|are|has"
DELIVERABLES = {
    kind: re.compile(rf"{MAKING}(?: (?!(?:{JOINING})\b)[\w'/.+-]+){{0,6}}? ({'|'.join(nouns.split())})\b")
    for kind, nouns in MADE.items()
}
CHANGED = re.compile(
    r"\b(?:fix|debug|refactor|optimi[sz]e|migrate|port|convert|improve|clean up|update|modify|rename|speed up|"
    r"upgrade)\b"
)
SHOWN = frozenset({"page", "component", "app", "form", "website"})
"""What is made of code and has a face."""


def deliverable(kind: str, words: str) -> str:
    """What is to be made, in one word, such as `function`; empty where that is not plain."""
    found = DELIVERABLES[kind].search(words) if kind in DELIVERABLES else None
    return found[1] if found else ""
