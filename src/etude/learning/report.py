"""A run for people: its folder and, where given, its comparison with other policies in; one HTML page out.

The page holds all it needs, so it opens from a file without a network. A section appears when there is data for it:
the page of a run in progress is the same page with less in it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from scipy import stats

from etude.learning.charts import Level, Line, bar, heat_map, histograms, line_chart, thin
from etude.learning.comparison import METRICS, RANDOM, difference, interpret, strongest
from etude.learning.evaluate import Score
from etude.learning.formats import Format, compact, duration, percent, plain, signed, whole
from etude.learning.health import ADVICE
from etude.learning.runs import RunFolder, leaves
from etude.problems.allocation.behaviour import Tendency
from etude.problems.allocation.world import TASK_TYPES

Row = Mapping[str, float]
"""One update: what metrics.jsonl says of it."""
Scores = Mapping[str, Score]
"""The run's own policy first."""

HEALTH = {
    "entropy": ("entropy", "How undecided the policy is; falls slowly as it learns"),
    "approx_kl": ("KL divergence", "How far one update moved the policy"),
    "clip_fraction": ("clip fraction", "Samples that reached the limit of one update"),
    "explained_variance": ("explained variance", "How much of the return the value function foresees; 1 is all"),
    "value_loss": ("value loss", "Squared error of the predicted return"),
    "policy_loss": ("policy loss", "The surrogate; only its changes tell"),
    "grad_norm": ("gradient norm", "Before it is clipped"),
    "lr": ("learning rate", "As scheduled"),
}
STOPPED = {
    "budget": "stopped: its budget of steps is used up",
    "target": "stopped: an evaluation reached the target return",
    "plateau": "stopped: evaluations no longer improved",
    "decline": "stopped: evaluations fell and stayed down",
}


def write_report(
    folder: RunFolder,
    *,
    comparison: Scores | None = None,
    tendencies: Mapping[str, Sequence[Tendency]] | None = None,
    out: Path | None = None,
) -> Path:
    """Write the page, by default into the folder. The first entry of `comparison` is the run's own policy."""
    config, summary, rows = folder.config(), folder.summary(), _numbers(folder.read_metrics())
    scores = comparison or {}
    body = [
        _headline(config, summary, rows, scores),
        _learning_curve(config, rows, scores),
        _comparison(scores),
        _roles(scores),
        _tendencies(tendencies or {}, _colours(scores or tendencies or {})),
        _distribution(scores),
        _health(rows),
        _settings(config),
    ]
    path = out or folder.report
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_page(f"{_title(config)} · {folder.path.name}", "".join(body)), "utf-8")
    return path


