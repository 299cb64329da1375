"""`etude shadow`: a candidate answers every request, and no one sees it."""

from __future__ import annotations

import typer
from rich.markup import escape

from etude.bootstrap.release import release
from etude.cli.canary import SlotArgument, Version
from etude.cli.display import console
from etude.cli.options import ConfigFile
from etude.cli.release_options import By, actor

app = typer.Typer(no_args_is_help=True, help="Let a candidate answer without effect; `etude canary status` counts.")


@app.command()
def start(version: Version, by: By = None, config: ConfigFile = None) -> None:
    """Ask a candidate with every request; only whether it answers as the incumbent does is kept."""
    with release(config) as opened:
        candidate = opened.registry.find(version)
        slot = opened.registry.slot_of(candidate)
        opened.start(slot, candidate, by=actor(by), strategy="shadow")
    console().print(f"{escape(slot)}: {candidate} answers in shadow: `etude canary status {escape(slot)}`")


@app.command()
def stop(slot: SlotArgument, by: By = None, config: ConfigFile = None) -> None:
    """End the shadow; the incumbent is as before."""
    with release(config) as opened:
        opened.controller.abort(slot, by=actor(by), reason="stopped")
    console().print(f"{escape(slot)}: the shadow ended")
