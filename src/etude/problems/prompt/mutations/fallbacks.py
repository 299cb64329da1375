"""try-catch-style: what to do when something is missing or goes wrong, fit for the kind of prompt.

Idempotent: a prompt that says so already is left as it is.
"""

from __future__ import annotations

from etude.problems.prompt.mutations.additions import addition, is_short
from etude.problems.prompt.mutations.edits import Edit
from etude.problems.prompt.mutations.task import Task
from etude.problems.prompt.mutations.wording import any_of

NAME = "try-catch-style"
TITLES = ("If something goes wrong", "Fallbacks", "When this cannot be done as asked")
LEADS = (
    "If something is missing or goes wrong",
    "Fallbacks, for what may be missing or go wrong",
    "When this cannot be done as asked",
)
SHORT_ITEMS = 2
"""How many a prompt of one short paragraph gets."""

FAILS = (
    r"(?:not sure|unsure|don't know|do not know|cannot|can't|unable|missing|unclear|ambiguous|unknown|empty|fails?|"
    r"invalid|impossible|goes wrong|isn't|aren't|doesn't|does not|do not|no answer|lacks?|"
    r"incomplete|contradicts?|fits|"
    r"not (?:found|available|present|given|possible|in|contain|provided|clear|certain|fit|covered|known|stated))"
)
PRESENT = any_of(
    rf"if (?:you|it|that|this|they|there|the|an?|any|no|not|none|some|something|nothing|part|more|two|data|details|"
    rf"tone|only)\b"
    rf"[^.?!]{{0,70}}?\b{FAILS}",
    r"if (?:not everything|unsure|uncertain|unclear|impossible|in doubt|none|nothing|missing)",
    r"(?:when|if) in doubt|fall ?backs?|in case of (?:doubt|errors?)|instead of guessing|rather than guess(?:ing)?",
    r"(?:do not|don't|never) (?:guess|invent|make up|fabricate)",
    r"say (?:that )?you (?:do not|don't) know",
    r"when this cannot be done",
)


def plan(task: Task) -> tuple[Edit, ...] | str:
    """The edits, or the reason why there are none."""
    if PRESENT.search(task.words):
        return "it already says what to do when something is missing or goes wrong"
    title = task.pick(TITLES)
    items = [task.pick(options).format(it=_input(task)) for options in _options(task)]
    if is_short(task.document):
        return (addition(task.document, "", items[:SHORT_ITEMS], title=title),)
    return (addition(task.document, LEADS[TITLES.index(title)], items, title=title),)


def _options(task: Task) -> tuple[tuple[str, ...], ...]:
    if task.wants_json:
        return AS_JSON
    if task.is_strict:
        return STRICT_LABEL if task.kind == "classification" else STRICT
    if task.kind == "question answering" and not task.has_material:
        return OPEN_QUESTION
    return ITEMS[task.kind]


def _input(task: Task) -> str:
    """What the prompt works on: by the name of its placeholder, else by its kind."""
    name = task.input_name
    return f"the {name}" if name and not name.endswith("s") else NOUNS.get(task.kind, "the input")


NOUNS = {
    "summary": "the text",
    "translation": "the text",
    "extraction": "the text",
    "classification": "the text",
    "analysis": "the material",
    "question answering": "the material",
}

