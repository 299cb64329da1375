"""task-decomposition: numbered sub-tasks, derived from the lists and clauses of the prompt itself.

A list of tasks is numbered in place; sentences and clauses that ask for something become items where they stand, so no
word of them is lost; a task in one clause gets the steps that making such a thing takes. A prompt with numbered steps
is left as it is, which makes the mutation idempotent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from etude.problems.prompt.mutations.additions import head_of, inserted
from etude.problems.prompt.mutations.document import Block, Document
from etude.problems.prompt.mutations.edits import Edit
from etude.problems.prompt.mutations.sentences import NOUNS_TOO, OBJECT, RULES, VERBS, Sentence, sentences, verb_of
from etude.problems.prompt.mutations.task import Task
from etude.problems.prompt.mutations.wording import any_of

NAME = "task-decomposition"
TITLES = ("Steps", "Work in these steps", "Sub-tasks")
LEADS = (
    "Work through these steps in order",
    "Do this step by step, in this order",
    "Carry out these sub-tasks one after another",
)
PRESENT = any_of(
    *(each.lower() for each in (*TITLES[1:], *LEADS)),
    r"step (?:1|one)\b",
    r"steps:",
    r"first(?:ly)?,? .{5,200}?\b(?:then|second(?:ly)?|next)\b.{5,300}?\b(?:finally|lastly|third(?:ly)?)",
)
MIN_STEPS = 2
MAX_STEPS = 12
MIN_WORDS = 2
"""Of a clause: a verb and what it is about."""
WORD = re.compile(r"[A-Za-z]+")
CLAUSE = re.compile(r"(?:,\s+|;\s+|\s+)(?:and\s+)?(?:then\s+|finally\s+|also\s+|after that,?\s+)?(?=[A-Za-z]+\b)")
"""What may stand between two clauses; a verb has to follow, and a comma or `and` or `then` has to be there."""
LIST_HEAD = re.compile(
    r"\b(?:covering|including|includes?|covers?|addressing|about|discuss(?:ing)?|describ(?:e|ing)|explain(?:ing)?|"
    r"mention(?:ing)?|with|sections (?:on|for)|contains?|containing|compar(?:e|ing))(?=\s)"
)
LISTED = re.compile(
    r"\s+(?P<items>[^,.:;()\n]{2,60}(?:,\s+(?!and\s)[^,.:;()\n]{2,60})+,?\s+and\s+[^,.:;()\n]{2,60})[.!]?$"
)
SEPARATOR = re.compile(r",\s+and\s+|,\s+|\s+and\s+")
DEFINITION = r"\[[^\[\]\n]+\]:"
LINE_MARKER = re.compile(rf"\n[ \t]*(?:[-+*>#|]|\d{{1,9}}[.)]|={{2,}}|~{{3}}|`{{3}}|{DEFINITION})")
BLOCK_MARKER = re.compile(rf"\s*(?:(?:[-+*]|#{{1,6}}|\d{{1,9}}[.)])[ \t]|>|~{{3}}|`{{3}}|{DEFINITION})")
"""What is no prose at the beginning of a paragraph."""


def plan(task: Task) -> tuple[Edit, ...] | str:
    """The edits, or the reason why there are none."""
    if any(_has_steps(document) for document in task.documents) or PRESENT.search(task.words):
        return "it is already decomposed into steps"
    document = task.document
    at = TITLES.index(task.pick(TITLES))
    found = (
        _numbered_list(document)
        or _numbered_clauses(document, LEADS[at])
        or _numbered_parts(document)
        or _steps_of_kind(task, LEADS[at], TITLES[at])
    )
    return found or "it is one step: there is nothing to divide"


def _has_steps(document: Document) -> bool:
    return any(
        block.kind == "list" and block.marker[0] == "1" and len(block.blocks) >= MIN_STEPS
        for block in _lists(document.blocks)
    )


def _lists(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        if block.kind == "list":
            yield block
        yield from _lists(block.blocks)


def _numbered_list(document: Document) -> tuple[Edit, ...]:
    """A list whose items all ask for something, with numbers in place of its bullets."""
    for block in document.blocks:
        if block.kind == "list" and _is_tasks(document, block) and document.depth(block.start) == 0:
            return tuple(
                Edit(start=item.start, removed=item.marker.rstrip(), added=f"{number}.")
                for number, item in enumerate(block.blocks, start=1)
            )
    return ()


def _is_tasks(document: Document, block: Block) -> bool:
    items = block.blocks
    if not MIN_STEPS <= len(items) <= MAX_STEPS or block.marker[0] == "1":
        return False
    texts = [document.text[item.inner : item.end] for item in items]
    simple = all(len(item.blocks) == 1 and item.blocks[0].kind == "paragraph" for item in items)
    verbs = [verb_of(text) for text in texts]
    tasks = sum(bool(verb) and verb not in RULES for verb in verbs)
    return simple and all(verbs) and tasks > len(items) / 2 and not any(LINE_MARKER.search(text) for text in texts)


def _numbered_clauses(document: Document, lead: str) -> tuple[Edit, ...]:
    """Consecutive sentences that ask for something, and their clauses, as items of a list."""
    best: tuple[tuple[int, int], ...] = ()
    chosen: Block | None = None
    for number, block in enumerate(document.blocks):
        if not _may_become_list(document, number):
            continue
        steps = _steps(document, sentences(document, block))
        if MIN_STEPS <= len(steps) <= MAX_STEPS and len(steps) > len(best) and _may_end(document, steps[-1][1]):
            best, chosen = steps, block
    return () if chosen is None else tuple(_as_list(document, chosen, best, lead))


def _may_become_list(document: Document, number: int) -> bool:
    """A paragraph, with an empty line or nothing after it, in no template block, without lines that would be "
    "markers."""
    block = document.blocks[number]
    following = document.blocks[number + 1] if number + 1 < len(document.blocks) else None
    text = document.of(block)
    after = document.text[block.end : following.start if following else len(document.text)]
    return (
        block.kind == "paragraph"
        and (following is None or (after.count("\n") > 1 and following.kind not in ("code", "list")))
        and (number == 0 or document.blocks[number - 1].kind != "list")
        and not LINE_MARKER.search(text)
        and not (document.has_template_blocks and ("{%" in text or "{{#" in text or document.depth(block.start) != 0))
    )


