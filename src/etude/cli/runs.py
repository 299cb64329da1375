"""`etude runs`: the runs that are there, one run in detail, its report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from etude.cli.display import console, duration, number, setting, sparkline, table
from etude.contracts.errors import EtudeError, RunError

if TYPE_CHECKING:
    from etude.learning.runs import RunFolder

app = typer.Typer(no_args_is_help=True, help="List runs, look into one, plot it.")

RunPath = Annotated[Path, typer.Argument(help="The run's folder.", show_default=False)]


@app.command("list")
def list_runs(root: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs")) -> None:
    """Every run below a folder, newest last."""
    from etude.learning.runs import find_runs

    found = find_runs(root)
    if not found:
        console().print(f"no runs below {escape(str(root))}: `etude train allocation` makes one", soft_wrap=True)
        return
    columns = ("run", "problem", "seed", "steps", "budget", "best score", "time", "state")
    rows, broken = [], []
    for folder in found:
        try:
            rows.append(_row(folder))
        except (EtudeError, KeyError, TypeError) as error:  # one broken run must not hide the others
            rows.append([escape(str(folder.path)), *["–"] * 6, "[red]unreadable[/]"])
            broken.append(f"{folder.path}: {error}")
    console().print(table(*columns, rows=rows, right=("seed", "steps", "budget", "best score", "time")))
    for line in broken:
        console(stderr=True).print(f"[yellow]warning:[/] {escape(line)}", soft_wrap=True)


def _row(folder: RunFolder) -> list[str]:
    config, rows = folder.config(), folder.read_metrics()
    numbers = [f"{_step(rows):,}", _budget(config), _best(rows), _time(rows)]
    return [escape(str(folder.path)), _problem(config), str(config["run"]["seed"]), *numbers, _state(folder)]


def _problem(config: dict[str, Any]) -> str:
    if config["problem"] == "workflow":
        return f"workflow {config['algorithm']}" if "algorithm" in config else f"workflow phase {config['phase']}"
    world = config["allocation"]
    return f"{config['problem']} {world['variant']} {world['agents']}×{world['slots']}"


def _budget(config: dict[str, Any]) -> str:
    """Environment steps, epochs of a planner, or workflows it learns from."""
    if config["problem"] != "workflow":
        return f"{config['run']['max_steps']:,}"
    if "algorithm" in config:
        return f"{config['from_logs'][config['algorithm']]['epochs']:,} passes"
    if "training" not in config:
        return "–"
    phases = config["training"]
    if config["phase"] == 2:
        return f"{phases['phase2_rl']['num_episodes']:,} workflows"
    return f"{phases['phase1_supervised']['num_epochs'] + phases['phase1_supervised']['final_epochs']:,}"


def _state(folder: RunFolder) -> str:
    summary = folder.summary()
    if summary is not None:
        return f"finished: {summary['stopped']}"
    return "training" if folder.in_use() else "interrupted"


def _step(rows: list[dict[str, Any]]) -> int:
    return int(rows[-1]["step"]) if rows else 0


def _time(rows: list[dict[str, Any]]) -> str:
    return duration(rows[-1]["wall_s"]) if rows else "–"


def _best(rows: list[dict[str, Any]]) -> str:
    returns = [row["eval_return"] for row in rows if "eval_return" in row]
    scores = [row["validation_score"] for row in rows if "validation_score" in row]
    estimates = [row["estimate"] for row in rows if "estimate" in row]
    return number(max(returns)) if returns else f"{max(scores or estimates):.3f}" if scores or estimates else "–"


@app.command()
def show(run: RunPath) -> None:
    """Settings that differ from the defaults, progress, evaluations, warnings, and why it stopped."""
    from etude.bootstrap.runs import find_root
    from etude.learning.runs import RunFolder

    folder = RunFolder(find_root(run))
    rows, screen = folder.read_metrics(), console()
    screen.print(f"[bold]{escape(str(folder.path))}[/]  {_state(folder)}", soft_wrap=True)
    config = folder.config()
    score = {1: "validation score", 3: "estimate"}.get(config.get("phase", 2), "return")
    progress = f"step {_step(rows):,} of {_budget(config)}, {_time(rows)}, best {score} {_best(rows)}\n"
    screen.print(progress, soft_wrap=True)
    screen.print(table("setting", "value", "default", rows=_differences(folder)))
    evaluations = [row for row in rows if "eval_return" in row]
    if evaluations:
        screen.print(f"\n[bold]evaluations[/]  {sparkline([row['eval_return'] for row in evaluations])}")
        screen.print(_evaluations(evaluations))
    _print_warnings(rows)


def _differences(folder: RunFolder) -> list[list[str]]:
    """Settings otherwise than the variant's defaults; the seed always."""
    from etude.bootstrap.runs import read_settings
    from etude.learning.runs import leaves
    from etude.settings.tree import resolve

    problem = folder.config()["problem"]
    settings = read_settings(folder, problem)
    variant = settings.allocation.variant
    usual = dict(leaves(resolve(flags={"--variant": variant}).settings.model_dump(mode="json")))
    rows = [["allocation.variant", variant, ""]] if problem == "allocation" else []
    for key, value in leaves(settings.model_dump(mode="json")):
        if value != usual[key] or key == "run.seed":
            rows.append([key, escape(setting(value)), escape(setting(usual[key]))])
    return rows


