"""The report of a demo: the collected executions, both phases, and the same new instructions before and after."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

import numpy as np

from etude.cli.orchestrator.execution_detail import corrections, detail, drawing, instructive, took
from etude.contracts.formats import change, fixed, percent, percent_range, plural, points, usd, whole
from etude.evidence.intervals import Estimate, paired_share_difference
from etude.learning.run_folder import RunFolder
from etude.orchestrator.metrics import Summary, summarise
from etude.orchestrator.prepare import Prepared, Reason
from etude.orchestrator.record import Execution
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.plan_report import Example, Figure, Remark, draw_examples
from etude.problems.workflow.report import NEARNESS, SIMULATED, evaluated_workflows
from etude.reports.blocks import Section, Tile, View, code, view
from etude.reports.charts import Chart, Line, Point, line_chart
from etude.reports.page import Page, Row, explained, multiples, read_rows
from etude.reports.returns import health, learning_curve

BEFORE, BETWEEN, AFTER = "rules", "phase 1", "phase 2"
COLOURS = {BEFORE: "--c1", BETWEEN: "--c2", AFTER: "--policy", "random": "--random", "oracle": "--c6"}
OTHER_COLOURS = ("--c3", "--c4", "--c5")
ABOUT = {
    BEFORE: "before: hand-written rules, which also collected; the worker with the best reputation, one retry, then "
    "another worker",
    BETWEEN: "learned from the best of the collected plans",
    AFTER: "after: then learned from the outcomes of its own plans",
    "random": "any choice that is legal",
    "cheapest": "reads keywords, takes the cheapest worker, retries",
    "best_single": "reads keywords, gives everything it can to the best worker, retries",
    "greedy": "reads keywords, takes the worker with the best reputation, retries",
    "oracle": "knows the best plan and every worker’s hidden skill, which no policy can know",
}
WHY_DROPPED: dict[str, str] = {
    Reason.NOT_SUCCESSFUL: "it failed, like every other of its instruction: nothing to imitate",
    Reason.BETTER_EXISTS: "another of the same instruction earned as much or more",
    Reason.TORN: "the process that wrote it was killed",
    Reason.DAMAGED: "it is not an execution",
    Reason.CANCELLED: "it was interrupted",
    Reason.NOTHING_DONE: "it has no plan",
}
NB = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, kw_only=True)
class DemoResults:
    """The results of a demo."""

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
        """The summaries of all executions, the collection first."""
        return {"collecting": self.collected, **self.summaries}

    @property
    def executions(self) -> int:
        return sum(summary.count for summary in self.everything.values())

    @property
    def violations(self) -> Counter[str]:
        """Number of violations by rule."""
        return sum((Counter(summary.violations) for summary in self.everything.values()), Counter())


def write_demo_report(path: Path, found: DemoResults) -> Path:
    rows, config = read_rows(found.second), found.second.config()
    episodes = config.get("run", {}).get("eval_episodes", 0)
    page = Page(
        title="workflow · demo",
        facts=[
            "simulated office",
            f"collected by rules: {whole(found.collected.count)} workflows",
            f"{whole(len(found.prepared.examples))} examples",
            f"compared on {whole(found.after.count)} new instructions",
        ],
        tiles=_tiles(found),
        lead=" ".join(headline(found)),
        sections=[
            _comparison(found),
            *_imitated(read_rows(found.first)),
            learning_curve(rows, {}, episodes=episodes, digits=2, title="Phase 2: learned from outcomes"),
            *evaluated_workflows(rows, title="What its workflows become like"),
            *health(rows),
            view("etude.cli.orchestrator:violations.html.jinja", found=found),
        ],
        config=config,
        footer=code(
            "Every execution is a line of JSON in `logs/` or `comparison/`, with its decisions, what was eligible and "
            f'each attempt. The policy plans and runs any instruction: `etude run {found.second.path} "…"`'
        ),
    )
    return page.write(path)


def headline(found: DemoResults) -> list[str]:
    """A summary in sentences that follow from the numbers alone."""
    before, after, gain = found.before, found.after, success_gain(found)
    verdict = f"On {whole(after.count)} new instructions {percent(after.success.mean)} instead of "
    more = f"{whole(abs(100 * gain.mean))} points {'less' if gain.mean < 0 else 'more'}"
    verdict += f"{percent(before.success.mean)} of workflows succeed: {more} (95{NB}% interval "
    verdict += f"{points(gain.low)} to {points(gain.high)} points)"
    if gain.low <= 0 <= gain.high:
        verdict += ", which may be chance"
    spent = f"A workflow costs {usd(after.cost_usd.mean)} instead of {usd(before.cost_usd.mean)} "
    spent += f"({_change(before.cost_usd, after.cost_usd)}) and takes {took(after.latency_ms.mean)} instead of "
    spent += f"{took(before.latency_ms.mean)} ({_change(before.latency_ms, after.latency_ms)})."
    broken = found.violations.total()
    rules = f"a rule was broken {plural(broken, 'time')}" if broken else "no rule was broken"
    return [SIMULATED, f"{verdict}.", spent, f"In {whole(found.executions)} workflows {rules}."]


def success_gain(found: DemoResults) -> Estimate:
    before, after = ([execution.success for execution in found.runs[name]] for name in (BEFORE, AFTER))
    return paired_share_difference(before, after)


def _change(before: Estimate, after: Estimate) -> str:
    return change(after.mean / before.mean - 1 if before.mean > 0 else math.nan)


def shown_numbers(found: DemoResults) -> dict[str, dict[str, str]]:
    """Numbers as text, by policy and name."""
    return {
        name: {
            "success": f"{percent(s.success.mean)} ({percent_range(s.success.low, s.success.high)})",
            "cost": usd(s.cost_usd.mean),
            "time": took(s.latency_ms.mean),
            "reward": fixed(s.reward.mean, 2),
            "corrections": fixed(float(np.mean([corrections(execution) for execution in found.runs[name]])), 2),
            "violations": whole(sum(s.violations.values())),
        }
        for name, s in found.summaries.items()
    }


def _tiles(found: DemoResults) -> list[Tile]:
    before, after, gain = found.before, found.after, success_gain(found)
    broken = found.violations.total()
    return [
        Tile(
            "success",
            f"{percent(before.success.mean)} → {percent(after.success.mean)}",
            f"{points(gain.mean)} points, 95{NB}% interval {points(gain.low)} to {points(gain.high)}",
            kind="first",
        ),
        Tile(
            "cost per workflow",
            f"{_cents(before.cost_usd)} → {_cents(after.cost_usd)}",
            f"{_change(before.cost_usd, after.cost_usd)}, simulated",
        ),
        Tile(
            "time per workflow",
            f"{took(before.latency_ms.mean)} → {took(after.latency_ms.mean)}",
            f"{_change(before.latency_ms, after.latency_ms)}, simulated",
        ),
        Tile("violations", whole(broken), f"in {whole(found.executions)} workflows", kind="down" if broken else "up"),
    ]


def _cents(cost: Estimate) -> str:
    """A cost in cents, short enough for two of them on a tile."""
    return f"{fixed(100 * cost.mean, 1)}{NB}¢"


def _comparison(found: DemoResults) -> View:
    """The part about executions: before and after, workers, faults, the collection."""
    pairs = list(zip(found.runs[BEFORE], found.runs[AFTER], strict=True))
    figures, corrected = count(1), instructive(found.runs[AFTER])
    examples = [
        Example(
            instruction=a.instruction,
            figures=[_figure(found, execution, name, figures) for name, execution in ((BEFORE, a), (AFTER, b))],
        )
        for a, b in telling(pairs)
    ]
    return view(
        "etude.cli.orchestrator:demo.html.jinja",
        found=found,
        before=BEFORE,
        after=AFTER,
        numbers=shown_numbers(found),
        about=ABOUT,
        colours=_colours(found),
        chart=_chart(found),
        outcomes=Counter((a.success, b.success) for a, b in pairs),
        examples=draw_examples(examples),
        corrected=corrected
        and draw_examples(
            [Example(instruction=corrected.instruction, figures=[_figure(found, corrected, AFTER, figures)])]
        ),
        moments=detail(corrected, found.catalogue) if corrected else [],
        why_dropped=WHY_DROPPED,
    )


def _colours(found: DemoResults) -> dict[str, str]:
    others = [name for name in found.runs if name not in COLOURS]
    return COLOURS | {name: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, name in enumerate(others)}


def _chart(found: DemoResults) -> Chart:
    """Success against cost, each with its interval."""
    places, intervals = [], []
    for name, summary in found.summaries.items():
        cost, success, colour = summary.cost_usd.mean, summary.success, _colours(found)[name]
        places.append(Point(name=name, x=cost, y=success.mean, colour=colour))
        intervals.append(Line(name="", x=[cost, cost], y=[success.low, success.high], colour=colour, faint=True))
    return line_chart(
        intervals,
        label="Share of workflows that succeed against the cost per workflow",
        points=places,
        x_from=0,
        y_range=(0.0, 1.0),
        x_format=usd,
        y_format=percent,
        x_name="cost per workflow",
    )


def telling(pairs: Sequence[tuple[Execution, Execution]]) -> list[tuple[Execution, Execution]]:
    """Four pairs to show: two where only the second succeeds, one where both do, one where the second does not."""
    wanted = [(False, True), (False, True), (True, True), (True, False), (False, False)]
    left = sorted(pairs, key=lambda pair: abs(len(pair[1].nodes) - 4))  # neither trivial nor too large to look at
    found: list[tuple[Execution, Execution]] = []
    for outcome in wanted:
        pair = next((p for p in left if (p[0].success, p[1].success) == outcome), None)
        if pair is not None and len(found) < 4:
            found.append(pair)
            left.remove(pair)
    return found


def _figure(found: DemoResults, execution: Execution, name: str, figures: count[int]) -> Figure:
    """A final plan, with its outcome in words."""
    ended = Remark(text="succeeded", kind="up")
    if not execution.success:
        ended = Remark(text=f"failed: {execution.error.strip() or execution.ended}", kind="down")
    spent = f"{usd(execution.cost)}, {took(execution.latency_ms)}, {plural(corrections(execution), 'correction')}"
    dropped = sum(node.status == "dropped" for node in execution.nodes)
    replanned = [Remark(text=f"{plural(dropped, 'subtask')} replanned")] if dropped else []
    drawn = drawing(execution, found.catalogue, next(figures))
    return Figure(title=name, remarks=[ended, Remark(text=spent), *replanned], drawing=drawn)


def _imitated(rows: Sequence[Row]) -> list[Section]:
    charts = multiples(rows, NEARNESS, unit="epochs", x_unit=1)
    note = "Plans for held-out examples, compared with those that were collected, after each epoch. "
    note += explained(NEARNESS)
    return [Section(title="Phase 1: learned from examples", name="phase-1", note=note, body=charts)] if charts else []
