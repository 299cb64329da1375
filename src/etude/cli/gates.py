"""`etude gates`: judges a policy before it makes decisions, with the evidence of every gate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from etude.cli.display import console, print_json, table
from etude.cli.options import ConfigFile

if TYPE_CHECKING:  # help needs neither the gates nor what they judge with
    from etude.release.gates.gate import GateReport

app = typer.Typer(help="Judge a policy before it makes decisions.", no_args_is_help=True, rich_markup_mode=None)

EXITS = {"pass": 0, "fail": 3, "cannot tell": 4}
"""Exit codes by verdict, for scripts."""
COLOURS = {"pass": "green", "fail": "red", "cannot tell": "yellow"}


@app.callback()
def _gates() -> None:
    pass


@app.command()
def run(
    version: Annotated[
        str, typer.Argument(metavar="V", help="Registered version, or folder of a run or policy.", show_default=False)
    ],
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Dataset whose test split judges the policy: a folder, or s3://…",
            show_default="the one it learned from",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="V", help="Policy to compare with: a version or a run.", show_default="the one that serves"
        ),
    ] = None,
    slot: Annotated[
        str | None,
        typer.Option(metavar="PROBLEM[:NAME]", help="Slot that it is for.", show_default="the one it is registered in"),
    ] = None,
    gate: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Gate to run, instead of all. May be repeated.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="HTML file for the report.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of fuzzed requests and samples.")] = 0,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Run all gates on a policy. Exit codes: 0 pass, 3 fail, 4 cannot tell.

    The report is kept with the version, and a registered version changes its state.
    """
    from etude.bootstrap.gates import judge

    with console(stderr=True).status("loading") as status:
        report = judge(
            version,
            dataset=dataset,
            against=against,
            slot=slot,
            only=gate or (),
            config=config,
            seed=seed,
            progress=lambda name, number, total: status.update(f"gate {number + 1} of {total}: {name}"),
        )
    if html is not None:
        from etude.reports.gates import write_gates_page

        write_gates_page(report.to_json(), html)
    if as_json:
        print_json(report.to_json())
    else:
        show(report)
    raise typer.Exit(EXITS[report.verdict])


def show(report: GateReport) -> None:
    screen = console()
    compared = f", compared with {report.incumbent}" if report.incumbent else ""
    screen.print(f"{escape(report.slot)}: version {report.version}{compared}\n", soft_wrap=True)
    rows = [
        [name, f"[{COLOURS[verdict]}]{verdict}[/]", value, bound, escape(reason)]
        for name, verdict, value, bound, reason in report.rows()
    ]
    screen.print(table("gate", "verdict", "value", "bound", "why", rows=rows, right=("value", "bound")))
    colour = COLOURS[report.verdict]
    screen.print(f"\n[bold {colour}]{report.verdict}[/] after {report.seconds:.1f} s", soft_wrap=True)
