"""`etude experiment`: two versions on fixed shares of the traffic, compared with the statistics of a canary."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from etude.bootstrap.release import release
from etude.cli.canary import SlotArgument, Version
from etude.cli.canary import status as canary_status
from etude.cli.display import console
from etude.cli.options import ConfigFile
from etude.cli.release_options import AsJson, By, actor
from etude.contracts.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Compare two versions; harm ends it, nothing promotes by itself.")


@app.command()
def start(
    a: Version,
    b: Version,
    split: Annotated[str, typer.Option(metavar="A/B", help="Percentages of the traffic.")] = "50/50",
    by: By = None,
    config: ConfigFile = None,
) -> None:
    """Compare the version that serves with another one."""
    share = _share_of_b(split)
    with release(config) as opened:
        first, second = opened.registry.find(a), opened.registry.find(b)
        begun = opened.compare(first, second, share=share, by=actor(by))
    exposure = begun.entry.serving.exposure
    assert exposure is not None
    console().print(
        f"{escape(opened.registry.slot_of(second))}: {exposure.candidate} has {exposure.share:.0%} of the traffic: "
        "`etude experiment status`"
    )


@app.command()
def status(
    slot: Annotated[str | None, typer.Argument(metavar="SLOT", help="Slot.", show_default="all")] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Show the evidence so far; it may be looked at at any time."""
    canary_status(slot, as_json=as_json, config=config)


@app.command()
def stop(slot: SlotArgument, by: By = None, config: ConfigFile = None) -> None:
    """End the experiment; the incumbent serves all."""
    with release(config) as opened:
        entry = opened.controller.abort(slot, by=actor(by), reason="stopped")
    console().print(f"{escape(slot)}: the experiment ended; {entry.serving.incumbent} serves")


def _share_of_b(split: str) -> float:
    try:
        first, second = (float(part) for part in split.split("/"))
    except ValueError as error:
        raise ConfigError(f"--split is {split!r}: expected two percentages, such as 50/50") from error
    if not (first > 0 and second > 0 and abs(first + second - 100) <= 1e-9):
        raise ConfigError(f"--split is {split!r}: expected two percentages above 0 that sum to 100")
    return second / 100
