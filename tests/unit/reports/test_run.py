"""The page of a run of any problem: what every run shows, and what a problem adds to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from etude.learning.evaluate import Score
from etude.learning.run import STOPPED, StopReason
from etude.learning.run_folder import RunFolder
from etude.reports.blocks import Code, Section, Strong, Tile, table, view
from etude.reports.page import Measure
from etude.reports.run import Contribution, RunContext, run_report
from tests.unit.reports.pages import Page

NASTY = '<script>alert("1")</script> & \'\u202e\x1b'
SHOWN = '<script>alert("1")</script> & \''


def make_run(path: Path, rows: Sequence[Mapping[str, Any]], **config: Any) -> RunFolder:
    (path / "config.json").write_text(
        json.dumps({"problem": "knapsack", "method": "practise", "run": {"eval_episodes": 16}, **config})
    )
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunFolder(path)


def updates(scale: float = 1.0) -> list[dict[str, float]]:
    return [
        {"step": 100 * i, "wall_s": 1.0 * i, "entropy": 2.0, "eval_return": scale * i, "eval_return_std": 1.0}
        for i in range(1, 6)
    ]


def score(mean: float) -> Score:
    returns = [mean - 1, mean, mean + 1]
    return Score(episodes=3, mean=mean, std=1, low=mean - 1, high=mean + 1, metrics={"value_kg": 9000}, returns=returns)


def passes(**more: float) -> list[dict[str, float]]:
    return [{"step": i, "wall_s": 1.0 * i, "estimate": 8 + i / 10, "ess": 0.5} | more for i in range(4)]


def test_a_problem_without_a_report_has_a_full_page(tmp_path: Path) -> None:
    scores = {"policy": score(7.25), "random": score(2)}
    page = Page(run_report(make_run(tmp_path, updates()), comparison=scores))
    assert page.find("h1")[0]["text"] == "knapsackin progress"
    assert [h["text"] for h in page.find("h2")] == [
        "Learning curve",
        "Compared with other policies",
        "Every episode’s return",
        "Training health",
    ]
    assert page.table()["policy"] == ["7.25 ± 1.00", "", "9k"]
    assert len(page.find("div", kind="tip", within="curve-steps")) == 5
    assert "problem" in [e["text"] for e in page.find("code", within="settings")]
    assert page.asks_nothing_of_the_network()


@pytest.mark.parametrize(("scale", "shown"), [(1.0, "5.00"), (1000.0, "5,000")])
def test_a_return_has_the_digits_that_its_size_asks_for(tmp_path: Path, scale: float, shown: str) -> None:
    page = Page(run_report(make_run(tmp_path, updates(scale))))
    assert page.find("div", kind="tile")[0]["text"].startswith(f"return of the best policy{shown}the best of 5")


def test_a_problem_adds_its_own_part(tmp_path: Path) -> None:
    def report(run: RunContext) -> Contribution:
        items = table(["kg", "what"], [[Code("tent"), "3", [Strong("dry"), " place"]]], name="items")
        return Contribution(
            title=f"knapsack · {run.notes['size']}",
            facts=["2 items"],
            lead="All items are made up.",
            measures={"value_kg": Measure("value", "of what is packed")},
            tiles=[Tile("packed", f"{run.scores['policy'].mean:.0f}", "items")],
            sections=[Section(title="Items", name="packed", note="What is in it.", body=[items])],
        )

    folder = make_run(tmp_path, updates())
    out = tmp_path / "new" / "page.html"
    scores = {"policy": score(7), "random": score(2)}
    page = Page(run_report(folder, comparison=scores, contribute=report, notes={"size": "small"}, out=out))
    assert page.find("title")[0]["text"] == f"knapsack · small · {tmp_path.name}"
    assert [tile["text"] for tile in page.find("div", kind="tile")] == ["packed7items"]
    assert page.find("p", kind="lead")[0]["text"].startswith("All items are made up. The policy returns 7.00")
    assert "Value: of what is packed." in page.text
    assert [cell["text"] for cell in page.find("td", within="items")] == ["", "3", "dry place"]
    assert [e["text"] for e in page.find("code", within="items") + page.find("b", within="items")] == ["tent", "dry"]
    assert "Learning curve" in page.text


def test_a_run_from_logs_shows_estimates_with_their_interval(tmp_path: Path) -> None:
    page = Page(run_report(make_run(tmp_path, passes(estimate_low=7.5, estimate_high=8.75), algorithm="rloo")))
    tiles = [tile["text"].replace("\N{NO-BREAK SPACE}", " ") for tile in page.find("div", kind="tile")]
    assert tiles[0] == "estimated reward8.3007.500 to 8.750 (95 %), on held-out logs"
    assert tiles[1] == "before8.0007.500 to 8.750 (95 %), on held-out logs"
    assert len(page.find("path", kind="band", within="passes")) == 1  # the estimate has one, the other measures none
    assert "Learning curve" not in page.text
    assert "Training health" not in page.text


def test_an_estimate_without_an_interval_says_that_it_is_no_trial(tmp_path: Path) -> None:
    page = Page(run_report(make_run(tmp_path, passes())))
    assert page.find("div", kind="tile")[0]["text"] == "estimated reward8.300on held-out logs; not a trial"
    assert not page.find("path", kind="band")
    page = Page(run_report(make_run(tmp_path, [], algorithm="rloo")))
    assert "no pass is finished yet" in page.text
    assert "No pass is finished yet." in page.text


def test_all_text_is_escaped_wherever_it_comes_from(tmp_path: Path) -> None:
    def report(run: RunContext) -> Contribution:
        cells = table([NASTY], [[NASTY, [Strong(NASTY), NASTY, Code(NASTY)]]])
        return Contribution(
            title=NASTY,
            facts=[NASTY],
            lead=NASTY,
            measures={"value_kg": Measure(NASTY, NASTY)},
            sections=[Section(title=NASTY, note=NASTY, body=[cells, view("table", heads=[], rows=[[NASTY]], name="")])],
        )

    rows = [{**row, f"warning_{NASTY}": 1.0} for row in updates()]
    scores = {"policy": score(7), NASTY: score(2)}
    folder = make_run(tmp_path, rows, **{NASTY: {NASTY: NASTY}})
    page = Page(run_report(folder, comparison=scores, contribute=report))
    assert not page.find("script")
    assert "\x1b" not in page.source
    assert "\u202e" not in page.source
    for tag in ("title", "h1", "h2", "th", "td", "b", "code", "p"):
        assert any(SHOWN in element["text"] for element in page.find(tag)), tag
    assert SHOWN in [e["text"] for e in page.find("span", kind="name", within="curve-steps")]


@pytest.mark.parametrize("reason", StopReason)
def test_the_page_says_why_the_run_stopped(reason: StopReason, tmp_path: Path) -> None:
    folder = make_run(tmp_path, updates())
    (tmp_path / "summary.json").write_text(json.dumps({"stopped": reason}))
    assert f"stopped: {STOPPED[reason]}" in Page(run_report(folder)).text
