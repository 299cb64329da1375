"""Progress of a run: a live bar in a terminal, a line per evaluation in logs, and how to resume after an interrupt."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from etude.cli.display import duration, number, print_command, print_warning, singular, sparkline
from etude.learning.health import HealthWarning
from etude.learning.run import Run, Update


def follow(run: Run, display: Display) -> None:
    """Run the learner to its end and show its progress."""
    with display.live or nullcontext():
        for update in run.updates(display.report):
            for warning in update.warnings:
                display.warn(warning)
            display.show(update)


class Display:
    """Prints a line per evaluation; if `live`, also a bar with the time left and the scores so far."""

    def __init__(self, run: Run, screen: Console, *, live: bool) -> None:
        self.run, self.screen = run, screen
        self.bar = Progress(
            TextColumn(f"{{task.fields[step]:,}} {run.about.unit}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            console=screen,
            expand=True,
        )
        self.task = self.bar.add_task("", total=1.0, step=run.step)
        self.bar.update(self.task, completed=min(1.0, run.learner.used))
        self.live = Live(self.bar, console=screen, transient=True, refresh_per_second=8) if live else None

    def report(self, share: float) -> None:
        """Move the bar to the share of the current update that is done."""
        learner = self.run.learner
        each = learner.used / learner.step if learner.step else 0.0
        self.bar.update(self.task, completed=min(1.0, learner.used - each * (1 - share)))

    def show(self, update: Update) -> None:
        used, line = min(1.0, self.run.learner.used), self.run.learner.line(update)
        self.bar.update(self.task, completed=used, step=update.step)
        if self.live is not None:
            scores = self.run.scores
            now = ""
            if scores:
                now = f"{self.run.about.score} {number(scores[-1])}  best {number(max(scores))}  {sparkline(scores)}  "
            self.live.update(Group(self.bar, Text(now + line, style="dim", overflow="ellipsis")))
        elif update.score is not None or self.run.learner.checkpoint_every == 1:
            margin = f" ± {number(update.margin)}" if update.margin is not None else ""
            score = f"{self.run.about.score} {number(update.score)}{margin}  " if update.score is not None else ""
            left = f"  {duration(update.wall_s * (1 - used) / used)} left" if used and not update.stopped else ""
            mark = "  ★" if update.is_best else ""
            unit = singular(self.run.about.unit)
            self.screen.print(f"{unit} {update.step:>9,} {used:>4.0%}  {score}{line}{left}{mark}", soft_wrap=True)

    def warn(self, warning: HealthWarning) -> None:
        said = f"[bold]{warning.name}[/] at step {warning.step:,}: {escape(warning.message)} "
        said += f"(value {warning.value:.4g}, threshold {warning.threshold:.4g})"
        print_warning(said, self.screen, advice=warning.advice)


class Terminated(BaseException):
    """Raised on SIGTERM. Like KeyboardInterrupt it must pass every `except Exception`."""


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise Terminated


@contextmanager
def interruptible(screen: Console) -> Iterator[list[Run]]:
    """On Ctrl-C and SIGTERM, print how to resume. The newest checkpoint is complete at any time."""
    begun: list[Run] = []
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield begun
    except (KeyboardInterrupt, Terminated) as interruption:
        for run in begun:
            kept = f"resumes at step {run.saved_at:,}" if run.saved_at else "starts again (no checkpoint yet)"
            print_command(f"interrupted at step {run.step:,}. The same command {kept}:", screen)
        signum = signal.SIGINT if isinstance(interruption, KeyboardInterrupt) else signal.SIGTERM
        raise typer.Exit(128 + signum) from None
    finally:
        signal.signal(signal.SIGTERM, before)
