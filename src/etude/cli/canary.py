"""`etude canary`: exposes a candidate step by step, shows the evidence, pauses, resumes, aborts."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from etude.bootstrap.release import open_registry, release, settings_here
from etude.cli.display import console, print_json, table
from etude.cli.options import ConfigFile
from etude.cli.release_options import AsJson, By, actor
from etude.contracts.errors import ConfigError
from etude.release.canary import Controller
from etude.release.start import CanaryConfig
from etude.release.status import slot_status
from etude.release.strategy import Strategy

app = typer.Typer(no_args_is_help=True, help="Release a candidate step by step; it is promoted only on proof.")

SlotArgument = Annotated[str, typer.Argument(metavar="SLOT", help="Slot, such as choice:model.", show_default=False)]
Version = Annotated[
    str, typer.Argument(metavar="VERSION", help="Registered version, or its first digits.", show_default=False)
]


@app.command()
def start(
    version: Version,
    stages: Annotated[
        str | None,
        typer.Option(metavar="PERCENTAGES", help="Shares of the traffic, such as 10,25,50,100.", show_default=False),
    ] = None,
    over: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Minimum duration of all stages, such as 90m, 4h or 2d.", show_default=False
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Hold it if it is undecided after this time.", show_default=False),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(help="canary, experiment, shadow, direct, or auto: by release.canary.strategies."),
    ] = "auto",
    by: By = None,
    config: ConfigFile = None,
) -> None:
    """Begin the release of a version that passed its gates; says how, and how long it takes at the present traffic."""
    with release(config) as opened:
        candidate = opened.registry.find(version)
        slot = opened.registry.slot_of(candidate)
        settings = _changed(opened.settings.release.canary, stages, over, deadline)
        begun = opened.start(slot, candidate, by=actor(by), canary=settings, strategy=_strategy(strategy))
    screen = console()
    screen.print(f"{escape(slot)}: {escape(begun.sentence)}", soft_wrap=True)
    if begun.strategy != "direct":
        screen.print(f"`etude canary status {escape(slot)}` shows the evidence; `etude loop run` moves it on")


@app.command()
def status(
    slot: Annotated[str | None, typer.Argument(metavar="SLOT", help="Slot.", show_default="all")] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Do what is due, then show what serves each slot and the evidence about its candidate."""
    with release(config) as opened:
        slots = opened.registry.slots() if slot is None else [slot]
        found = [_status(opened.controller, one) for one in slots]
    if as_json:
        print_json(found)
        return
    screen = console()
    if not found:
        screen.print("no version is registered: `etude models register RUN --slot choice:NAME` begins")
    for one in found:
        _print_status(one, screen)


