"""`etude loop`: runs the whole loop on this machine, says what it waits for, acknowledges notices."""

from __future__ import annotations

import getpass
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from etude.bootstrap.clock import now
from etude.bootstrap.loop import open_loop
from etude.cli.display import console, duration, print_json, print_warning, table
from etude.cli.options import ConfigFile
from etude.contracts.errors import JobError
from etude.contracts.subjects import TRAJECTORIES
from etude.experience.ingest import GROUP as INGEST
from etude.loop.coordinator import Coordinator, Tick
from etude.loop.coordinator import run as run_coordinator
from etude.loop.exploration import DAYS, explored

app = typer.Typer(no_args_is_help=True, help="Run the whole loop: collect, train when due, gate, release.")

AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
NOTHING = (
    "no experience yet: log decisions in your agent with `etude.task(…)` and `task.decide(…)`, or bring files in with "
    "`etude ingest FILE`"
)


@app.command()
def run(
    once: Annotated[bool, typer.Option("--once", help="Do what is due now, wait for its jobs, and exit.")] = False,
    config: ConfigFile = None,
) -> None:
    """Collect, reward, train when due, gate, release, promote or roll back, until interrupted.

    A second one waits until the first ends. Ctrl-C and SIGTERM end it cleanly: running jobs resume next time.
    """
    screen = console()
    with open_loop(config) as loop, _stopping() as stop:
        screen.print("the loop runs; Ctrl-C ends it" if not once else "doing what is due")
        if not once:
            print_waits(loop, screen)
        live = screen.status("…") if screen.is_terminal else nullcontext()
        with live as status:
            said, deadline = list[str](), time.monotonic() + loop.config.lease_s + 1

            def report(tick: Tick) -> None:
                # The lease of a process that was killed ends by then.
                if once and not tick.leads and time.monotonic() > deadline:
                    raise JobError(f"another process runs the loop ({_leader(loop)}): wait for its end, or end it")
                _print_tick(tick, screen, said, loop)
                if status is not None:
                    status.update(_doing(loop))

            run_coordinator(loop, stop=stop, report=report, once=once)
        if once and not stop.is_set():
            print_waits(loop, screen)
    if stop.is_set():
        screen.print("ended; unfinished jobs resume with the next `etude loop run`")


@app.command()
def status(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show who leads, what each slot waits for, and how much it explores. It changes nothing."""
    with open_loop(config) as loop:
        leader, now, version = loop.leader.leader(), loop.clock(), loop.reward_version
        with console(stderr=True).status("reading the decisions of the last days"):
            explores = {slot: explored(loop.store, slot, until=now, version=version) for slot in loop.slots()}
        if as_json:
            exploration = {slot: found.to_json() for slot, found in explores.items()}
            print_json({"leader": leader and leader.owner, "waits": loop.waits(), "exploration": exploration})
            return
        screen = console()
        screen.print(f"the loop is run by {escape(leader.owner)}" if leader else "no loop is running")
        print_waits(loop, screen)
        for slot, found in explores.items():
            if found.count:
                screen.print(f"{escape(slot)} explored in the last {DAYS:g} days: {found}", soft_wrap=True)
            for name, sentence in found.warnings.items():
                print_warning(escape(f"{slot}: {name}: {sentence}"), screen)


@app.command()
def notices(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List promotions, rollbacks and failures, and who acknowledged them."""
    with open_loop(config) as loop:
        found = loop.notices.all()
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    rows = [
        [
            notice.id,
            f"{notice.time:%Y-%m-%d %H:%M}",
            notice.kind.value,
            escape(notice.text),
            escape(notice.acknowledged_by or "–"),
        ]
        for notice in found
    ]
    console().print(table("notice", "time", "kind", "what", "acknowledged by", rows=rows) if rows else "there are none")


@app.command()
def ack(
    notice: Annotated[str, typer.Argument(metavar="ID", help="Id of the notice.", show_default=False)],
    by: Annotated[str | None, typer.Option(help="Your name.", show_default="login name")] = None,
    config: ConfigFile = None,
) -> None:
    """Acknowledge a notice: it is not escalated any more."""
    with open_loop(config) as loop:
        done = loop.notices.acknowledge(notice, by=by or getpass.getuser(), now=now())
    console().print(f"{done.id} acknowledged by {escape(done.acknowledged_by or '')}", soft_wrap=True)


def print_waits(loop: Coordinator, screen: Console) -> None:
    waits = loop.waits()
    for slot, sentence in waits.items():
        screen.print(f"{escape(slot)}: {escape(sentence)}", soft_wrap=True)
    pending = loop.bus.pending(TRAJECTORIES, INGEST)
    if pending:
        screen.print(f"{pending:,} events wait to be ingested; `etude loop run` does it")
    elif not waits:
        screen.print(escape(NOTHING), soft_wrap=True)


def _print_tick(tick: Tick, screen: Console, said: list[str], loop: Coordinator) -> None:
    """Print what happened; a problem that stays is printed once."""
    for line in tick.happened:
        screen.print(f"{now():%H:%M:%S}  {escape(line)}", soft_wrap=True)
    problems = list(tick.problems) if tick.leads else [f"waits: {_leader(loop)} runs the loop"]
    for problem in problems:
        if problem not in said:
            print_warning(escape(problem), screen)
    said[:] = problems


def _leader(loop: Coordinator) -> str:
    leader = loop.leader.leader()
    return leader.owner if leader is not None else "its lease has just ended"


def _doing(loop: Coordinator) -> str:
    parts = []
    for claimed in loop.claimed.values():
        progress = claimed.job.progress
        left = f", {duration(progress.eta_s)} left" if progress.eta_s else ""
        parts.append(f"{claimed.job.id} {claimed.job.slot}: {progress.share:.0%}{left}")
    parts += [f"gates of {id}" for id in loop.gating]
    return escape("  ".join(parts) or "waiting")


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set."""
    stop = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
