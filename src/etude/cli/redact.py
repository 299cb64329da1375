"""`etude redact`: removes personal data and secrets from a text."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from etude.cli.display import console, print_json, table
from etude.experience.redact import RedactionConfig, Redactor, Removed
from etude.experience.redaction.matches import KINDS


def redact(
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="What not to redact: a value, @domain, network such as 10.0.0.0/8, or re:expression. May be repeated."
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Kind to redact, such as email or card; all by default. May be repeated.", show_default="all kinds"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the text and what was removed as JSON.")] = False,
) -> None:
    """Redact text from standard input; what was removed and why goes to stderr.

    The whole input is read into memory and needs about ten times its size. Bytes that are not UTF-8 are printed
    unchanged.
    """
    session = Redactor(RedactionConfig(kinds=tuple(kind or KINDS), allow=tuple(allow or ()))).session()
    text = session.text(sys.stdin.buffer.read().decode("utf-8", "surrogateescape"))
    if as_json:
        # JSON has no bytes: invalid UTF-8 becomes the replacement character.
        readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        print_json({"text": readable, "removed": [msgspec.structs.asdict(each) for each in session.removed]})
        return
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()
    _print_removed(session.removed)


def _print_removed(removed: tuple[Removed, ...]) -> None:
    screen = console(stderr=True)
    if not removed:
        screen.print("nothing to redact")
        return
    rows = [[each.kind, each.placeholder.replace("[", r"\["), f"{each.count:,}", each.why] for each in removed]
    screen.print(table("kind", "placeholder", "count", "why", rows=rows, right=("count",)))
