"""`etude train`: settings in, a run folder with its best policy out, and what happens meanwhile on the screen."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from etude.cli.config import Assignments, ConfigFile, Preset, resolve_settings
from etude.cli.display import console, duration, print_json, sparkline

if TYPE_CHECKING:
    from etude.learning.health import HealthWarning
    from etude.learning.train import Training, Update

app = typer.Typer(no_args_is_help=True, help="Train a policy; an interrupted run resumes where it stopped.")

STOPPED = {
    "budget": "the budget of steps is used up",
    "target": "an evaluation reached the target return",
    "plateau": "evaluations stopped improving",
    "decline": "evaluations fell and stayed down",
}


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

    from etude.bootstrap import make_training
    from etude.learning.runs import RunFolder

    screen = console(stderr=as_json)
    screen.quiet = quiet
    with _interruptible(screen) as begun, RunFolder(out).locked():
        training = make_training(settings, out)
        begun.append(training)
        _announce(training, screen)
        live = screen.is_terminal and not no_progress and not quiet
        _train(training, LiveDisplay(training, screen) if live else PlainDisplay(training, screen))
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


def _train(training: Training, display: PlainDisplay | LiveDisplay) -> None:
    with display:
        for update in training.updates():
            for warning in update.warnings:
                display.warn(warning)
            display.show(update)


class Progressed:
    """What both displays know of a run: its evaluations, best and pace."""

    def __init__(self, training: Training, screen: Console) -> None:
        self.training, self.screen = training, screen
        self.budget = training.config.run.max_steps

    def warn(self, warning: HealthWarning) -> None:
        self.screen.print(
            f"[yellow]warning:[/] [bold]{warning.name}[/] at step {warning.step:,}: {escape(warning.message)} "
            f"(value {warning.value:.4g}, threshold {warning.threshold:.4g})\n"
            f"         what to do: {escape(warning.advice)}",
            soft_wrap=True,
        )

    def numbers(self, update: Update) -> str:
        m = update.metrics
        return f"entropy {m['entropy']:.2f}  KL {m['approx_kl']:.4f}  {m['steps_per_s']:,.0f} steps/s"


class PlainDisplay(Progressed, AbstractContextManager["PlainDisplay"]):
    """One line an evaluation, for logs and pipes."""

    def __exit__(self, *error: object) -> None:
        pass

    def show(self, update: Update) -> None:
        if update.score is None:
            return
        score = update.score
        share = min(1.0, update.step / self.budget)
        left = update.wall_s * (1 - share) / share
        mark = " (best)" if update.is_best else ""
        self.screen.print(
            f"step {update.step:>10,} {share:>4.0%}  "
            f"return {score.mean:,.1f} ± {(score.high - score.low) / 2:,.1f}{mark}  "
            f"{self.numbers(update)}  {duration(left)} left",
            soft_wrap=True,
        )


class LiveDisplay(Progressed):
    """A bar with the time left, and below it what the run is worth so far."""

    def __init__(self, training: Training, screen: Console) -> None:
        super().__init__(training, screen)
        self.bar = Progress(
            TextColumn("{task.completed:,} of {task.total:,} steps"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            console=screen,
            expand=True,
        )
        self.task = self.bar.add_task("", total=self.budget, completed=min(training.step, self.budget))
        self.live = Live(self.bar, console=screen, transient=True, refresh_per_second=8)

    def __enter__(self) -> LiveDisplay:
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def show(self, update: Update) -> None:
        self.bar.update(self.task, completed=min(update.step, self.budget))
        scores = self.training.scores
        returns = f"return {scores[-1]:,.1f}  best {max(scores):,.1f}  {sparkline(scores)}  " if scores else ""
        self.live.update(Group(self.bar, Text(returns + self.numbers(update), style="dim", overflow="ellipsis")))


class Terminated(BaseException):
    """SIGTERM. Like KeyboardInterrupt it must pass every `except Exception` on its way out."""


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise Terminated


@contextmanager
def _interruptible(screen: Console) -> Iterator[list[Training]]:
    """Ctrl-C and SIGTERM end with how to go on. Nothing needs saving: the newest checkpoint is whole at any moment."""
    begun: list[Training] = []
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield begun
    except (KeyboardInterrupt, Terminated) as interruption:
        for training in begun:
            kept = f"resumes at step {training.saved_at:,}" if training.saved_at else "begins anew (no checkpoint yet)"
            screen.print(f"interrupted at step {training.step:,}. The same command {kept}:", soft_wrap=True)
            screen.print(f"  {escape(shlex.join(['etude', *sys.argv[1:]]))}", soft_wrap=True)
        signum = signal.SIGINT if isinstance(interruption, KeyboardInterrupt) else signal.SIGTERM
        raise typer.Exit(128 + signum) from None
    finally:
        signal.signal(signal.SIGTERM, before)


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
