"""A document after edits: only the part around them is parsed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etude.contracts.errors import PromptError
from etude.problems.prompt.mutations.document import Block, Document, newline_of, parse
from etude.problems.prompt.mutations.edits import Edit
from etude.problems.prompt.mutations.inline import Content


def patched(document: Document, text: str, edits: Sequence[Edit]) -> Document:
    """The same as `parse(text)`, where the edits make that text of the document's."""
    shift = len(text) - len(document.text)
    cuts = list(_cuts(document))
    first, last = edits[0].start, edits[-1].end
    start = max((cut for cut in cuts if cut < first), default=0)
    end = min((cut for cut in cuts if cut > last and _after_empty_line(text, cut + shift)), default=len(document.text))
    if (start, end) == (0, len(document.text)) or document.references or text.startswith("---"):
        return parse(text)
    try:
        part = parse(text[start : end + shift])
    except PromptError:
        return parse(text)
    if part.references or (part.blocks and part.blocks[-1].kind == "html"):  # both can reach beyond the part
        return parse(text)
    before = [block for block in document.blocks if block.start < start]
    after = [_moved(block, shift) for block in document.blocks if block.start >= end]
    contents = [content for content in document.contents if content.lines[0][0] < start]
    contents += [_moved_content(content, start) for content in part.contents]
    contents += [_moved_content(content, shift) for content in document.contents if content.lines[0][0] >= end]
    return Document(
        text=text,
        blocks=(*before, *(_moved(block, start) for block in part.blocks), *after),
        contents=tuple(contents),
        code=(
            *((at, code) for at, code in document.code if at < start),
            *((at + start, code) for at, code in part.code),
            *((at + shift, code) for at, code in document.code if at >= end),
        ),
        references={},
        newline=newline_of(text),
    )


def _cuts(document: Document) -> Iterator[int]:
    """Where a text can be divided: a letter or # after an empty line ends every list, quote and table."""
    text = document.text
    for block in document.blocks:
        begins = text[block.start].isalpha() or text[block.start] == "#"
        if begins and block.kind in ("paragraph", "heading") and _after_empty_line(text, block.start):
            yield block.start


def _after_empty_line(text: str, at: int) -> bool:
    return text[at - 2 : at] == "\n\n"


def _moved(block: Block, by: int) -> Block:
    return Block(
        kind=block.kind,
        start=block.start + by,
        end=block.end + by,
        level=block.level,
        marker=block.marker,
        inner=block.inner + by if block.kind == "item" else 0,
        blocks=tuple(_moved(inner, by) for inner in block.blocks),
    )


def _moved_content(content: Content, by: int) -> Content:
    return Content(content.text, tuple((start + by, end + by) for start, end in content.lines))
