"""`etude runs plot`: writes the report page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from etude.cli.display import console
from etude.contracts.errors import ConfigError, RunError
from etude.learning.checkpoint import checkpoints
from etude.learning.measure import Comparison, compare
from etude.learning.requests import EvaluateRequest
from etude.learning.run_folder import RunFolder, find_root
from etude.problems.spec import resolve
from etude.problems.table import spec_of
from etude.reports.run import run_report


def plot(
    run: Annotated[Path, typer.Argument(help="Folder of the run.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="HTML file to write.", show_default="RUN/report.html")] = None,
    episodes: Annotated[
        int, typer.Option(min=0, help="Number of episodes per compared policy; 0 omits the comparison.")
    ] = 200,
) -> None:
    """Write the report of a run: learning curves, comparison, behaviour of the policy, settings."""
    if out is not None and out.is_dir():
        raise RunError(
            f"--out is {str(out)!r}, a folder: give the name of a file, such as {str(out / 'report.html')!r}"
        )
    typer.echo(str(write_report(RunFolder(find_root(run)), episodes=episodes, out=out)))


def write_report(folder: RunFolder, *, episodes: int, out: Path | None = None) -> Path:
    """Write the report; a run without an evaluation or a world has curves but no comparison."""
    spec = spec_of(folder.path, folder.config()["problem"])
    found = Comparison(scores={})
    if episodes and checkpoints(folder.best):
        with console(stderr=True).status("evaluating") as status:
            try:
                found = compare(EvaluateRequest(run=folder.path, episodes=episodes, status=status.update), spec)
            except ConfigError:
                found = Comparison(scores={})
    contribute = resolve(spec.report) if spec.report is not None else None
    return run_report(folder, comparison=found.scores, contribute=contribute, notes=found.notes, out=out)
