"""The demo's page, on executions made by hand."""

from __future__ import annotations

import json
import re
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from etude.cli.orchestrator.demo_report import (
    AFTER,
    BEFORE,
    DemoResults,
    headline,
    shown_numbers,
    telling,
    write_demo_report,
)
from etude.cli.orchestrator.execution_detail import corrections, detail, drawing, instructive
from etude.contracts.decision import LoggedDecision
from etude.evidence.intervals import paired_share_difference
from etude.learning.run_folder import RunFolder
from etude.orchestrator.metrics import summarise
from etude.orchestrator.prepare import prepare
from etude.orchestrator.record import Execution
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.plan import Limits
from tests.unit.orchestrator.lines import CATALOGUE, attempt, execution, node, write_log

EVIL = "<script>alert('x')</script>"
VOID = {"meta", "br", "input"}
RULE = "4 attempts, at most 3"


class WellFormed(HTMLParser):
    """Fails over a tag that does not match; knows all ids and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: Counter[str] = Counter()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(page: str) -> WellFormed:
    parser = WellFormed()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def decision(at_ms: float, failed: int | None, **choice: Any) -> LoggedDecision:
    legal = ["retry", "switch", "abort"] if failed is not None else None
    return LoggedDecision(
        problem="workflow",
        at_ms=at_ms,
        context={"failed": failed},
        eligible={"corrections": legal, "workers": [0, 1] if "worker" in choice else None},
        action=choice,
        propensity=0.75,
        policy="v1",
    )


def corrected_execution(**changed: Any) -> Execution:
    """A draft fails with the small worker, then goes to the large one; a review follows."""
    first = (
        attempt(0, "timeout", message="no answer in time", started_ms=0.0, latency_ms=1500.0),
        attempt(1, started_ms=1500.0, latency_ms=500.0, cost_usd=0.1),
    )
    decisions = (
        decision(0.0, None, task_type=0, worker=0),
        decision(0.0, None, task_type=1, worker=0),
        decision(0.0, None),
        decision(1500.0, 0, correction="switch", worker=1),
    )
    nodes = (
        node(0, worker=1, attempts=first),
        node(1, 0, attempts=(attempt(0, started_ms=2000.0),)),
    )
    return execution(**{"latency_ms": 2100.0, "decisions": decisions, "nodes": nodes, **changed})


def failed_execution(**changed: Any) -> Execution:
    tried = node(0, status="failed", attempts=(attempt(0, "invalid_output", message="not usable"),))
    return execution(
        **{"success": False, "ended": "aborted", "error": "draft: not usable", "nodes": (tried,), **changed}
    )


def found(tmp_path: Path, *, catalogue: Catalogue = CATALOGUE, **runs: list[Execution]) -> DemoResults:
    before = runs.pop("before", [failed_execution(), execution(), failed_execution(), execution()])
    after = runs.pop("after", [corrected_execution(), execution(), execution(), failed_execution()])
    logs = write_log(tmp_path / "logs", *before, b"{torn")
    return DemoResults(
        catalogue=catalogue,
        limits=Limits(max_attempts=3, max_cost_usd=2.5),
        collected=summarise(before, catalogue),
        prepared=prepare(logs),
        first=run(tmp_path / "p1", 1, [{"step": i, "wall_s": 1.0 * i, "node_f1": 0.1 * i} for i in (1, 2, 3)]),
        second=run(
            tmp_path / "p2",
            2,
            [
                {"step": 0, "eval_return": 2.0, "eval_return_std": 1.0, "eval_success": 0.5},
                {"step": 100, "wall_s": 1.0, "eval_return": 4.0, "eval_return_std": 1.0, "eval_success": 0.7},
            ],
        ),
        runs={BEFORE: before, AFTER: after, **runs},
    )


def run(path: Path, phase: int, rows: list[dict[str, float]]) -> RunFolder:
    path.mkdir()
    (path / "config.json").write_text(
        json.dumps({"problem": "workflow", "method": "practise", "phase": phase, "run": {"eval_episodes": 10}})
    )
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunFolder(path)


def page_of(shown: DemoResults, tmp_path: Path) -> str:
    return write_demo_report(tmp_path / "report.html", shown).read_text("utf-8")


def test_the_page_is_whole_and_alone(tmp_path: Path) -> None:
    page = page_of(found(tmp_path, random=[failed_execution()] * 4), tmp_path)
    read = parsed(page)
    assert [name for name, times in Counter(read.ids).items() if times > 1] == []
    for part in ("comparison", "success-cost", "plans", "detail", "workers", "collected", "phase-1", "violations"):
        assert part in read.ids
    assert {"curve-steps", "workflows", "settings"} <= set(read.ids)
    assert not re.search(r'(src|href)="', page)
    assert "http" not in page
    assert read.tags["script"] == 0
    assert "arrow-1" in read.ids  # plans are drawn, each with ids of its own


def test_a_run_without_metrics_has_no_training_sections(tmp_path: Path) -> None:
    shown = found(tmp_path)
    for folder in (shown.first, shown.second):
        folder.metrics.unlink()
    read = parsed(page_of(shown, tmp_path))
    assert "phase-1" not in read.ids
    assert "comparison" in read.ids


def test_whatever_comes_from_outside_is_escaped(tmp_path: Path) -> None:
    evil = Catalogue(
        task_types=(TaskType(name=f"draft{EVIL}"), TaskType(name=f"review{EVIL}"), TaskType(name="send")),
        workers=(Worker(name=f"small{EVIL}"), Worker(name=f"large{EVIL}")),
    )
    bad = attempt(0, f"fault{EVIL}", message=EVIL)
    worse = node(0, worker=1, attempts=(bad, attempt(1)))
    decisions = (decision(0.0, None, task_type=0, worker=0), decision(100.0, 0, correction=f"switch{EVIL}", worker=1))
    after = corrected_execution(instruction=EVIL, nodes=(worse,), decisions=decisions, violations=(EVIL,))
    before = failed_execution(instruction=EVIL, error=EVIL, nodes=(node(0, status="failed", attempts=(bad,)),))
    shown = found(tmp_path, catalogue=evil, before=[before] * 2, after=[after] * 2, **{f"p{EVIL}": [before] * 2})
    page = page_of(shown, tmp_path)
    assert parsed(page).tags["script"] == 0
    assert EVIL not in page
    assert page.count("&lt;script&gt;") > 20
    text = parsed(page).text
    for said in (f"large{EVIL} has done", f"fails at draft{EVIL}", f"chosen: switch{EVIL}", f"fault{EVIL}, “{EVIL}”"):
        assert said in text


def test_zero_violations_are_shown(tmp_path: Path) -> None:
    shown = found(tmp_path)
    page = page_of(shown, tmp_path)
    assert shown.violations.total() == 0
    assert '<div class="tile up"><span>violations</span><b>0</b><span>in 12 workflows</span></div>' in page
    assert "no rule was broken" in page
    assert '<p class="up">0 violations.</p>' in page
    assert 'class="warning"' not in page
    assert "3 attempts at one, 8 corrections, 1 replan, $2.50, no limit of time" in page


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_violation_is_not_hidden(tmp_path: Path, where: str) -> None:
    runs = {"before": [execution()] * 2, "after": [execution()] * 2}
    runs[where] = [execution(violations=(RULE,)), execution()]
    shown = found(tmp_path, before=runs["before"], after=runs["after"])
    page = page_of(shown, tmp_path)
    times = {"before": 2, "after": 1}[where]  # what ran before is here what was collected, too
    assert shown.violations.total() == times
    assert f'<div class="tile down"><span>violations</span><b>{times}</b>' in page
    plural = "" if times == 1 else "s"
    assert f"a rule was broken {times} time{plural}" in " ".join(headline(shown))
    assert f'<p class="warning"><b>{times} violation{plural}</b>: {RULE} ({times} time{plural}).</p>' in page
    assert "no rule was broken" not in page
    assert [numbers["violations"] for numbers in shown_numbers(shown).values()].count("1") == 1


def test_numbers_of_the_comparison_are_those_of_the_executions(tmp_path: Path) -> None:
    shown = found(
        tmp_path,
        before=[failed_execution(cost=0.5)] * 2 + [execution(cost=0.1)] * 2,
        after=[corrected_execution(cost=0.1, latency_ms=1000.0, reward=7.5)] * 4,
    )
    assert shown_numbers(shown)[AFTER] == {
        "success": "100\N{NO-BREAK SPACE}% (51–100)",
        "cost": "$0.1",
        "time": "1.0s",
        "reward": "7.50",
        "corrections": "1.00",
        "violations": "0",
    }
    summary = " ".join(headline(shown)).replace("\N{NO-BREAK SPACE}", " ")
    assert "On 4 new instructions 100 % instead of 50 % of workflows succeed: 50 points more (95 % interval" in summary
    assert "costs $0.1 instead of $0.3 (67 % less)" in summary


def test_the_page_says_that_the_office_is_simulated_and_gains_are_in_points(tmp_path: Path) -> None:
    text = parsed(page_of(found(tmp_path), tmp_path)).text.replace("\N{NO-BREAK SPACE}", " ")
    lead = text.partition("Before, after and other policies")[0]
    assert "Workers, their skills and all outcomes are simulated" in lead
    assert "75 % instead of 50 % of workflows succeed: 25 points more" in lead
    assert "+25 points, 95 % interval" in lead


def test_a_task_type_has_one_colour_in_every_drawing() -> None:
    many = Catalogue(task_types=tuple(TaskType(name=f"task_{i}") for i in range(12)), workers=CATALOGUE.workers)

    def fills(*types: int) -> list[str]:
        drawn = drawing(execution(nodes=tuple(node(kind) for kind in types)), many, 1)
        return re.findall(r'<rect x="[^>]*fill="(#\w+)"', drawn or "")

    alone = {kind: fills(kind)[0] for kind in range(12)}
    assert len(set(alone.values())) == 12
    assert all(fills(i, j) == [alone[i], alone[j]] for i in range(12) for j in range(i))


def test_giving_up_is_no_correction() -> None:
    chosen = [decision(1.0, 0, correction=name) for name in ("retry", "skip", "abort")]
    assert corrections(execution(decisions=(decision(0.0, None, task_type=0), *chosen))) == 2


def test_a_gain_that_may_be_chance_is_called_so(tmp_path: Path) -> None:
    few = found(tmp_path, before=[failed_execution(), execution()], after=[execution(), failed_execution()])
    assert "which may be chance" in " ".join(headline(few))
    (tmp_path / "many").mkdir()
    many = found(tmp_path / "many", before=[failed_execution(), execution()] * 50, after=[execution()] * 100)
    assert "chance" not in " ".join(headline(many))


def test_a_gain_in_shares_knows_pairs() -> None:
    gain = paired_share_difference([False, True] * 50, [True] * 100)
    assert gain.mean == pytest.approx(0.5)
    assert 0.38 < gain.low < 0.5 < gain.high < 0.62
    same = paired_share_difference([False, True] * 50, [False, True] * 50)
    assert (same.mean, same.low, same.high) == pytest.approx((0.0, 0.0, 0.0), abs=1e-6)
    few = paired_share_difference([False] * 2, [True] * 2)  # all or nothing of a few has an interval, too
    assert 0.0 < few.low < 1.0 == few.mean == few.high


def test_the_interval_of_a_gain_covers_it() -> None:
    rng = np.random.default_rng(0)
    before, after, covered = 0.45, 0.7, 0
    for _ in range(1000):
        hard = rng.random(200)  # in common: where one fails, the other is likelier to
        b, a = (np.where(rng.random(200) < 0.5, hard, rng.random(200)) < p for p in (before, after))
        gain = paired_share_difference(b.tolist(), a.tolist())
        covered += gain.low <= after - before <= gain.high
    assert covered / 1000 == pytest.approx(0.95, abs=0.02)


def test_a_failure_is_shown_step_by_step() -> None:
    moments = [(moment.at_ms, "".join(moment.what), moment.kind) for moment in detail(corrected_execution(), CATALOGUE)]
    assert moments == [
        (0.0, "plans 2 subtasks: draft by small, review by small", ""),
        (1500.0, "small fails at draft: timeout, “no answer in time” ($0.01, 1.5s)", "down"),
        (
            1500.0,
            "eligible for draft: retry, switch, abort; chosen: switch to large (of small, large), propensity 0.75",
            "",
        ),
        (2000.0, "large has done draft ($0.1, 0.5s)", "up"),
        (2100.0, "small has done review ($0.01, 0.1s)", "up"),
        (2100.0, "everything that was asked for is done, for $0.02", "up"),
    ]


def replanned() -> Execution:
    """Two fail, the first is replanned with all that is not done; later another fails."""
    nodes = (
        node(2, attempts=(attempt(0, "refusal", started_ms=500.0), attempt(1, started_ms=600.0))),
        node(0),
        node(0, status="dropped", attempts=(attempt(0, "timeout"),)),
        node(1, status="dropped", attempts=(attempt(0, "timeout", started_ms=20.0),)),
    )
    decisions = (
        decision(0.0, None, task_type=0, worker=0),
        decision(100.0, 2, correction="replan"),
        decision(500.0, None, task_type=2, worker=0),
        decision(600.0, 0, correction="retry"),
    )
    return execution(nodes=nodes, decisions=decisions)


def test_after_a_replan_failures_are_those_of_nodes_that_stayed() -> None:
    moments = ["".join(m.what) for m in detail(replanned(), CATALOGUE)]
    assert [line.partition(":")[0] for line in moments if line.startswith("eligible")] == [
        "eligible for draft",
        "eligible for send",
    ]
    assert "plans again: 1 subtask: send by small" in moments


def test_what_followed_a_failure_is_counted_with_it() -> None:
    both = node(1, status="failed", attempts=(attempt(0, "timeout"),))
    first = node(0, status="failed", attempts=(attempt(0, "refusal", latency_ms=200.0), attempt(0, "refusal")))
    over = execution(
        success=False,
        nodes=(first, both),
        decisions=(decision(100.0, 1, correction="skip"), decision(200.0, 0, correction="abort")),
    )
    faults = summarise([replanned(), over], CATALOGUE).faults
    assert {name: (fault.count, fault.corrections) for name, fault in faults.items()} == {
        "refusal": (3, {"retry": 1, "abort": 1, "none": 1}),
        "timeout": (3, {"replan": 2, "skip": 1}),
    }
    assert (faults["refusal"].done.count, faults["refusal"].done.mean) == (2, 0.5)
    assert faults["timeout"].done.count == 3
    assert faults["timeout"].done.mean == pytest.approx(1 / 3)


def test_the_workflow_shown_succeeded_after_more_than_a_retry() -> None:
    again = corrected_execution(decisions=(decision(1.0, 0, correction="retry"),))
    unhappy = corrected_execution(success=False)
    assert instructive([execution(), again, unhappy, corrected_execution(id="this")]).id == "this"  # type: ignore[union-attr]
    assert instructive([execution(), unhappy, failed_execution()]) is None


def test_without_a_corrected_failure_the_page_says_so(tmp_path: Path) -> None:
    page = page_of(found(tmp_path, after=[execution()] * 4), tmp_path)
    assert "had a failure and succeeded in the end" in page
    assert 'id="detail"' not in page


def test_pairs_to_look_at_are_of_every_outcome() -> None:
    good, bad = execution(), failed_execution()
    pairs = [(good, good)] * 3 + [(bad, good)] * 3 + [(good, bad)] + [(bad, bad)]
    shown = [(a.success, b.success) for a, b in telling(pairs)]
    assert shown == [(False, True), (False, True), (True, True), (True, False)]
    assert telling(pairs[:1]) == pairs[:1]


def test_each_node_is_drawn_with_what_became_of_it() -> None:
    more = node(2, 1, status="planned", attempts=())
    gone = node(0, status="dropped")
    known = corrected_execution()
    svg = unescape(drawing(msgspec.structs.replace(known, nodes=(*known.nodes, more, gone)), CATALOGUE, 7) or "")
    assert re.findall(r'class="what"[^>]*>([^<]*)<', svg) == [
        "2 attempts · $0.11 · 2.0s",
        "1 attempt · $0.01 · 0.1s",
        "not started",
    ]
    assert svg.count("#b91c1c") == 1  # where something failed
    assert "draft: large (done)" in svg
    assert 'id="arrow-7"' in svg
    assert "url(#arrow-7)" in svg
    assert drawing(execution(nodes=()), CATALOGUE, 1) is None
