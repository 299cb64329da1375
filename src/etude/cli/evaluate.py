"""`etude evaluate`: measures a policy in its world, on examples, on recorded outcomes or on logged decisions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from etude.bootstrap.datasets import open_dataset
from etude.cli.display import console, print_json, table
from etude.cli.options import ConfigFile
from etude.contracts.errors import ConfigError

if TYPE_CHECKING:  # it brings torch, which help does not need
    from etude.learning.requests import Measurement


def evaluate_run(
    run: Annotated[Path, typer.Argument(help="Folder of a run or policy.", show_default=False)],
    against: Annotated[
        str | None,
        typer.Argument(
            help="With --instructions: the policy to compare it with, a run, llm:URL#MODEL or a name.",
            show_default=False,
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="Dataset for an off-policy evaluation on its test split: a folder, or s3://…"),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="For a planner: JSON file of expert workflows to compare its plans with.")
    ] = None,
    catalogue: Annotated[
        Path | None, typer.Option(help="For a planner: JSON file of task types and workers.", show_default="the run's")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="For a choice: JSONL file of recorded outcomes to choose among.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="With --replay: HTML file for a plot of cost against score.")
    ] = None,
    instructions: Annotated[
        Path | None,
        typer.Option(help="For two planners: file of instructions, one per line, that both carry out."),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="With --instructions: another policy to compare it with, such as llm:URL#MODEL, llm (that of the "
            "workers file) or rules. May be repeated.",
            metavar="POLICY",
        ),
    ] = None,
    workers: Annotated[
        Path | None, typer.Option(help="With --instructions: workers file.", show_default="a simulated office")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(min=0, help="With --instructions: budget in USD for all policies together.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Number of episodes per policy.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the episodes; the same for all policies.")] = 2_000_003,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Sample actions as in training.")] = False,
    baselines: Annotated[bool, typer.Option(help="Compare with simpler policies.")] = True,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Device to compute on.")] = "auto",
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure a policy, with intervals, compared with simpler ones."""
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device is {device!r}: expected one of auto, cpu, cuda")
    if plot is not None and replay is None:
        raise ConfigError(
            "--plot goes with --replay: it draws cost against score; `etude runs plot` draws the curves of a training"
        )
    if instructions is None and (against, peer or None, workers, max_cost) != (None, None, None, None):
        raise ConfigError(
            "a second policy, --peer, --workers and --max-cost go with --instructions, which all policies carry out"
        )
    from etude.bootstrap.runs import evaluate
    from etude.learning.requests import EvaluateRequest

    given: dict[str, object] = {
        "data": data,
        "catalogue": catalogue,
        "replay": replay,
        "plot": plot,
        "instructions": instructions,
    }
    given |= {"against": against, "peer": peer or None, "workers": workers, "max-cost": max_cost}
    with console(stderr=True).status("evaluating") as status:
        measured = evaluate(
            EvaluateRequest(
                run=run,
                inputs={name: value for name, value in given.items() if value is not None},
                dataset=None if dataset is None else open_dataset(dataset, config),
                episodes=episodes,
                seed=seed,
                sampled=stochastic,
                baselines=baselines,
                device=device,
                status=status.update,
            )
        )
    if as_json:
        print_json(dict(measured.json))
    else:
        show(measured)


def show(measured: Measurement) -> None:
    screen, (first, *others) = console(), measured.columns
    screen.print(f"{escape(measured.title)}\n", soft_wrap=True)
    rows = [[escape(cell) for cell in row] for row in measured.rows]
    screen.print(table(first, *others, rows=rows, right=others))
    for sentence in measured.sentences:
        screen.print(f"\n{sentence}", markup=False)
