"""A choice measured on recorded outcomes: its picks compared with simpler ones, and what each score costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.contracts.errors import ConfigError, DataError
from etude.evidence.intervals import interval
from etude.learning.outcome_model import Observed
from etude.learning.requests import EvaluateRequest, Measurement
from etude.learning.run_folder import find_policy
from etude.problems.choice.contexts import Context
from etude.problems.choice.fit import QUALITY_WEIGHTS, _completed, _shares, eligible_mask, observe
from etude.problems.choice.groups import group_contexts
from etude.problems.choice.model import ChoiceModel, Expectation
from etude.problems.choice.remarks import on_rows
from etude.problems.choice.report import (
    AT_SINGLE,
    POLICY,
    SINGLE,
    Bin,
    Findings,
    Group,
    Part,
    Picked,
    write_curve,
)
from etude.problems.choice.rows import COST, SCORE, ReplayFile, Row, find_options
from etude.problems.choice.state import read_model
from etude.problems.choice.typical import find_typical

Floats = NDArray[np.float64]
BINS = 10
"""Parts in which expected scores are compared with recorded ones."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Mean score and cost over rows at each weight of quality, from score alone to cost alone."""

    score: Floats
    cost_usd: Floats

    def area(self, low: float, high: float) -> float:
        """AIQ: the mean, over budgets from `low` to `high` USD per choice, of the best score within the budget.

        Budgets below the cheapest point count with its score. From the cheapest option's cost to the best single
        one's, the range is the same for all policies that are compared.
        """
        costs = np.linspace(low, max(low, high), 1001)
        affordable = self.cost_usd <= costs[:, None] * (1 + 1e-9)
        best = np.where(affordable, self.score, -np.inf).max(1)
        return float(np.where(affordable.any(1), best, self.score[self.cost_usd.argmin()]).mean())


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Past rows with the score and cost of every known option: recorded, or else an unbiased estimate."""

    contexts: list[Context]
    score: Floats  # (n, K)
    cost_usd: Floats  # (n, K)
    allowed: NDArray[np.bool_]  # (n, K)
    complete: bool  # every outcome is recorded
    seen: Observed  # the recorded scores alone

    def picks(self, model: ChoiceModel, expected: Expectation, weight: float) -> NDArray[np.int64]:
        utility = expected.careful(expected.utility(weight, model.unit_usd), weight)
        return np.asarray(np.where(self.allowed, utility, -np.inf).argmax(1))

    def baselines(self, best_single: int, seed: int = 0) -> dict[str, NDArray[np.int64]]:
        """Picks that ignore the context, and those of an oracle that knows the outcomes, if all are recorded: the best
        of several estimates is no outcome."""
        cheap, u = self.cost_usd / (self.cost_usd.max() + 1), np.random.default_rng(seed).random(self.score.shape)
        single = np.eye(self.score.shape[1])[best_single] - cheap
        tables = {"best_single": single, "cheapest": -cheap, "random": u}
        if self.complete:
            tables["oracle"] = self.score - 1e-9 * cheap
        return {name: np.where(self.allowed, table, -np.inf).argmax(1) for name, table in tables.items()}

    def picked(self, pick: NDArray[np.int64], single: NDArray[np.int64]) -> Picked:
        rows = np.arange(len(pick))
        own, paid = self.score[rows, pick], self.cost_usd[rows, pick]
        total = self.cost_usd[rows, single].sum()
        return Picked(
            score=float(own.mean()),
            score_ci95=interval(own),
            to_best_single_ci95=interval(own - self.score[rows, single]),
            cost_usd=float(paid.mean()),
            cost_share=float(paid.sum() / total) if total > 0 else float("nan"),
        )

    def curve(self, model: ChoiceModel, expected: Expectation) -> Curve:
        rows, points = np.arange(len(self.score)), []
        for weight in QUALITY_WEIGHTS:
            pick = self.picks(model, expected, float(weight))
            points.append((self.score[rows, pick].mean(), self.cost_usd[rows, pick].mean()))
        scores, costs = np.array(points).T
        return Curve(score=scores, cost_usd=costs)


def read_recorded(model: ChoiceModel, rows: list[Row], expected: Expectation) -> Recorded:
    """The outcomes of the model's options in these rows."""
    place = {name: i for i, name in enumerate(model.table.names)}
    seen = observe(rows, place, (SCORE, COST), _shares(rows, place))
    if not len(seen.row):
        raise DataError("no row has an outcome of an option that the policy knows: give outcomes of its options")
    allowed = eligible_mask(rows, place)
    allowed = np.ones((len(rows), len(place)), bool) if allowed is None else allowed
    score, cost = seen.kind(0), seen.kind(1)
    return Recorded(
        contexts=[row.context for row in rows],
        score=_completed(_means(score, len(rows), len(place)), score),
        cost_usd=_completed(_means(cost, len(rows), len(place)), cost) if len(cost.row) else expected.cost(),
        allowed=allowed & np.isin(np.arange(len(place)), seen.option),
        complete=len(score.row) == len(rows) * len(np.unique(score.option)),
        seen=score,
    )