def _numbers(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """What can be drawn. JSON has no number for NaN and infinity: they stand there as words, or as null."""
    words = {"None": math.nan, "NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    read = [{k: v if isinstance(v, int | float) else words.get(str(v)) for k, v in row.items()} for row in rows]
    return [{k: float(v) for k, v in row.items() if v is not None} for row in read]


def _page(title: str, body: str) -> str:
    css = files("etude.learning").joinpath("report.css").read_text("utf-8")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>\n{css}</style></head>\n'
        f"<body><main>{body}</main></body></html>\n"
    )


def _section(title: str, note: str, body: str, *, before: str = "") -> str:
    return f'\n<section>{before}<h2>{escape(title)}</h2><p class="note">{escape(note)}</p>{body}</section>'


def _title(config: Mapping[str, Any]) -> str:
    variant = config.get("allocation", {}).get("variant")
    return " · ".join(str(part) for part in (config.get("problem", "run"), variant) if part)


def _colours(names: Mapping[str, object]) -> dict[str, str]:
    """One colour a policy, the same in every chart."""
    first, *others = names or [""]
    free = [name for name in others if name != RANDOM]
    return {first: "--policy", RANDOM: "--random"} | {n: f"--c{i % 5 + 1}" for i, n in enumerate(free)}


def _headline(config: Mapping[str, Any], summary: Mapping[str, Any] | None, rows: Sequence[Row], scores: Scores) -> str:
    state = STOPPED.get(str(summary.get("stopped")), "ended") if summary else "in progress"
    size = config.get("allocation", {})
    facts = [f"{size[key]} {word}" for key, word in SIZES.items() if key in size]
    facts += [f"seed {seed}"] if (seed := config.get("run", {}).get("seed")) is not None else []
    tiles = [_return_tile(config, rows, scores), *_rival_tiles(scores), *_time_tiles(rows)]
    words = " ".join(interpret(scores))
    return (
        f'<header><h1>{escape(_title(config))}<span class="state">{escape(state)}</span></h1>'
        f'<div class="soft">{escape(" · ".join(facts))}</div></header><div class="staff"></div>'
        f'<div class="tiles">{"".join(tiles)}</div>' + (f'<p class="lead">{escape(words)}</p>' if words else "")
    )


SIZES = {"agents": "agents", "slots": "places in the queue", "horizon": "steps an episode"}


def _return_tile(config: Mapping[str, Any], rows: Sequence[Row], scores: Scores) -> str:
    label = "return of the best policy"
    if scores:
        policy = next(iter(scores.values()))
        note = f"± {whole(_half(policy))} (95\N{NO-BREAK SPACE}%), {policy.episodes} episodes"
        return _tile(label, whole(policy.mean), note, kind="first")
    evaluated = [row for row in rows if math.isfinite(row.get("eval_return", math.nan))]
    if not evaluated:
        return _tile(label, "–", "not evaluated yet", kind="first")
    best = max(evaluated, key=lambda row: row["eval_return"])
    # The best of several is chosen partly for its luck: the page says so instead of giving an interval.
    note = f"the best of {len(evaluated)} evaluations, so a little flattered"
    return _tile(label, whole(best["eval_return"]), note, kind="first")


def _rival_tiles(scores: Scores) -> list[str]:
    tiles = []
    for name in dict.fromkeys(name for name in (strongest(scores), RANDOM) if name is not None and name in scores):
        mean, low, high = difference(next(iter(scores.values())), scores[name])
        note = f"{signed(low)} to {signed(high)} (95\N{NO-BREAK SPACE}%)"
        tiles.append(_tile(f"against {name} ({whole(scores[name].mean)})", signed(mean), note))
    return tiles


def _time_tiles(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    step, wall = next(((r["step"], r["wall_s"]) for r in reversed(rows) if "wall_s" in r), (rows[-1]["step"], math.nan))
    count = sum(name.startswith("warning_") for row in rows for name in row)
    return [
        _tile("training time", duration(wall), f"{whole(step)} steps"),
        _tile("steps a second", compact(step / wall if wall > 0 else math.nan), "evaluations included"),
        _tile("health warnings", str(count), f"in {whole(len(rows))} updates"),
    ]


def _tile(label: str, value: str, note: str, *, kind: str = "") -> str:
    texts = f"<span>{escape(label)}</span><b>{escape(value)}</b><span>{escape(note)}</span>"
    return f'<div class="tile {kind}">{texts}</div>'


def _learning_curve(config: Mapping[str, Any], rows: Sequence[Row], scores: Scores) -> str:
    if not rows:
        return _section("Learning curve", "No update is finished yet.", "")
    colours = _colours(scores)
    levels = [Level(name=n, y=scores[n].mean, colour=colours[n]) for n in list(scores)[1:]]
    episodes = config.get("run", {}).get("eval_episodes", 0)
    charts = "".join(
        f'<div id="curve-{key}">{_curve(rows, key, name, levels, form, episodes)}</div>'
        for key, name, form in (("step", "steps", compact), ("wall_s", "seconds", plain))
    )
    note = (
        "Mean return of an episode. Evaluated: the most probable action, on seeds of their own, with its 95 % "
        "interval. Training: actions drawn at random to explore."
    )
    return _section("Learning curve", note, charts, before=SWITCH)


SWITCH = (
    '<input class="choice" type="radio" name="x" id="x-step" checked>'
    '<input class="choice" type="radio" name="x" id="x-wall_s">'
    '<div class="switch"><label for="x-step">steps</label><label for="x-wall_s">seconds</label></div>'
)


def _curve(rows: Sequence[Row], key: str, name: str, levels: Sequence[Level], form: Format, episodes: int) -> str:
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
            f"<b>{whole(m)}</b> ± {whole(e)}<br>{whole(row['step'])} steps, {duration(row.get('wall_s', math.nan))}",
        )
        for row, m, e in zip(evaluated, mean, margin, strict=True)
    ]
    label = f"Return against {name}, {len(evaluated)} evaluations"
    return line_chart(
        lines, label=label, levels=levels, tips=tips, x_format=form, y_format=whole, x_name=name, x_from=0
    )


