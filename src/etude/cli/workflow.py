"""`etude train workflow`, `etude plan` and the workflow part of `etude evaluate`."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from etude.cli.config import Assignments, ConfigFile, resolve_settings
from etude.cli.display import console, duration, print_json, table
from etude.cli.progress import interruptible
from etude.contracts.errors import ConfigError, PlanError

if TYPE_CHECKING:
    from etude.learning.imitation import Epoch, ImitationTraining
    from etude.problems.workflow.plan import Plan
    from etude.problems.workflow.routing import Router


def train(
    phase: Annotated[int, typer.Option(min=1, max=2, help="1 learns from experts, 2 from outcomes.")] = 1,
    data: Annotated[
        list[Path] | None, typer.Option(help="Expert workflows, a JSON file; may be repeated.", show_default=False)
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
        Path | None, typer.Option(help="Phase 2: read text as this run of phase 1 does.", show_default=False)
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Phase 2: recorded outcomes of queries, JSONL.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same weights.", show_default="0")] = None,
    epochs: Annotated[int | None, typer.Option(help="At most this many passes.", show_default="50")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per step.", show_default="32")] = None,
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
    if phase == 2 and replay is None:
        raise ConfigError("--phase 2 learns from recorded outcomes so far: give them with --replay")
    if phase == 2 and data:
        raise ConfigError("--data is for --phase 1: phase 2 learns from outcomes, --replay")
    if phase == 1 and (replay or checkpoint):
        raise ConfigError("--replay and --checkpoint are for --phase 2: phase 1 learns from expert workflows, --data")
    if phase == 1 and not data:
        raise ConfigError("--phase 1 needs --data, a file of expert workflows")
    files = list(data or ()) if phase == 1 else [Path(str(replay))]
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
        "--tracker": tracker or None,
    }
    if checkpoint is not None and encoder is None:
        flags["--encoder"] = _encoder_of(checkpoint)
    settings = resolve_settings(preset=None, config=config, assignments=assignments, flags=flags).settings
    out = out or Path("runs") / f"workflow-p{phase}-{settings.run.seed}"

    from etude.bootstrap import make_imitation, make_router
    from etude.learning.runs import RunFolder

    screen = console(stderr=as_json)
    screen.quiet = quiet
    with interruptible(screen) as begun, RunFolder(out).locked():
        if phase == 2:
            with screen.status("reading queries and outcomes"):
                router = make_router(settings, out, *pairs[0])
            _conclude_routing(router, out, screen, as_json=as_json)
            return
        with screen.status("reading examples"):
            training = make_imitation(settings, out, pairs)
        begun.append(training)
        examples, aside = len(training.lesson.drafts["length"]), len(training.lesson.wanted)
        doing = f"resuming after epoch {training.number}" if training.resumed else "learning"
        told = f"{doing} from {examples:,} examples, {aside:,} kept aside, on {training.device}"
        if training.folder.summary() is not None:
            told = "already finished; to train anew, choose another folder with --out"
        screen.print(f"{escape(str(out))}: {told}", soft_wrap=True)
        _follow(training, screen)
        _conclude(training, out, screen, as_json=as_json)


def _encoder_of(checkpoint: Path) -> str:
    from etude.bootstrap import find_root, read_settings
    from etude.learning.runs import RunFolder

    return read_settings(RunFolder(find_root(checkpoint)), "workflow").planner.encoder


def _conclude_routing(router: Router, out: Path, screen: Any, *, as_json: bool) -> None:
    if as_json:
        print_json({"run": str(out), "best_single": router.best_single, "unit_usd": router.unit_usd})
    screen.print(
        f"{escape(str(out))}: learned who answers what; alone, {escape(router.best_single)} would be best",
        soft_wrap=True,
    )
    screen.print(f"next: etude evaluate {escape(str(out))} --replay outcomes.jsonl", soft_wrap=True)


def _follow(training: ImitationTraining, screen: Any) -> None:
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
    screen.print(f'next: etude evaluate {where} --data test.json   etude plan {where} "…"', soft_wrap=True)


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

    from etude.bootstrap import load_planner
    from etude.problems.workflow.catalogue import read_catalogue
    from etude.problems.workflow.drawing import to_svg

    planner = load_planner(run)
    if catalogue is not None:
        planner.catalogue = read_catalogue(catalogue)
    made = planner.plan(_stdin() if instruction == "-" else instruction)
    if svg is not None:
        svg.write_text(to_svg(made))
    if as_json:
        print_json(msgspec.to_builtins(made))
    else:
        console().print(_table(made))
        if svg is not None:
            console().print(f"\ndrawn in {svg}", markup=False)


def _stdin() -> str:
    """Whatever is piped in; bytes that are no text become marks of it."""
    return sys.stdin.buffer.read().decode("utf-8", errors="replace")


def _table(made: Plan) -> Any:
    rows = [
        [str(i), node.task_type, ", ".join(map(str, node.dependencies)) or "–", node.worker or "–"]
        for i, node in enumerate(made.nodes)
    ]
    return table("node", "task type", "after", "worker", rows=[[escape(cell) for cell in row] for row in rows])


def evaluate(run: Path, data: Path, catalogue: Path | None, *, as_json: bool) -> None:
    """Plans for the instructions of a file beside the experts' plans for them."""
    import numpy as np

    from etude.bootstrap import load_planner
    from etude.learning.evaluate import interval
    from etude.problems.workflow.catalogue import read_catalogue
    from etude.problems.workflow.examples import read_examples
    from etude.problems.workflow.lesson import to_plan
    from etude.problems.workflow.metrics import score_plans

    planner = load_planner(run)
    if catalogue is not None:
        planner.catalogue = read_catalogue(catalogue)
    examples = read_examples(data, planner.catalogue, max_nodes=1000)
    wanted = [to_plan(planner.catalogue, example) for example in examples]
    planner.plan(examples[0].instruction)  # the first call loads what the others find loaded
    made, times, valid = [], [], 0
    with console(stderr=True).status("planning") as status:
        for i, example in enumerate(examples):
            status.update(f"planning {i + 1} of {len(examples)}")
            began = time.perf_counter()
            made.append(planner.plan(example.instruction))
            times.append(1000 * (time.perf_counter() - began))
            with suppress(PlanError):
                made[-1].check(planner.catalogue, planner.limits)
                valid += 1
    scores = score_plans(made, wanted)
    told: dict[str, Any] = {"run": str(run), "data": str(data), "examples": len(examples)}
    for name in ("node_f1", "link_f1", "accuracy"):
        values = getattr(scores, name)
        told |= {name: float(values.mean()), f"{name}_ci95": interval(values)}
    told |= {
        "validity": valid / len(examples),
        "latency_ms": {"p50": float(np.percentile(times, 50)), "p99": float(np.percentile(times, 99))},
    }
    if as_json:
        print_json(told)
        return
    rows = [
        [name, f"{told[name]:.3f}", "{:.3f} … {:.3f}".format(*told[f"{name}_ci95"])]
        for name in ("node_f1", "link_f1", "accuracy")
    ]
    rows.append(["validity", f"{told['validity']:.3f}", ""])
    screen = console()
    screen.print(f"{run}: {len(examples):,} instructions of {data}\n", markup=False, soft_wrap=True)
    screen.print(table("metric", "mean", "95 % interval", rows=rows, right=["mean", "95 % interval"]))
    latency = told["latency_ms"]
    screen.print(f"\nOne plan takes {latency['p50']:.1f} ms (p50), {latency['p99']:.1f} ms (p99) on this CPU.")


