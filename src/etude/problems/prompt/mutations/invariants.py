"""What no mutation may do to a prompt: lose a placeholder, code, a link, a number or quoted material, or add "
"variables."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

from etude.problems.prompt.mutations.document import Inventory, parse
from etude.problems.prompt.mutations.prompts import Prompt, texts

WORDS = {
    "placeholders": "the placeholder",
    "code": "the code",
    "links": "the link",
    "numbers": "the number",
    "quoted": "the quoted material",
}
SHOWN_CHARS = 60


def violations(before: Prompt, after: Prompt) -> tuple[str, ...]:
    """What is lost or wrongly added, in words; empty where everything is still there.

    PromptError if `after` cannot be parsed, such as for a code fence that is not closed.
    """
    old, new = inventory(before), inventory(after)
    lost = [
        f"{WORDS[field.name]} {_shown(each)} is lost"
        for field in fields(Inventory)
        for each in (getattr(old, field.name) - getattr(new, field.name))
    ]
    added = [f"the placeholder {_shown(each)} is new" for each in new.placeholders - old.placeholders]
    return (*lost, *added)


def inventory(prompt: Prompt) -> Inventory:
    """The inventories of all texts that a mutation may change, added up."""
    each = [parse(text.text).inventory for text in texts(prompt)]
    return Inventory(
        **{field.name: sum((getattr(one, field.name) for one in each), Counter()) for field in fields(Inventory)}
    )


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}…"
