"""The few rules that are tried find the same blocks, code and links as all of markdown-it-py."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from etude.problems.prompt.mutations.markdown import block_tokens, inline_tokens, known_html_block
from tests.unit.problems.prompt.mutations.random_prompts import random_prompt

EVERYTHING = MarkdownIt("commonmark").enable("table")
EVERYTHING.block.ruler.at("html_block", known_html_block, {"alt": ["paragraph", "reference", "blockquote"]})
BLOCKS_ALONE = ("normalize", "block")
MARKUP = st.lists(
    st.sampled_from(
        ["- ", "1. ", "2) ", "> ", "# ", "    ", "\t", "\n", "\n\n", "\r\n", "```", "~~~", "---", "===", "***",
         "|", "|-|", "a|b", "[a]: b", "[a]", "<div>", "<x>", "<!--", "-->", "`", "a", "b c", " ", "\\", "!", "(u)",
         "<u:v>", "*", "&amp;"]
    ),
    max_size=24,
).map("".join)  # fmt: skip


def every_block(text: str, env: dict[str, Any]) -> list[Token]:
    with EVERYTHING.reset_rules():
        EVERYTHING.core.ruler.enableOnly(BLOCKS_ALONE)
        return EVERYTHING.parse(text, env)


def shape(tokens: Sequence[Token]) -> list[tuple[Any, ...]]:
    return [(t.type, t.tag, t.nesting, t.level, t.map, t.content, t.markup, t.info) for t in tokens]


def same_blocks(text: str) -> None:
    env: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    assert shape(block_tokens(text, env)) == shape(every_block(text, expected))
    assert env.get("references", {}).keys() == expected.get("references", {}).keys()


@pytest.mark.parametrize("seed", range(150))
def test_blocks_of_prompts(seed: int) -> None:
    same_blocks(random_prompt(Random(seed)))


@given(MARKUP)
@example("a\n---\n\n> b\n> ===\n\n- c\n  ---")
@example("a|b\n-|-\n1|2\n# x")
@example("> ```\nx\n> a|b\n> -|-")
@settings(max_examples=300, deadline=None)
def test_blocks_of_any_markup(text: str) -> None:
    same_blocks(text)


def code_and_links(tokens: Sequence[Token]) -> list[str]:
    found = []
    for token in tokens:
        if token.type == "code_inline":
            found.append(token.content)
        elif token.type in ("link_open", "image", "html_inline"):
            found.append(token.type)
        found += code_and_links(token.children or ())
    return found


@given(MARKUP)
@example("[a](<b c> 'd') [e](f_(g)) ![h](i\\)j)")
@example("`a` \\`b` ``c ` d`` <http://e.f> <g@h.i> <b>")
@example("[a [b](c) d](e) [![f](g)](h) [i][ref] [ref]")
@settings(max_examples=300, deadline=None)
def test_code_and_links_of_any_markup(text: str) -> None:
    references = {"REF": {"href": "u", "title": ""}, "A": {"href": "b", "title": ""}}
    text = text.replace("\r\n", "\n")  # as blocks hold it
    (expected,) = EVERYTHING.parseInline(text, {"references": references})
    tokens, spans = inline_tokens(text, references)
    assert code_and_links(tokens) == code_and_links(expected.children or ())
    assert spans or not code_and_links(tokens)


def test_an_address_stays_as_it_is_written() -> None:
    tokens, spans = inline_tokens("[a](https://ü.example/ä?b=c d)", {})
    assert not spans
    tokens, spans = inline_tokens("[a](https://ü.example/ä?b=%20)", {})
    assert [token.attrs["href"] for token in tokens if token.type == "link_open"] == ["https://ü.example/ä?b=%20"]
