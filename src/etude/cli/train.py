"""`etude train PROBLEM`: trains a policy by the settings, shows its progress, and writes a run folder.

The command of every problem has the options below and the flags of the problem's spec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.markup import escape

from etude.bootstrap.runs import finish_run, make_request, start_run
from etude.cli.display import console, counted, duration, number, print_json
from etude.cli.lazy import Entry, LazyGroup, empty_group, to_command
from etude.cli.options import Assignments, ConfigFile
from etude.cli.progress import Display, follow, interruptible
from etude.learning.passes import ALGORITHMS
from etude.learning.run import STOPPED, Run, StopReason
from etude.learning.run_folder import RunFolder
from etude.problems.spec import FROM_LOGS, Flag, ProblemSpec
from etude.problems.table import find_spec, specs


class Problems(LazyGroup):
    """A command per problem."""

    def entries(self) -> Mapping[str, Entry]:
        return {name: Entry("", spec.summary) for name, spec in specs().items()}

    def load(self, name: str) -> Any:
        return to_command(name, train_command(find_spec(name)))


app = empty_group(Problems, help="Train a policy; an interrupted run resumes where it stopped.")

COMMON: dict[str, Any] = {
    "seed": Annotated[int | None, typer.Option(help="Seed; the same seed gives the same weights.", show_default="0")],
    "out": Annotated[Path | None, typer.Option(help="Folder of the run.", show_default="runs/PROBLEM-…-SEED")],
    "device": Annotated[
        str | None, typer.Option(metavar="auto|cpu|cuda", help="Device to compute on.", show_default="auto")
    ],
    "config": ConfigFile,
    "assignments": Assignments,
    "tracker": Annotated[
        list[str] | None,
        typer.Option(metavar="tensorboard|wandb|mlflow", help="Tracker to log metrics to; may be repeated."),
    ],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")],
    "no_progress": Annotated[
        bool, typer.Option("--no-progress", help="Print one line per evaluation, no live display.")
    ],
    "as_json": Annotated[bool, typer.Option("--json", help="Print the result as JSON; the rest goes to stderr.")],
}
"""Options by name. Those that are not given are False or None."""
LOGS: dict[str, Any] = {
    "dataset": Annotated[
        str | None, typer.Option(help="Dataset of logged decisions to learn from: a folder, or s3://…")
    ],
    "algorithm": Annotated[
        str | None, typer.Option(metavar="|".join(ALGORITHMS), help="Algorithm for --dataset.", show_default="ppo")
    ],
    "checkpoint": Annotated[
        Path | None,
        typer.Option(
            help="Run or policy to continue from.", show_default="with --dataset, the behaviour policy of most of it"
        ),
    ],
}


def train_command(spec: ProblemSpec) -> Callable[..., None]:
    """The typer function of a problem's command, with the problem's own flags in its signature."""
    own = {flag.name.removeprefix("--").replace("-", "_"): _option(flag) for flag in spec.flags}
    method = Annotated[
        str | None,
        typer.Option(
            metavar="|".join(spec.learners), help="Learning method.", show_default="chosen by the other options"
        ),
    ]
    preset = Annotated[
        str | None, typer.Option(metavar="|".join(spec.presets) or "NAME", help="Named group of settings.")
    ]
    logs = LOGS if FROM_LOGS in spec.learners else {}  # a problem may describe them in its own words
    options = own | logs | own | {"method": method, "preset": preset} | COMMON

    def command(**given: Any) -> None:
        train(spec, given)

    command.__doc__ = spec.summary
    command.__annotations__ = options
    otherwise = {name: False if get_args(kind)[0] is bool else None for name, kind in options.items()}
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name, Parameter.KEYWORD_ONLY, default=otherwise[name], annotation=options[name]) for name in options]
    )
    return command


def _option(flag: Flag) -> Any:
    kind = list[flag.type] | None if flag.multiple else flag.type | None  # type: ignore[name-defined]
    shown: bool | str = flag.default or False
    return Annotated[kind, typer.Option(flag.name, metavar=flag.metavar, help=flag.help, show_default=shown)]


def train(spec: ProblemSpec, given: dict[str, Any]) -> None:
    out, config, as_json, quiet = (given.pop(name) for name in ("out", "config", "as_json", "quiet"))
    preset, assignments, no_progress = (given.pop(name) for name in ("preset", "assignments", "no_progress"))
    screen = console(stderr=as_json)
    screen.quiet = quiet
    request = make_request(
        spec.name,
        out=out,
        inputs={name.replace("_", "-"): value for name, value in given.items()},
        preset=preset,
        config=config,
        assignments=assignments or (),
    )
    with interruptible(screen) as begun, RunFolder(request.out).locked():
        with screen.status("reading what to learn from"):
            run = start_run(request)
        begun.append(run)
        _announce(run, screen)
        follow(run, Display(run, screen, live=screen.is_terminal and not no_progress and not quiet))
        finish_run(run, config)
        _conclude(run, screen, as_json=as_json)


def _announce(run: Run, screen: Console) -> None:
    if run.is_finished:
        doing = "already finished; to train on, raise the limit that stopped it, or choose another folder with --out"
    elif run.resumed:
        doing = f"resuming after {run.step:,} {run.about.unit}"
        doing += f", budget {run.about.budget}" if run.about.budget else ""
    else:
        doing = run.learner.introduction()
    screen.print(f"{escape(str(run.folder.path))}: {escape(doing)}", soft_wrap=True)
    for remark in () if run.is_finished else run.about.remarks:
        screen.print(escape(remark), soft_wrap=True)


def _conclude(run: Run, screen: Console, *, as_json: bool) -> None:
    summary, path = run.folder.summary(), escape(str(run.folder.path))
    assert summary is not None
    if as_json:
        print_json({"run": str(run.folder.path), "resumed": run.resumed, **summary})
    why = STOPPED[StopReason(summary["stopped"])]
    screen.print(
        f"stopped after {counted(summary['step'], run.about.unit)} and {duration(summary['wall_s'])}: {why}",
        soft_wrap=True,
    )
    before = summary.get("estimate_before")
    compared = f", {number(before)} before" if before is not None else ""
    if summary["best_score"] is not None:
        screen.print(f"best {run.about.score}: [bold]{number(summary['best_score'])}[/]{compared}")
    screen.print(f"policy {summary['policy']}: {path}/best   metrics: {path}/metrics.jsonl", soft_wrap=True)
    commands = find_spec(run.about.problem).next_commands.get(run.about.method, ("evaluate RUN", "runs plot RUN"))
    screen.print("next: " + "   ".join(f"etude {line.replace('RUN', path)}" for line in commands), soft_wrap=True)