def _may_end(document: Document, at: int) -> bool:
    """Whether what follows there may be a paragraph of its own."""
    return BLOCK_MARKER.match(document.text, at) is None


def _steps(document: Document, found: Sequence[Sentence]) -> tuple[tuple[int, int], ...]:
    """The first run of sentences that ask for something, divided into clauses."""
    run: list[Sentence] = []
    for sentence in found:
        if sentence.verb and (run or sentence.verb not in RULES):
            run.append(sentence)
        elif run:
            break
    while run and run[-1].verb in RULES:  # constraints at the end stay a paragraph
        run.pop()
    return tuple(clause for sentence in run for clause in _clauses(document, sentence))


def _clauses(document: Document, sentence: Sentence) -> Iterator[tuple[int, int]]:
    """A sentence divided where a comma, `and` or `then` is followed by a verb."""
    start = sentence.start
    for match in CLAUSE.finditer(document.text, sentence.start, sentence.end):
        joint = match[0].strip()
        if not joint or not _begins_clause(document.text, match, sentence.end):
            continue
        if (
            document.touches(match.start(), match.end())
            or len(document.text[start : match.start()].split()) < MIN_WORDS
        ):
            continue  # `read and sort the list` is one thing
        yield start, match.start()
        start = match.end()
    yield start, sentence.end


def _begins_clause(text: str, joint: re.Match[str], end: int) -> bool:
    """Whether a verb follows that is not a noun here."""
    word = WORD.match(text, joint.end(), end)
    if word is None or word[0] not in VERBS:
        return False
    return word[0] not in NOUNS_TOO or "then" in joint[0] or OBJECT.match(text, word.end(), end) is not None


def _as_list(document: Document, block: Block, steps: Sequence[tuple[int, int]], lead: str) -> Iterator[Edit]:
    """Edits between the steps: what joined them becomes the end of a line and a number."""
    text, line = document.text, document.newline
    first, last = steps[0][0], steps[-1][1]
    before = _gap(text, block.start, first)
    yield from _changed(
        text, first - len(before), first, (line * 2 if first > block.start else "") + f"{lead}:{line * 2}1. "
    )
    for number, ((start, end), (following, _)) in enumerate(pairwise(steps), start=2):
        yield from _first_letter(document, start)
        mark = "" if text[end - 1] in ".!?:;。！？*_" else "."
        yield Edit(start=end, removed=text[end:following], added=f"{mark}{line}{number}. ")
    yield from _first_letter(document, steps[-1][0])
    after = len(text[last : block.end]) - len(text[last : block.end].lstrip())
    if last + after < block.end:
        yield Edit(start=last, removed=text[last : last + after], added=line * 2)


def _gap(text: str, start: int, end: int) -> str:
    part = text[start:end]
    return part[len(part.rstrip()) :]


def _changed(text: str, start: int, end: int, added: str) -> Iterator[Edit]:
    yield Edit(start=start, removed=text[start:end], added=added)


def _first_letter(document: Document, at: int) -> Iterator[Edit]:
    letter = document.text[at]
    if letter.islower() and not document.touches(at, at + 1):
        yield Edit(start=at, removed=letter, added=letter.upper())


def _numbered_parts(document: Document) -> tuple[Edit, ...]:
    """`… covering A, B and C.` with A, B and C as items of a list."""
    for number, block in enumerate(document.blocks):
        if not _may_become_list(document, number):
            continue
        for sentence in sentences(document, block):
            found = _listed(document, sentence) if sentence.verb else None
            if found is not None and _may_end(document, sentence.end):
                return tuple(_parts(document, block, sentence, *found))
    return ()


