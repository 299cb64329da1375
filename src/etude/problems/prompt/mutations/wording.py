"""What the words of a prompt say about its answer; patterns over words in lower case on one line."""

from __future__ import annotations

import re


def any_of(*patterns: str) -> re.Pattern[str]:
    """One of the patterns, as whole words."""
    return re.compile(rf"\b(?:{'|'.join(patterns)})(?!\w)")


ANSWER_VERBS = "(?:answer|respond|reply|return|output|give|produce|provide|print|write|say|generate)"

WANTS_JSON = any_of(
    rf"{ANSWER_VERBS}\b[^.]{{0,60}}\bjson",
    r"(?:as|in|valid|only|strict|into|to) (?:a |an |valid |strict |pure )*json",
    r"json (?:only|object|array|schema|with|format)",
)
STRICT = any_of(
    rf"{ANSWER_VERBS}\b[^.]{{0,40}}\b(?:only|just|nothing (?:else|but)|(?:one|single) word|exactly one|alone)",
    r"only (?:return|output|respond|reply|answer|print|give|the)",
    r"(?:no|without|do not (?:add|include|give)|don't (?:add|include|give)) (?:an? |any )?"
    r"(?:explanations?|other text|preamble|additional text|comments?|commentary)",
    r"(?:one|single)[- ]word (?:answer|reply|response)",
    r"yes or no",
)
"""The answer is of one fixed form, and nothing may be put around it."""

MADE = {
    "code": (
        "function component class script query endpoint api module page hook test parser server schema program app "
        "regex migration stylesheet workflow command"
    ),
    "writing": (
        "email letter article essay story poem tweet post caption headline description slogan tagline speech review bio "
        "newsletter announcement text script reply title invitation"
    ),
    "planning": "plan roadmap schedule itinerary strategy timeline agenda curriculum checklist budget outline routine",
}
DELIVERABLES = {
    kind: re.compile(rf"\b(?:an?|the|my|our|this|me)\b(?: [\w'/.+-]+){{0,5}}? ({'|'.join(nouns.split())})\b")
    for kind, nouns in MADE.items()
}


def deliverable(kind: str, words: str) -> str:
    """What is to be made, in one word, such as `function`; empty where that is not plain."""
    found = DELIVERABLES[kind].search(words) if kind in DELIVERABLES else None
    return found[1] if found else ""
