"""Sentences of a paragraph with their positions, and the clauses in them that ask for something."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from etude.problems.prompt.mutations.document import Block, Document
from etude.problems.prompt.mutations.wording import words

END = re.compile(r"[.!?。！？…]+[\"'”’)\]*_]*(?=\s|$)|[。！？]")
ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|approx|no|nr|dr|mr|mrs|ms|prof|inc|ltd|st|fig|eq|sec|ca|a\.m|p\.m)|\b[A-Za-z]|"
    r"\d)\.$",
    re.I,
)
WRAPPED_CHARS = 60
"""A line that ends before this column, with room for the next word, was ended by its author."""

VERBS = words(
    "adapt add analyse analyze answer apply arrange ask assess assign assume audit begin brainstorm break "
    "build calculate categorise categorize check choose cite clarify classify clean collect combine compare "
    "compile complete compose compress compute configure consider construct convert copy correct count cover "
    "create critique debug decide define delete deliver deploy derive describe design detect determine develop "
    "diagnose discuss divide document draft draw edit enumerate estimate evaluate examine exclude execute "
    "expand explain explore export extract fetch fill filter find fix flag format formulate gather generate "
    "give group highlight identify implement import improve include index infer insert inspect install "
    "integrate interpret introduce investigate justify label list load locate look make map mark match measure "
    "merge migrate monitor name normalise normalize note optimise optimize organise organize outline output "
    "parse perform pick plan polish predict prepare present print prioritise prioritize produce proofread "
    "propose prove provide publish rank rate read recommend record refactor refine reformat remove rename "
    "reorder rephrase replace report research respond restate return review revise rewrite run save scan score "
    "search select send separate set show simplify simulate sketch solve sort specify split start state store "
    "structure study suggest summarise summarize tabulate tag test think transform translate turn understand "
    "update upload use validate verify visualise visualize walk work write"
)
"""Verbs that begin a request."""
NOUNS_TOO = words(
    "answer cite copy count cover cut design document draft draw edit estimate export filter fix flag format "
    "group highlight import include index label list load look map mark match measure name note output pick "
    "plan predict present print rank rate record report research restate return review run save scan score "
    "search set show sketch sort split start state store structure study tag test turn update upload use walk "
    "work"
)
"""Verbs that are nouns as often: after `and` they are verbs where an article or a pronoun follows."""
OBJECT = re.compile(
    r"\s+(?:the|an?|it|its|them|their|each|all|any|your|my|our|this|that|these|those|every|both|how|what|whether|"
    r"which|why|"
    r"where|who|if|only|for|by|[{<\[\"“`$])",
    re.I,
)
RULES = words("answer assume avoid be consider exclude format include keep note output respond return think use")
"""Verbs that begin a constraint as often as a step."""
OPENING = re.compile(
    r"(?:[\"'“*_]*)(?:(?:please|kindly|then|next|first|firstly|second|secondly|third|thirdly|finally|lastly|also|"
    r"now|and|"
    r"afterwards|after that|in addition|your task is to|your job is to|you (?:should|must|need to|have to|will)|"
    r"i (?:want|need) you to|i would like you to|can you|could you)(?:,|\s)+(?:please )?)*([A-Za-z]+)",
    re.I,
)


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A sentence from `start` to `end` in the text, its end mark included."""

    start: int
    end: int
    verb: str
    """The verb in lower case that it begins with, if it asks for something; else empty."""


def sentences(document: Document, block: Block) -> tuple[Sentence, ...]:
    """The sentences of a paragraph, in order."""
    return tuple(
        Sentence(start=start, end=end, verb=verb_of(document.text[start:end]))
        for start, end in _ranges(document.text, block.start, block.end)
    )


def verb_of(text: str) -> str:
    """The verb that a request begins with; empty for statements and questions."""
    found = OPENING.match(text)
    word = found[1].lower() if found else ""
    return word if word in VERBS else ""


def _ranges(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    at = start
    for boundary in _boundaries(text, start, end):
        if text[at:boundary].strip():
            yield _stripped(text, at, boundary)
        at = boundary
    if text[at:end].strip():
        yield _stripped(text, at, end)


def _boundaries(text: str, start: int, end: int) -> list[int]:
    """Positions after which a new sentence begins."""
    found = [match.end() for match in END.finditer(text, start, end) if _is_end(text, start, match, end)]
    at = text.find("\n", start, end)
    while at >= 0:
        if _is_line_of_its_own(text, at, start, end):
            found.append(at)
        at = text.find("\n", at + 1, end)
    return sorted(set(found))


def _is_end(text: str, start: int, match: re.Match[str], end: int) -> bool:
    if match[0] == ".":
        if ABBREVIATION.search(text, max(start, match.start() - 8), match.end()):
            return False
        following = text[match.end() : min(end, match.end() + 3)].strip()
        return not following or not following[0].islower()
    return True


def _is_line_of_its_own(text: str, at: int, start: int, end: int) -> bool:
    """Whether the line that ends there was ended on purpose, and not wrapped."""
    begins = max(start, text.rfind("\n", start, at) + 1)
    line = text[begins:at].rstrip()
    if line.endswith((".", "!", "?", ":", ";", "。", "！", "？")):
        return True
    following = text[at + 1 : min(end, at + 1 + 2 * WRAPPED_CHARS)].lstrip(" \t")
    word = following.split(maxsplit=1)[0] if following.split() else ""
    return len(line) + 1 + len(word) < WRAPPED_CHARS and not word[:1].islower()


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), start + len(part.rstrip())
