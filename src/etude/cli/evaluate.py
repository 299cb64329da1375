"""`etude evaluate`: a run's policy beside the problem's baselines and an untrained network, from the same seeds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.cli import workflow_scores
from etude.cli.display import console, print_json, table

if TYPE_CHECKING:
    from etude.bootstrap.allocation import TrainedPolicy
    from etude.learning.evaluate import Score
    from etude.problems.allocation.behaviour import Tendency
    from etude.problems.base import Actor

HELD_OUT_SEED = 2_000_003
"""Not the episodes by which training chose its best policy: on those it would look better than it is."""
LATENCY_CALLS = 1000


def evaluate_run(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a checkpoint in it.", show_default=False)],
    data: Annotated[
        Path | None, typer.Option(help="Of a planner: expert workflows to hold its plans against.", show_default=False)
    ] = None,
    catalogue: Annotated[
        Path | None, typer.Option(help="Of a planner: whose ids `--data` speaks in.", show_default="the run's")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Of a run of phase 2: recorded outcomes to choose among.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="With --replay: draw what each score costs into this page.", show_default=False)
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes that each policy plays.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Of the episodes; the same for all policies.")] = HELD_OUT_SEED,
    stochastic: Annotated[bool, typer.Option("--stochastic", help="Draw actions as in training.")] = False,
    baselines: Annotated[bool, typer.Option(help="Compare with simpler policies.")] = True,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to compute.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure a policy over whole episodes, beside simpler ones; a planner on expert workflows, too."""
    from etude.bootstrap.allocation import read_policy
    from etude.bootstrap.outcomes import learned_in_office
    from etude.bootstrap.runs import problem_of
    from etude.contracts.errors import ConfigError

    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device is {device!r}: expected one of auto, cpu, cuda")
    problem = problem_of(run)
    if plot is not None and (replay is None or problem != "workflow"):
        raise ConfigError(
            "--plot goes with --replay, of a run that chooses workers: it draws what each score costs; "
            "the curves of a training are drawn by `etude runs plot`"
        )
    if problem == "workflow":
        if replay is not None:
            workflow_scores.evaluate_replay(run, replay, catalogue, plot=plot, as_json=as_json)
            return
        if data is not None:
            workflow_scores.evaluate(run, data, catalogue, as_json=as_json)
            return
        if not learned_in_office(run):
            raise ConfigError(
                "a planner of phase 1 is measured on expert workflows, --data, a router on outcomes, --replay"
            )
        workflow_scores.evaluate_in_office(
            run, episodes=episodes, seed=seed, others=baselines, stochastic=stochastic, as_json=as_json
        )
        return
    trained = read_policy(run)
    latency = measure_latency(trained)
    scores, _ = compare(trained, episodes=episodes, seed=seed, stochastic=stochastic, others=baselines, device=device)
    if as_json:
        print_json(_to_json(run, trained, scores, seed=seed, latency=latency))
    else:
        _print(run, trained, scores, latency)


def compare(
    trained: TrainedPolicy,
    *,
    episodes: int,
    seed: int = HELD_OUT_SEED,
    stochastic: bool = False,
    others: bool = True,
    device: str = "auto",
) -> tuple[dict[str, Score], dict[str, list[Tendency]]]:
    """Scores of the policy and, with `others`, of simpler ones; and what policy and random choice do in which state."""
    import torch

    from etude.learning.comparison import POLICY, RANDOM, contenders
    from etude.learning.evaluate import evaluate, sampled
    from etude.learning.train import choose_threads, resolve_device
    from etude.problems.allocation.behaviour import Watched

    place = resolve_device(device)
    network = trained.network.to(place)
    torch.set_num_threads(choose_threads(network, episodes))
    actors: dict[str, Actor] = contenders(trained.problem, network, seed=trained.settings.run.seed)
    if stochastic:
        actors[POLICY] = sampled(network)
    scores, tendencies = {}, {}
    with console(stderr=True).status("evaluating") as status:
        for name, actor in actors.items() if others else [(POLICY, actors[POLICY])]:
            status.update(f"evaluating {name}: {episodes} episodes")
            watched = Watched(actor)
            scores[name] = evaluate(trained.problem, watched, episodes=episodes, seed=seed, device=place)
            if name in (POLICY, RANDOM):
                tendencies[name] = watched.tendencies()
    return scores, tendencies


def measure_latency(trained: TrainedPolicy) -> dict[str, float]:
    """Milliseconds from one NumPy observation to its action on the CPU, as `etude.load(…).act(…)` takes them."""
    import numpy as np

    from etude.serving.runtime import LoadedPolicy

    policy = LoadedPolicy(trained.network, trained.problem)
    observation = {name: value[0].numpy() for name, value in trained.problem.world(1, device="cpu").reset(0).items()}
    times = []
    for _ in range(LATENCY_CALLS):
        began = time.perf_counter()
        policy.act(observation)
        times.append(1000 * (time.perf_counter() - began))
    del times[: LATENCY_CALLS // 10]  # the first calls load what the others find loaded
    return {"p50": float(np.percentile(times, 50)), "p99": float(np.percentile(times, 99))}


def _to_json(
    run: Path, trained: TrainedPolicy, scores: dict[str, Score], *, seed: int, latency: dict[str, float]
) -> dict[str, Any]:
    from etude.learning.comparison import POLICY, UNTRAINED

    told = {name: score.to_json() for name, score in scores.items()}
    return {
        "run": str(run),
        "step": trained.step,
        "seed": seed,
        "policy": told.pop(POLICY),
        "untrained": told.pop(UNTRAINED, None),
        "baselines": told,
        "latency_ms": latency,
    }


def _print(run: Path, trained: TrainedPolicy, scores: dict[str, Score], latency: dict[str, float]) -> None:
    from etude.learning.comparison import METRICS, interpret

    shown = [name for name in METRICS if name in next(iter(scores.values())).metrics]
    heads = [METRICS[name][0] for name in shown]
    rows = [
        [
            name,
            f"{score.mean:,.1f}",
            f"{score.low:,.1f} … {score.high:,.1f}",
            *(f"{score.metrics[metric]:.1%}" for metric in shown),
        ]
        for name, score in sorted(scores.items(), key=lambda item: -item[1].mean)
    ]
    screen = console()
    count = next(iter(scores.values())).episodes
    screen.print(f"{run}: policy of step {trained.step:,}, {count} episodes each\n", markup=False, soft_wrap=True)
    screen.print(
        table("policy", "return", "95 % interval", *heads, rows=rows, right=["return", "95 % interval", *heads])
    )
    for sentence in interpret(scores):
        screen.print(f"\n{sentence}", markup=False)
    screen.print(f"\nOne decision takes {latency['p50']:.2f} ms (p50), {latency['p99']:.2f} ms (p99) on this CPU.")
