"""A prompt as Markdown: its blocks with their positions in the text, and the spans that no mutation touches.

`markdown.py` finds the blocks and the inline code, links and tags. It knows no templates and no front matter:
placeholders are spans of their own.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal

from markdown_it.token import Token

from etude.contracts.errors import PromptError
from etude.problems.prompt.mutations.inline import Content, Inline, inline_of
from etude.problems.prompt.mutations.markdown import INLINE, LINE_END, block_tokens

Kind = Literal[
    "paragraph",
    "heading",
    "list",
    "item",
    "fence",
    "code",
    "quote",
    "table",
    "html",
    "rule",
    "reference",
    "front matter",
]

PLACEHOLDER = re.compile(
    r"\{%-?.{0,400}?%\}"  # Jinja statements
    r"|\{#.{0,400}?#\}"  # Jinja comments
    r"|\{\{\{?.{0,400}?\}\}\}?"  # Jinja, Mustache, Handlebars
    r"|\$\{[^{}\n]{1,200}\}|@\{[^{}\n]{1,200}\}|#\{[^{}\n]{1,200}\}"  # JavaScript, shell, Ruby
    r"|\{[A-Za-z_][\w.\-\[\]]{0,80}(?:![rsa])?(?::[^{}\n]{0,20})?\}|\{\d{0,3}\}"  # Python's format
    r"|</?[A-Za-z_][\w.:\-]{0,80}(?:\s[^<>\n]{0,200})?/?>"  # tags, <name>
    r"|<<[A-Za-z_][\w ]{0,40}>>"
    r"|%\([A-Za-z_]\w{0,80}\)[sdrf]|%[sdrf]\b|%[A-Z][A-Z0-9_]+%"  # printf, Windows
    r"|\$[A-Za-z_]\w{1,60}"  # shell, string.Template
    r"|\[[A-Za-z][^\[\]\n]{1,60}\](?![(\[:])"  # [PLACEHOLDER], [your name]
    r"|__[A-Z][A-Z0-9_]+__",
    re.S,
)
"""Each kind begins with a character, not with a class of them: so re skips to the next of these characters."""
NUMBER = re.compile(r"\d+(?:[.,:/\-]\d+)*")
_ADDRESS = r"[^\s<>\"'`)\]}]+"
URL = re.compile(rf"h(?<!\wh)ttps?://{_ADDRESS}|f(?<!\wf)tp://{_ADDRESS}|w(?<!\ww)ww\.{_ADDRESS}")
"""As whole words; looking back after the first letter leaves re a letter to skip to."""
MAIL_DOMAIN = re.compile(r"@[\w-]+\.[\w.-]*\w")
MAIL_NAME = re.compile(r"(?<![\w.+-])[\w.+-]+\Z")
MAX_MAIL_NAME = 64
FRONT_MATTER = re.compile(
    r"\A---[ \t]*(?:\r\n|\r|\n)(?=[\w\-]+[ \t]*:)(?:[^\r\n]*(?:\r\n|\r|\n))+?(?:---|\.\.\.)[ \t]*(?:\r\n|\r|\n|\Z)"
)
MARKER = re.compile(r"[ \t]*(?:[-+*]|\d{1,9}[.)])(?=[ \t]|$|[\r\n])[ \t]*")
OPENS = re.compile(r"\{%-?\s*(?:if|for|block|macro|call|filter|with|raw|autoescape)\b|\{%-?\s*set\s+\w+\s*-?%|\{\{[#^]")
CLOSES = re.compile(r"\{%-?\s*end\w*|\{\{/")
KINDS: dict[str, Kind] = {
    "paragraph_open": "paragraph",
    "heading_open": "heading",
    "fence": "fence",
    "code_block": "code",
    "blockquote_open": "quote",
    "table_open": "table",
    "html_block": "html",
    "hr": "rule",
}
QUOTED = ("quote", "table", "html", "front matter", "reference")
CACHED_CHARS = 20_000
"""Longer texts are parsed again, so that the cache stays small."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block from `start` to `end` in the text, its last line end not included."""

    kind: Kind
    start: int
    end: int
    level: int = 0
    """Of a heading."""
    marker: str = ""
    """Of a list: -, *, +, or 1. and 1); of an item: as it is written."""
    inner: int = 0
    """Where the content of an item begins."""
    blocks: tuple[Block, ...] = ()
    """The items of a list, and the blocks of an item."""


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """What no mutation may lose, with counts."""

    placeholders: Counter[str]
    code: Counter[str]
    links: Counter[str]
    numbers: Counter[str]
    quoted: Counter[str]
    """Block quotes, tables, HTML, front matter: text that is not the author's instruction."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A parsed text. Its blocks are there; what is in its paragraphs is read when it is asked for."""

    text: str
    blocks: tuple[Block, ...]
    """The blocks at the top level."""
    contents: tuple[Content, ...] = field(repr=False)
    """Where inline code, links and tags may be, in order."""
    code: tuple[tuple[int, str], ...] = field(repr=False)
    """Code blocks, each with its position, language first."""
    references: Mapping[str, Any] = field(repr=False)
    """Definitions of links."""
    newline: str = "\n"
    _inline: dict[Content, Inline] = field(default_factory=dict, init=False, repr=False, compare=False)

    def inline(self, content: Content) -> Inline:
        """Read once, when it is asked for."""
        if content not in self._inline:
            self._inline[content] = inline_of(self.text, content, self.references)
        return self._inline[content]

    @cached_property
    def names(self) -> tuple[tuple[int, int], ...]:
        """Where placeholders and addresses are, merged and in order."""
        return _merged([*(match.span() for match in PLACEHOLDER.finditer(self.text)), *addresses(self.text)])

    @cached_property
    def inventory(self) -> Inventory:
        text, inline = self.text, [self.inline(content) for content in self.contents]
        links = [each["href"] for each in self.references.values()]
        links += [text[start:end] for start, end in addresses(text)]
        return Inventory(
            placeholders=Counter(PLACEHOLDER.findall(text)),
            code=Counter([*(code for _, code in self.code), *(code for each in inline for code in each.code)]),
            links=Counter([*links, *(link for each in inline for link in each.links)]),
            numbers=Counter(NUMBER.findall(text)),
            quoted=Counter(" ".join(self.of(block).split()) for block in self.leaves if block.kind in QUOTED),
        )

    @cached_property
    def has_quotes(self) -> bool:
        """Whether it has code or quoted material."""
        return (
            bool(self.code)
            or any(block.kind in QUOTED for block in self.leaves)
            or any(self.inline(content).code for content in self.contents)
        )

    def touches(self, start: int, end: int) -> bool:
        """Whether inline code, a link, a tag, an address or a placeholder overlaps that range."""
        if start >= end:
            return False
        at = bisect_right(self.names, (end - 1, len(self.text) + 1)) - 1
        if at >= 0 and self.names[at][1] > start:
            return True
        at = bisect_right(self.contents, end - 1, key=lambda content: content.lines[0][0]) - 1
        while at >= 0 and self.contents[at].lines[-1][1] > start:
            if any(first < end and last > start for first, last in self.inline(self.contents[at]).spans):
                return True
            at -= 1
        return False

    def of(self, block: Block) -> str:
        return self.text[block.start : block.end]

    @cached_property
    def leaves(self) -> tuple[Block, ...]:
        """Every block that is no list and no item, in order."""
        return tuple(_leaves(self.blocks))

    @cached_property
    def prose(self) -> str:
        """The author's own words: paragraphs and headings, one per line, without code, quotes and tables."""
        return "\n".join(self.of(block) for block in self.leaves if block.kind in ("paragraph", "heading"))

    @cached_property
    def lower(self) -> str:
        """The text in lower case with straight apostrophes, every character at its position."""
        return self.text.replace("İ", "i").replace("’", "'").lower()

    @cached_property
    def lowered(self) -> str:
        """The same in lower case, with spaces for line ends."""
        return " ".join(self.prose.lower().replace("’", "'").split())

    def depth(self, at: int) -> int:
        """How many template blocks, such as {% if … %}, are open at a position."""
        if not self.has_template_blocks:
            return 0
        return len(OPENS.findall(self.text, 0, at)) - len(CLOSES.findall(self.text, 0, at))

    @cached_property
    def has_template_blocks(self) -> bool:
        return "{%" in self.text or "{{#" in self.text or "{{^" in self.text