@app.command()
def report(
    slot: SlotArgument,
    html: Annotated[
        Path | None,
        typer.Option(help="File to write.", show_default="reports/ID.html in experience.folder, by the release's id"),
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Write the page of the slot's current or last release: steps, evidence curves, gates, decision."""
    from etude.bootstrap.release_pages import release_facts
    from etude.reports.release import release_page

    settings = settings_here(config)
    facts = release_facts(open_registry(settings), slot)
    path = html or Path(settings.experience.folder) / "reports" / f"{facts.spec.id}.html"
    console().print(f"report: {release_page(facts).write(path)}", markup=False, soft_wrap=True)


@app.command()
def pause(slot: SlotArgument, by: By = None, config: ConfigFile = None) -> None:
    """Assign no further units to the candidate."""
    with release(config) as opened:
        opened.controller.pause(slot, by=actor(by))
    console().print(f"{escape(slot)}: paused: the incumbent serves all; `etude canary resume {escape(slot)}` continues")


@app.command()
def resume(slot: SlotArgument, by: By = None, config: ConfigFile = None) -> None:
    """Continue a paused or held release with the share of its stage."""
    with release(config) as opened:
        entry = opened.controller.resume(slot, by=actor(by))
    assert entry.serving.exposure is not None
    console().print(f"{escape(slot)}: resumed at {entry.serving.exposure.share:.0%} of the traffic")


@app.command()
def abort(
    slot: SlotArgument,
    reason: Annotated[str, typer.Option(help="Reason, for the audit log.", show_default=False)] = "",
    by: By = None,
    config: ConfigFile = None,
) -> None:
    """End the release: the incumbent serves all."""
    with release(config) as opened:
        entry = opened.controller.abort(slot, by=actor(by), reason=reason)
    console().print(
        f"{escape(slot)}: {entry.version} is {entry.action.replace('_', ' ')}: {entry.serving.incumbent} serves"
    )


def _changed(config: CanaryConfig, stages: str | None, over: str | None, deadline: str | None) -> CanaryConfig:
    changes: dict[str, Any] = {}
    if stages is not None:
        try:
            changes["stages"] = tuple(float(part) for part in stages.split(","))
        except ValueError as error:
            raise ConfigError(f"--stages is {stages!r}: expected percentages, such as 10,25,50,100") from error
    if over is not None:
        changes["over_minutes"] = minutes_of(over, "--over")
    if deadline is not None:
        changes["deadline_minutes"] = minutes_of(deadline, "--deadline")
    return replace(config, **changes)


def minutes_of(text: str, flag: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip())
    if match is None:
        raise ConfigError(f"{flag} is {text!r}: expected a number and s, m, h or d, such as 4h")
    return float(match[1]) * {"s": 1 / 60, "m": 1.0, "h": 60.0, "d": 1440.0}[match[2]]


def _strategy(text: str) -> Strategy | None:
    """None lets the rules choose."""
    if text == "auto":
        return None
    if text not in get_args(Strategy):
        raise ConfigError(f"--strategy is {text!r}: expected auto, {', '.join(get_args(Strategy))}")
    return cast(Strategy, text)


def _status(controller: Controller, slot: str) -> dict[str, Any]:
    status = slot_status(controller, slot, controller.reconcile(slot))
    found: dict[str, Any] = msgspec.to_builtins(status)
    return found


def _print_status(found: dict[str, Any], screen: Console) -> None:
    serving = found["serving"]
    screen.print(f"[bold]{escape(found['slot'])}[/]  {serving.get('incumbent') or 'nothing'} serves", soft_wrap=True)
    for line in found["happened"]:
        screen.print(f"  now: {escape(line)}", soft_wrap=True)
    exposure = serving.get("exposure")
    if exposure is None:
        last = found["last"]
        screen.print(f"  last: {last['action']} by {escape(last['actor'])}: {escape(last['reason'])}", soft_wrap=True)
        return
    evidence = found["evidence"]
    state = exposure.get("status", "running")
    screen.print(
        f"  {exposure['candidate']} in {exposure['mode']}, stage {exposure.get('stage', 0) + 1}, "
        f"{exposure['share']:.0%} of the traffic, {state}",
        soft_wrap=True,
    )
    if evidence["shadow"]["answers"]:
        shadow = evidence["shadow"]
        screen.print(
            f"  shadow: {shadow['answers']:,} answers, {shadow['same']:,} as the incumbent, {shadow['failed']} failed"
        )
    if evidence["units"]:
        effect = evidence["effect"]
        shown = f"difference {_difference(effect)}" if effect and effect["ci95"] else ""
        screen.print(f"  {evidence['units']:,} units, {evidence['candidates']:,} on the candidate  {shown}")
        rows = [
            [
                crossing["name"],
                f"{math.exp(min(crossing['value'], 700)):,.3g}",
                f"{math.exp(crossing['threshold']):,.0f}",
            ]
            for crossing in evidence["crossings"]
        ]
        screen.print(table("evidence", "e-value", "needed", rows=rows, right=("e-value", "needed")))
    if evidence["fairness"]:
        before = {one["group"]: _difference(one["difference"]) for one in evidence["fairness"]["incumbent"]["groups"]}
        rows = [
            [
                escape(one["group"]),
                f"{one['count']:,}",
                _difference(one["difference"]),
                before.get(one["group"], "–"),
                one["verdict"],
            ]
            for one in evidence["fairness"]["candidate"]["groups"]
        ]
        heads = ("group", "units", "difference to the rest", "on the incumbent", "fairness")
        screen.print(table(*heads, rows=rows, right=("units",)))
    screen.print(f"  {escape(evidence['reason'])}", soft_wrap=True)


def _difference(estimate: dict[str, Any]) -> str:
    if estimate["mean"] is None:
        return "–"
    return f"{estimate['mean']:+.3f} [{estimate['ci95'][0]:+.3f}, {estimate['ci95'][1]:+.3f}]"
