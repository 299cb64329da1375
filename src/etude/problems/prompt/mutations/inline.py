"""What is in a paragraph: its inline code, links and tags, with their positions in the whole text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from markdown_it.token import Token

from etude.problems.prompt.mutations.markdown import inline_tokens


class Content(NamedTuple):
    """What a paragraph, heading or cell holds, and the lines that it is on, from their start to their end."""

    text: str
    lines: tuple[tuple[int, int], ...]


class Inline(NamedTuple):
    """Inline code, links and tags: their positions, and what they hold."""

    spans: tuple[tuple[int, int], ...]
    code: tuple[str, ...]
    links: tuple[str, ...]


def inline_of(text: str, content: Content, references: Mapping[str, Any]) -> Inline:
    """What is in one content of a text; `references` are the definitions of links."""
    tokens, spans = inline_tokens(content.text, references)
    every = list(_with_children(tokens))
    if spans:
        to_text = _positions(text, content)
        spans = [(to_text(start), to_text(end - 1) + 1) for start, end in spans]
    return Inline(
        spans=tuple(spans),
        code=tuple(token.content for token in every if token.type == "code_inline"),
        links=tuple(
            str(token.attrs.get("href") or token.attrs.get("src"))
            for token in every
            if token.type in ("link_open", "image")
        ),
    )


def _with_children(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _with_children(token.children or ())


def _positions(text: str, content: Content) -> Callable[[int], int]:
    """From positions in the content to positions in the text."""
    inside, outside, at = [], [], 0
    for line, (start, end) in zip(content.text.split("\n"), content.lines, strict=False):
        # Content is what follows markers and indentation, so it is found from the right.
        place = text.rfind(line.strip(), start, end)
        inside.append(at)
        outside.append(max(start, place) - (len(line) - len(line.lstrip())))
        at += len(line) + 1
    return lambda position: outside[(row := bisect_right(inside, position) - 1)] + position - inside[row]
