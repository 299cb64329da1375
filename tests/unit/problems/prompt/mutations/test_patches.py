"""A document that is patched is the document of the new text."""

from __future__ import annotations

from random import Random

import pytest

from etude.contracts.errors import PromptError
from etude.problems.prompt.mutations import mutate, patches, reduction
from etude.problems.prompt.mutations.document import Document, parse
from etude.problems.prompt.mutations.edits import Edit, forward
from etude.problems.prompt.mutations.patches import patched
from tests.unit.problems.prompt.mutations.random_prompts import random_prompt

REFERENCE = "\n\n[a]: https://example.com"
PARTS = ("# One\n\n- `a`\n- b\n\n", "Text to keep. Remove this. `code` at the end.\n\n", "- c\n\nLast, with [a](b).")
AT = "".join(PARTS).index(" Remove this.")
REMOVED = Edit(start=AT, removed=" Remove this.")


def removed_from(text: str) -> Document:
    edits = [REMOVED]
    found, expected = patched(parse(text), forward(text, edits), edits), parse(forward(text, edits))
    assert found == expected
    assert [found.inline(each) for each in found.contents] == [expected.inline(each) for each in expected.contents]
    return found


def test_only_the_part_around_an_edit_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def parse_and_note(text: str) -> Document:
        seen.append(text)
        return parse(text)

    monkeypatch.setattr(patches, "parse", parse_and_note)
    removed_from("".join(PARTS))
    assert seen == ["Text to keep. `code` at the end.\n\n- c\n\n"]


@pytest.mark.parametrize(
    "text",
    [
        "".join(PARTS) + REFERENCE,  # definitions of links reach everywhere
        "".join(PARTS).replace("- c\n\n", "<div>\n\n"),
        "".join(PARTS).replace("- c\n\n", "<!-- c\n\n") + " -->",
        "".join(PARTS).replace("- c", "```\n- c\n\nc\n```"),
        "".join(PARTS).replace("\n\n- c", "\n- c"),
        "".join(PARTS).replace("Last", "    Last"),
    ],
)
def test_what_reaches_beyond_the_part(text: str) -> None:
    removed_from(text)


def test_front_matter_is_read_with_all_of_the_text() -> None:
    text = "---\na: b\n\nText to keep. Remove this.\n---\n\nLast."
    edit = Edit(start=text.index(" Remove"), removed=" Remove this.")
    assert patched(parse(text), forward(text, [edit]), [edit]) == parse(forward(text, [edit]))


def test_every_patch_of_a_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def checked(document: Document, text: str, edits: list[Edit]) -> Document:
        nonlocal count
        count += 1
        found = patched(document, text, edits)
        assert found == parse(text)
        return found

    monkeypatch.setattr(reduction, "patched", checked)
    for seed in range(300):
        try:
            mutate(random_prompt(Random(seed)), "context-reduction")
        except PromptError:
            continue
    assert count > 100
