"""The workflow part of `etude evaluate`: plans beside experts', outcomes in a simulated world, recorded outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.cli.display import console, print_json, table
from etude.contracts.errors import ConfigError, PlanError

if TYPE_CHECKING:
    from etude.learning.evaluate import Score

COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "success": ("success", "{:.1%}".format),
    "cost_usd": ("USD", "{:.3f}".format),
    "latency_ms": ("seconds", lambda ms: f"{ms / 1000:.1f}"),
    "corrections": ("corrections", "{:.2f}".format),
}
"""What is told of workflows beside their return: its head and form."""


def evaluate(run: Path, data: Path, catalogue: Path | None, *, as_json: bool) -> None:
    """Plans for the instructions of a file beside the experts' plans for them."""
    import numpy as np

    from etude.bootstrap.planner import load_planner
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


def compare_in_office(
    run: Path, *, episodes: int, seed: int, others: bool = True, stochastic: bool = False
) -> dict[str, Score]:
    """The policy of phase 2, and with `others` the one of phase 1 and simpler ones, on instructions kept aside."""
    from etude.bootstrap.outcomes import read_office
    from etude.learning.comparison import POLICY
    from etude.learning.evaluate import evaluate, greedy, sampled

    problem, policies = read_office(run)
    actors = {name: greedy(policy) for name, policy in policies.items()}
    if stochastic:
        actors[POLICY] = sampled(policies[POLICY])
    actors |= problem.baselines()
    scores = {}
    with console(stderr=True).status("evaluating") as status:
        for name, actor in actors.items() if others else [(POLICY, actors[POLICY])]:
            status.update(f"evaluating {name}: {episodes:,} workflows")
            scores[name] = evaluate(problem, actor, episodes=episodes, seed=seed)
    return scores


def evaluate_in_office(run: Path, *, episodes: int, seed: int, others: bool, stochastic: bool, as_json: bool) -> None:
    """What becomes of its plans in a simulated world, beside simpler policies."""
    from etude.learning.comparison import POLICY, interpret

    scores = compare_in_office(run, episodes=episodes, seed=seed, others=others, stochastic=stochastic)
    if as_json:
        told = {name: score.to_json() for name, score in scores.items()}
        print_json({"run": str(run), "seed": seed, "policy": told.pop(POLICY), "baselines": told})
        return
    # Without workers nothing costs anything.
    shown = {key: column for key, column in COLUMNS.items() if any(score.metrics[key] for score in scores.values())}
    heads = ("return", "95 % interval", *(head for head, _ in shown.values()))
    rows = [
        [
            name,
            f"{score.mean:.2f}",
            f"{score.low:.2f} … {score.high:.2f}",
            *(form(score.metrics[key]) for key, (_, form) in shown.items()),
        ]
        for name, score in sorted(scores.items(), key=lambda item: -item[1].mean)
    ]
    screen = console()
    screen.print(f"{run}: {episodes:,} workflows about instructions kept aside\n", markup=False, soft_wrap=True)
    screen.print(table("policy", *heads, rows=rows, right=heads))
    for sentence in interpret(
        scores, shares={"success": ("success", "workflows whose every subtask is done")}, digits=2
    ):
        screen.print(f"\n{sentence}", markup=False)


def evaluate_replay(run: Path, outcomes: Path, catalogue: Path | None, *, plot: Path | None, as_json: bool) -> None:
    """Choices of workers for recorded queries beside simpler ones, and what each score costs."""
    if plot is not None and (plot.suffix not in (".html", ".htm") or plot.is_dir()):
        raise ConfigError(f"--plot is {str(plot)!r}: expected the name of a page to write, such as 'curve.html'")
    from dataclasses import asdict

    import torch

    from etude.bootstrap.routing import load_router
    from etude.learning.evaluate import interval
    from etude.learning.report.routing import Choice, write_curve
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

    def measured(chosen: Any) -> Choice:
        own, paid = score[row, chosen], cost[row, chosen]
        return Choice(
            score=float(own.mean()),
            score_ci95=interval(own.numpy()),
            to_best_single_ci95=interval((own - single).numpy()),
            cost_usd=float(paid.mean()),
            cost_share=float(paid.sum() / cost[row, others["best_single"]].sum()),
        )

    policies = {"policy": greedy, "policy at best_single's score": thrifty, **others}
    choices = {name: measured(chosen) for name, chosen in policies.items()}
    points = curve(expected.score, expected.cost_usd, replay, unit_usd=unit)
    aiq = points.area(choices["cheapest"].cost_usd, choices["best_single"].cost_usd)
    if plot is not None:
        write_curve(
            plot,
            run=run.name,
            queries=len(replay),
            choices=choices,
            curve=points,
            aiq=aiq,
            best_single=router.best_single,
        )
    shown = {name: asdict(choice) for name, choice in choices.items()}
    if as_json:
        answer = {"run": str(run), "replay": str(outcomes), "queries": len(replay), **shown["policy"]}
        answer |= {"at_best_single": shown["policy at best_single's score"], "aiq": aiq}
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
    screen.print(f"\nbest_single is {router.best_single}; AIQ {aiq:.4f}", markup=False)
    if plot is not None:
        screen.print(f"drawn in {plot}", markup=False, soft_wrap=True)