def _margin(std: float, episodes: int) -> float:
    """Half the width of the 95 % interval of a mean."""
    if episodes < 2 or not math.isfinite(std):
        return math.nan
    return float(stats.t.ppf(0.975, episodes - 1)) * std / math.sqrt(episodes)


def _half(score: Score) -> float:
    return (score.high - score.low) / 2


def _comparison(scores: Scores) -> str:
    if not scores:
        return ""
    shown = {key: METRICS[key] for key in METRICS if any(key in s.metrics for s in scores.values())}
    heads = [f'<th scope="col" title="{escape(about)}">{label}</th>' for label, about in shown.values()]
    first = next(iter(scores))
    body = "".join(_comparison_row(name, scores, list(shown)) for name in scores)
    table = (
        f'<div class="scroll"><table id="comparison"><thead><tr><td></td><th scope="col">return ± 95 %</th>'
        f'<th scope="col">{escape(first)} gains</th>{"".join(heads)}</tr></thead><tbody>{body}</tbody></table></div>'
    )
    episodes = " or ".join(sorted({f"{s.episodes}" for s in scores.values()}))
    note = f"Each over {episodes} episodes from the same seeds. A gain is the mean difference with its 95 % interval. "
    note += " ".join(f"{label.capitalize()}: {about}." for label, about in shown.values())
    return _section("Beside other policies", note, table)


def _comparison_row(name: str, scores: Scores, metrics: Sequence[str]) -> str:
    first, score, top = next(iter(scores)), scores[name], max(abs(s.mean) for s in scores.values()) or 1.0
    gain = ""
    if name != first:
        mean, low, high = difference(scores[first], score)
        kind = "up" if low > 0 else "down" if high < 0 else "soft"
        gain = f'<b class="{kind}">{signed(mean)}</b> <span class="soft">{signed(low)} to {signed(high)}</span>'
    values = [score.metrics.get(key, math.nan) for key in metrics]
    return (
        f'<tr style="--c:var({_colours(scores)[name]})"><th scope="row"><i class="dot"></i>{escape(name)}</th>'
        f'<td class="wide">{bar(score.mean / top, f"{whole(score.mean)} ± {whole(_half(score))}")}</td>'
        f"<td>{gain}</td>{''.join(f'<td>{bar(value, percent(value))}</td>' for value in values)}</tr>"
    )


def _roles(scores: Scores) -> str:
    shown = {name: s for i, (name, s) in enumerate(scores.items()) if s.taken and (i == 0 or name == RANDOM)}
    if not shown:
        return ""
    top = max(value for s in shown.values() for row in s.taken or [] for value in row)
    maps = "".join(_role_map(name, score, top, _colours(scores)[name]) for name, score in shown.items())
    note = (
        "Tasks an episode that each agent takes, by type. A row coloured unlike the others is a role; bars of the "
        "same length are a balanced load."
    )
    return _section("Who does what", note, f'<div class="pair">{maps}</div>')


def _role_map(name: str, score: Score, top: float, colour: str) -> str:
    taken = score.taken or []
    types = TASK_TYPES if len(taken[0]) == len(TASK_TYPES) else [f"type {i + 1}" for i in range(len(taken[0]))]
    agents = [f"agent {i + 1}" for i in range(len(taken))]
    measures = {METRICS[key][0]: score.metrics.get(key, math.nan) for key in ("specialisation", "load_balance")}
    told = ", ".join(f"{label} {percent(value)}" for label, value in measures.items())
    chart = heat_map(taken, rows=agents, columns=types, top=top, colour=colour, unit="tasks an episode")
    return f'<div><h3>{escape(name)} <span class="soft">{told}</span></h3><div class="scroll">{chart}</div></div>'