def parse(text: str) -> Document:
    """PromptError where a code fence is never closed."""
    return _cached(text) if len(text) <= CACHED_CHARS else _parse(text)


def _parse(text: str) -> Document:
    front = FRONT_MATTER.match(text)
    offset = front.end() if front else 0
    lines = _Lines(text, offset)
    env: dict[str, Any] = {}
    tokens = block_tokens(text[offset:], env)
    _check_fences(tokens, lines, text)
    blocks = _Reader(text, tokens, lines).blocks(0, len(lines.starts), offset)
    if front:
        blocks = (Block(kind="front matter", start=0, end=len(text[:offset].rstrip())), *blocks)
    return Document(
        text=text,
        blocks=blocks,
        contents=tuple(_contents(tokens, lines)),
        code=tuple(_code(tokens, lines)),
        references=env.get("references", {}),
        newline=newline_of(text),
    )


_cached = lru_cache(maxsize=256)(_parse)


def newline_of(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


class _Lines:
    """Line numbers to positions in the whole text."""

    def __init__(self, text: str, offset: int) -> None:
        ends = [match.span() for match in LINE_END.finditer(text, offset)]
        self.starts = [offset, *(end for _, end in ends)]
        self.ends = [*(start for start, _ in ends), len(text)]


def _check_fences(tokens: Sequence[Token], lines: _Lines, text: str) -> None:
    for token in tokens:
        if token.type != "fence" or token.map is None:
            continue
        first, after = token.map
        last = text[lines.starts[after - 1] : lines.ends[after - 1]].strip(" \t>")
        closed = after - first > 1 and len(last) >= len(token.markup) and not last.strip(token.markup[0])
        if not closed:
            raise PromptError(
                f"the code fence {token.markup} on line {first + 1} is never closed: close it with {token.markup} "
                f"on a "
                "line of its own, or remove it"
            )


class _Reader:
    """Tokens to blocks. Lists are read to any depth; quotes and tables stay whole."""

    def __init__(self, text: str, tokens: Sequence[Token], lines: _Lines) -> None:
        self.text, self.tokens, self.lines, self.at = text, tokens, lines, 0

    def blocks(self, first: int, after: int, begins: int) -> tuple[Block, ...]:
        """The blocks from one line to another; `begins` is where the first of them may start."""
        found: list[Block] = []
        line = first
        while self.at < len(self.tokens) and self.tokens[self.at].nesting >= 0:
            token = self.tokens[self.at]
            if token.map is None:  # inline content of a paragraph: it has been read
                self.at += 1
                continue
            found += self.references(line, token.map[0], begins)
            found.append(self.block(token, begins))
            line = token.map[1]
        return (*found, *self.references(line, after, begins))

    def block(self, token: Token, begins: int) -> Block:
        assert token.map is not None
        start, end = self.span(token.map[0], token.map[1], begins)
        if token.type in ("bullet_list_open", "ordered_list_open"):
            self.at += 1
            items = []
            while self.tokens[self.at].type == "list_item_open":
                items.append(self.item(self.tokens[self.at], begins))
            self.at += 1
            marker = f"1{token.markup}" if token.type == "ordered_list_open" else token.markup
            return Block(kind="list", start=start, end=end, marker=marker, blocks=tuple(items))
        self.skip()
        level = int(token.tag[1]) if token.type == "heading_open" else 0
        return Block(kind=KINDS[token.type], start=start, end=end, level=level)

    def item(self, token: Token, begins: int) -> Block:
        assert token.map is not None
        start, end = self.span(token.map[0], token.map[1], begins)
        marker = MARKER.match(self.text, start)
        inner = min(marker.end() if marker else start, max(start, end))
        self.at += 1
        blocks = self.blocks(token.map[0], token.map[1], inner)
        self.at += 1
        return Block(kind="item", start=start, end=end, inner=inner, marker=self.text[start:inner], blocks=blocks)

    def skip(self) -> None:
        """Over a block and everything in it."""
        depth = 0
        while True:
            depth += self.tokens[self.at].nesting
            self.at += 1
            if depth == 0:
                return

    def span(self, first: int, after: int, begins: int) -> tuple[int, int]:
        """Positions without indentation and without empty lines at the end."""
        start = max(self.lines.starts[first], begins)
        end = max(start, self.lines.ends[after - 1])
        part = self.text[start:end]
        return start + len(part) - len(part.lstrip(" \t")), start + len(part.rstrip())

    def references(self, first: int, after: int, begins: int) -> list[Block]:
        """Definitions of links, which have no tokens: lines between blocks that are not empty."""
        if first >= after:
            return []
        start, end = self.span(first, after, begins)
        part = self.text[start:end]
        start += len(part) - len(part.lstrip())
        return [Block(kind="reference", start=start, end=end)] if start < end else []


def _contents(tokens: Sequence[Token], lines: _Lines) -> Iterator[Content]:
    for token in tokens:
        if token.type == "inline" and token.map is not None and INLINE.search(token.content):
            first, after = token.map
            yield Content(token.content, tuple(zip(lines.starts[first:after], lines.ends[first:after], strict=True)))


def _code(tokens: Sequence[Token], lines: _Lines) -> Iterator[tuple[int, str]]:
    for token in tokens:
        if token.type in ("fence", "code_block") and token.map is not None:
            yield lines.starts[token.map[0]], f"{token.info.strip()}\n{token.content}"


def addresses(text: str) -> list[tuple[int, int]]:
    """Where addresses of pages and of people are."""
    found = [match.span() for match in URL.finditer(text)]
    for domain in MAIL_DOMAIN.finditer(text):
        name = MAIL_NAME.search(text, max(0, domain.start() - MAX_MAIL_NAME), domain.start())
        if name is not None and not any(start <= name.start() < end for start, end in found):
            found.append((name.start(), domain.end()))
    return found


def _leaves(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        if block.kind in ("list", "item"):
            yield from _leaves(block.blocks)
        else:
            yield block


def _merged(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif start < end:
            found.append((start, end))
    return tuple(found)