def evaluate_replay(run: Path, outcomes: Path, catalogue: Path | None, *, as_json: bool) -> None:
    """Choices of workers for recorded queries beside simpler ones, and what each score costs."""
    import torch

    from etude.bootstrap import load_router
    from etude.learning.evaluate import interval
    from etude.problems.workflow.catalogue import read_catalogue
    from etude.problems.workflow.replay import choose, curve, read_outcomes, references

    router = load_router(run)
    if catalogue is not None:
        router = router.under(read_catalogue(catalogue))
    replay = read_outcomes(outcomes, router.catalogue)
    with console(stderr=True).status(f"choosing for {len(replay):,} queries"):
        expected = router.predict(replay.texts, replay.types)
    names, unit = [w.name for w in router.catalogue.workers], router.unit_usd
    wanted = float(router.learned.mean.max())  # of the best single worker on the past queries
    greedy, thrifty = (
        choose(expected.score, expected.cost_usd, expected.able, weight=weight, unit_usd=unit)
        for weight in (0.0, router.weight_for(wanted))
    )
    others = references(replay, best_single=names.index(router.best_single))
    score, cost = replay.completed()
    row = torch.arange(len(replay))
    single = score[row, others["best_single"]]

    def told(chosen: Any) -> dict[str, Any]:
        own, paid = score[row, chosen], cost[row, chosen]
        return {
            "score": float(own.mean()),
            "score_ci95": interval(own.numpy()),
            "to_best_single_ci95": interval((own - single).numpy()),
            "cost_usd": float(paid.mean()),
            "cost_share": float(paid.sum() / cost[row, others["best_single"]].sum()),
        }

    policies = {"policy": greedy, "policy at best_single's score": thrifty, **others}
    shown = {name: told(chosen) for name, chosen in policies.items()}
    points = curve(expected.score, expected.cost_usd, replay, unit_usd=unit)
    low, high = (float(cost[row, others[name]].mean()) for name in ("cheapest", "best_single"))
    if as_json:
        answer = {"run": str(run), "replay": str(outcomes), "queries": len(replay), **shown["policy"]}
        answer |= {"at_best_single": shown["policy at best_single's score"], "aiq": points.area(low, high)}
        answer |= {"baselines": {name: shown[name] for name in others}, "best_single_worker": router.best_single}
        answer["curve"] = [list(p) for p in zip(points.cost_usd.tolist(), points.score.tolist(), strict=True)]
        print_json(answer)
        return
    rows = [
        [
            name,
            f"{row['score']:.4f}",
            "{:.4f} … {:.4f}".format(*row["score_ci95"]),
            "{:+.4f} … {:+.4f}".format(*row["to_best_single_ci95"]),
            f"{row['cost_usd']:.6f}",
            f"{row['cost_share']:.1%}",
        ]
        for name, row in sorted(shown.items(), key=lambda item: -item[1]["score"])
    ]
    heads = ("score", "95 % interval", "to best_single, paired", "USD a query", "of best_single's cost")
    screen = console()
    screen.print(f"{run}: {len(replay):,} queries of {outcomes}\n", markup=False, soft_wrap=True)
    screen.print(table("policy", *heads, rows=rows, right=heads))
    screen.print(f"\nbest_single is {router.best_single}; AIQ {points.area(low, high):.4f}", markup=False)
