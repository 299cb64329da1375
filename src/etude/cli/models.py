"""`etude models`: registers policies, shows them and where they come from, approves, rolls back."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from etude.bootstrap.release import learned_from, lineage_of, open_registry, settings_here
from etude.cli.canary import SlotArgument, Version
from etude.cli.display import console, print_json, table
from etude.cli.options import ConfigFile
from etude.cli.release_options import AsJson, By, actor
from etude.contracts.release import Entry
from etude.learning.run_folder import find_policy
from etude.release.retention import expire as expire_versions
from etude.release.versions import VersionRow, differences, steps_of, version_row, version_rows

app = typer.Typer(no_args_is_help=True, help="Register policies, show them, approve them, roll back.")

MAX_SHOWN = 80
"""Characters of a value in a comparison."""


@app.command()
def register(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, or an artefact.", show_default=False)],
    slot: Annotated[str, typer.Option(help="Slot: PROBLEM or PROBLEM:NAME, such as choice:model.", show_default=False)],
    by: By = None,
    config: ConfigFile = None,
) -> None:
    """Sign the policy of a run and add it to a slot, as a candidate."""
    registry = open_registry(settings_here(config))
    version = registry.register(find_policy(run), slot, actor=actor(by))
    for name in ("metrics.jsonl", "summary.json", "config.json"):
        if (run / name).is_file():
            registry.attach(version, name, (run / name).read_bytes())
    console().print(f"{escape(slot)}: {version} is registered: `etude gates run {version}`")


@app.command("list")
def list_versions(as_json: AsJson = False, config: ConfigFile = None) -> None:
    """List the versions of every slot with their states."""
    registry = open_registry(settings_here(config))
    rows = [_row(row) for row in version_rows(registry)]
    if as_json:
        print_json(rows)
        return
    if not rows:
        console().print("no version is registered: `etude models register RUN --slot choice:NAME` begins")
        return
    keys = ("slot", "version", "state", "since", "by", "reason")
    shown = [[escape(shorten(str(row[key]), MAX_SHOWN, placeholder=" …")) for key in keys] for row in rows]
    console().print(table(*keys, rows=shown))


@app.command()
def show(version: Version, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Show a version: its manifest, state, gates and history."""
    registry = open_registry(settings_here(config))
    found = registry.find(version)
    slot = registry.slot_of(found)
    manifest = registry.artefact(found).manifest
    steps = steps_of(registry, slot, found)
    about: dict[str, Any] = {
        **_row(version_row(registry, slot, found)),
        "manifest": msgspec.to_builtins(manifest),
        "attachments": registry.attachments(found),
        "history": [_step(entry) for entry in steps],
    }
    if as_json:
        print_json(about)
        return
    screen = console()
    screen.print(f"[bold]{found}[/]  {escape(slot)}  {about['state']}", soft_wrap=True)
    screen.print(
        f"learned by {manifest.method}, step {manifest.step:,}, score {manifest.score}, from "
        f"{', '.join(manifest.data) or 'no dataset'}, after {manifest.parent or 'nothing'}",
        soft_wrap=True,
    )
    for name in about["attachments"]:
        screen.print(f"  {escape(name)}")
    rows = [[f"{e.time:%Y-%m-%d %H:%M:%S}", e.actor, e.action, escape(e.reason)] for e in steps]
    screen.print(table("time", "actor", "action", "reason", rows=rows))


@app.command()
def lineage(
    what: Annotated[
        str, typer.Argument(metavar="V", help="Registered version, or the id of a trajectory.", show_default=False)
    ],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Show what a version learned from: earlier versions, datasets, number of trajectories; and who continues it.

    With the id of a trajectory: the datasets and versions that learned from it.
    """
    registry, screen = open_registry(settings_here(config)), console()
    if (back := learned_from(registry, what, config)) is not None:
        if as_json:
            print_json(back)
            return
        screen.print(f"in the datasets {', '.join(back['datasets']) or 'none'}", soft_wrap=True)
        for one in back["versions"]:
            screen.print(f"{one['version']} learned from it: {escape(one['slot'])}, {one['state']}", soft_wrap=True)
        return
    found = lineage_of(registry, registry.find(what), config)
    if as_json:
        print_json(found)
        return
    for depth, one in enumerate(found["versions"]):
        sets = ", ".join(f"{d['content']} ({d['trajectories']:,} trajectories)" for d in one["datasets"])
        screen.print(
            f"{'  ' * depth}{one['version']}  {escape(sets or 'no dataset that is known here')}", soft_wrap=True
        )
    if found["children"]:
        screen.print(f"continued by {', '.join(found['children'])}", soft_wrap=True)


@app.command()
def diff(
    version: Version,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="Another version.", show_default=False)],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Show what differs between two versions: settings, data, files."""
    registry = open_registry(settings_here(config))
    changed = differences(registry, registry.find(version), registry.find(other))
    if as_json:
        print_json(changed)
        return
    rows = [[escape(key), *(escape(str(value)[:MAX_SHOWN]) for value in values)] for key, values in changed.items()]
    console().print(table("", version, other, rows=rows) if rows else "the same")


@app.command()
def verify(version: Version, config: ConfigFile = None) -> None:
    """Check the signature of a version and the hash of every file."""
    registry = open_registry(settings_here(config))
    found = registry.find(version)
    manifest = registry.verify(found)
    console().print(f"{found}: unaltered: signed, {len(manifest.files)} files as in the manifest")


@app.command()
def approve(
    version: Version,
    reason: Annotated[str, typer.Option(help="Reason, for the audit log.", show_default=False)] = "",
    by: By = None,
    config: ConfigFile = None,
) -> None:
    """Approve a version, as a person."""
    registry = open_registry(settings_here(config))
    found = registry.find(version)
    registry.approve(registry.slot_of(found), found, by=actor(by), reason=reason)
    console().print(f"{found} is approved by {escape(actor(by))}")


@app.command()
def rollback(
    slot: SlotArgument,
    reason: Annotated[str, typer.Option(help="Reason, for the audit log.", show_default=False)] = "",
    by: By = None,
    config: ConfigFile = None,
) -> None:
    """Return to the policy that served before, at once."""
    registry = open_registry(settings_here(config))
    entry = registry.roll_back(slot, by=actor(by), reason=reason)
    console().print(f"{escape(slot)}: {entry.version} is rolled back: {entry.serving.incumbent} serves")


@app.command()
def expire(
    days: Annotated[
        float | None, typer.Option(min=0.0, help="Age in days.", show_default="release.retention_days")
    ] = None,
    by: By = None,
    config: ConfigFile = None,
) -> None:
    """Delete the files of old versions that neither serve nor can be rolled back to."""
    settings = settings_here(config)
    registry = open_registry(settings)
    limit = settings.release.retention_days if days is None else days
    gone = [v for slot in registry.slots() for v in expire_versions(registry, slot, days=limit, actor=actor(by))]
    console().print(f"{len(gone)} versions older than {limit:g} days deleted: {', '.join(gone) or 'none'}")


@app.command()
def key(config: ConfigFile = None) -> None:
    """Print the public key of this installation, for release.trusted_keys of another."""
    console().print(open_registry(settings_here(config)).keys.public.hex(), soft_wrap=True)


def _row(row: VersionRow) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(row)
    return found | {"since": f"{row.since:%Y-%m-%d %H:%M:%S}"}


def _step(entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(entry)
    return found