def _tendencies(tendencies: Mapping[str, Sequence[Tendency]], colours: Mapping[str, str]) -> str:
    panels: dict[tuple[str, str], list[Line]] = {}
    for name, found in tendencies.items():
        for t in found:
            line = Line(name=name, x=t.x, y=t.y, colour=colours[name], dots=True, faint=name == RANDOM)
            panels.setdefault((t.decision, t.state), []).append(line)
    if not panels:
        return ""
    keys = "".join(f'<span><i class="dot" style="--c:var({colours[n]})"></i>{escape(n)}</span>' for n in tendencies)
    charts = "".join(_tendency(*panel, lines) for panel, lines in panels.items())
    note = (
        "The mean decision of an agent against the state it decides in, counted where it matters: accepting while a "
        "task waits, allocating while one is in work."
    )
    body = f'<div class="legend">{keys}</div><div class="multiples">{charts}</div>'
    return _section("What it does in which state", note, body)


def _tendency(decision: str, state: str, lines: Sequence[Line]) -> str:
    main = lines[0]
    tips = [(x, f"{escape(state)} {plain(x)}<br><b>{percent(y)}</b>") for x, y in zip(main.x, main.y, strict=True)]
    label = f"{decision}, by {state}"
    chart = line_chart(lines, label=label, tips=tips, y_range=(0, 1), x_format=plain, y_format=percent, size="small")
    return f"<div><h3>{escape(decision)}<span>by {escape(state)}</span></h3>{chart}</div>"


def _distribution(scores: Scores) -> str:
    if not scores:
        return ""
    returns = {name: score.returns for name, score in scores.items()}
    chart = histograms(returns, _colours(scores), label="Distribution of episode returns", x_format=whole)
    return _section("Every episode’s return", "How many episodes ended with which return; the line is the mean.", chart)


def _health(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    known = [key for key in HEALTH if any(math.isfinite(row.get(key, math.nan)) for row in rows)]
    charts = "".join(_health_chart(rows, key) for key in known)
    note = "One point an update, against steps; of a long run, means of neighbouring updates."
    return _section("Training health", note, _warnings(rows) + f'<div class="multiples">{charts}</div>')


def _health_chart(rows: Sequence[Row], key: str) -> str:
    name, about = HEALTH[key]
    x, y = thin([row["step"] for row in rows], [row.get(key, math.nan) for row in rows])
    last = next(value for value in reversed(y) if math.isfinite(value))
    tips = [(a, f"<b>{plain(b)}</b><br>{whole(a)} steps") for a, b in zip(x, y, strict=True) if math.isfinite(b)]
    line = Line(name=name, x=x, y=y, colour="--policy")
    label = f"{name} against steps"
    chart = line_chart([line], label=label, tips=tips, x_from=0, x_format=compact, y_format=plain, size="small")
    return f'<div><h3 title="{escape(about)}">{name}<span>{plain(last)}</span></h3>{chart}</div>'


def _warnings(rows: Sequence[Row]) -> str:
    advice = {str(symptom): text for symptom, text in ADVICE.items()}
    found = [(row["step"], name, value) for row in rows for name, value in row.items() if name.startswith("warning_")]
    items = ""
    for step, name, value in found:
        symptom = name.removeprefix("warning_")
        what = f"<b>{escape(symptom.replace('_', ' '))}</b> at step {whole(step)}, value {plain(value)}"
        items += f'<p class="warning">{what}: {_code(advice.get(symptom, "see the `health` settings"))}.</p>'
    return f'<div id="warnings">{items or "<p class=note>No warning was raised.</p>"}</div>'


def _code(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _settings(config: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th><code>{escape(key)}</code></th><td><code>{escape(json.dumps(value))}</code></td></tr>"
        for key, value in leaves(config)
    )
    return f'\n<section><details id="settings"><summary>Settings</summary><table>{rows}</table></details></section>'
