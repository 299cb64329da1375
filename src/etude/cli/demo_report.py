"""A demo for people: what was collected, how it was learned from, and the same fresh instructions before and after.

One page, in the manner of the other reports: it holds all it needs. Names, instructions and messages come from
catalogues and logs, so they are escaped wherever they stand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import count
from pathlib import Path

import numpy as np

from etude.cli.execution_story import (
    corrections,
    drawing,
    instructive,
    one_line,
    plural,
    story,
    took,
)
from etude.learning.charts import Line, Point, bar, line_chart
from etude.learning.formats import fixed, percent, signed, usd, whole
from etude.learning.report.page import header, multiples, read_rows, section, settings, tile, write_page
from etude.learning.report.returns import health, learning_curve
from etude.learning.report.workflow import DIGITS, MEASURES, NEARNESS
from etude.learning.runs import RunFolder
from etude.orchestrator.metrics import Calls, Estimate, Faults, Summary, summarise
from etude.orchestrator.metrics import Z as NORMAL
from etude.orchestrator.prepare import Prepared, Reason
from etude.orchestrator.record import Execution
from etude.problems.workflow.catalogue import Catalogue
from etude.problems.workflow.plan import Limits

BEFORE, BETWEEN, AFTER = "rules", "phase 1", "phase 2"
COLOURS = {BEFORE: "--c1", BETWEEN: "--c2", AFTER: "--policy", "random": "--random", "oracle": "--c6"}
OTHER_COLOURS = ("--c3", "--c4", "--c5")
ABOUT = {
    BEFORE: "before: hand-written rules, who also collected; the praised worker, retry once, then somebody else",
    BETWEEN: "learned from the best of the collected plans",
    AFTER: "after: then learned from what became of its own plans",
    "random": "any choice that is legal",
    "cheapest": "reads keywords, takes the cheapest worker, retries",
    "best_single": "reads keywords, gives all that it can to the best worker, retries",
    "greedy": "reads keywords, takes the praised worker, retries",
    "oracle": "knows the best plan and every worker’s hidden skill: nobody can know that",
}
WHY_DROPPED: dict[str, str] = {
    Reason.NOT_SUCCESSFUL: "it failed, and so did every other of its instruction: nothing to imitate",
    Reason.BETTER_EXISTS: "another of the same instruction earned as much or more",
    Reason.TORN: "its writer died over it",
    Reason.DAMAGED: "it is no execution",
    Reason.CANCELLED: "it was interrupted",
    Reason.NOTHING_DONE: "it holds no plan",
}
NB = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, kw_only=True)
class Found:
    """All that a demo has to show."""

    catalogue: Catalogue
    limits: Limits
    collected: Summary
    prepared: Prepared
    first: RunFolder  # phase 1
    second: RunFolder  # phase 2
    runs: Mapping[str, Sequence[Execution]]  # by policy, BEFORE and AFTER among them: the same instructions in order

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        return {name: summarise(executions, self.catalogue) for name, executions in self.runs.items()}

    @property
    def before(self) -> Summary:
        return self.summaries[BEFORE]

    @property
    def after(self) -> Summary:
        return self.summaries[AFTER]

    @property
    def everything(self) -> dict[str, Summary]:
        """Whatever ran, the collection first."""
        return {"collecting": self.collected, **self.summaries}

    @property
    def violations(self) -> int:
        return sum(sum(summary.violations.values()) for summary in self.everything.values())


def write_demo_report(path: Path, found: Found) -> Path:
    rows = read_rows(found.second)
    numbers = count(1)
    parts = [
        _head(found),
        _comparison(found),
        _side_by_side(found, numbers),
        _correction(found, numbers),
        _trust(found),
        _errors(found),
        _collection(found),
        _imitated(read_rows(found.first)),
        _learned(found, rows),
        _workflows(rows),
        health(rows),
        _checked(found),
        settings(found.second.config()),
        _further(found.second.path),
    ]
    return write_page(path, "workflow · demo", "".join(parts))


# What came of it, in words and numbers


def headline(found: Found) -> list[str]:
    """Sentences that follow from the numbers alone."""
    before, after, gain = found.before, found.after, found_gain(found)
    told = f"On {whole(after.count)} fresh instructions {percent(after.success.mean)} of workflows succeed, before "
    told += f"{percent(before.success.mean)}: {_relative(gain.mean)} (95{NB}% interval {_relative(gain.low)} to "
    told += f"{_relative(gain.high)})"
    if math.isfinite(gain.low) and gain.low <= 0 <= gain.high:
        told += ", which may be chance"
    money, latency = (_ratio(getattr(before, key), getattr(after, key)) for key in ("cost_usd", "latency_ms"))
    spent = f"A workflow costs {usd(after.cost_usd.mean)} instead of {usd(before.cost_usd.mean)} ({_relative(money)}) "
    spent += f"and takes {took(after.latency_ms.mean)} instead of {took(before.latency_ms.mean)} "
    spent += f"({_relative(latency)})."
    ran = sum(summary.count for summary in found.everything.values())
    return [f"{told}.", spent, f"Of {whole(ran)} workflows that ran, {_violated(found)}."]


def found_gain(found: Found) -> Estimate:
    before, after = ([float(e.success) for e in found.runs[name]] for name in (BEFORE, AFTER))
    return relative_gain(before, after)


def relative_gain(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Mean of `after` over mean of `before`, less one, with its 95 % interval; NaN where a mean is not positive.

    Both are of the same instructions: by the delta method, the logarithm of the ratio has the variance of the mean of
    a/ā − b/b̄.
    """
    b, a = np.asarray(before, float), np.asarray(after, float)
    if len(a) != len(b) or len(a) < 2 or a.mean() <= 0 or b.mean() <= 0:
        return Estimate(count=len(a), mean=math.nan, low=math.nan, high=math.nan)
    ratio = float(a.mean() / b.mean())
    half = NORMAL * float((a / a.mean() - b / b.mean()).std(ddof=1)) / math.sqrt(len(a))
    return Estimate(count=len(a), mean=ratio - 1, low=ratio * math.exp(-half) - 1, high=ratio * math.exp(half) - 1)


