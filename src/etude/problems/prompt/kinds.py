"""What a prompt asks for: one of twelve kinds, with probabilities, from its verbs and nouns.

Words are evidence with a weight, more where a request begins with them; a softmax makes probabilities of the sums. The
words are English: a prompt in another language is mostly `other`, and its structure is read all the same. A text is
read once, word by word, and at each word only what can begin with it is tried.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

KINDS = (
    "code",
    "writing",
    "summary",
    "translation",
    "analysis",
    "question answering",
    "extraction",
    "classification",
    "planning",
    "conversation",
    "maths",
    "other",
)
"""Every kind, in the order of `kind_probabilities`."""

MAX_CHARS = 1_000
"""A request is at the beginning or the end: of longer texts, half of this is read at each."""
PRIOR = {"other": 1.0}
SHARPNESS = 1.2
FIRST = 1.6
"""Factor for evidence at the beginning of a sentence or line, where the request is."""
MAX_COUNT = 4
"""Repeated more often, evidence does not weigh more."""
WORD = re.compile(r"\w+")
NUMBER = "0"
"""Stands for any number among the words of evidence."""
FENCE = re.compile(r"^[ \t]*(```+|~~~+).*?^[ \t]*\1[ \t]*$|`[^`\n]+`", re.M | re.S)

THING_OF_CODE = (
    r"\b[^.\n]{0,60}\b(?:functions?|class(?:es)?|scripts?|code|programs?|apis?|endpoints?|components?|quer(?:y|ies)|"
    r"regex(?:es)?|unit tests?|tests?|bugs?|modules?|hooks?|middleware|schemas?|migrations?|apps?|cli|algorithms?|"
    r"selectors?|pages?|servers?|routes?|dockerfile|parsers?|methods?|stylesheets?)"
)
THING_TO_READ = (
    r"\b[^.\n]{0,60}\b(?:emails?|letters?|blog(?: posts?)?|articles?|essays?|stor(?:y|ies)|poems?|tweets?|posts?|"
    r"captions?|headlines?|copy|descriptions?|slogans?|taglines?|speech(?:es)?|reviews?|bios?|paragraphs?|"
    r"scripts? for|newsletters?|announcements?|press release|cover letter|landing page|wording|tone|sentences?|"
    r"haiku|song|dialogue|scene|reply|release notes|microcopy|text|titles?|invitation|toast)"
)
PLAN = (
    r"\b[^.\n]{0,60}\b(?:plan|roadmap|schedule|itinerary|strategy|timeline|agenda|curriculum|checklist|syllabus|"
    r"budget|backlog|routine)s?"
)
EVIDENCE: Mapping[str, tuple[tuple[float, Mapping[str, str]], ...]] = {
    "code": (
        (
            2.5,
            {
                "write implement create build code refactor debug fix optimise optimize port review add generate "
                "develop make": THING_OF_CODE
            },
        ),
        (
            1.5,
            {
                "python javascript typescript react vue svelte nextjs node nodejs sql java rust golang php ruby bash "
                "html css tailwind django flask fastapi express postgres postgresql kotlin swift docker git": "",
                "next": r"\.js",
                "c": r"\+\+",
            },
        ),
        (
            1.2,
            {
                "stacktrace traceback exception compile compiler compiles typeerror typeerrors codebase repository "
                "refactor refactors refactored refactoring debug debugs debugged debugging debugger": "",
                "stack": " trace",
                "type": " errors?",
                "null": " pointer",
                "pull": " request",
                "source": " code",
                "senior": r" (?:software|frontend|backend|web) \w+",
            },
        ),
        (0.8, {"function functions code bug bugs class array async variable variables": "", "typescript": " types"}),
    ),
    "writing": (
        (
            2.5,
            {
                "write draft compose create generate craft rewrite rephrase reword improve edit polish proofread "
                "make": THING_TO_READ
            },
        ),
        (
            1.2,
            {
                "copywriter storyteller novelist ghostwriter editor seo": "",
                "ghost": " writer",
                "marketing": " copy",
                "brand": " voice",
            },
        ),
        (1.0, {"proofread rephrase reword rewrite draft compose": ""}),
        (0.5, {"tone audience reader readers catchy engaging persuasive": ""}),
    ),
    "summary": (
        (
            3.2,
            {
                "summarise summarize summary tldr condense recap digest abridge": "",
                "tl": ";dr",
                "key": " (?:points|takeaways)",
                "boil": " down",
                "in": " a nutshell",
                "executive": " summary",
                "meeting": " notes",
                "main": " points",
            },
        ),
    ),
    "translation": (
        (
            3.5,
            {
                "translate translates translated translation translator translating localise localize localisation "
                "localization": "",
                "into": " (?:english|french|german|spanish|italian|japanese|chinese|portuguese|dutch|polish|russian|"
                "arabic|korean|turkish|swedish|hindi)",
            },
        ),
    ),
    "analysis": (
        (
            2.4,
            {
                "analyse analyze analysis evaluate assess compare contrast critique examine investigate review audit "
                "diagnose tradeoff tradeoffs swot interpret recommend recommends recommendation recommendations": "",
                "pros": " and cons",
                "trade": "-offs?",
                "root": " cause",
                "strengths": " and weaknesses",
            },
        ),
        (
            0.8,
            {
                "trend trends insight insights dataset metrics survey risk risks competitor competitors performance "
                "churn": "",
                "data": " set",
            },
        ),
    ),
    "question answering": (
        (
            2.0,
            {
                "what why when where who which": r"\b[^.\n]{0,200}\?",
                "how": r" (?:do|does|did|can|is|are|many|much|long|to)\b[^.\n]{0,200}\?",
            },
        ),
        (
            2.2,
            {
                "retrieved faq": "",
                "answer": r"\b[^.\n]{0,30}\bquestions?",
                "using": " (?:only )?the (?:context|documents?|passages?)",
                "based": " (?:only )?on the (?:context|documents?|following|passages?)",
                "given": " the (?:context|passage)",
                "knowledge": " base",
            },
        ),
        (1.2, {"explain define describe": "", "what": " is", "difference": " between", "tell": " me"}),
        (1.2, {"context question answer": r"\s*:"}),
    ),
    "extraction": (
        (
            3.2,
            {
                "extract parse scrape": "",
                "pull": " out",
                "identify find list collect": " all",
                "named": " entit(?:y|ies)",
                "fill": " (?:in )?the (?:fields|schema)",
                "structured": " data",
                "convert": r"\b[^.\n]{0,40}\bto (?:json|csv|yaml|a table)",
            },
        ),
        (0.9, {"field fields entities keyvalue invoice receipt resume schema": "", "key": "-value"}),
    ),
    "classification": (
        (
            3.4,
            {
                "classify categorise categorize sentiment moderate moderation": "",
                "label tag route": " (?:the|each|this)",
                "assign": r"\b[^.\n]{0,40}\b(?:category|label|tag|class)",
                "which": " (?:category|class|label)",
                "is": " (?:this|it|the following) (?:spam|toxic|positive)",
                "detect": " (?:the )?(?:intent|language|sentiment)",
            },
        ),
        (1.0, {"categories label labels positive negative neutral spam intent": "", "one": " of the following"}),
    ),
    "planning": (
        (
            2.8,
            {
                "plan organise organize schedule outline": " (?:a|an|my|our|the|me|for)",
                "make create write design develop build draft propose prepare": PLAN,
                "give": f" me{PLAN}",
            },
        ),
        (
            1.0,
            {
                "milestone milestones deadline deadlines itinerary roadmap sprint agenda workout": "",
                "week": r" \w+",
                "meal": " plan",
                "steps": " to",
            },
        ),
    ),
    "conversation": (
        (
            2.4,
            {
                "roleplay greet": "",
                "you": r" are (?:a|an|the)\b[^.\n]{0,80}\b(?:assistant|chat ?bot|support agent|agent|concierge|"
                "companion|coach|tutor|receptionist|representative|bot)",
                "act": " as",
                "role": "-play",
                "pretend": " (?:to be|you)",
                "customer": " support",
                "talk": " (?:to|with)",
                "chat": " with",
                "respond": " to (?:the )?(?:user|customer)s?",
            },
        ),
        (
            0.9,
            {"user users customer customers conversation friendly empathetic polite politely escalate helpful": ""},
        ),
    ),
    "maths": (
        (
            2.8,
            {
                "solve calculate compute prove differentiate integrate derive factorise factorize simplify": (
                    r"\b[^.\n]{0,80}(?:\d|\bequations?|\bintegrals?|\bderivatives?|\btheorem|\bprobability|\bmatrix|"
                    r"\bsum|\bpercent\w*|\binterest|\barea|\bexpression|\bproblem|=)"
                )
            },
        ),
        (
            2.0,
            {
                "equation equations theorem proof": "",
                "how": r" many\b[^.\n]{0,120}\d",
                NUMBER: r"\s*[-+*/×^=]\s*\d+",
                "x y n": r"\s*[\^=+*/-]\s*\d",
            },
        ),
        (
            0.9,
            {"probability percent percentage average mean variance integer prime geometry algebra calculus": ""},
        ),
    ),
}
"""Per kind the rows of evidence: a weight, and words with a pattern of what follows them."""


def kind_of(text: str) -> str:
    """The most probable kind."""
    found = kind_probabilities(text)
    return max(found, key=lambda kind: found[kind])


def kind_probabilities(text: str) -> dict[str, float]:
    """Probabilities by kind, in the order of KINDS."""
    return dict(zip(KINDS, _probabilities(text), strict=True))


@lru_cache(maxsize=256)
def _probabilities(text: str) -> tuple[float, ...]:
    if len(text) > MAX_CHARS:
        text = text[: MAX_CHARS // 2] + "\n" + text[-MAX_CHARS // 2 :]
    if "`" in text or "~~~" in text:
        text = FENCE.sub(" ", text)
    scores = dict.fromkeys(KINDS, 0.0) | PRIOR
    for kind, strength in _evidence(text.lower().replace("’", "'")):
        scores[kind] += strength
    top = max(scores.values())
    weights = [math.exp(SHARPNESS * (score - top)) for score in scores.values()]
    return tuple(weight / sum(weights) for weight in weights)


def _evidence(words: str) -> Iterator[tuple[str, float]]:
    """Kinds with the strength of each row: once, more at the beginning of a sentence, a little more where repeated."""
    counts, ends, first = [0] * len(ROWS), [0] * len(ROWS), [False] * len(ROWS)
    for word in WORD.finditer(words):
        for row, follows in AT_WORD.get(NUMBER if word[0].isdecimal() else word[0], ()):
            found = follows.match(words, word.end()) if counts[row] < MAX_COUNT and word.start() >= ends[row] else None
            if found:
                counts[row] += 1
                ends[row] = found.end()
                first[row] = first[row] or _begins(words, word.start())
    for (kind, weight), count, is_first in zip(ROWS, counts, first, strict=True):
        if count:
            yield kind, weight * (FIRST if is_first else 1.0) * (1 + 0.15 * (count - 1))


def _begins(words: str, at: int) -> bool:
    """Whether a request begins there."""
    before = words[max(0, at - 24) : at]
    return not before.strip() or STARTS.search(before) is not None


STARTS = re.compile(r"(?:[.!?:\n][\s#>*\-\d.)\"'“]*|\b(?:please|to|and|then|must|should|you|will|now|task is)\s+)$")
ROWS = tuple((kind, weight) for kind, rows in EVIDENCE.items() for weight, _ in rows)


def _at_word() -> dict[str, list[tuple[int, re.Pattern[str]]]]:
    """By word the rows that it is evidence of, each with what has to follow."""
    found: dict[str, list[tuple[int, re.Pattern[str]]]] = {}
    for row, (_, evident) in enumerate(each for rows in EVIDENCE.values() for each in rows):
        for words, follows in evident.items():
            for word in words.split():
                found.setdefault(word, []).append((row, re.compile(rf"(?:{follows})(?!\w)")))
    return found


AT_WORD = _at_word()
