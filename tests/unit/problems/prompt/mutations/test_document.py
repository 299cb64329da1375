"""Prompts as Markdown: positions, protected spans, and what is read as what."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.contracts.errors import PromptError
from etude.problems.prompt.mutations.document import PLACEHOLDER, Block, parse
from tests.unit.problems.prompt.mutations.random_prompts import random_prompt


def kinds(text: str) -> list[str]:
    return [block.kind for block in parse(text).blocks]


def spans(text: str) -> list[str]:
    """What is protected: the longest runs of characters that are touched."""
    document = parse(text)
    touched = "".join("x" if document.touches(at, at + 1) else " " for at in range(len(text)))
    return [text[run.start() : run.end()] for run in re.finditer("x+", touched)]


def test_blocks_are_read_with_their_positions() -> None:
    text = "# Task\n\nRead it.\n\n- a\n- b\n  - c\n\n```json\n{}\n```\n\n> quote\n\n|a|\n|-|\n|1|\n\n---\n"
    document = parse(text)
    assert [block.kind for block in document.blocks] == [
        "heading", "paragraph", "list", "fence", "quote", "table", "rule",
    ]  # fmt: skip
    assert document.of(document.blocks[3]) == "```json\n{}\n```"
    items = document.blocks[2].blocks
    assert [text[item.inner : item.end] for item in items] == ["a", "b\n  - c"]
    assert items[1].blocks[1].blocks[0].blocks[0].kind == "paragraph"


def test_front_matter_tags_and_definitions_of_links() -> None:
    assert kinds("---\nmodel: x\n---\nRead it.") == ["front matter", "paragraph"]
    assert kinds("---\n\nRead it.") == ["rule", "paragraph"]
    assert kinds("<document>\ntext\n</document>") == ["paragraph"]
    assert kinds("<div>\ntext\n</div>") == ["html"]
    assert kinds("As [a] says.\n\n[a]: https://example.com") == ["paragraph", "reference"]


@pytest.mark.parametrize(
    "placeholder",
    ["{name}", "{{name}}", "{{ user.name | upper }}", "{{{raw}}}", "${NAME}", "<name>", "</name>", "%s", "%(name)s",
     "[PLACEHOLDER]", "[your name]", "$NAME", "{% if a %}", "{# note #}", "{0}", "{}", "{{#each a}}", "#{name}",
     "%PATH%", "__NAME__", "<<name>>", "{amount:.2f}"],
)  # fmt: skip
def test_placeholders_are_protected(placeholder: str) -> None:
    text = f"Please read {placeholder} and go."
    assert spans(text) == [placeholder]
    assert PLACEHOLDER.fullmatch(placeholder)


@pytest.mark.parametrize(
    "text", ["a 50% discount", "It costs $5.", 'return {"a": 1}', "[link](https://x.org)", "1 < 2 > 0"]
)
def test_what_is_no_placeholder(text: str) -> None:
    assert PLACEHOLDER.search(text) is None


@pytest.mark.parametrize(
    ("text", "protected"),
    [
        ("a `b c` d", ["`b c`"]),
        ("- a\n  `b` [c](http://d.e) f", ["`b`", "[c](http://d.e)"]),
        ("see <http://a.b> and ![i](u.png)", ["<http://a.b>", "![i](u.png)"]),
        ("mail a.b@example.org, or https://example.org/?a=1.", ["a.b@example.org", "https://example.org/?a=1."]),
        ("\t- tabs\n\t  `x`", ["`x`"]),
    ],
)
def test_inline_code_links_and_addresses_are_protected(text: str, protected: list[str]) -> None:
    assert spans(text.lstrip("\t")) == protected or kinds(text) == ["code"]


@pytest.mark.parametrize(
    "text", ["www.a.b", "x www.a.b/c", "ftp://a.b", "HTTPS", "awww.a.b", "xhttp://a.b", "a@b", "@b.c"]
)
def test_where_an_address_begins(text: str) -> None:
    expected = [] if text in ("HTTPS", "awww.a.b", "xhttp://a.b", "a@b", "@b.c") else [text.removeprefix("x ")]
    assert spans(text) == expected


def test_lower_case_keeps_positions() -> None:
    every = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000).replace("\0", " ")
    assert all(
        len(parse(part).lower) == len(part) for part in (every[at : at + 50_000] for at in range(0, len(every), 50_000))
    )
    assert parse("Don’t TOUCH İt").lower == "don't touch it"


def test_an_escaped_backtick_is_no_code() -> None:
    assert spans(r"a \`b\` c") == []


@pytest.mark.parametrize("text", ["```\ncode", "~~~py\ncode\n```", "- a\n  ```\n  b\n\nc", "> ```\n> a"])
def test_a_fence_that_is_not_closed_is_an_error_with_its_line(text: str) -> None:
    with pytest.raises(PromptError, match=r"on line \d+ is never closed: close it with"):
        parse(text)


@given(st.integers(0, 10**9))
@settings(max_examples=100, deadline=None)
def test_blocks_cover_everything_but_space_and_markers(seed: int) -> None:
    text = random_prompt(Random(seed))
    document = parse(text)
    at = 0
    for block in document.blocks:
        assert text[at : block.start].strip() == ""
        assert block.start < block.end
        at = block.end
        check_inside(block)
    assert text[at:].strip() == ""


def check_inside(block: Block) -> None:
    at = block.inner if block.kind == "item" else block.start
    for inner in block.blocks:
        assert at <= inner.start <= inner.end <= block.end
        at = inner.end
        check_inside(inner)