def _means(o: Observed, n: int, K: int) -> Floats:
    """(n, K) the mean of each option: what completes rows without its outcome, and judges no policy by a model."""
    count = np.bincount(o.option, minlength=K).clip(1)
    return np.broadcast_to(np.bincount(o.option, o.value, minlength=K) / count, (n, K)).copy()


def find(model: ChoiceModel, rows: list[Row], expected: Expectation, groups: Sequence[str] | None = None) -> Findings:
    """The model's choices for past rows; `groups` names the kind of each row, by default its category or cluster."""
    recorded = read_recorded(model, rows, expected)
    names, single = model.table.names, model.table.names.index(model.best_single)
    target, others = float(model.outcomes.parts[0].mean[single]), recorded.baselines(single)
    own = {POLICY: 1.0, AT_SINGLE: model.frontier.weight_for(target)}
    picks = {name: recorded.picks(model, expected, weight) for name, weight in own.items()} | others
    found = {name: recorded.picked(pick, others[SINGLE]) for name, pick in picks.items()}
    curve, chosen = recorded.curve(model, expected), picks[POLICY]
    kinds = group_contexts(model.reader, recorded.contexts, chosen.tolist()) if groups is None else groups
    return Findings(
        rows=len(rows),
        best_single=model.best_single,
        quality_weight=own[AT_SINGLE],
        choices=found,
        curve=[*zip(curve.cost_usd.tolist(), curve.score.tolist(), strict=True)],
        aiq=curve.area(found["cheapest"].cost_usd, found[SINGLE].cost_usd),
        has_costs=COST in model.kinds,
        groups=_groups(kinds, names, recorded, expected, chosen, others[SINGLE]),
        calibration=_calibration(recorded.seen, expected),
        typical=find_typical(model, rows, kinds, chosen, recorded.allowed),
    )


def _groups(
    labels: Sequence[str],
    names: Sequence[str],
    recorded: Recorded,
    expected: Expectation,
    pick: NDArray[np.int64],
    single: NDArray[np.int64],
) -> list[Group]:
    """The largest first."""
    found, of = [], np.array(labels, dtype=object)
    for label, _ in Counter(labels).most_common():
        rows = np.flatnonzero(of == label)
        share = np.bincount(pick[rows], minlength=len(names)) / len(rows)
        score, cost = expected.score[rows].mean(0), expected.cost()[rows].mean(0)
        found.append(
            Group(
                name=label,
                rows=len(rows),
                options={
                    name: Part(share=float(share[i]), score=float(score[i]), cost_usd=float(cost[i]))
                    for i, name in enumerate(names)
                },
                score=float(recorded.score[rows, pick[rows]].mean()),
                single_score=float(recorded.score[rows, single[rows]].mean()),
                cost_usd=float(recorded.cost_usd[rows, pick[rows]].mean()),
                single_cost_usd=float(recorded.cost_usd[rows, single[rows]].mean()),
            )
        )
    return found


