"""A router measured on recorded outcomes: its choices compared with simpler ones, and what each score costs."""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import Tensor

from etude.contracts.errors import ConfigError
from etude.evidence.intervals import interval
from etude.learning.requests import EvaluateRequest, Measurement
from etude.learning.run_folder import find_policy
from etude.problems.catalogue import read_catalogue
from etude.problems.routing.replay import choose, curve, read_outcomes, references
from etude.problems.routing.report import Choice, write_curve
from etude.problems.routing.runs import load_router

AT_SINGLE = "policy at best_single's score"


def on_replay(request: EvaluateRequest) -> Measurement:
    outcomes, plot = request.inputs["replay"], request.inputs.get("plot")
    if plot is not None and (plot.suffix not in (".html", ".htm") or plot.is_dir()):
        raise ConfigError(f"plot is {str(plot)!r}: expected the name of a page to write, such as 'curve.html'")
    router = load_router(find_policy(request.run))
    if request.inputs.get("catalogue") is not None:
        router = router.under(read_catalogue(request.inputs["catalogue"]))
    replay = read_outcomes(outcomes, router.catalogue)
    request.status(f"choosing for {len(replay):,} queries")
    expected = router.predict(replay.texts, replay.types)
    names, unit = [w.name for w in router.catalogue.workers], router.unit_usd
    target = float(router.learned.mean.max())  # of the best single worker on the past queries
    greedy, thrifty = (
        choose(expected.score, expected.cost_usd, expected.able, weight=weight, unit_usd=unit)
        for weight in (0.0, router.weight_for(target))
    )
    others = references(replay, best_single=names.index(router.best_single))
    score, cost = replay.completed()
    row = torch.arange(len(replay))
    single = score[row, others["best_single"]]

    def measured(chosen: Tensor) -> Choice:
        own, paid = score[row, chosen], cost[row, chosen]
        return Choice(
            score=float(own.mean()),
            score_ci95=interval(own.numpy()),
            to_best_single_ci95=interval((own - single).numpy()),
            cost_usd=float(paid.mean()),
            cost_share=float(paid.sum() / cost[row, others["best_single"]].sum()),
        )

    choices = {name: measured(chosen) for name, chosen in {"policy": greedy, AT_SINGLE: thrifty, **others}.items()}
    points = curve(expected.score, expected.cost_usd, replay, unit_usd=unit)
    aiq = points.area(choices["cheapest"].cost_usd, choices["best_single"].cost_usd)
    if plot is not None:
        write_curve(
            plot,
            run=request.run.name,
            queries=len(replay),
            choices=choices,
            curve=points,
            aiq=aiq,
            best_single=router.best_single,
        )
    shown = {name: asdict(choice) for name, choice in choices.items()}
    rows = tuple(
        (
            name,
            f"{choice.score:.4f}",
            "{:.4f} … {:.4f}".format(*choice.score_ci95),
            "{:+.4f} … {:+.4f}".format(*choice.to_best_single_ci95),
            f"{choice.cost_usd:.6f}",
            f"{choice.cost_share:.1%}",
        )
        for name, choice in sorted(choices.items(), key=lambda item: -item[1].score)
    )
    drawn = (f"drawn in {plot}",) if plot is not None else ()
    return Measurement(
        title=f"{request.run}: {len(replay):,} queries of {outcomes}",
        json={
            "run": str(request.run),
            "replay": str(outcomes),
            "queries": len(replay),
            **shown["policy"],
            "at_best_single": shown[AT_SINGLE],
            "aiq": aiq,
            "baselines": {name: shown[name] for name in others},
            "best_single_worker": router.best_single,
            "curve": [list(p) for p in zip(points.cost_usd.tolist(), points.score.tolist(), strict=True)],
        },
        columns=(
            "policy",
            "score",
            "95 % interval",
            "to best_single, paired",
            "USD per query",
            "of best_single's cost",
        ),
        rows=rows,
        sentences=(f"best_single is {router.best_single}; AIQ {aiq:.4f}", *drawn),
    )
