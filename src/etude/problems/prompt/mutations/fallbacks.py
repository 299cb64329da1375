"""try-catch-style: what to do when something is missing or goes wrong, fit for the kind of prompt.

Idempotent: a prompt that already says so is left as it is.
"""

from __future__ import annotations

import re

from etude.problems.prompt.mutations.additions import addition
from etude.problems.prompt.mutations.edits import Edit
from etude.problems.prompt.mutations.task import Task

NAME = "try-catch-style"
LEADS = (
    "If something is missing or goes wrong",
    "Fallbacks, where the task cannot be done as described",
    "When this cannot be done as asked",
)
TITLES = ("If something goes wrong", "Fallbacks", "When this cannot be done as asked")
PRESENT = re.compile(
    r"\bif (?:you|it|that|this|they|there|the|a|an|any|no|some|something|nothing|none|information|data)\b[^.?!]{0,60}?"
    r"(?:\bnot sure\b|\bunsure\b|\bdon't know\b|\bdo not know\b|\bcannot\b|\bcan't\b|\bunable\b|\bmissing\b|\bunclear\b|"
    r"\bambiguous\b|\bunknown\b|\bnot (?:found|available|present|given|possible|in the|contain|provided|clear|certain)\b|"
    r"\bempty\b|\bfails?\b|\binvalid\b|\bgoes wrong\b|\bisn't\b|\baren't\b|\bdoesn't\b|\bdoes not\b|\bno answer\b|\black)"
    r"|\b(?:fall ?back|in case of (?:doubt|error)|when in doubt|instead of guessing|do not guess|don't guess|"
    r"never guess|do not make up|don't make up|do not invent|say (?:that )?you (?:do not|don't) know|"
    r"if (?:unsure|uncertain|unclear|not possible|in doubt|none|nothing|not found|missing))\b"
)


def plan(task: Task) -> tuple[Edit, ...] | str:
    """The edits, or the reason why there are none."""
    present = PRESENT.search(task.words)
    if present or any(lead.lower() in task.words for lead in (*LEADS, *TITLES)):
        return "it already says what to do when something is missing or goes wrong"
    chosen = TITLES.index(task.pick(TITLES))
    items = tuple(task.pick(options) for options in ITEMS.get(task.kind, ITEMS["other"]))
    return (addition(task.document, LEADS[chosen], items, title=TITLES[chosen]),)


ITEMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "other": (
        ("If something that you need is missing, say what it is, and do the rest with a stated assumption.",),
        ("If it cannot be done as asked, say why in one sentence, and give the closest result that can.",),
    ),
}
