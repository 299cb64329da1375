"""Markdown tokens of a text by markdown-it-py: CommonMark with tables, and inline code, links and tags.

At each line and character only the rules are tried that can begin there. What no mutation reads is not made: emphasis,
entities, and addresses in a normal form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.common.html_blocks import block_names
from markdown_it.helpers import parseLinkDestination, parseLinkLabel, parseLinkTitle
from markdown_it.parser_block import RuleFuncBlockType
from markdown_it.parser_inline import RuleFuncInlineType
from markdown_it.ruler import Ruler
from markdown_it.rules_block import (
    StateBlock,
    blockquote,
    code,
    fence,
    heading,
    hr,
    lheading,
    list_block,
    paragraph,
    reference,
    table,
)
from markdown_it.rules_block.html_block import html_block
from markdown_it.rules_inline import StateInline, autolink, backtick, escape, html_inline, image, link
from markdown_it.token import Token

LINE_END = re.compile(r"\r\n?|\n")
UNDERLINE = re.compile(r"\n[ \t>]*(?:-+|=+)[ \t]*(?![^\n])")
"""Below a heading; without one, the rule for it need not look through each paragraph."""
SPECIAL = re.compile(r"[\\`\[\]<]|!(?=\[)")
"""Where inline code, a link or a tag may begin or end."""
INLINE = re.compile(r"[`\[<]")
"""Without one of these there is none."""
DESTINATION = re.compile(r"[^\x00-\x20\x7f\\()<&]+(?=[ \n)])")
"""An address in a link in which nothing is escaped, bracketed or quoted."""
TAG = re.compile(r"</?([A-Za-z][\w.:-]*)")
HTML_TAGS = frozenset(
    {*block_names, "pre", "script", "style", "textarea", "img", "br", "a", "b", "i", "kbd", "sub", "sup"}
)


def block_tokens(text: str, env: dict[str, Any]) -> list[Token]:
    """The tokens of blocks; `env` gets the definitions of links."""
    text = LINE_END.sub("\n", text)
    parser = PARSERS["|" in text, UNDERLINE.search(text) is not None]
    return parser.block.parse(text, parser, env, []) or []


def inline_tokens(content: str, references: Mapping[str, Any]) -> tuple[list[Token], list[tuple[int, int]]]:
    """The tokens in a paragraph, and the positions of code, links and tags, to which markdown-it-py gives none."""
    spans: list[tuple[int, int]] = []
    env = {"references": references, "source": content, "spans": spans}
    parser = PARSERS[False, False]
    return parser.inline.parse(content, parser, env, []), spans


def known_html_block(state: StateBlock, first: int, after: int, silent: bool) -> bool:
    """As CommonMark, for tags of HTML alone: <document> begins text."""
    name = TAG.match(state.src, state.bMarks[first] + state.tShift[first])
    if name and name[1].lower() not in HTML_TAGS:
        return False
    return html_block(state, first, after, silent)


QUOTES_AND_FENCES: tuple[tuple[RuleFuncBlockType, str], ...] = ((fence, "`~"), (blockquote, ">"), (hr, "-*_"))
STRUCTURE = (*QUOTES_AND_FENCES, (list_block, "-+*0123456789"), (known_html_block, "<"), (heading, "#"))
"""Rules in their order, with the characters that a line of such a block begins with."""


class _BlockRules(Ruler[RuleFuncBlockType]):
    """The rules that begin a block, and by chain those that end another one."""

    def __init__(self, *, tables: bool, underlines: bool) -> None:
        super().__init__()
        self.push("code", code)  # states ask for it by its name
        table_first, underlined = [table] * tables, [lheading] * underlines
        self.chains: dict[str, list[RuleFuncBlockType]] = {
            "": [*table_first, code, _by_character((*STRUCTURE, (reference, "["))), *underlined, paragraph],
            "paragraph": [*table_first, _by_character(STRUCTURE)],
            "reference": [*table_first, _by_character(QUOTES_AND_FENCES)],
            "blockquote": [_by_character(STRUCTURE)],
            "list": [_by_character(QUOTES_AND_FENCES)],
        }

    def getRules(self, chainName: str = "") -> list[RuleFuncBlockType]:  # noqa: N802
        return self.chains[chainName]


def _by_character(rules: Sequence[tuple[RuleFuncBlockType, str]]) -> RuleFuncBlockType:
    """One rule for several: those that can begin with the first character of the line."""
    begin: dict[str, list[RuleFuncBlockType]] = {}
    for rule, characters in rules:
        for character in characters:
            begin.setdefault(character, []).append(rule)

    def rule_of_line(state: StateBlock, first: int, after: int, silent: bool) -> bool:
        at = state.bMarks[first] + state.tShift[first]
        for rule in begin.get(state.src[at : at + 1], ()):  # noqa: SIM110 - a generator takes longer than most rules
            if rule(state, first, after, silent):
                return True
        return False

    return rule_of_line


def _plain(state: StateInline, silent: bool) -> bool:
    """Everything up to the next character that may begin something."""
    special = SPECIAL.search(state.src, state.pos)
    end = special.start() if special else state.posMax
    if end == state.pos:
        return False
    state.pos = end
    return True


def _special(state: StateInline, silent: bool) -> bool:
    for rule in INLINE_RULES.get(state.src[state.pos], ()):  # noqa: SIM110
        if rule(state, silent):
            return True
    return False


def _recorded(rule: RuleFuncInlineType) -> RuleFuncInlineType:
    """A rule that adds what it matches to the spans."""

    def recorded(state: StateInline, silent: bool) -> bool:
        start = state.pos
        matched = rule(state, silent)
        if matched and not silent and state.src is state.env["source"]:
            state.env["spans"].append((start, state.pos))
        return matched

    return recorded


INLINE_RULES: Mapping[str, tuple[RuleFuncInlineType, ...]] = {
    "\\": (escape,),
    "`": (_recorded(backtick),),
    "[": (_recorded(link),),
    "!": (_recorded(image),),
    "<": (_recorded(autolink), _recorded(html_inline)),
}


class Destination(NamedTuple):
    """Where a link goes, and the position after it."""

    ok: bool
    pos: int
    str: str


def _destination(text: str, start: int, end: int) -> Any:
    """As markdown-it-py, which goes from character to character; most addresses need not be read that closely."""
    simple = DESTINATION.match(text, start, end)
    return Destination(True, simple.end(), simple[0]) if simple else parseLinkDestination(text, start, end)


class _Parser(MarkdownIt):
    helpers: Any

    def __init__(self, *, tables: bool, underlines: bool) -> None:
        super().__init__("commonmark")
        self.block.ruler = _BlockRules(tables=tables, underlines=underlines)
        self.inline.ruler = Ruler()
        self.inline.ruler.push("plain", _plain)
        self.inline.ruler.push("special", _special)
        self.inline.ruler2 = Ruler()
        self.helpers = SimpleNamespace(
            parseLinkLabel=parseLinkLabel, parseLinkTitle=parseLinkTitle, parseLinkDestination=_destination
        )

    def normalizeLink(self, url: str) -> str:  # noqa: N802
        """As it is written."""
        return url

    def normalizeLinkText(self, link: str) -> str:  # noqa: N802
        return link


PARSERS = {
    (tables, underlines): _Parser(tables=tables, underlines=underlines)
    for tables in (False, True)
    for underlines in (False, True)
}
