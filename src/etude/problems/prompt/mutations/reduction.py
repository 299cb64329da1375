"""context-reduction: removes politeness, small talk, filler, and sentences that were said already.

Never an instruction that is not still there, nor a constraint, number, name, link, placeholder or code; nothing in
quotes, tables, examples, or in the text that a prompt works on. It repeats until nothing is left to remove, so it is
idempotent. The phrases are English; repeated sentences are found in any language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from etude.problems.prompt.mutations.document import Block, Document
from etude.problems.prompt.mutations.edits import Edit, Pieces
from etude.problems.prompt.mutations.material import material_start
from etude.problems.prompt.mutations.patches import patched
from etude.problems.prompt.mutations.politeness import (
    CLOSER,
    FILLER,
    NO_TASKS,
    OPENER,
    POLITE,
    REQUEST,
    SHORTER,
    SMALL_TALK,
)
from etude.problems.prompt.mutations.prompts import Text
from etude.problems.prompt.mutations.sentences import VERBS, Sentence, sentences
from etude.problems.prompt.mutations.task import Task

NAME = "context-reduction"
MAX_ROUNDS = 50
"""Each round shortens the text, so there is an end; this many are never needed."""
MIN_REPEATED = 8
"""Letters of a sentence that is removed where it is said again."""

PLAIN = re.compile(r"[^\W\d_](?:[^\W\d_]|[ \t\n\r,.!?;:'’\"“”()—–。！？、，-])*")
"""Words and marks of sentences: no digits, no markup."""
NAME_INSIDE = re.compile(r"(?<=[^.!?\s])\s+(?!I\b|I')[A-Z]|[A-Za-z][A-Z]|^(?!I\b)[A-Z]{2}")
"""A capital letter that does not begin a sentence."""
LETTER = re.compile(r"[^\W\d_]|[\"“{]")
FINAL_QUESTION = re.compile(r"\?+$")


def plan(task: Task) -> tuple[Edit, ...] | str:
    """The edits, or the reason why there are none."""
    found = tuple(
        edit for each, document in zip(task.texts, task.documents, strict=True) for edit in _reduced(each, document)
    )
    return found or "there is nothing to reduce: no politeness, filler or repetition"


def _reduced(each: Text, document: Document) -> tuple[Edit, ...]:
    edits = tuple(_round(document))
    if not edits:
        return ()
    pieces = Pieces(document.text)
    for _ in range(MAX_ROUNDS):
        pieces.apply(edits)
        document = patched(document, pieces.text, edits)
        edits = tuple(_round(document))
        if not edits:
            break
    return pieces.edits(message=each.message, part=each.part)


def _round(document: Document) -> list[Edit]:
    """Edits that do not touch each other; none if nothing but small talk would be left."""
    seen: set[str] = set()
    edits: list[Edit] = []
    left = 0
    ends = material_start(document)
    for number, block in enumerate(document.blocks):
        if block.start >= ends:
            left += 1
        elif block.kind == "paragraph" and document.depth(block.start) == 0:
            gone, changes = _paragraph(document, block, seen, ends)
            if gone and _is_separate(document, number):
                edits.append(_without_block(document, number))
            elif not gone:
                edits += changes
                left += 1
            else:
                left += 1
        elif block.kind == "list" and document.depth(block.start) == 0:
            edits += _list(document, block, seen, ends)
            left += 1
        elif block.kind != "rule":
            left += 1
    return _disjoint(edits) if left else []


def _disjoint(edits: list[Edit]) -> list[Edit]:
    """Without those that overlap an earlier one: the next round sees what is left."""
    found: list[Edit] = []
    for edit in sorted(edits, key=lambda edit: edit.start):
        if not found or edit.start >= found[-1].end:
            found.append(edit)
    return found


def _paragraph(document: Document, block: Block, seen: set[str], ends: int) -> tuple[bool, list[Edit]]:
    """Whether nothing of it is needed, and the edits otherwise."""
    found = sentences(document, block)
    unneeded = [sentence.end <= ends and _is_unneeded(document, sentence, seen) for sentence in found]
    if all(unneeded):
        return True, []
    last = max(at for at, gone in enumerate(unneeded) if not gone)
    edits: list[Edit] = []
    for at, sentence in enumerate(found):
        if unneeded[at]:
            edits += _without_sentence(document, found, unneeded, at, last)
        elif sentence.end <= ends and not document.has_template_blocks:
            edits += _shortened(document, sentence)
    return False, edits


def _is_unneeded(document: Document, sentence: Sentence, seen: set[str]) -> bool:
    """Small talk, or what was said before word by word."""
    text, lower = (each[sentence.start : sentence.end] for each in (document.text, document.lower))
    key = " ".join(POLITE.sub(" ", lower).split()).strip(" ,.!?;:\"“”'")
    is_repeated = key in seen and len(key) >= MIN_REPEATED
    seen.add(key)
    if is_repeated:
        is_unneeded = not text.endswith(":")
    else:
        is_small_talk = SMALL_TALK.fullmatch(" ".join(lower.split()).rstrip(".!?,;: ")) is not None
        is_unneeded = is_small_talk and NAME_INSIDE.search(text) is None
    is_plain = is_unneeded and PLAIN.fullmatch(text) is not None and '"' not in text and "“" not in text
    return is_plain and not document.touches(sentence.start, sentence.end)


def _without_sentence(
    document: Document, found: Sequence[Sentence], unneeded: Sequence[bool], at: int, last: int
) -> Iterator[Edit]:
    """The sentence and the space after it; at the end of a paragraph the space before it."""
    text, sentence = document.text, found[at]
    if at < last:
        start, end = sentence.start, found[at + 1].start
        if not unneeded[at + 1] and LETTER.match(text, end) is None:
            return
    else:
        start, end = found[at - 1].end, sentence.end
    yield Edit(start=start, removed=text[start:end])


def _shortened(document: Document, sentence: Sentence) -> Iterator[Edit]:
    """The same request in fewer words: of beginning, middle and end what there is first; the rest in later rounds."""
    text = document.lower[sentence.start : sentence.end]
    edits = (*_shorter_beginning(document, sentence, text),) or (*_shorter_words(document, sentence, text),)
    yield from edits or _shorter_end(document, sentence, text)


def _shorter_beginning(document: Document, sentence: Sentence, text: str) -> Iterator[Edit]:
    length, is_request = _beginning(text)
    start = sentence.start
    if not length or document.touches(start, start + length):
        return
    letter = document.text[start + length]
    keeps = not letter.islower() or document.touches(start + length, start + length + 1)
    removed = document.text[start : start + length + (not keeps)]
    yield Edit(start=start, removed=removed, added="" if keeps else letter.upper())
    mark = FINAL_QUESTION.search(text)
    if is_request and mark and CLOSER.search(text) is None and not document.touches(sentence.end - 1, sentence.end):
        yield Edit(start=start + mark.start(), removed=mark[0], added=".")


def _beginning(text: str) -> tuple[int, bool]:
    """How much of a sentence comes before what it says, and whether that was the wrapping of a request."""
    at, is_request = 0, False
    while True:
        opener = OPENER.match(text, at)
        end = opener.end() if opener else _request_end(text, at)
        if end == at:
            return at, is_request
        at, is_request = end, is_request or opener is None


def _request_end(text: str, at: int) -> int:
    """The end of the wrapping of a request that begins there; the same position where there is none."""
    request = REQUEST.match(text, at)
    if request is None:
        return at
    wanted = request["wanted"]
    if wanted is not None:
        return request.end() if wanted not in NO_TASKS else at
    verb = request["asked"] or request["wondered"] or request["liked"]
    return request.end() if verb in VERBS or verb in ("help", "tell") else at


def _shorter_words(document: Document, sentence: Sentence, text: str) -> Iterator[Edit]:
    for match in FILLER.finditer(text):
        start, end = sentence.start + match.start(), sentence.start + match.end()
        if document.touches(start, end) or _in_quotes(text, match.start()):
            continue
        shorter, removed = SHORTER.get(match[0], ""), document.text[start:end]
        yield Edit(start=start, removed=removed, added=shorter.capitalize() if removed[0].isupper() else shorter)


def _shorter_end(document: Document, sentence: Sentence, text: str) -> Iterator[Edit]:
    closer = CLOSER.search(text)
    if closer is None or closer.start() < MIN_REPEATED or _in_quotes(text, closer.start()):
        return
    start, end = sentence.start + closer.start(), sentence.start + closer.end()
    if not document.touches(start, end):
        yield Edit(start=start, removed=document.text[start:end])


def _in_quotes(text: str, at: int) -> bool:
    before = text[:at]
    return before.count('"') % 2 == 1 or before.count("“") > before.count("”") or before.count("«") > before.count("»")


def _list(document: Document, block: Block, seen: set[str], ends: int) -> Iterator[Edit]:
    """Items that an earlier item of the list says already, and shorter words in the others."""
    items: set[str] = set()
    for at, item in enumerate(block.blocks):
        key = " ".join(document.lower[item.inner : item.end].split()).rstrip(".!?;,")
        simple = len(item.blocks) == 1 and item.blocks[0].kind == "paragraph"
        is_repeated = at and simple and key in items and block.marker in "-*+" and len(key) >= MIN_REPEATED
        if is_repeated and _is_plain(document, item):
            yield Edit(start=block.blocks[at - 1].end, removed=document.text[block.blocks[at - 1].end : item.end])
            continue
        items.add(key)
        for inner in item.blocks:
            if inner.kind == "paragraph" and inner.end <= ends and not document.has_template_blocks:
                for sentence in sentences(document, inner):
                    seen.add(" ".join(document.lower[sentence.start : sentence.end].split()).strip(" ,.!?;:"))
                    yield from _shortened(document, sentence)
            elif inner.kind == "list":
                yield from _list(document, inner, set(), ends)


def _is_plain(document: Document, item: Block) -> bool:
    text = document.text[item.inner : item.end]
    return PLAIN.fullmatch(text) is not None and not document.touches(item.start, item.end)


def _is_separate(document: Document, number: int) -> bool:
    """Whether a paragraph can go without joining its neighbours: empty lines around it, and no two lists or code."""
    blocks, text = document.blocks, document.text
    block = blocks[number]
    before = blocks[number - 1] if number else None
    after = blocks[number + 1] if number + 1 < len(blocks) else None
    if before is not None and text[before.end : block.start].count("\n") < 2 and before.kind not in ("heading", "rule"):
        return False
    if after is not None and text[block.end : after.start].count("\n") < 2 and after.kind != "heading":
        return False
    if after is not None and after.kind in ("code", "list", "quote", "table", "reference", "html"):
        return before is None or before.kind in ("paragraph", "heading")
    return True


def _without_block(document: Document, number: int) -> Edit:
    """The paragraph, and the empty lines to the next one; of the last, those before it."""
    blocks, text = document.blocks, document.text
    block = blocks[number]
    if number + 1 < len(blocks):
        start = text.rfind("\n", 0, block.start) + 1
        end = text.rfind("\n", block.end, blocks[number + 1].start) + 1
    else:
        start = blocks[number - 1].end if number else 0
        end = block.end + len(text[block.end :]) - len(text[block.end :].lstrip(" \t"))  # else it trails what is left
    return Edit(start=start, removed=text[start:end])