def shown_numbers(found: Found) -> dict[str, dict[str, str]]:
    """By policy, its numbers by their names."""
    return {
        name: {
            "success": f"{percent(s.success.mean)} ({100 * s.success.low:.0f}–{100 * s.success.high:.0f})",
            "cost": usd(s.cost_usd.mean),
            "time": took(s.latency_ms.mean),
            "reward": fixed(s.reward.mean, 2),
            "corrections": fixed(float(np.mean([corrections(execution) for execution in found.runs[name]])), 2),
            "violations": whole(sum(s.violations.values())),
        }
        for name, s in found.summaries.items()
    }


def _violated(found: Found) -> str:
    return f"{whole(found.violations)} times a rule was broken" if found.violations else "none broke a rule"


def _ratio(before: Estimate, after: Estimate) -> float:
    return after.mean / before.mean - 1 if before.mean > 0 else math.nan


def _relative(share: float) -> str:
    return f"{signed(100 * share)}{NB}%" if math.isfinite(share) else "–"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, name: str) -> str:
    """Cells are HTML; the first of each row is its head."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in rows
    )
    return (
        f'<div class="scroll"><table id="{name}"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _head(found: Found) -> str:
    before, after, gain = found.before, found.after, found_gain(found)
    money, latency = (_ratio(getattr(before, key), getattr(after, key)) for key in ("cost_usd", "latency_ms"))
    between = f"{_relative(gain.mean)}, 95{NB}% {_relative(gain.low)} to {_relative(gain.high)}"
    ran = sum(summary.count for summary in found.everything.values())
    tiles = [
        tile("success", f"{percent(before.success.mean)} → {percent(after.success.mean)}", between, kind="first"),
        tile("cost", f"{_cents(before.cost_usd)} → {_cents(after.cost_usd)}", f"{_relative(money)} a workflow"),
        tile("time", f"{took(before.latency_ms.mean)} → {took(after.latency_ms.mean)}", _relative(latency)),
        tile("violations", whole(found.violations), f"in {whole(ran)} workflows", kind=_mood(found)),
    ]
    facts = [
        f"collected by rules: {whole(found.collected.count)} workflows",
        f"{whole(len(found.prepared.examples))} examples",
        f"compared on {whole(after.count)} fresh instructions",
    ]
    return header("workflow · demo", facts=facts, tiles=tiles, lead=" ".join(headline(found)))


def _cents(cost: Estimate) -> str:
    """Short enough for two of them on a tile."""
    return f"{fixed(100 * cost.mean, 1)}{NB}¢"


def _mood(found: Found) -> str:
    return "down" if found.violations else "up"


def _comparison(found: Found) -> str:
    shown, colours = shown_numbers(found), _colours(found)
    rows = ""
    for name, numbers in shown.items():
        success, *rest = numbers.values()
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        rows += f'<tr style="--c:var({colours[name]})"><th scope="row" title="{escape(ABOUT.get(name, ""))}">'
        rows += f'<i class="dot"></i>{escape(name)}</th>'
        rows += f'<td class="wide">{bar(found.summaries[name].success.mean, success)}</td>{cells}</tr>'
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in next(iter(shown.values())))
    body = f'<div class="scroll"><table id="comparison"><thead><tr><td></td>{heads}</tr></thead>'
    body += f"<tbody>{rows}</tbody></table></div><br>{_chart(found)}"
    note = f"The same {whole(found.after.count)} instructions each, from the same seeds, through the executor. Nobody "
    note += "learned from them. In brackets the 95 % interval of success; the rest are means of a workflow. Below, up "
    note += "and to the left is better. "
    note += " ".join(f"{name}: {ABOUT[name]}." for name in shown if name in ABOUT)
    return section("Before, after, and everybody else", note, body)


def _colours(found: Found) -> dict[str, str]:
    others = [name for name in found.runs if name not in COLOURS]
    return COLOURS | {name: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, name in enumerate(others)}


def _chart(found: Found) -> str:
    """Success against cost, each with its interval."""
    points, intervals = [], []
    for name, summary in found.summaries.items():
        cost, success, colour = summary.cost_usd.mean, summary.success, _colours(found)[name]
        points.append(Point(name=name, x=cost, y=success.mean, colour=colour))
        intervals.append(Line(name="", x=[cost, cost], y=[success.low, success.high], colour=colour, faint=True))
    chart = line_chart(
        intervals,
        label="Share of workflows that succeed against the cost of a workflow",
        points=points,
        x_from=0,
        y_range=(0.0, 1.0),
        x_format=usd,
        y_format=percent,
        x_name="cost of a workflow",
    )
    return f'<div id="success-cost">{chart}</div>'


# The same instruction, before and after


def _side_by_side(found: Found, numbers: count[int]) -> str:
    pairs = list(zip(found.runs[BEFORE], found.runs[AFTER], strict=True))
    how = {outcome: sum((a.success, b.success) == outcome for a, b in pairs) for outcome in OUTCOMES}
    note = "What stood in each plan in the end: who did it, what became of it, attempts, cost and time. Solid green is "
    note += "done, red failed, dashed was not begun, dotted was left out. "
    note += f"Of {whole(len(pairs))} instructions, "
    note += ", ".join(f"{how[outcome]} {words}" for outcome, words in OUTCOMES.items())
    body = "".join(_pair(found, a, b, numbers) for a, b in telling(pairs))
    return section("The same instruction, before and after", f"{note}.", f'<div id="plans">{body}</div>')


OUTCOMES = {
    (False, True): f"succeed only with {AFTER}",
    (True, True): "with both",
    (False, False): "with neither",
    (True, False): f"only with {BEFORE}",
}


def telling(pairs: Sequence[tuple[Execution, Execution]]) -> list[tuple[Execution, Execution]]:
    """Four to look at: two that only the second does, one that both do, one that the second does not."""
    wanted = [(False, True), (False, True), (True, True), (True, False), (False, False)]
    left = sorted(pairs, key=lambda pair: abs(len(pair[1].nodes) - 4))  # neither trivial nor too large to look at
    found: list[tuple[Execution, Execution]] = []
    for outcome in wanted:
        pair = next((p for p in left if (p[0].success, p[1].success) == outcome), None)
        if pair is not None and len(found) < 4:
            found.append(pair)
            left.remove(pair)
    return found


def _pair(found: Found, before: Execution, after: Execution, numbers: count[int]) -> str:
    figures = "".join(
        _figure(found, execution, name, numbers) for name, execution in ((BEFORE, before), (AFTER, after))
    )
    return f"<details open><summary>{one_line(before.instruction) or '(empty)'}</summary>{figures}</details>"


def _figure(found: Found, execution: Execution, name: str, numbers: count[int]) -> str:
    """A plan with what became of it, and in words beside it how it ended."""
    words = '<p class="up">succeeded</p>' if execution.success else f'<p class="down">{_failure(execution)}</p>'
    words += f"<p>{usd(execution.cost)}, {took(execution.latency_ms)}, "
    words += f"{plural(corrections(execution), 'correction')}</p>"
    dropped = sum(node.status == "dropped" for node in execution.nodes)
    words += f"<p>{plural(dropped, 'subtask')} planned anew</p>" if dropped else ""
    drawn = drawing(execution, found.catalogue, next(numbers))
    return f'<div class="plan"><div><h3>{escape(name)}</h3>{words}</div><div class="scroll">{drawn}</div></div>'


def _failure(execution: Execution) -> str:
    return f"failed: {one_line(execution.error) or escape(execution.ended)}"


# A failure being corrected


def _correction(found: Found, numbers: count[int]) -> str:
    title = "A failure being corrected"
    execution = instructive(found.runs[AFTER])
    if execution is None:
        return section(title, f"No workflow of {AFTER} failed somewhere and succeeded in the end.", "")
    note = "One workflow of the learned policy, step by step. After each failure it is told which corrections are "
    note += "eligible: what limits or skills forbid is not among them. It plays its most probable choice, so the "
    note += "propensity that is logged is 1; while it explores, it is less."
    rows = [
        [
            f'<span class="num">{took(moment.at_ms)}</span>',
            f'<div class="{moment.kind}" style="white-space:normal">{moment.what}</div>',
        ]
        for moment in story(execution, found.catalogue)
    ]
    body = f"<p>{one_line(execution.instruction)}</p>{_figure(found, execution, AFTER, numbers)}"
    return section(title, note, f'<div id="correction">{body}<br>{_table(["what happened"], rows, name="story")}</div>')


# Whom it trusts, what goes wrong


def _trust(found: Found) -> str:
    before, after = found.before, found.after
    rows = []
    for worker in found.catalogue.workers:
        sides = [summary.workers.get(worker.name) for summary in (before, after)]
        cells = [cell for calls, summary in zip(sides, (before, after), strict=True) for cell in _calls(calls, summary)]
        rows.append([one_line(worker.name), usd(worker.cost_usd()), *cells])
    what = ("calls a workflow", "success", "cost")
    heads = ["a call costs", *(f"{when}: {name}" for when in ("before", "after") for name in what)]
    note = "Who is asked how often, how many of these calls succeed (95 % interval), and what they cost a workflow. "
    note += "Skills are hidden: the policy finds out whom to trust with what."
    return section("Whom it trusts", note, _table(heads, rows, name="workers"))


def _calls(calls: Calls | None, summary: Summary) -> tuple[str, str, str]:
    if calls is None or not summary.count:
        return "0", "–", "–"
    asked = calls.calls / summary.count
    most = max(other.calls for other in summary.workers.values())
    return bar(calls.calls / most, fixed(asked, 2)), _between(calls.success), usd(asked * calls.cost_usd.mean)


def _between(share: Estimate) -> str:
    if not share.count:
        return "–"
    return f'{percent(share.mean)} <span class="soft">{100 * share.low:.0f}–{100 * share.high:.0f}</span>'


def _errors(found: Found) -> str:
    tables = "".join(
        f"<h3>{when}: {escape(name)}</h3>{_faults(found.summaries[name].faults, name=f'errors-{when}')}<br>"
        for when, name in (("before", BEFORE), ("after", AFTER))
    )
    note = "Attempts that came to nothing, by what was wrong; which correction followed how often, none where the "
    note += "workflow was over; and how many of the subtasks that it befell were done in the end (95 % interval)."
    return section("What goes wrong, and what follows", note, tables)


def _faults(faults: Mapping[str, Faults], *, name: str) -> str:
    rows = [
        [
            one_line(fault.replace("_", " ")),
            whole(one.count),
            one_line(", ".join(f"{correction} {times:,}" for correction, times in one.corrections.items())),
            _between(one.done),
        ]
        for fault, one in faults.items()
    ]
    return _table(["count", "what followed", "done in the end"], rows, name=name) if rows else "<p>Nothing.</p>"


# What was learned from, and how


def _collection(found: Found) -> str:
    collected, prepared = found.collected, found.prepared
    kept, dropped = len(prepared.examples), sum(prepared.dropped.values())
    ended = ", ".join(f"{how} {times:,}" for how, times in collected.ended.items())
    note = f"{whole(collected.count)} workflows decided by rules: {percent(collected.success.mean)} succeeded, at "
    note += f"{usd(collected.cost_usd.mean)} and {took(collected.latency_ms.mean)} each; how they ended: {ended}. Of "
    note += f"{whole(prepared.read)} lines, {whole(kept)} became examples, {whole(dropped)} were dropped."
    rows = [["kept", whole(kept), "of each instruction, the plan that earned most, as it stood in the end"]]
    rows += [
        [f"dropped: {one_line(reason)}", whole(times), escape(WHY_DROPPED.get(reason, ""))]
        for reason, times in prepared.dropped.most_common()
    ]
    return section("What was collected, kept and dropped", note, _table(["lines", "why"], rows, name="collected"))


def _imitated(rows: Sequence[Mapping[str, float]]) -> str:
    charts = multiples(rows, NEARNESS, unit="epochs", x_unit=1)
    note = "Plans for examples kept aside, beside what was collected for them, after each epoch. "
    note += " ".join(f"{m.label[:1].upper()}{m.label[1:]}: {m.about}." for m in NEARNESS.values())
    return section("Phase 1: learned from examples", note, f'<div id="phase-1">{charts}</div>') if charts else ""


def _learned(found: Found, rows: Sequence[Mapping[str, float]]) -> str:
    episodes = found.second.config().get("run", {}).get("eval_episodes", 0)
    curve = learning_curve(rows, {}, episodes=episodes, digits=DIGITS)
    return curve.replace("<h2>Learning curve</h2>", "<h2>Phase 2: learned from outcomes</h2>", 1)


def _workflows(rows: Sequence[Mapping[str, float]]) -> str:
    evaluated = [
        {"step": row["step"]} | {key: row[f"eval_{key}"] for key in MEASURES if f"eval_{key}" in row}
        for row in rows
        if "eval_return" in row
    ]
    charts = multiples(evaluated, MEASURES, unit="steps")
    note = "Phase 2: means of each evaluation, on instructions kept aside to choose the best policy by."
    return section("What its workflows become like", note, f'<div id="workflows">{charts}</div>') if charts else ""


def _checked(found: Found) -> str:
    limits = found.limits
    budget = [
        f"{whole(limits.max_nodes)} subtasks",
        f"{whole(limits.max_attempts)} attempts at one",
        f"{whole(limits.max_corrections)} corrections",
        f"{plural(limits.max_replans, 'replan')}",
        f"{usd(limits.max_cost_usd)}" if limits.max_cost_usd is not None else "no limit of cost",
        f"{took(limits.max_time_ms)}" if limits.max_time_ms is not None else "no limit of time",
    ]
    note = "A mask keeps whatever is illegal from being chosen. Each execution is checked all the same, when it is "
    note += "over: the plan at first and in the end is a DAG, every subtask went to a worker able to do it, and the "
    note += f"budgets were kept: {', '.join(budget)}."
    verdict = f'<p class="up">{whole(0)} violations.</p>'
    if found.violations:
        broken: dict[str, int] = {}
        for summary in found.everything.values():
            for rule, times in summary.violations.items():
                broken[rule] = broken.get(rule, 0) + times
        listed = "; ".join(f"{one_line(rule)} ({times:,} times)" for rule, times in broken.items())
        verdict = f'<p class="warning"><b>{whole(found.violations)} violations</b>: {listed}.</p>'
    rows = [
        [one_line(name), whole(s.count), percent(s.validity.mean), whole(sum(s.violations.values()))]
        for name, s in found.everything.items()
    ]
    body = verdict + _table(["workflows", "valid plans", "violations"], rows, name="violations")
    return section("Violations", note, body)


def _further(policy: Path) -> str:
    kept = "Every execution is a line of JSON in <code>logs/</code> or <code>comparison/</code>, with its decisions, "
    kept += "what was eligible and each attempt. The policy plans and carries out whatever you ask: "
    return f'<footer>{kept}<code>etude run {one_line(str(policy))} "…"</code></footer>'
