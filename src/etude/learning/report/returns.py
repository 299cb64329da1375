"""What a run shows whose policy earns returns: its updates and its comparison with other policies in, sections out.

The first of the scores is the run's own policy. `digits` are those of a return after the point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape

from scipy import stats

from etude.learning.charts import Level, Line, bar, histograms, line_chart, thin
from etude.learning.comparison import RANDOM, difference, strongest
from etude.learning.evaluate import Score
from etude.learning.formats import Format, compact, duration, fixed, percent, plain, signed, whole
from etude.learning.health import ADVICE
from etude.learning.report.page import Measure, Row, code, multiples, section, tile

Scores = Mapping[str, Score]

HEALTH = {
    "entropy": Measure(label="entropy", about="How undecided the policy is; falls slowly as it learns"),
    "approx_kl": Measure(label="KL divergence", about="How far one update moved the policy"),
    "clip_fraction": Measure(label="clip fraction", about="Samples that reached the limit of one update"),
    "explained_variance": Measure(
        label="explained variance", about="How much of the return the value function foresees; 1 is all"
    ),
    "value_loss": Measure(label="value loss", about="Squared error of the predicted return"),
    "policy_loss": Measure(label="policy loss", about="The surrogate; only its changes tell"),
    "grad_norm": Measure(label="gradient norm", about="Before it is clipped"),
    "lr": Measure(label="learning rate", about="As scheduled"),
}
STOPPED = {
    "budget": "stopped: its budget of steps is used up",
    "target": "stopped: an evaluation reached the target return",
    "plateau": "stopped: evaluations no longer improved",
    "decline": "stopped: evaluations fell and stayed down",
}


def colours_of(names: Mapping[str, object]) -> dict[str, str]:
    """One colour a policy, the same in every chart."""
    first, *others = names or [""]
    free = [name for name in others if name != RANDOM]
    return {first: "--policy", RANDOM: "--random"} | {n: f"--c{i % 6 + 1}" for i, n in enumerate(free)}


def return_tiles(rows: Sequence[Row], scores: Scores, *, digits: int = 0) -> list[str]:
    return [_return_tile(rows, scores, digits), *_rival_tiles(scores, digits)]


def _return_tile(rows: Sequence[Row], scores: Scores, digits: int) -> str:
    label, told = "return of the best policy", partial(fixed, digits=digits)
    if scores:
        policy = next(iter(scores.values()))
        note = f"± {told(_half(policy))} (95\N{NO-BREAK SPACE}%), {policy.episodes} episodes"
        return tile(label, told(policy.mean), note, kind="first")
    evaluated = [row for row in rows if math.isfinite(row.get("eval_return", math.nan))]
    if not evaluated:
        return tile(label, "–", "not evaluated yet", kind="first")
    best = max(evaluated, key=lambda row: row["eval_return"])
    # The best of several is chosen partly for its luck: the page says so instead of giving an interval.
    note = f"the best of {len(evaluated)} evaluations, so a little flattered"
    return tile(label, told(best["eval_return"]), note, kind="first")


def _rival_tiles(scores: Scores, digits: int) -> list[str]:
    tiles, told = [], partial(signed, digits=digits)
    for name in dict.fromkeys(name for name in (strongest(scores), RANDOM) if name is not None and name in scores):
        mean, low, high = difference(next(iter(scores.values())), scores[name])
        note = f"{told(low)} to {told(high)} (95\N{NO-BREAK SPACE}%)"
        tiles.append(tile(f"against {name} ({fixed(scores[name].mean, digits)})", told(mean), note))
    return tiles


def time_tiles(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    step, wall = next(((r["step"], r["wall_s"]) for r in reversed(rows) if "wall_s" in r), (rows[-1]["step"], math.nan))
    count = sum(name.startswith("warning_") for row in rows for name in row)
    return [
        tile("training time", duration(wall), f"{whole(step)} steps"),
        tile("steps a second", compact(step / wall if wall > 0 else math.nan), "evaluations included"),
        tile("health warnings", str(count), f"in {whole(len(rows))} updates"),
    ]


def learning_curve(rows: Sequence[Row], scores: Scores, *, episodes: int, digits: int = 0) -> str:
    """`episodes` are those of one evaluation."""
    if not rows:
        return section("Learning curve", "No update is finished yet.", "")
    its = colours_of(scores)
    levels = [Level(name=n, y=scores[n].mean, colour=its[n]) for n in list(scores)[1:]]
    charts = "".join(
        f'<div id="curve-{key}">{_curve(rows, key, name, levels, form, episodes, digits)}</div>'
        for key, name, form in (("step", "steps", compact), ("wall_s", "seconds", plain))
    )
    note = (
        "Mean return of an episode. Evaluated: the most probable action, on seeds of their own, with its 95 % "
        "interval. Training: actions drawn at random to explore."
    )
    return section("Learning curve", note, charts, before=SWITCH)


SWITCH = (
    '<input class="choice" type="radio" name="x" id="x-step" checked>'
    '<input class="choice" type="radio" name="x" id="x-wall_s">'
    '<div class="switch"><label for="x-step">steps</label><label for="x-wall_s">seconds</label></div>'
)


def _curve(
    rows: Sequence[Row], key: str, name: str, levels: Sequence[Level], form: Format, episodes: int, digits: int
) -> str:
    rows = [row for row in rows if math.isfinite(row.get(key, math.nan))]
    evaluated = [row for row in rows if "eval_return" in row]
    mean = [row["eval_return"] for row in evaluated]
    margin = [_margin(row.get("eval_return_std", math.nan), episodes) for row in evaluated]
    band = [[m + sign * e for m, e in zip(mean, margin, strict=True)] for sign in (-1, 1)]
    ended = [row for row in rows if "episode_return" in row]  # in some updates no episode ends
    x, y = thin([row[key] for row in ended], [row["episode_return"] for row in ended])
    lines = [
        Line(name="training", x=x, y=y, colour="--policy", faint=True),
        Line(
            name="evaluated",
            x=[row[key] for row in evaluated],
            y=mean,
            colour="--policy",
            band=(band[0], band[1]),
            dots=True,
        ),
    ]
    tips = [
        (
            row[key],
            f"<b>{fixed(m, digits)}</b> ± {fixed(e, digits)}<br>"
            f"{whole(row['step'])} steps, {duration(row.get('wall_s', math.nan))}",
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
    return float(stats.t.ppf(0.975, episodes - 1)) * std / math.sqrt(episodes)


def _half(score: Score) -> float:
    return (score.high - score.low) / 2


def score_table(scores: Scores, measures: Mapping[str, Measure], *, digits: int = 0) -> str:
    """One row a policy: its return, what the first gains on it, and those measures that any of them has."""
    if not scores:
        return ""
    shown = {key: measures[key] for key in measures if any(key in s.metrics for s in scores.values())}
    heads = [f'<th scope="col" title="{escape(m.about)}">{escape(m.label)}</th>' for m in shown.values()]
    first = next(iter(scores))
    body = "".join(_score_row(name, scores, shown, digits) for name in scores)
    table = (
        f'<div class="scroll"><table id="comparison"><thead><tr><td></td><th scope="col">return ± 95 %</th>'
        f'<th scope="col">{escape(first)} gains</th>{"".join(heads)}</tr></thead><tbody>{body}</tbody></table></div>'
    )
    episodes = " or ".join(sorted({f"{s.episodes}" for s in scores.values()}))
    note = f"Each over {episodes} episodes from the same seeds. A gain is the mean difference with its 95 % interval. "
    note += " ".join(f"{m.label[:1].upper()}{m.label[1:]}: {m.about}." for m in shown.values())
    return section("Beside other policies", note, table)


def _score_row(name: str, scores: Scores, measures: Mapping[str, Measure], digits: int) -> str:
    first, score, top = next(iter(scores)), scores[name], max(abs(s.mean) for s in scores.values()) or 1.0
    gain, told = "", partial(signed, digits=digits)
    if name != first:
        mean, low, high = difference(scores[first], score)
        kind = "up" if low > 0 else "down" if high < 0 else "soft"
        gain = f'<b class="{kind}">{told(mean)}</b> <span class="soft">{told(low)} to {told(high)}</span>'
    earned = f"{fixed(score.mean, digits)} ± {fixed(_half(score), digits)}"
    return (
        f'<tr style="--c:var({colours_of(scores)[name]})"><th scope="row"><i class="dot"></i>{escape(name)}</th>'
        f'<td class="wide">{bar(score.mean / top, earned)}</td><td>{gain}</td>'
        + "".join(f"<td>{_measured(key, name, scores, measure)}</td>" for key, measure in measures.items())
        + "</tr>"
    )


def _measured(key: str, name: str, scores: Scores, measure: Measure) -> str:
    """A share fills its bar when it is all; anything else when it is the most of those compared."""
    value = scores[name].metrics.get(key, math.nan)
    others = [s.metrics.get(key, math.nan) for s in scores.values()]
    most = 1.0 if measure.form is percent else max((v for v in others if math.isfinite(v)), default=1.0) or 1.0
    return bar(value / most, measure.form(value))


def return_histograms(scores: Scores, *, digits: int = 0) -> str:
    if not scores:
        return ""
    returns = {name: score.returns for name, score in scores.items()}
    form = partial(fixed, digits=digits)
    chart = histograms(returns, colours_of(scores), label="Distribution of episode returns", x_format=form)
    return section("Every episode’s return", "How many episodes ended with which return; the line is the mean.", chart)


def health(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    note = "One point an update, against steps; of a long run, means of neighbouring updates."
    return section("Training health", note, _warnings(rows) + multiples(rows, HEALTH, unit="steps"))


def _warnings(rows: Sequence[Row]) -> str:
    advice = {str(symptom): text for symptom, text in ADVICE.items()}
    found = [(row["step"], name, value) for row in rows for name, value in row.items() if name.startswith("warning_")]
    items = ""
    for step, name, value in found:
        symptom = name.removeprefix("warning_")
        what = f"<b>{escape(symptom.replace('_', ' '))}</b> at step {whole(step)}, value {plain(value)}"
        items += f'<p class="warning">{what}: {code(advice.get(symptom, "see the `health` settings"))}.</p>'
    return f'<div id="warnings">{items or "<p class=note>No warning was raised.</p>"}</div>'