def _calibration(seen: Observed, expected: Expectation) -> list[Bin]:
    """Recorded scores in BINS parts of the same size, by the score that was expected."""
    given = expected.score[seen.row, seen.option]
    parts = np.array_split(given.argsort(kind="stable"), min(BINS, max(1, len(given) // 2)))
    return [
        Bin(
            expected=float(np.average(given[part], weights=seen.weight[part])),
            recorded=float(np.average(seen.value[part], weights=seen.weight[part])),
            ci95=interval(seen.value[part]),
            outcomes=len(part),
        )
        for part in parts
    ]


def on_replay(request: EvaluateRequest) -> Measurement:
    outcomes, plot = request.inputs["replay"], request.inputs.get("plot")
    if plot is not None and (plot.suffix not in (".html", ".htm") or plot.is_dir()):
        raise ConfigError(f"plot is {str(plot)!r}: expected the name of a page to write, such as 'curve.html'")
    model = read_model(find_policy(request.run))
    file = ReplayFile(outcomes, find_options(outcomes, request.inputs.get("catalogue")))
    place = {name: i for i, name in enumerate(model.table.names)}
    every = [row for part in file() for row in part]
    rows = [row for row in every if not place.keys().isdisjoint(row.outcomes)]
    if not rows:
        raise DataError("no row has an outcome of an option that the policy knows: give outcomes of its options")
    request.status(f"choosing for {len(rows):,} contexts")
    found = find(model, rows, model.expect([row.context for row in rows]))
    if plot is not None:
        write_curve(plot, found, run=request.run.name)
    remarks = [*_unknown_options(every, place), *on_rows(rows, model.table.names, _shares(rows, place))]
    return _measurement(request, found, file, remarks)


def _unknown_options(rows: Sequence[Row], known: Collection[str]) -> list[str]:
    left_out = [row for row in rows if not any(name in known for name in row.outcomes)]
    if not left_out:
        return []
    many = "1 row is" if len(left_out) == 1 else f"{len(left_out):,} rows are"
    first = f"{left_out[0].source} has {', '.join(left_out[0].outcomes)}"
    return [f"{many} left out, without an outcome of an option that the policy knows: {first}"]


def _measurement(request: EvaluateRequest, found: Findings, file: ReplayFile, remarks: Sequence[str]) -> Measurement:
    priced = any(picked.cost_usd > 0 for picked in found.choices.values())
    shown = {name: _known(asdict(picked), priced) for name, picked in found.choices.items()}
    table = tuple(
        (
            name,
            f"{picked.score:.4f}",
            "{:.4f} … {:.4f}".format(*picked.score_ci95),
            "{:+.4f} … {:+.4f}".format(*picked.to_best_single_ci95),
            f"{picked.cost_usd:.6f}" if priced else "–",
            f"{picked.cost_share:.1%}" if math.isfinite(picked.cost_share) else "–",
        )
        for name, picked in sorted(found.choices.items(), key=lambda item: -item[1].score)
    )
    drawn = (f"drawn in {request.inputs['plot']}",) if "plot" in request.inputs else ()
    return Measurement(
        title=f"{request.run}: {found.rows:,} rows of {file.path}",
        json={
            "run": str(request.run),
            "replay": str(file.path),
            "rows": found.rows,
            "unused": file.unused.reasons,
            "remarks": list(remarks),
            **shown[POLICY],
            "at_best_single": shown[AT_SINGLE] | {"quality_weight": found.quality_weight},
            "aiq": found.aiq if priced else None,
            "baselines": {name: shown[name] for name in shown if name not in (POLICY, AT_SINGLE)},
            "best_single_option": found.best_single,
            "curve": [list(point) for point in found.curve],
        },
        columns=("policy", "score", "95 % interval", "to best_single, paired", "USD per choice", "of best_single's"),
        rows=table,
        sentences=(
            f"best_single is {found.best_single}; AIQ {found.aiq:.4f}; at its score the quality weight is "
            f"{found.quality_weight:.4f}"
            if priced
            else f"best_single is {found.best_single}; no costs are known",
            *remarks,
            *file.unused.sentences(),
            *drawn,
        ),
    )


def _known(picked: dict[str, Any], priced: bool) -> dict[str, Any]:
    """For JSON: null where there is no cost."""
    share = picked["cost_share"]
    return picked | {
        "cost_usd": picked["cost_usd"] if priced else None,
        "cost_share": share if math.isfinite(share) else None,
    }
