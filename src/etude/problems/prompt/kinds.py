"""What a prompt asks for: one of twelve kinds, with probabilities, from its verbs and nouns.

Words are evidence with a weight, more where a request begins with them; a softmax makes probabilities of the sums. The
words are English: a prompt in another language is mostly `other`, and its structure is read all the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
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
FENCE = re.compile(r"^[ \t]*(```+|~~~+).*?^[ \t]*\1[ \t]*$|`[^`\n]+`", re.M | re.S)

EVIDENCE: Mapping[str, tuple[tuple[float, str], ...]] = {
    "code": (
        (
            2.5,
            r"(write|implement|create|build|code|refactor|debug|fix|optimi[sz]e|port|review|add|generate|develop|"
            r"make)"
            r"\b[^.\n]{0,60}\b(functions?|class(?:es)?|scripts?|code|programs?|apis?|endpoints?|components?|"
            r"quer(?:y|ies)|"
            r"regex(?:es)?|unit tests?|tests?|bugs?|modules?|hooks?|middleware|schemas?|migrations?|apps?|cli|"
            r"algorithms?|selectors?|pages?|servers?|routes?|dockerfile|queries|parsers?|methods?|stylesheets?)",
        ),
        (
            1.5,
            r"(python|javascript|typescript|react|vue|svelte|next\.?js|node(?:\.?js)?|sql|java|c\+\+|rust|golang|php|"
            r"ruby|bash|html|css|tailwind|django|flask|fastapi|express|postgres(?:ql)?|kotlin|swift|docker|git)",
        ),
        (
            1.2,
            r"(stack ?trace|traceback|exception|compil(?:e|er|es)|type ?errors?|null pointer|refactor\w*|debug\w*|"
            r"pull request|codebase|repository|source code|senior (?:software|frontend|backend|web) \w+)",
        ),
        (0.8, r"(functions?|code|bugs?|class|array|async|variables?|typescript types)"),
    ),
    "writing": (
        (
            2.5,
            r"(write|draft|compose|create|generate|craft|rewrite|rephrase|reword|improve|edit|polish|proofread|make)"
            r"\b[^.\n]{0,60}\b(emails?|letters?|blog(?: posts?)?|articles?|essays?|stor(?:y|ies)|poems?|tweets?|"
            r"posts?|"
            r"captions?|headlines?|copy|descriptions?|slogans?|taglines?|speech(?:es)?|reviews?|bios?|paragraphs?|"
            r"scripts? for|newsletters?|announcements?|press release|cover letter|landing page|wording|tone|"
            r"sentences?|"
            r"haiku|song|dialogue|scene|reply|release notes|microcopy|text|titles?|invitation|toast)",
        ),
        (1.2, r"(copywriter|storyteller|novelist|ghost ?writer|editor|marketing copy|brand voice|seo)"),
        (1.0, r"(proofread|rephrase|reword|rewrite|draft|compose)"),
        (0.5, r"(tone|audience|readers?|catchy|engaging|persuasive)"),
    ),
    "summary": (
        (
            3.2,
            r"(summari[sz]e|summary|tl;?dr|condense|key (?:points|takeaways)|recap|digest|abridge|boil down|"
            r"in a nutshell|executive summary|meeting notes|main points)",
        ),
    ),
    "translation": (
        (
            3.5,
            r"(translat(?:e|es|ed|ion|or|ing)|locali[sz]e|locali[sz]ation|into (?:english|french|german|spanish|"
            r"italian|"
            r"japanese|chinese|portuguese|dutch|polish|russian|arabic|korean|turkish|swedish|hindi))",
        ),
    ),
    "analysis": (
        (
            2.4,
            r"(analy[sz]e|analysis|evaluate|assess|compare|contrast|critique|examine|investigate|review|audit|"
            r"diagnose|"
            r"pros and cons|trade-?offs|root cause|swot|interpret|recommend(?:ation)?s?|strengths and weaknesses)",
        ),
        (0.8, r"(trends?|insights?|data ?set|metrics|survey|risks?|competitors?|performance|churn)"),
    ),
    "question answering": (
        (2.0, r"(what|why|when|where|who|which|how (?:do|does|did|can|is|are|many|much|long|to))\b[^.\n]{0,200}\?"),
        (
            2.2,
            r"(answer\b[^.\n]{0,30}\bquestions?|using (?:only )?the (?:context|documents?|passages?)|"
            r"based (?:only )?on the (?:context|documents?|following|passages?)|given the (?:context|passage)|"
            r"knowledge base|retrieved|faq)",
        ),
        (1.2, r"(explain|define|describe|what is|difference between|tell me)"),
        (1.2, r"(context|question|answer)\s*:"),
    ),
    "extraction": (
        (
            3.2,
            r"(extract|pull out|parse|identify all|find all|list all|collect all|scrape|named entit(?:y|ies)|"
            r"fill (?:in )?the (?:fields|schema)|structured data|convert\b[^.\n]{0,40}\bto (?:json|csv|yaml|a "
            r"table))",
        ),
        (0.9, r"(fields?|entities|key-?value|invoice|receipt|resume|schema)"),
    ),
    "classification": (
        (
            3.4,
            r"(classify|categori[sz]e|label (?:the|each|this)|sentiment|assign\b[^.\n]{0,40}\b(?:category|label|"
            r"tag|class)|"
            r"which (?:category|class|label)|is (?:this|it|the following) (?:spam|toxic|positive)|tag (?:the|each|"
            r"this)|"
            r"moderat(?:e|ion)|detect (?:the )?(?:intent|language|sentiment)|route (?:the|each|this))",
        ),
        (1.0, r"(categories|labels?|positive|negative|neutral|spam|intent|one of the following)"),
    ),
    "planning": (
        (
            2.8,
            r"((?:plan|organi[sz]e|schedule|outline) (?:a|an|my|our|the|me|for)\b|(?:make|create|write|design|"
            r"develop|build|"
            r"draft|give me|propose|prepare)\b[^.\n]{0,60}\b(?:plan|roadmap|schedule|itinerary|strategy|timeline|"
            r"agenda|"
            r"curriculum|checklist|syllabus|budget|backlog|routine)s?)",
        ),
        (1.0, r"(milestones?|deadlines?|week \w+|itinerary|roadmap|sprint|agenda|workout|meal plan|steps to)"),
    ),
    "conversation": (
        (
            2.4,
            r"(you are (?:a|an|the)\b[^.\n]{0,80}\b(?:assistant|chat ?bot|support agent|agent|concierge|companion|"
            r"coach|"
            r"tutor|receptionist|representative|bot)|act as|role-?play|pretend (?:to be|you)|customer support|"
            r"talk (?:to|with)|chat with|greet|respond to (?:the )?(?:user|customer)s?)",
        ),
        (0.9, r"(users?|customers?|conversation|friendly|empathetic|polite(?:ly)?|escalate|helpful)"),
    ),
    "maths": (
        (
            2.8,
            r"(solve|calculate|compute|prove|differentiate|integrate|derive|factori[sz]e|simplify)"
            r"\b[^.\n]{0,80}(?:\d|\bequations?|\bintegrals?|\bderivatives?|\btheorem|\bprobability|\bmatrix|\bsum|"
            r"\bpercent\w*|\binterest|\barea|\bexpression|\bproblem|=)",
        ),
        (2.0, r"(how many\b[^.\n]{0,120}\d|\d+\s*[-+*/×^=]\s*\d+|\b[xyn]\s*[\^=+*/-]\s*\d|equations?|theorem|proof)"),
        (0.9, r"(probability|percent(?:age)?|average|mean|variance|integer|prime|geometry|algebra|calculus)"),
    ),
}


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
    words = FENCE.sub(" ", text).lower().replace("’", "'")
    scores = [PRIOR.get(kind, 0.0) + _score(kind, words) for kind in KINDS]
    top = max(scores)
    weights = [math.exp(SHARPNESS * (score - top)) for score in scores]
    return tuple(weight / sum(weights) for weight in weights)


def _score(kind: str, words: str) -> float:
    return sum(_strength(weight, pattern, words) for weight, pattern in COMPILED.get(kind, ()))


def _strength(weight: float, pattern: re.Pattern[str], words: str) -> float:
    """Evidence once, more at the beginning of a sentence, and a little more where it is repeated."""
    count, first = 0, False
    for match in pattern.finditer(words):
        count += 1
        first = (
            first
            or not words[max(0, match.start() - 24) : match.start()].strip()
            or bool(STARTS.search(words[max(0, match.start() - 24) : match.start()]))
        )
        if count == 4:
            break
    return weight * (FIRST if first else 1.0) * (1 + 0.15 * (count - 1)) if count else 0.0


STARTS = re.compile(r"(?:[.!?:\n][\s#>*\-\d.)\"'“]*|\b(?:please|to|and|then|must|should|you|will|now|task is)\s+)$")
COMPILED = {
    kind: tuple((weight, re.compile(rf"\b{pattern}(?!\w)")) for weight, pattern in rows)
    for kind, rows in EVIDENCE.items()
}
