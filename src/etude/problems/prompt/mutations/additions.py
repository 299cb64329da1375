"""Where new text goes in a prompt, and in which form: as the prompt's own sections and lists are written.

Text is added after the instructions. A prompt that ends with its input ({text}) or with a cue (`Answer:`) keeps that
end, since models continue from there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from etude.problems.prompt.mutations.document import PLACEHOLDER, Block, Document
from etude.problems.prompt.mutations.edits import Edit

MAX_CUE_WORDS = 4
MAX_LABEL_WORDS = 4
SHORT_CHARS = 280
"""Up to this length a prompt of one paragraph gets a paragraph, not a list."""
BOLD_LABEL = re.compile(r"^\*\*[^*\n]{2,60}\*\*:?$|^\*\*[^*\n]{2,60}:\*\*$")
CUE = re.compile(r"[^\n]{1,60}:\s*\Z")
WORD = re.compile(r"[^\W_]+")


def addition(document: Document, lead: str, items: Sequence[str], *, title: str) -> Edit:
    """The items as a list under a lead-in, as the prompt writes its own sections; without a lead-in, as a "
    "paragraph."""
    line = document.newline
    if not lead:
        return inserted(document, " ".join(items))
    bullet = bullet_of(document)
    return inserted(document, head_of(document, lead, title) + line.join(f"{bullet} {item}" for item in items))


def inserted(document: Document, added: str) -> Edit:
    """An edit that puts a block of its own where new text goes."""
    at, line = insertion(document), document.newline
    text = document.text
    if at < len(text):
        gap = (
            line
            if at and text[:at].count("\n") and text[:at].rstrip(" \t").count("\n", len(text[:at].rstrip())) < 2
            else ""
        )
        return Edit(start=at, added=f"{gap}{added}{line}{line}")
    stripped = text.rstrip()
    ending = text[len(stripped) :]
    # What ends in line ends keeps one: everything else of the text stays where it is.
    blank = line * max(0, 2 - ending.count("\n")) if stripped else ""
    return Edit(start=at, added=f"{blank}{added}{line if ending.endswith(chr(10)) else ''}")


def is_short(document: Document) -> bool:
    return len(document.blocks) == 1 and document.blocks[0].kind == "paragraph" and len(document.text) <= SHORT_CHARS


def bullet_of(document: Document) -> str:
    markers = [block.marker for block in document.blocks if block.kind == "list" and block.marker in "-*+"]
    return markers[0] if markers else "-"


def head_of(document: Document, lead: str, title: str) -> str:
    """A heading, a bold label or a line that introduces a list, with the line ends after it."""
    line = document.newline
    level = section_level(document)
    if level:
        return f"{'#' * level} {title}{line}{line}"
    if any(BOLD_LABEL.match(document.of(block).partition("\n")[0].strip()) for block in document.blocks):
        return f"**{title}:**{line}{line}"
    return f"{lead}:{line}{line}"


def section_level(document: Document) -> int:
    """The level of the headings that divide the prompt; 0 without headings."""
    levels = [block.level for block in document.blocks if block.kind == "heading"]
    if not levels:
        return 0
    top = min(levels)
    if levels.count(top) == 1 and levels[0] == top:  # a title
        return min((level for level in levels if level > top), default=min(top + 1, 6))
    return top


def insertion(document: Document) -> int:
    """Where new text goes: the start of a block, or the end of the text."""
    blocks, end = document.blocks, len(document.text)
    if not blocks:
        return end
    keep = len(blocks)
    has_cue = is_cue(document, blocks[-1])
    if has_cue:
        keep -= 1
        while keep and is_material(document, blocks[keep - 1]):
            keep -= 1
    else:
        while keep and is_input(document, blocks[keep - 1]):
            keep -= 1
    if keep < len(blocks):
        while keep and is_label(document, blocks[keep - 1]):
            keep -= 1
        if keep and not has_cue and ends_with_colon(document, blocks[keep - 1]):
            return end  # `Summarise this text:` and the text belong together
        if keep and ends_with_colon(document, blocks[keep - 1]):
            keep -= 1
    if keep == len(blocks) or (keep == 0 and not has_cue):
        return end
    return next((block.start for block in blocks[keep:] if _may_precede(document, block.start)), end)


def _may_precede(document: Document, at: int) -> bool:
    """Whether a list before that position would end there: at the start of a line, in no template block."""
    starts_line = at == 0 or document.text[at - 1] in "\r\n"
    return starts_line and not (document.has_template_blocks and document.depth(at) != 0)


def is_cue(document: Document, block: Block) -> bool:
    """The beginning of the answer, such as `Answer:` or an empty last section."""
    text = document.of(block)
    if block.kind == "heading":
        return True
    last = text.rpartition("\n")[2]
    return block.kind == "paragraph" and text == last and bool(CUE.match(last)) and _words(last) <= MAX_CUE_WORDS


def is_input(document: Document, block: Block) -> bool:
    """What the prompt works on: placeholders with labels, and nothing else."""
    if block.kind != "paragraph":
        return False
    rest, count = PLACEHOLDER.subn(" ", document.of(block))
    return count > 0 and all(_words(line) <= MAX_LABEL_WORDS for line in rest.split("\n")) and _words(rest) <= 8


def is_material(document: Document, block: Block) -> bool:
    """Before a cue: the input in any form."""
    return block.kind in ("fence", "code", "quote", "table", "html", "rule") or is_input(document, block)


def is_label(document: Document, block: Block) -> bool:
    """A heading or a few words that name the input below."""
    if block.kind == "heading":
        return True
    text = document.of(block)
    return block.kind == "paragraph" and text.endswith(":") and _words(text) <= MAX_LABEL_WORDS and "\n" not in text


def ends_with_colon(document: Document, block: Block) -> bool:
    return block.kind == "paragraph" and document.of(block).rstrip("*_ ").endswith(":")


def _words(text: str) -> int:
    return len(WORD.findall(text))