def _evaluations(evaluations: list[dict[str, Any]]) -> Any:
    best = max(row["eval_return"] for row in evaluations)
    shares = ("completion_rate", "utilisation", "collaboration", "success")
    shown = [name for name in shares if f"eval_{name}" in evaluations[0]]
    rows = [
        [
            f"{row['step']:,.0f}",
            number(row["eval_return"]) + (" ★" if row["eval_return"] == best else "  "),
            *(_percent(row.get(f"eval_{name}")) for name in shown),
        ]
        for row in evaluations
    ]
    heads = ("step", "return", *(name.removesuffix("_rate") for name in shown))
    return table(*heads, rows=rows, right=heads)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _print_warnings(rows: list[dict[str, Any]]) -> None:
    from etude.learning.health import ADVICE, Symptom

    found = [
        (row["step"], name.removeprefix("warning_"), value)
        for row in rows
        for name, value in row.items()
        if name.startswith("warning_")
    ]
    for step, name, value in found:
        advice = ADVICE[Symptom(name)] if name in set(Symptom) else ""
        told = value if value is None else f"{value:.4g}"
        console().print(
            f"[yellow]warning:[/] [bold]{name}[/] at step {step:,.0f} (value {told})\n"
            f"         what to do: {escape(advice)}",
            soft_wrap=True,
        )


@app.command()
def plot(
    run: RunPath,
    out: Annotated[Path | None, typer.Option(help="The page to write.", show_default="RUN/report.html")] = None,
    episodes: Annotated[
        int, typer.Option(min=0, help="Episodes of the comparison with simpler policies; 0 leaves it out.")
    ] = 200,
) -> None:
    """Write the run's report: learning curves, what the policy does or the planner plans, comparison, settings."""
    from etude.bootstrap.allocation import read_policy
    from etude.bootstrap.runs import find_root
    from etude.cli.evaluate import compare
    from etude.learning.checkpoint import checkpoints
    from etude.learning.report.allocation import write_allocation_report
    from etude.learning.runs import RunFolder

    if out is not None and out.is_dir():
        raise RunError(
            f"--out is {str(out)!r}, a folder: give the name of a file, such as {str(out / 'report.html')!r}"
        )
    folder = RunFolder(find_root(run))
    if folder.config().get("problem") == "workflow":
        typer.echo(str(_plot_workflow(folder, out, episodes)))
        return
    scores, tendencies = None, None
    if episodes and checkpoints(folder.best):  # a run not evaluated yet has curves, and no policy to compare
        scores, tendencies = compare(read_policy(folder.path), episodes=episodes)
    typer.echo(str(write_allocation_report(folder, comparison=scores, tendencies=tendencies, out=out)))


def _plot_workflow(folder: RunFolder, out: Path | None, episodes: int) -> Path:
    from etude.bootstrap.outcomes import learned_in_office
    from etude.cli.evaluate import HELD_OUT_SEED
    from etude.cli.workflow_scores import compare_in_office
    from etude.learning.checkpoint import checkpoints
    from etude.learning.report.workflow import write_workflow_report

    scores = None
    if folder.config().get("phase") == 2:
        if not learned_in_office(folder.path):
            raise RunError(
                f"{folder.path} learned from recorded outcomes in one go and has no curves of learning: "
                f"`etude evaluate {folder.path} --replay outcomes.jsonl --plot curve.html` draws what each score costs"
            )
        if episodes and checkpoints(folder.best):
            scores = compare_in_office(folder.path, episodes=episodes, seed=HELD_OUT_SEED)
    return write_workflow_report(folder, comparison=scores, out=out)
