"""`etude demo [PROBLEM]`: the whole loop; or a problem: trains, compares with simpler policies, writes a report."""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from etude.bootstrap.runs import evaluate, make_request, start_run
from etude.cli.display import console, duration
from etude.cli.evaluate import show
from etude.cli.lazy import Entry, LazyGroup, empty_group, to_command
from etude.cli.plot import write_report
from etude.cli.progress import Display, follow, interruptible
from etude.contracts.errors import RunError
from etude.learning.requests import EvaluateRequest
from etude.learning.run import STOPPED
from etude.learning.run_folder import RunFolder
from etude.problems.spec import PRACTISE, ProblemSpec, resolve
from etude.problems.table import find_spec, specs

OUT = Path("runs/demo")
LOOP = "loop"
WHOLE_LOOP = Entry(
    "etude.cli.demo_loop:demo", "The whole loop: a better policy is promoted, a harmful one rolled back."
)


class Demos(LazyGroup):
    """A demo of the whole loop, which comes without a name too, and one per problem."""

    def entries(self) -> Mapping[str, Entry]:
        shown = {name: spec for name, spec in specs().items() if "demo" in spec.commands or PRACTISE in spec.learners}
        return {LOOP: WHOLE_LOOP, **{name: Entry("", spec.summary) for name, spec in shown.items()}}

    def load(self, name: str) -> Any:
        if name == LOOP:
            return to_command(name, resolve(WHOLE_LOOP.reference))
        spec = find_spec(name)
        own = spec.commands.get("demo")
        return to_command(name, resolve(own) if own is not None else demo_command(spec))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = [LOOP, *args]
        return super().parse_args(ctx, args)


demo = empty_group(Demos, help="Show in minutes how Etude learns; without a PROBLEM, the whole loop.")


def demo_command(spec: ProblemSpec) -> Callable[..., None]:
    def command(
        out: Annotated[Path, typer.Option(help="Folder of the demo.")] = OUT,
        seed: Annotated[int, typer.Option(min=0, help="Seed; the same seed gives the same policy.")] = 0,
        max_steps: Annotated[int, typer.Option(min=1, help="Budget of environment steps.")] = 400_000,
        episodes: Annotated[int, typer.Option(min=2, help="Number of episodes per compared policy.")] = 200,
        no_progress: Annotated[bool, typer.Option("--no-progress", help="Print plain lines, no live display.")] = False,
    ) -> None:
        world_demo(spec, out, seed=seed, max_steps=max_steps, episodes=episodes, live=not no_progress)

    command.__doc__ = f"{spec.summary} Trains with the default settings, compares, writes a report."
    return command


def world_demo(spec: ProblemSpec, out: Path, *, seed: int, max_steps: int, episodes: int, live: bool) -> None:
    """Practise in the problem's world, compare the policy with simpler ones and write a report."""
    began, screen = time.perf_counter(), console()
    request = make_request(
        spec.name, out=out, inputs={"seed": seed}, assignments=[f"run.max_steps={max_steps}"], isolated=True
    )
    wanted = request.settings.sections(*spec.sections, "ppo", "run")

    def is_own(path: Path) -> bool:
        config = RunFolder(path).config()
        return config["problem"] == spec.name and all(config.get(name) == tree for name, tree in wanted.items())

    folder = RunFolder(first_free(out, is_own))
    with interruptible(screen) as begun, folder.locked():
        run = start_run(replace(request, out=folder.path))
        begun.append(run)
        doing = f"resuming after {run.step:,} steps" if run.resumed else run.learner.introduction()
        screen.print(f"{folder.path}: {doing}", markup=False, soft_wrap=True)
        follow(run, Display(run, screen, live=screen.is_terminal and live))
        reason = run.learner.reason_to_stop()
        assert reason is not None
        pace = f"{run.step / run.wall_s:,.0f} per second" if run.wall_s else "at once"
        screen.print(f"trained {run.step:,} steps in {duration(run.wall_s)} ({pace}): {STOPPED[reason]}")
        with screen.status("evaluating") as status:
            measured = evaluate(EvaluateRequest(run=folder.path, episodes=episodes, status=status.update))
            report = write_report(folder, episodes=episodes)
    screen.print("")
    show(measured)
    print_ending(report, folder.path, screen, seconds=time.perf_counter() - began)


def first_free(out: Path, is_own: Callable[[Path], bool]) -> Path:
    """`out`, or the first numbered folder after it, that is new or holds this demo without its report.

    `is_own` returns whether a folder holds this demo, or raises RunError if it holds no run.
    """

    def is_free(path: Path) -> bool:
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return True
        folder = RunFolder(path)
        try:
            return is_own(path) and not folder.report.exists() and not folder.in_use()
        except RunError:
            return False

    numbered = (out.with_name(f"{out.name}-{i}") for i in count(2))
    return out if is_free(out) else next(path for path in numbered if is_free(path))


def print_ending(report: Path, policy: Path, screen: Console, *, seconds: float) -> None:
    screen.print(f"\nreport: {report}", markup=False, soft_wrap=True)
    screen.print(f"policy: etude.load({str(policy)!r})", markup=False, soft_wrap=True)
    screen.print(f"The demo took {duration(seconds)} and at most {peak_memory_mb():,.0f} MB of memory.", style="dim")


def peak_memory_mb() -> float:
    """Of this process. Linux counts the parent's memory in `ru_maxrss` of a child; VmHWM starts with the program."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text()) if status.exists() else None
    if found is not None:
        return int(found[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, others KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
