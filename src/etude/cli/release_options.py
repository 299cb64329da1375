"""Options that the commands of releases share, and who gives the command."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who decides, for the audit log.", show_default="login name")
]


def actor(by: str | None) -> str:
    """A person; names of automatic actors are not theirs to use."""
    from etude.contracts.errors import ConfigError
    from etude.release.steps import AUTOMATIC

    try:
        name = by or getpass.getuser()
    except OSError as error:
        raise ConfigError("the login name is unknown: give --by NAME") from error
    if name in AUTOMATIC:
        raise ConfigError(f"--by is {name!r}, the name of an automatic actor: give the name of a person")
    return name
