"""`etude train workflow` and `etude plan`."""

from __future__ import annotations

import sys
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from etude.cli.config import Assignments, ConfigFile, resolve_settings
from etude.cli.display import console, duration, print_json, table
from etude.cli.progress import LiveDisplay, PlainDisplay, follow, interruptible
from etude.contracts.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from etude.learning.from_logs import Pass
    from etude.learning.imitation import Epoch, ImitationTraining
    from etude.learning.train import Training
    from etude.problems.workflow.plan import Plan
    from etude.settings.tree import Settings

Pair = tuple[Path, Path | None]
"""A file, and its catalogue where that does not stand beside it."""


def train(
    phase: Annotated[int, typer.Option(min=1, max=2, help="1 learns from experts, 2 from outcomes.")] = 1,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Expert workflows, a JSON file; may be repeated. Phase 2 practises on them in a simulated world.",
            show_default="those of a simulated office",
        ),
    ] = None,
    catalogue: Annotated[
        list[Path] | None,
        typer.Option(help="Task types and workers, one a data file.", show_default="catalogue.json beside the data"),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="ngrams|fast|minilm|minilm-frozen|URL#MODEL", help="How text is read.", show_default="fast"
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Phase 2 and --dataset: the run of a planner to go on from.",
            show_default="with --dataset, who logged most of it",
        ),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Phase 2: recorded outcomes of queries, JSONL.", show_default=False)
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Learn from logs: a dataset's folder, or s3://….", show_default=False)
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(metavar="ppo|dpo|rloo", help="With --dataset: how.", show_default="ppo")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same weights.", show_default="0")] = None,
    epochs: Annotated[int | None, typer.Option(help="Phase 1: at most this many passes.", show_default="50")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Phase 1: examples per step.", show_default="32")] = None,
    episodes: Annotated[
        int | None, typer.Option(help="Phase 2: workflows to learn from.", show_default="140000")
    ] = None,
    shift: Annotated[
        str | None,
        typer.Option(
            metavar="none|degraded|new_tool|phrasings", help="Phase 2: what differs from before.", show_default="none"
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder.", show_default="runs/workflow-p1-SEED")] = None,
    device: Annotated[
        str | None, typer.Option(metavar="auto|cpu|cuda", help="Where to compute.", show_default="auto")
    ] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    tracker: Annotated[
        list[str] | None,
        typer.Option(metavar="tensorboard|wandb|mlflow", help="Log metrics there too; may be repeated."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only what is wrong.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print how it ended as JSON; the rest goes to stderr.")
    ] = False,
) -> None:
    """How an instruction becomes a plan: which subtasks, in which order, and who does each."""
    if dataset is not None:
        given = {"--data": data, "--replay": replay, "--episodes": episodes, "--shift": shift, "--encoder": encoder}
        given |= {"--batch-size": batch_size, "--epochs": epochs}
        if catalogue and len(catalogue) > 1:
            raise ConfigError(f"there are {len(catalogue)} --catalogue: a dataset was logged with one")
        if wrong := [flag for flag, value in given.items() if value is not None]:
            raise ConfigError(
                f"{wrong[0]} does not go with --dataset, whose settings are below `from_logs`; leave it out"
            )
        _learn_from_logs(
            dataset,
            algorithm or "ppo",
            checkpoint,
            catalogue[0] if catalogue else None,
            out,
            flags={"--seed": seed, "--device": device, "--tracker": tracker or None},
            config=config,
            assignments=assignments,
            quiet=quiet,
            as_json=as_json,
        )
        return
    if algorithm is not None:
        raise ConfigError("--algorithm goes with --dataset: phase 1 imitates, phase 2 learns by PPO")
    if phase == 2 and replay is None and checkpoint is None:
        raise ConfigError("--phase 2 needs --checkpoint, a planner to go on from, or recorded outcomes, --replay")
    if phase == 2 and replay and data:
        raise ConfigError("--data and --replay: plans are practised on, outcomes are recorded; give one of them")
    if phase == 1 and (replay or checkpoint):
        raise ConfigError("--replay and --checkpoint are for --phase 2: phase 1 learns from expert workflows, --data")
    if shift and (phase == 1 or replay):
        raise ConfigError("--shift is for --phase 2 in the simulated office: experts and records are as they are")
    files = [replay] if replay else list(data or ())
    if catalogue and len(catalogue) != len(files):
        raise ConfigError(
            f"there are {len(files)} --data and {len(catalogue)} --catalogue: give one for each, in order"
        )
    pairs = [(file, own) for file, own in zip_longest(files, catalogue or []) if file]
    flags = {
        "--seed": seed,
        "--device": device,
        "--encoder": encoder,
        "--epochs": epochs,
        "--batch-size": batch_size,
        "--episodes": episodes,
        "--shift": shift,
        "--tracker": tracker or None,
    }
    if replay is not None and checkpoint is not None and encoder is None:
        flags["--encoder"] = _encoder_of(checkpoint)
    preset = None if data or phase == 2 else "office"
    settings = resolve_settings(preset=preset, config=config, assignments=assignments, flags=flags).settings
    out = out or Path("runs") / f"workflow-p{phase}-{settings.run.seed}"

    from etude.learning.runs import RunFolder

    screen = console(stderr=as_json)
    screen.quiet = quiet
    with interruptible(screen) as begun, RunFolder(out).locked():
        if phase == 1:
            _imitate(settings, out, pairs, screen, begun, as_json=as_json)
        elif replay is not None:
            _route(settings, out, pairs[0], screen, as_json=as_json)
        else:
            assert checkpoint is not None
            _go_on(settings, out, checkpoint, pairs, screen, begun, as_json=as_json)


def _learn_from_logs(
    dataset: str,
    algorithm: str,
    checkpoint: Path | None,
    catalogue: Path | None,
    out: Path | None,
    *,
    flags: Mapping[str, Any],
    config: Path | None,
    assignments: Sequence[str] | None,
    quiet: bool,
    as_json: bool,
) -> None:
    from etude.bootstrap.from_logs import make_from_logs, remember
    from etude.learning.from_logs import LEARNERS
    from etude.learning.runs import RunFolder

    if algorithm not in LEARNERS:
        raise ConfigError(f"--algorithm is {algorithm!r}: expected one of {', '.join(LEARNERS)}")
    settings = resolve_settings(preset=None, config=config, assignments=assignments, flags=flags).settings
    place = out or Path("runs") / f"workflow-{algorithm}-{settings.run.seed}"
    screen = console(stderr=as_json)
    screen.quiet = quiet
    with interruptible(screen) as begun, RunFolder(place).locked():
        with screen.status("reading the dataset"):
            training = make_from_logs(
                settings, place, dataset, algorithm, checkpoint=checkpoint, catalogue=catalogue, config=config
            )
        begun.append(training)
        doing = f"resuming after pass {training.step}" if training.resumed else f"learning by {algorithm}"
        told = f"{doing} from {dataset} on {training.learner.device}"
        if training.folder.summary() is not None:
            told = "already finished; to learn anew, choose another folder with --out"
        screen.print(f"{escape(str(place))}: {escape(told)}", soft_wrap=True)
        with screen.status("checking overlap, then passing over the logs"):
            for done in training.epochs():
                screen.print(_pass_line(done))
        remember(place, config)
    summary = training.folder.summary()
    assert summary is not None
    if as_json:
        print_json({"run": str(place), "resumed": training.resumed, **summary})
    screen.print(
        f"stopped after {summary['epochs']} passes and {duration(summary['wall_s'])} ({summary['stopped']}); on logs "
        f"kept aside the policy is estimated at [bold]{summary['best_estimate']:.3f}[/], "
        f"{summary['estimate_before']:.3f} before",
        soft_wrap=True,
    )
    where = escape(str(place))
    screen.print(f'next: etude evaluate {where}   etude runs plot {where}   etude plan {where} "…"', soft_wrap=True)


def _pass_line(done: Pass) -> str:
    m = done.metrics
    line = f"pass {done.number:>3}  {duration(done.wall_s):>7}  "
    line += f"estimate {m['estimate']:.3f}  " if "estimate" in m else ""
    line += f"effective {m['ess']:.1%} of the logs  KL to them {max(0.0, m['kl_logged']):.3f}"
    return f"{line}  ★" if done.is_best else line


def _imitate(
    settings: Settings, out: Path, pairs: Sequence[Pair], screen: Console, begun: list[Any], *, as_json: bool
) -> None:
    from etude.bootstrap.imitation import make_imitation

    with screen.status("reading examples"):
        training = make_imitation(settings, out, pairs)
    begun.append(training)
    examples, aside = len(training.lesson.drafts["length"]), len(training.lesson.wanted)
    doing = f"resuming after epoch {training.number}" if training.resumed else "learning"
    told = f"{doing} from {examples:,} examples, {aside:,} kept aside, on {training.device}"
    if training.folder.summary() is not None:
        told = "already finished; to train anew, choose another folder with --out"
    screen.print(f"{escape(str(out))}: {told}", soft_wrap=True)
    follow_epochs(training, screen)
    _conclude(training, out, screen, as_json=as_json)


def _route(settings: Settings, out: Path, recorded: Pair, screen: Console, *, as_json: bool) -> None:
    from etude.bootstrap.routing import make_router

    with screen.status("reading queries and outcomes"):
        router = make_router(settings, out, *recorded)
    if as_json:
        print_json({"run": str(out), "best_single": router.best_single, "unit_usd": router.unit_usd})
    screen.print(
        f"{escape(str(out))}: learned who answers what; alone, {escape(router.best_single)} would be best",
        soft_wrap=True,
    )
    screen.print(f"next: etude evaluate {escape(str(out))} --replay outcomes.jsonl", soft_wrap=True)


def _go_on(
    settings: Settings,
    out: Path,
    checkpoint: Path,
    pairs: Sequence[Pair],
    screen: Console,
    begun: list[Any],
    *,
    as_json: bool,
) -> None:
    """Phase 2 in a simulated world."""
    from etude.bootstrap.outcomes import make_outcomes, show_plans

    with screen.status("reading instructions"):
        training = make_outcomes(settings, out, checkpoint, pairs)
    begun.append(training)
    budget = training.config.run.max_episodes
    doing = f"going on from {checkpoint} for {budget:,} workflows on {training.device}"
    if training.reason_to_stop() is not None:
        doing = "already finished; to train on, choose another folder with --out"
    elif training.resumed:
        doing = f"resuming after {training.episodes:,} of {budget:,} workflows"
    screen.print(f"{escape(str(out))}: {escape(doing)}", soft_wrap=True)
    if training.folder.scenarios.exists():
        for line in _practised_on(training, checkpoint):
            screen.print(escape(line), soft_wrap=True)
    follow(training, LiveDisplay(training, screen) if screen.is_terminal else PlainDisplay(training, screen))
    show_plans(out)
    summary = training.folder.summary()
    assert summary is not None
    if as_json:
        print_json({"run": str(out), "resumed": training.resumed, "episodes": training.episodes, **summary})
    where = escape(str(out))
    screen.print(
        f"stopped after {training.episodes:,} workflows and {duration(summary['wall_s'])}; "
        f"best evaluated return [bold]{summary['best_return']:.2f}[/]"
    )
    screen.print(f'next: etude evaluate {where}   etude runs plot {where}   etude run {where} "…"', soft_wrap=True)


def _practised_on(training: Training, checkpoint: Path) -> Iterator[str]:
    """What is asked where plans of a user are practised on, what is not and why, and who knew them before."""
    from etude.bootstrap.runs import find_root
    from etude.learning.runs import RunFolder

    problem: Any = training.problem
    left_out, learn = problem.scenarios.left_out, len(problem.rows)
    used, aside = len(problem.scenarios), problem.config.held_out
    of = f" of {used + sum(left_out.values()):,}" if left_out else ""
    parts = f"{learn:,} to learn from, {aside:,} to choose by, {aside:,} to measure on"
    yield f"practising on {used:,}{of} examples: {parts}"
    if left_out:
        yield "left out: " + ", ".join(f"{count:,} with {reason}" for reason, count in left_out.items())
    earlier = RunFolder(find_root(checkpoint)).config()["data"]
    if set(earlier) & set(training.folder.config()["data"]):
        yield (
            f"{checkpoint} learned from the same file, so even what is kept aside is no news to it: practise on other "
            f"examples if there are any, measure with etude evaluate {training.folder.path} --data test.json"
        )


def _encoder_of(checkpoint: Path) -> str:
    from etude.bootstrap.runs import find_root, read_settings
    from etude.learning.runs import RunFolder

    return read_settings(RunFolder(find_root(checkpoint)), "workflow").planner.encoder


def follow_epochs(training: ImitationTraining, screen: Any) -> None:
    columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("", total=1.0, epoch=training.number + 1)
        for epoch in training.epochs(lambda share: bar.update(task, completed=share)):
            screen.print(_line(epoch))
            bar.reset(task, epoch=epoch.number + 1)


def _line(epoch: Epoch) -> str:
    m = epoch.metrics
    line = f"epoch {epoch.number:>3}  {duration(epoch.wall_s):>7}  loss {m['loss']:.3f}"
    if epoch.is_final:
        return f"{line}  on all examples"
    scores = f"node F1 {m['node_f1']:.3f}  link F1 {m['link_f1']:.3f}  accuracy {m['accuracy']:.3f}"
    return f"{line}  {scores}{'  ★' if epoch.is_best else ''}"


def _conclude(training: ImitationTraining, out: Path, screen: Any, *, as_json: bool) -> None:
    summary = training.folder.summary()
    assert summary is not None
    if as_json:
        print_json({"run": str(out), "resumed": training.resumed, **summary})
    where = escape(str(out))
    screen.print(
        f"stopped after {summary['epochs']} epochs and {duration(summary['wall_s'])} ({summary['stopped']}); "
        f"best validation score [bold]{summary['validation_score']:.3f}[/] at epoch {summary['best_epoch']}"
    )
    screen.print(
        f'next: etude evaluate {where} --data test.json   etude runs plot {where}   etude plan {where} "…"',
        soft_wrap=True,
    )


def plan(
    run: Annotated[Path, typer.Argument(help="A run of `etude train workflow`.", show_default=False)],
    instruction: Annotated[str, typer.Argument(help="What is to be done; - reads it from stdin.", show_default=False)],
    catalogue: Annotated[
        Path | None, typer.Option(help="Plan with these task types and workers.", show_default="the run's")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    svg: Annotated[Path | None, typer.Option(help="Draw the plan into this file.")] = None,
) -> None:
    """Make a plan for an instruction."""
    import msgspec

    from etude.bootstrap.planner import load_planner
    from etude.problems.workflow.catalogue import read_catalogue
    from etude.problems.workflow.drawing import to_svg

    planner = load_planner(run)
    if catalogue is not None:
        planner.catalogue = read_catalogue(catalogue)
    made = planner.plan(read_stdin() if instruction == "-" else instruction)
    if svg is not None:
        svg.write_text(to_svg(made))
    if as_json:
        print_json(msgspec.to_builtins(made))
    else:
        console().print(_table(made))
        if svg is not None:
            console().print(f"\ndrawn in {svg}", markup=False)


def read_stdin() -> str:
    """Whatever is piped in; bytes that are no text become marks of it."""
    return sys.stdin.buffer.read().decode("utf-8", errors="replace")


def _table(made: Plan) -> Any:
    rows = [
        [str(i), node.task_type, ", ".join(map(str, node.dependencies)) or "–", node.worker or "–"]
        for i, node in enumerate(made.nodes)
    ]
    return table("node", "task type", "after", "worker", rows=[[escape(cell) for cell in row] for row in rows])