AS_JSON = (
    (
        "If a value is unknown or missing, use null for it instead of guessing, and keep the output valid JSON.",
        "If a value cannot be determined, set it to null; never guess, and never leave a key out.",
    ),
    (
        "If {it} is empty or cannot be read, return the same structure with null values and empty lists.",
        "If {it} is empty or unreadable, still return the same structure, filled with null.",
    ),
)
STRICT = (
    (
        "If part of {it} cannot be handled, do the rest and leave that part as it is, in the same format.",
        "If something in {it} is unclear, take the most common reading and keep to the format.",
    ),
    (
        "If {it} is missing or empty, return an empty result in the same format.",
        "If there is nothing to work on because {it} is missing, answer in the same format with an empty result.",
    ),
)
STRICT_LABEL = (
    (
        "If more than one answer fits, give the one that the most evidence speaks for.",
        "If the evidence is unclear between two answers, choose the one with the stronger evidence.",
    ),
    (
        "If none of the allowed answers fits, give the closest allowed one, in the same format.",
        "If {it} is empty or no answer fits, give the closest allowed answer; do not invent a new one.",
    ),
)
OPEN_QUESTION = (
    (
        "If you do not know the answer for certain, say so plainly instead of guessing.",
        "If the answer is not known, or disputed, say so, and name what is established.",
    ),
    (
        "If the question is ambiguous, name the readings in one line and answer the most likely one.",
        "If the question is unclear, say how you understood it before you answer.",
    ),
    (
        "If you can answer only part of it, answer that part and say what is left open.",
        "If you are not sure about part of the answer, mark that part as uncertain.",
    ),
)
ITEMS: dict[str, tuple[tuple[str, ...], ...]] = {
    "code": (
        (
            "If a requirement is unclear, choose the simplest reading, name that choice in one line, and continue.",
            "If the request is ambiguous, take the more common reading and say which one you took.",
        ),
        (
            "If something cannot be done as asked, for example because a version or a library does not support it, "
            "say "
            "why and give the closest version that works.",
            "If part of it is not possible, say which part and why, and deliver everything else in working order.",
        ),
        (
            "If an input can be missing, empty or invalid, handle that case explicitly and with a clear error.",
            "If a call can fail, catch that where it can be handled, and report it with a clear message.",
        ),
    ),
    "writing": (
        (
            "If a fact, name or date that you need is missing, leave it out or mark it as open; do not invent it.",
            "If details are missing, write around them and list at the end what has to be filled in; invent nothing.",
        ),
        (
            "If tone or audience are unclear, write for an interested reader without special knowledge.",
            "If it is unclear for whom this is, choose one reader, write for that one, and say so in one line at "
            "the end.",
        ),
        (
            "If the topic does not fit into the length, cover the most important point well and drop the rest.",
            "If not everything fits, do not compress it all: keep the strongest point and its example.",
        ),
    ),
    "summary": (
        (
            "If {it} is empty or incomplete, say so in one sentence and summarise what is there.",
            "If {it} is missing or cut off, say so first; then summarise the part that you have.",
        ),
        (
            "If {it} contradicts itself, report both statements and do not decide between them.",
            "If two statements in {it} do not agree, give both and say that they contradict each other.",
        ),
        (
            "If something is not in {it}, leave it out, even where you know it from elsewhere.",
            "If a conclusion is not stated in {it}, do not draw it.",
        ),
    ),
    "translation": (
        (
            "If a word or phrase does not have an equivalent, keep the original and add a short explanation after it.",
            "If something cannot be translated well, such as a pun, give the meaning and keep the original next to it.",
        ),
        (
            "If a passage is ambiguous, choose the reading that fits the context, and note the other one.",
            "If the meaning of a sentence is unclear, translate it as literally as possible and mark it.",
        ),
        (
            "If part of {it} is in the target language already, leave that part as it is; do not translate it back.",
            "If {it} is empty or cannot be read, say so in one sentence.",
        ),
    ),
    "analysis": (
        (
            "If data that you need is missing, say which, and state what can be concluded without it.",
            "If the evidence does not suffice for a conclusion, say so, and name what would settle it.",
        ),
        (
            "If the sources contradict each other, show both sides, and say which is better supported and why.",
            "If two findings do not agree, report both and give the most likely reason for the difference.",
        ),
        (
            "If you are not sure about a finding, mark it as uncertain instead of leaving it out.",
            "If a conclusion rests on an assumption that is not given, name the assumption next to it.",
        ),
    ),
    "question answering": (
        (
            "If you do not know the answer, or {it} does not contain it, say so plainly instead of guessing.",
            "If the answer is not known or not given in {it}, reply that you do not know, and name what would be "
            "needed.",
        ),
        (
            "If the question is ambiguous, name the readings in one line and answer the most likely one.",
            "If the question is unclear, say how you understood it before you answer.",
        ),
        (
            "If only part of the question can be answered because something is missing, answer that part and say "
            "what "
            "is left open.",
            "If you are not sure about part of the answer, mark that part as uncertain.",
        ),
    ),
    "extraction": (
        (
            "If a value is not in {it}, write “not stated” for it; do not guess.",
            "If a field is missing in {it}, leave it empty rather than guess.",
        ),
        (
            "If {it} contradicts itself about a value, give every value that occurs, in the order of the text.",
            "If a value is ambiguous, give it exactly as it is written, and mark it as uncertain.",
        ),
        (
            "If {it} is empty or cannot be read, return an empty result in the same form.",
            "If nothing is found, say so in the same form; an empty result is a valid result.",
        ),
    ),
    "classification": (
        (
            "If none of the labels fits, give the closest one and say that the match is weak; do not invent a label.",
            "If no label fits, choose the nearest and add “unsure” after it; do not make up a new one.",
        ),
        (
            "If it is unclear which of two labels fits, choose the one with more evidence in {it}.",
            "If {it} fits more than one label and it is unclear which is meant, take the more specific one.",
        ),
        (
            "If {it} is empty or cannot be read, say so instead of guessing a label.",
            "If there is no text to judge because {it} is missing, say that in place of a label.",
        ),
    ),
    "planning": (
        (
            "If a date, a budget or a person is missing, make a plausible assumption and mark it as an assumption.",
            "If something that the plan depends on is not given, assume the usual case and list the assumption first.",
        ),
        (
            "If the plan cannot meet all limits, say which one fails, and give the nearest plan that meets the rest.",
            "If not everything is possible in the time or budget, say what to drop first and why.",
        ),
        (
            "If a step fails or is late, say what to do instead: give one alternative for the riskiest step.",
            "If the riskiest step fails, there should be a second way: add one in a single line.",
        ),
    ),
    "conversation": (
        (
            "If you do not know the answer, say so, and say who or what can help instead.",
            "If you cannot answer from what you know, admit it and offer the next best step; do not make anything up.",
        ),
        (
            "If a message is unclear, ask one short question before you answer.",
            "If you are not sure what is meant, say how you understood it and ask whether that is right.",
        ),
        (
            "If a request does not belong to your task, say so politely and lead back to what you can do.",
            "If something goes wrong or the user is upset, stay calm, name the problem, and offer one concrete way "
            "out.",
        ),
    ),
    "maths": (
        (
            "If a quantity that you need is not given, say which, and solve it in general terms.",
            "If the problem is incomplete, state what is missing, and continue with a variable in its place.",
        ),
        (
            "If there does not seem to be a solution, or there is more than one, show why, and list all of them.",
            "If no solution exists, say that it is impossible and prove it in a line or two.",
        ),
        (
            "If a check by substitution fails, find the wrong step and correct it before you answer.",
            "If the result does not pass a check of its size or units, go back to the last correct step.",
        ),
    ),
    "other": (
        (
            "If something that you need is missing, say what it is, and do the rest with a stated assumption.",
            "If part of the request is unclear, choose the most likely meaning, say which you chose, and continue.",
        ),
        (
            "If it cannot be done as asked, say why in one sentence, and give the closest result that can be given.",
            "If part of this is not possible, say which part, and do everything else.",
        ),
        (
            "If you are not sure of a fact, mark it as uncertain; do not invent one.",
            "If you do not know something, say so rather than guess.",
        ),
    ),
}
