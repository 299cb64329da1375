"""`etude train`: settings in, a run folder with its best policy out, and what happens meanwhile on the screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from etude.cli import workflow
from etude.cli.config import Assignments, ConfigFile, Preset, resolve_settings
from etude.cli.display import console, duration, print_json
from etude.cli.progress import STOPPED, LiveDisplay, PlainDisplay, follow, interruptible

if TYPE_CHECKING:
    from etude.learning.train import Training


app = typer.Typer(no_args_is_help=True, help="Train a policy; an interrupted run resumes where it stopped.")

app.command("workflow")(workflow.train)


@app.command()
def allocation(
    variant: Annotated[
        str | None, typer.Option(metavar="document|matched", help="Which allocation problem.", show_default="document")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same weights.", show_default="0")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder.", show_default="runs/allocation-VARIANT-SEED")
    ] = None,
    agents: Annotated[int | None, typer.Option(help="How many agents share the queue.")] = None,
    slots: Annotated[int | None, typer.Option(help="How many tasks the queue holds.")] = None,
    target_return: Annotated[float | None, typer.Option(help="Stop once an evaluation reaches this.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Budget of environment steps.")] = None,
    device: Annotated[
        str | None, typer.Option(metavar="auto|cpu|cuda", help="Where to compute.", show_default="auto")
    ] = None,
    preset: Preset = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    tracker: Annotated[
        list[str] | None,
        typer.Option(metavar="tensorboard|wandb|mlflow", help="Log metrics there too; may be repeated."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only what is wrong.")] = False,
    no_progress: Annotated[
        bool, typer.Option("--no-progress", help="One line an evaluation, no live display.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print how it ended as JSON; the rest goes to stderr.")
    ] = False,
) -> None:
    """Who takes which task, how much of their capacity it gets, and who works together."""
    flags = {
        "--variant": variant,
        "--seed": seed,
        "--agents": agents,
        "--slots": slots,
        "--target-return": target_return,
        "--max-steps": max_steps,
        "--device": device,
        "--tracker": tracker or None,
    }
    settings = resolve_settings(preset=preset, config=config, assignments=assignments, flags=flags).settings
    out = out or Path("runs") / f"allocation-{settings.allocation.variant}-{settings.run.seed}"

    from etude.bootstrap.allocation import make_training
    from etude.learning.runs import RunFolder

    screen = console(stderr=as_json)
    screen.quiet = quiet
    with interruptible(screen) as begun, RunFolder(out).locked():
        training = make_training(settings, out)
        begun.append(training)
        _announce(training, screen)
        live = screen.is_terminal and not no_progress and not quiet
        follow(training, LiveDisplay(training, screen) if live else PlainDisplay(training, screen))
        _conclude(training, screen, as_json=as_json)


def _announce(training: Training, screen: Console) -> None:
    budget = training.config.run.max_steps
    if training.reason_to_stop() is not None:
        doing = "already finished; to train on, raise --max-steps or another limit that stopped it"
    elif training.resumed:
        doing = f"resuming at step {training.step:,} of {budget:,}"
    else:
        doing = f"training for up to {budget:,} steps on {training.device}"
    screen.print(f"{escape(str(training.folder.path))}: {doing}", soft_wrap=True)


def _conclude(training: Training, screen: Console, *, as_json: bool) -> None:
    path, summary = training.folder.path, training.folder.summary()
    assert summary is not None
    if as_json:
        print_json({"run": str(path), "resumed": training.resumed, **summary})
    for line in _conclusion(path, summary):
        screen.print(line, soft_wrap=True)


def _conclusion(path: Path, summary: dict[str, Any]) -> list[str]:
    where = escape(str(path))
    return [
        f"stopped at step {summary['step']:,} after {duration(summary['wall_s'])}: {STOPPED[summary['stopped']]}",
        f"best evaluated return: [bold]{summary['best_return']:,.1f}[/]",
        f"best policy: {where}/best   metrics: {where}/metrics.jsonl",
        f"next: etude evaluate {where}   etude runs plot {where}",
    ]
