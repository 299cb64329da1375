"""A prompt as Markdown: its blocks with their positions in the text, and the spans that no mutation touches.

markdown-it-py finds the blocks and the inline code, links and tags. It knows no templates and no front matter: tags
such as <document> are read as text here, and placeholders are spans of their own.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal

from markdown_it import MarkdownIt
from markdown_it.common.html_blocks import block_names
from markdown_it.rules_block import StateBlock
from markdown_it.rules_block.html_block import html_block
from markdown_it.rules_inline import StateInline, autolink, backtick, html_inline, image, link
from markdown_it.token import Token

from etude.contracts.errors import PromptError

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
    r"|[$@#]\{[^{}\n]{1,200}\}"  # JavaScript, shell, Ruby
    r"|\{[A-Za-z_][\w.\-\[\]]{0,80}(?:![rsa])?(?::[^{}\n]{0,20})?\}|\{\d{0,3}\}"  # Python's format
    r"|</?[A-Za-z_][\w.:\-]{0,80}(?:\s[^<>\n]{0,200})?/?>"  # tags, <name>
    r"|<<[A-Za-z_][\w ]{0,40}>>"
    r"|%\([A-Za-z_]\w{0,80}\)[sdrf]|%[sdrf]\b|%[A-Z][A-Z0-9_]+%"  # printf, Windows
    r"|\$[A-Za-z_]\w{1,60}"  # shell, string.Template
    r"|\[[A-Za-z][^\[\]\n]{1,60}\](?![(\[:])"  # [PLACEHOLDER], [your name]
    r"|__[A-Z][A-Z0-9_]+__",
    re.S,
)
NUMBER = re.compile(r"\d+(?:[.,:/\-]\d+)*")
URL = re.compile(r"\b(?:https?|ftp)://[^\s<>\"'`)\]}]+|\bwww\.[^\s<>\"'`)\]}]+|(?<![\w.+-])[\w.+-]+@[\w-]+\.[\w.-]*\w")
LINE_END = re.compile(r"\r\n?|\n")
FRONT_MATTER = re.compile(
    r"\A---[ \t]*(?:\r\n|\r|\n)(?=[\w\-]+[ \t]*:)(?:[^\r\n]*(?:\r\n|\r|\n))+?(?:---|\.\.\.)[ \t]*(?:\r\n|\r|\n|\Z)"
)
MARKER = re.compile(r"[ \t]*(?:[-+*]|\d{1,9}[.)])(?=[ \t]|$|[\r\n])[ \t]*")
OPENS = re.compile(r"\{%-?\s*(?:if|for|block|macro|call|filter|with|raw|autoescape)\b|\{%-?\s*set\s+\w+\s*-?%|\{\{[#^]")
CLOSES = re.compile(r"\{%-?\s*end\w*|\{\{/")
INLINE = re.compile(r"[`\[<]")
"""Without one of these there is no inline code, link or tag."""
TAG = re.compile(r"</?([A-Za-z][\w.:-]*)")
HTML_TAGS = frozenset(
    {*block_names, "pre", "script", "style", "textarea", "img", "br", "a", "b", "i", "kbd", "sub", "sup"}
)
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
INLINE_RULES = {
    "backticks": backtick,
    "link": link,
    "image": image,
    "autolink": autolink,
    "html_inline": html_inline,
}
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
    """A parsed text."""

    text: str
    blocks: tuple[Block, ...]
    """The blocks at the top level."""
    spans: tuple[tuple[int, int], ...]
    """Inline code, links, tags and placeholders, merged and in order."""
    inventory: Inventory
    newline: str = field(default="\n")

    def touches(self, start: int, end: int) -> bool:
        """Whether a protected span overlaps that range."""
        at = bisect_right(self.spans, (end - 1, len(self.text) + 1)) - 1
        return start < end and at >= 0 and self.spans[at][1] > start

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
    body = text[offset:]
    lines = _Lines(body, offset)
    env: dict[str, Any] = {}
    tokens = BLOCKS.parse(body, env)
    _check_fences(tokens, lines, text)
    blocks = _Reader(text, tokens, lines).blocks(0, len(lines.starts), offset)
    if front:
        blocks = (Block(kind="front matter", start=0, end=len(text[:offset].rstrip())), *blocks)
    inline = _Inline(text, tokens, lines, env)
    spans = [*inline.spans, *(match.span() for match in PLACEHOLDER.finditer(text))]
    return Document(
        text=text,
        blocks=blocks,
        spans=_merged([*spans, *(match.span() for match in URL.finditer(text))]),
        inventory=_inventory(text, blocks, tokens, inline),
        newline="\r\n" if "\r\n" in text else "\n",
    )


_cached = lru_cache(maxsize=256)(_parse)


class _Lines:
    """Line numbers to positions in the whole text."""

    def __init__(self, body: str, offset: int) -> None:
        ends = [match.span() for match in LINE_END.finditer(body)]
        self.starts = [offset, *(offset + end for _, end in ends)]
        self.ends = [*(offset + start for start, _ in ends), offset + len(body)]


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


class _Inline:
    """Spans of inline code, links and tags, from the rules of markdown-it-py, which give tokens no positions."""

    def __init__(self, text: str, tokens: Sequence[Token], lines: _Lines, env: dict[str, Any]) -> None:
        self.spans: list[tuple[int, int]] = []
        self.code: list[str] = []
        self.links: list[str] = [each["href"] for each in env.get("references", {}).values()]
        for token in tokens:
            if token.type != "inline" or token.map is None or not INLINE.search(token.content):
                continue
            within: dict[str, Any] = {**env, "source": token.content, "spans": []}
            children: list[Token] = []
            BLOCKS.inline.parse(token.content, BLOCKS, within, children)
            self.read(children)
            if within["spans"]:
                to_text = _positions(text, token, lines)
                self.spans += [(to_text(start), to_text(end - 1) + 1) for start, end in within["spans"]]

    def read(self, children: Sequence[Token]) -> None:
        for child in children:
            if child.type == "code_inline":
                self.code.append(child.content)
            elif child.type in ("link_open", "image"):
                self.links.append(str(child.attrs.get("href") or child.attrs.get("src")))
                self.read(child.children or ())


def _positions(text: str, token: Token, lines: _Lines) -> Callable[[int], int]:
    """From positions in the content of a paragraph to positions in the text."""
    assert token.map is not None
    inside, outside, at = [], [], 0
    for number, line in enumerate(token.content.split("\n"), start=token.map[0]):
        start, end = lines.starts[number], lines.ends[number]
        # Content is what follows markers and indentation, so it is found from the right.
        place = text.rfind(line.strip(), start, end)
        inside.append(at)
        outside.append(max(start, place) - (len(line) - len(line.lstrip())))
        at += len(line) + 1
    return lambda position: outside[(row := bisect_right(inside, position) - 1)] + position - inside[row]


def _inventory(text: str, blocks: Sequence[Block], tokens: Sequence[Token], inline: _Inline) -> Inventory:
    quoted = [block for block in _leaves(blocks) if block.kind in QUOTED]
    code = [token.info.strip() + "\n" + token.content for token in tokens if token.type in ("fence", "code_block")]
    return Inventory(
        placeholders=Counter(PLACEHOLDER.findall(text)),
        code=Counter([*code, *inline.code]),
        links=Counter([*inline.links, *URL.findall(text)]),
        numbers=Counter(NUMBER.findall(text)),
        quoted=Counter(" ".join(text[block.start : block.end].split()) for block in quoted),
    )


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


def _parser() -> MarkdownIt:
    made = MarkdownIt("commonmark").enable("table").disable("inline")
    made.block.ruler.at("html_block", _html_block, {"alt": ["paragraph", "reference", "blockquote"]})
    for name in ("backticks", "link", "image", "autolink", "html_inline"):
        made.inline.ruler.at(name, _recorded(INLINE_RULES[name]))
    return made


def _html_block(state: StateBlock, first: int, after: int, silent: bool) -> bool:
    """As CommonMark, for tags of HTML alone: <document> begins text."""
    start = state.bMarks[first] + state.tShift[first]
    name = TAG.match(state.src, start)
    if name and name[1].lower() not in HTML_TAGS:
        return False
    return html_block(state, first, after, silent)


def _recorded(rule: Callable[[StateInline, bool], bool]) -> Callable[[StateInline, bool], bool]:
    def recorded(state: StateInline, silent: bool) -> bool:
        start = state.pos
        matched = rule(state, silent)
        if matched and not silent and state.src is state.env.get("source"):
            state.env["spans"].append((start, state.pos))
        return matched

    return recorded


BLOCKS = _parser()