def _listed(document: Document, sentence: Sentence) -> tuple[int, int] | None:
    """Where the last list of three or more things in a sentence is, with nothing protected between its parts."""
    for head in reversed(list(LIST_HEAD.finditer(document.text, sentence.start, sentence.end))):
        found = LISTED.match(document.text, head.end(), sentence.end)
        if found is not None and not document.touches(*found.span("items")):
            return found.span("items")
    return None


def _parts(document: Document, block: Block, sentence: Sentence, start: int, end: int) -> Iterator[Edit]:
    text, line = document.text, document.newline
    gap = _gap(text, sentence.start, start)
    yield Edit(start=start - len(gap), removed=gap, added=f", one after another:{line * 2}1. ")
    for number, match in enumerate(SEPARATOR.finditer(text, start, end), start=2):
        yield Edit(start=match.start(), removed=match[0], added=f"{line}{number}. ")
    rest = text[sentence.end : block.end]
    if rest.strip():
        yield Edit(start=sentence.end, removed=rest[: len(rest) - len(rest.lstrip())], added=line * 2)


def _steps_of_kind(task: Task, lead: str, title: str) -> tuple[Edit, ...]:
    """The steps that making such a thing takes, as a list of its own."""
    if task.kind not in MADE or task.is_strict:
        return ()
    made = f"the {task.deliverable}" if task.deliverable else MADE[task.kind]
    steps = STEPS[task.way][task.column(2)]
    document = task.document
    listed = document.newline.join(f"{number}. {step}" for number, step in enumerate(steps, start=1))
    return (inserted(document, head_of(document, lead, title) + listed.format(it=made)),)


MADE = {
    "code": "the code",
    "writing": "the text",
    "analysis": "the analysis",
    "planning": "the plan",
    "maths": "the solution",
}
STEPS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "code": (
        (
            "List what {it} takes and gives back, and its edge cases.",
            "Outline the approach, and name one alternative.",
            "Write {it}.",
            "Go through {it} with each edge case, and correct what fails.",
        ),
        (
            "Say in two or three lines what {it} has to do, with its inputs, outputs and edge cases.",
            "Choose an approach, and say in one line why.",
            "Write {it}, complete and without parts left out.",
            "Check {it} against the list of edge cases, and mend what is wrong.",
        ),
    ),
    "change of code": (
        (
            "Say what {it} does now, what it should do, and what causes the difference.",
            "Choose the smallest change that is enough, and name what else it affects.",
            "Make the change, and leave everything else as it is.",
            "Check the change: say how to see that it works and that nothing else broke.",
        ),
        (
            "Go through {it} line by line, and list what has to change and why.",
            "Put these changes in an order in which everything works after each of them.",
            "Carry them out one by one.",
            "Compare before and after, and say how that can be tested.",
        ),
    ),
    "interface": (
        (
            "List what {it} shows, what users can do there, and its states: empty, loading, failed, filled.",
            "Divide {it} into parts, and say which data each of them needs.",
            "Write {it} part by part, beginning with the outer one.",
            "Go through every state, small screens and the keyboard, and correct what does not work.",
        ),
        (
            "Describe {it} from top to bottom, with everything that reacts to a user.",
            "Decide where each piece of state is kept.",
            "Write {it}, complete and without parts left out.",
            "Check {it} on a small screen, without a mouse and with missing data, and mend what is wrong.",
        ),
    ),
    "writing": (
        (
            "Note the one thing that readers should remember, and what they know already.",
            "Outline {it}: opening, middle, end.",
            "Write {it} in full from the outline.",
            "Read {it} as its reader would, shorten it, and correct it.",
        ),
        (
            "Decide on the main point and on the reader.",
            "List the points of {it} in the order in which a reader asks for them.",
            "Write a complete draft of {it}.",
            "Revise {it}: remove what is not needed, and check every fact.",
        ),
    ),
    "analysis": (
        (
            "State the question that the analysis answers.",
            "Go through the material, and collect what bears on that question.",
            "Interpret it: causes, sizes, and what speaks against each reading.",
            "Draw the conclusion, and say how certain it is.",
        ),
        (
            "Say what is examined or compared, and by which criteria.",
            "Note the facts for each criterion.",
            "Weigh the facts, including those that do not fit.",
            "Conclude with a recommendation and its main risk.",
        ),
    ),
    "planning": (
        (
            "State the goal, and what is fixed: dates, people, budget.",
            "List everything that has to be done.",
            "Put it in order, with durations and what depends on what.",
            "Check {it} against the limits, and add a reserve for the riskiest step.",
        ),
        (
            "List the goal and the limits.",
            "Break the goal down into pieces of work.",
            "Order the pieces, and estimate each of them.",
            "Go through {it} from the beginning, and mend what does not fit the limits.",
        ),
    ),
    "maths": (
        (
            "Write down what is given and what is sought.",
            "Choose a method, and say why it applies.",
            "Carry it out, one transformation per line.",
            "Check the result, and state it.",
        ),
        (
            "Name the known and unknown quantities.",
            "Set up the equations.",
            "Solve them step by step.",
            "Test the result with the given values, and state the answer.",
        ),
    ),
}
"""What making such a thing takes, in two phrasings; `{it}` is what is to be made."""
