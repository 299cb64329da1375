"""Report sections of any run whose policy earns returns: learning curve, comparison, health.

The first of the scores is the run's own policy. `digits` are those of a return after the point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from etude.contracts.formats import Format, compact, duration, fixed, percent, plain, signed, whole
from etude.evidence.intervals import estimate_moments
from etude.learning.comparison import RANDOM, difference, strongest
from etude.learning.evaluate import Score
from etude.learning.health import ADVICE
from etude.reports.blocks import Section, Strong, Tile, View, code, view
from etude.reports.charts import Chart, Level, Line, histograms, line_chart, thin
from etude.reports.page import Measure, Row, explained, multiples

Scores = Mapping[str, Score]

HEALTH = {
    "entropy": Measure("entropy", "How undecided the policy is; falls slowly as it learns"),
    "approx_kl": Measure("KL divergence", "How far one update moved the policy"),
    "clip_fraction": Measure("clip fraction", "Samples that reached the limit of one update"),
    "explained_variance": Measure("explained variance", "How much of the return the value function foresees; 1 is all"),
    "value_loss": Measure("value loss", "Squared error of the predicted return"),
    "policy_loss": Measure("policy loss", "The surrogate objective; only its changes mean something"),
    "grad_norm": Measure("gradient norm", "Before it is clipped"),
    "lr": Measure("learning rate", "As scheduled"),
}


def colours_of(names: Mapping[str, object]) -> dict[str, str]:
    """One colour per policy, the same in every chart."""
    first, *others = names or [""]
    free = [name for name in others if name != RANDOM]
    return {first: "--policy", RANDOM: "--random"} | {n: f"--c{i % 6 + 1}" for i, n in enumerate(free)}


def return_tiles(rows: Sequence[Row], scores: Scores, *, digits: int = 0) -> list[Tile]:
    return [_return_tile(rows, scores, digits), *_rival_tiles(scores, digits)]


def _return_tile(rows: Sequence[Row], scores: Scores, digits: int) -> Tile:
    tile, form = partial(Tile, label="return of the best policy", kind="first"), partial(fixed, digits=digits)
    if scores:
        policy = next(iter(scores.values()))
        note = f"± {form((policy.high - policy.low) / 2)} (95\N{NO-BREAK SPACE}%), {policy.episodes} episodes"
        return tile(value=form(policy.mean), note=note)
    best = best_evaluation(rows)
    if best is None:
        return tile(value="–", note="not evaluated yet")
    # The best of several is chosen partly for its noise: the page says so instead of giving an interval.
    count = sum(math.isfinite(row.get("eval_return", math.nan)) for row in rows)
    return tile(value=form(best["eval_return"]), note=f"the best of {count} evaluations, so slightly too high")


def best_evaluation(rows: Sequence[Row]) -> Row | None:
    evaluated = [row for row in rows if math.isfinite(row.get("eval_return", math.nan))]
    return max(evaluated, key=lambda row: row["eval_return"], default=None)


def _rival_tiles(scores: Scores, digits: int) -> list[Tile]:
    tiles, form = [], partial(signed, digits=digits)
    for name in dict.fromkeys(name for name in (strongest(scores), RANDOM) if name is not None and name in scores):
        mean, low, high = difference(next(iter(scores.values())), scores[name])
        note = f"{form(low)} to {form(high)} (95\N{NO-BREAK SPACE}%)"
        label = f"compared with {name} ({fixed(scores[name].mean, digits)})"
        tiles.append(Tile(label, form(mean), note))
    return tiles


def time_tiles(rows: Sequence[Row]) -> list[Tile]:
    if not rows:
        return []
    step, wall = next(((r["step"], r["wall_s"]) for r in reversed(rows) if "wall_s" in r), (rows[-1]["step"], math.nan))
    count = sum(name.startswith("warning_") for row in rows for name in row)
    pace = compact(step / wall if wall > 0 else math.nan)
    return [
        Tile("training time", duration(wall), f"{whole(step)} steps"),
        Tile("steps per second", pace, "evaluations included"),
        Tile("health warnings", str(count), f"in {whole(len(rows))} updates"),
    ]


def learning_curve(
    rows: Sequence[Row], scores: Scores, *, episodes: int, digits: int = 0, title: str = "Learning curve"
) -> Section:
    """The learning curve; `episodes` is the number of episodes per evaluation."""
    if not rows:
        return Section(title=title, note="No update is finished yet.")
    its = colours_of(scores)
    levels = [Level(name=n, y=scores[n].mean, colour=its[n]) for n in list(scores)[1:]]
    axes: dict[str, tuple[str, Format]] = {"steps": ("step", compact), "seconds": ("wall_s", plain)}
    charts = {name: _curve(rows, key, name, levels, form, episodes, digits) for name, (key, form) in axes.items()}
    note = (
        "Mean return per episode. Evaluated: the most probable action, on separate seeds, with its 95 % interval. "
        "Training: actions sampled at random to explore."
    )
    return Section(title=title, note=note, body=[view("curves", curves=charts)])


def _curve(
    rows: Sequence[Row], key: str, name: str, levels: Sequence[Level], form: Format, episodes: int, digits: int
) -> Chart:
    rows = [row for row in rows if math.isfinite(row.get(key, math.nan))]
    evaluated = [row for row in rows if "eval_return" in row]
    mean = [row["eval_return"] for row in evaluated]
    margin = [_margin(row.get("eval_return_std", math.nan), episodes) for row in evaluated]
    low, high = ([m + sign * e for m, e in zip(mean, margin, strict=True)] for sign in (-1, 1))
    ended = [row for row in rows if "episode_return" in row]  # in some updates no episode ends
    x, y = thin([row[key] for row in ended], [row["episode_return"] for row in ended])
    at = [row[key] for row in evaluated]
    lines = [
        Line(name="training", x=x, y=y, colour="--policy", faint=True),
        Line(name="evaluated", x=at, y=mean, colour="--policy", band=(low, high), dots=True),
    ]
    tips = [
        (
            row[key],
            [
                Strong(fixed(m, digits)),
                f" ± {fixed(e, digits)}\n{whole(row['step'])} steps, {duration(row.get('wall_s', math.nan))}",
            ],
        )
        for row, m, e in zip(evaluated, mean, margin, strict=True)
    ]
    return line_chart(
        lines,
        label=f"Return against {name}, {len(evaluated)} evaluations",
        levels=levels,
        tips=tips,
        x_format=form,
        y_format=plain if digits else whole,
        x_name=name,
        x_from=0,
    )


def _margin(std: float, episodes: int) -> float:
    """Half the width of the 95 % interval of a mean."""
    if episodes < 2 or not math.isfinite(std):
        return math.nan
    return estimate_moments(episodes, 0.0, std**2 * (episodes - 1)).high


def score_table(scores: Scores, measures: Mapping[str, Measure], *, digits: int = 0) -> list[Section]:
    """One row per policy: its return, the gain of the first policy over it, and all available measures."""
    if not scores:
        return []
    shown = {key: measures[key] for key in measures if any(key in s.metrics for s in scores.values())}
    rows = [_score_row(name, scores, shown, digits) for name in scores]
    table = view("scores", first=next(iter(scores)), measures=list(shown.values()), rows=rows)
    episodes = " or ".join(sorted({f"{s.episodes}" for s in scores.values()}))
    note = f"Each over {episodes} episodes from the same seeds. A gain is the mean difference with its 95 % interval. "
    return [Section(title="Compared with other policies", note=note + explained(shown), body=[table])]


def _score_row(name: str, scores: Scores, measures: Mapping[str, Measure], digits: int) -> dict[str, Any]:
    first, score, top = next(iter(scores)), scores[name], max(abs(s.mean) for s in scores.values()) or 1.0
    gain = {}
    if name != first:
        mean, low, high = difference(scores[first], score)
        gain = {key: signed(value, digits) for key, value in (("mean", mean), ("low", low), ("high", high))}
        gain["kind"] = "up" if low > 0 else "down" if high < 0 else "soft"
    return {
        "name": name,
        "colour": colours_of(scores)[name],
        "share": score.mean / top,
        "earned": f"{fixed(score.mean, digits)} ± {fixed((score.high - score.low) / 2, digits)}",
        "gain": gain,
        "measured": [_measured(key, name, scores, measure) for key, measure in measures.items()],
    }


def _measured(key: str, name: str, scores: Scores, measure: Measure) -> tuple[float, str]:
    """The fill of a bar, and the number. A share fills its bar at 1; any other measure at the largest value."""
    value = scores[name].metrics.get(key, math.nan)
    others = [s.metrics.get(key, math.nan) for s in scores.values()]
    most = 1.0 if measure.form is percent else max((v for v in others if math.isfinite(v)), default=1.0) or 1.0
    return value / most, measure.form(value)


def return_histograms(scores: Scores, *, digits: int = 0) -> list[Section]:
    returns = {name: score.returns for name, score in scores.items()}
    form = partial(fixed, digits=digits)
    chart = histograms(returns, colours_of(scores), label="Distribution of episode returns", x_format=form)
    note = "How many episodes ended with which return; the line is the mean."
    return [Section(title="Every episode’s return", note=note, body=[chart])] if chart is not None else []


def health(rows: Sequence[Row]) -> list[Section]:
    if not rows:
        return []
    note = "One point per update, against steps; in a long run, means of neighbouring updates."
    body = [_warnings(rows), *multiples(rows, HEALTH, unit="steps")]
    return [Section(title="Training health", note=note, body=body)]


def _warnings(rows: Sequence[Row]) -> View:
    advice = {str(symptom): text for symptom, text in ADVICE.items()}
    found = [
        (name.removeprefix("warning_"), whole(row["step"]), plain(value))
        for row in rows
        for name, value in row.items()
        if name.startswith("warning_")
    ]
    warnings = [
        (symptom.replace("_", " "), step, value, code(advice.get(symptom, "see the `health` settings")))
        for symptom, step, value in found
    ]
    return view("warnings", warnings=warnings)
