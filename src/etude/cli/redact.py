"""`etude redact`: text without what is personal or secret."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from etude.cli.display import console, print_json, table

if TYPE_CHECKING:
    from etude.experience.redact import Removed


def redact(
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="Leave this alone: a value, @domain, range as 10.0.0.0/8, or re:expression. May be repeated."
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Look only for this kind, such as email or card. May be repeated.", show_default="all kinds"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the text and what was removed as JSON.")] = False,
) -> None:
    """Redact text from standard input; what was removed and why goes to stderr.

    The input is read as a whole: it has to fit in memory about ten times. Bytes that are not UTF-8 come out as they
    went in.
    """
    from etude.experience.redact import RedactionConfig, Redactor
    from etude.experience.redaction.found import KINDS

    session = Redactor(RedactionConfig(kinds=tuple(kind or KINDS), allow=tuple(allow or ()))).session()
    text = session.text(sys.stdin.buffer.read().decode("utf-8", "surrogateescape"))
    if as_json:
        # JSON has no bytes: what is not UTF-8 becomes the sign for an unknown character.
        readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        print_json({"text": readable, "removed": [msgspec.structs.asdict(each) for each in session.removed]})
        return
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()
    _tell(session.removed)


def _tell(removed: tuple[Removed, ...]) -> None:
    screen = console(stderr=True)
    if not removed:
        screen.print("nothing to redact")
        return
    rows = [[each.kind, each.placeholder.replace("[", r"\["), f"{each.count:,}", each.why] for each in removed]
    screen.print(table("kind", "placeholder", "count", "why", rows=rows, right=("count",)))
