"""`etude audit`: every step of every release, whether the record is unaltered, and whether a step recomputes."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from etude.bootstrap.release import open_registry, settings_here
from etude.cli.display import console, print_json, table
from etude.cli.options import ConfigFile
from etude.cli.release_options import AsJson
from etude.contracts.errors import ReleaseError, TamperedError
from etude.release.audit import audit_log, find_step
from etude.release.audit import replay as replay_entry
from etude.release.audit import verify as verify_slot
from etude.release.registry import Registry

app = typer.Typer(no_args_is_help=True, help="Who changed what serves, when, on what evidence.")

OneSlot = Annotated[str | None, typer.Argument(metavar="SLOT", help="Slot.", show_default="all")]


@app.command("log")
def show_log(slot: OneSlot = None, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Show every step, oldest first."""
    registry = open_registry(settings_here(config))
    found = audit_log(registry, slot)
    if as_json:
        print_json([{"slot": one, **msgspec.to_builtins(entry)} for one, entry in found])
        return
    rows = [
        [f"{one}#{e.number}", f"{e.time:%Y-%m-%d %H:%M:%S}", e.actor, e.action, e.version or "", escape(e.reason)]
        for one, e in found
    ]
    console().print(table("decision", "time", "actor", "action", "version", "reason", rows=rows) if rows else "empty")


@app.command()
def verify(
    slot: OneSlot = None,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="HASH", help="Hash of a remembered newest entry: finds a log that lost its end.", show_default=False
        ),
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Check every hash, signature and rule of the record, and recompute every decision from its units."""
    registry, screen = open_registry(settings_here(config)), console()
    if head is not None and slot is None:
        raise ReleaseError("--head is the hash of one slot's newest entry: name the slot")
    for one in _slots(registry, slot):
        found = verify_slot(registry, one, remembered=head)
        screen.print(
            f"{escape(one)}: unaltered: {found.entries:,} entries; {found.replayed:,} decisions of {found.releases:,} "
            f"releases recomputed from {found.units:,} units; newest {found.head}",
            soft_wrap=True,
        )


@app.command()
def replay(
    decision: Annotated[
        str,
        typer.Argument(metavar="DECISION", help="SLOT#NUMBER, as `etude audit log` shows it.", show_default=False),
    ],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Compute the e-values of a step again from the units it rests on."""
    registry, screen = open_registry(settings_here(config)), console()
    found = replay_entry(registry, find_step(registry, decision))
    names = found.logged.keys() | found.computed.keys()
    values = {name: (found.logged.get(name), found.computed.get(name)) for name in sorted(names)}
    if as_json:
        print_json({"decision": decision, "units": found.units, "equal": found.is_equal, "log_e_values": values})
    else:
        rows = [[name, f"{logged}", f"{computed}"] for name, (logged, computed) in values.items()]
        screen.print(table("log e-value", "logged", "computed", rows=rows))
        screen.print(f"{found.units:,} units: {'the same' if found.is_equal else 'NOT the same'}")
    if not found.is_equal:
        raise TamperedError(f"{decision} does not recompute: its units or its record were changed")


def _slots(registry: Registry, slot: str | None) -> list[str]:
    return registry.slots() if slot is None else [slot]
