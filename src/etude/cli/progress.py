"""A training on the screen: a live bar for people, a line an evaluation for logs, and how to go on when interrupted."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from etude.cli.display import duration, number, sparkline

if TYPE_CHECKING:
    from etude.learning.health import HealthWarning
    from etude.learning.train import Training, Update

STOPPED = {
    "budget": "the budget of steps is used up",
    "target": "an evaluation reached the target return",
    "plateau": "evaluations stopped improving",
    "decline": "evaluations fell and stayed down",
}


def follow(training: Training, display: PlainDisplay | LiveDisplay) -> None:
    """Train to the end and show it."""
    with display:
        for update in training.updates():
            for warning in update.warnings:
                display.warn(warning)
            display.show(update)


class _Display:
    """What both displays know of a run: its evaluations, best and pace."""

    def __init__(self, training: Training, screen: Console) -> None:
        self.training, self.screen = training, screen

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


class PlainDisplay(_Display, AbstractContextManager["PlainDisplay"]):
    """One line an evaluation, for logs and pipes."""

    def __exit__(self, *error: object) -> None:
        pass

    def show(self, update: Update) -> None:
        if update.score is None:
            return
        score = update.score
        share = min(1.0, self.training.used)
        left = update.wall_s * (1 - share) / share
        mark = " (best)" if update.is_best else ""
        self.screen.print(
            f"step {update.step:>10,} {share:>4.0%}  "
            f"return {number(score.mean)} ± {number((score.high - score.low) / 2)}{mark}  "
            f"{self.numbers(update)}  {duration(left)} left",
            soft_wrap=True,
        )


class LiveDisplay(_Display):
    """A bar with the time left, and below it what the run is worth so far."""

    def __init__(self, training: Training, screen: Console) -> None:
        super().__init__(training, screen)
        self.bar = Progress(
            TextColumn("{task.fields[step]:,} steps"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            console=screen,
            expand=True,
        )
        self.task = self.bar.add_task("", total=1.0, step=training.step)
        self.bar.update(self.task, completed=min(1.0, training.used))
        self.live = Live(self.bar, console=screen, transient=True, refresh_per_second=8)

    def __enter__(self) -> LiveDisplay:
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def show(self, update: Update) -> None:
        self.bar.update(self.task, completed=min(1.0, self.training.used), step=update.step)
        scores = self.training.scores
        now = f"return {number(scores[-1])}  best {number(max(scores))}" if scores else ""
        returns = f"{now}  {sparkline(scores)}  " if scores else ""
        self.live.update(Group(self.bar, Text(returns + self.numbers(update), style="dim", overflow="ellipsis")))


class Terminated(BaseException):
    """SIGTERM. Like KeyboardInterrupt it must pass every `except Exception` on its way out."""


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise Terminated


class Resumable(Protocol):
    """A training that goes on from its newest checkpoint; a step of a planner's is an epoch."""

    @property
    def step(self) -> int: ...

    @property
    def saved_at(self) -> int: ...


@contextmanager
def interruptible(screen: Console) -> Iterator[list[Resumable]]:
    """Ctrl-C and SIGTERM end with how to go on. Nothing needs saving: the newest checkpoint is whole at any moment."""
    begun: list[Resumable] = []
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
