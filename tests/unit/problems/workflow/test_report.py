"""The page of a planner's run: its epochs or its returns, and plans drawn with what tells them from the wanted ones."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.contracts.errors import RunError
from etude.contracts.formats import duration, fixed, percent, signed, usd
from etude.evidence.intervals import interval
from etude.learning.comparison import difference
from etude.learning.evaluate import Score
from etude.learning.run_folder import RunFolder
from etude.problems.workflow.plan import Node, Plan
from etude.problems.workflow.plan_report import agreement, differences
from etude.problems.workflow.report import SIMULATED, report
from etude.problems.workflow.showcase import Shown, side_by_side, write_before_and_after, write_plans
from etude.reports.run import run_report
from tests.unit.reports.pages import Page

SETTINGS = {"planner": {"encoder": "fast"}, "run": {"seed": 3, "eval_episodes": 64}}
NASTY = "<script>alert(\"1\")</script> & <b>'総括'</b> ]]> \u202e"


METHODS = {1: "imitate", 2: "practise", 3: "from-logs"}


def write_workflow_report(
    folder: RunFolder, *, comparison: Mapping[str, Score] | None = None, out: Path | None = None
) -> Path:
    return run_report(folder, comparison=comparison, contribute=report, out=out)


def make_run(
    path: Path, rows: Sequence[Mapping[str, Any]], *, phase: int = 1, stopped: str | None = "budget"
) -> RunFolder:
    folder = RunFolder(path)
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(
        json.dumps({"problem": "workflow", "method": METHODS.get(phase, "practise"), "phase": phase, **SETTINGS})
    )
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if stopped:
        folder.finish({"stopped": stopped})
    return folder


def epochs(scored: int, final: int = 0) -> list[dict[str, Any]]:
    """The one before the last that is scored is the best."""
    rows = []
    for i in range(1, scored + final + 1):
        row = {"step": i, "wall_s": 2.0 * i, "loss": 4.0 / i, "type_loss": 3.0 / i, "worker_loss": 0.0, "lr_scale": 1.0}
        if i <= scored:
            row |= {"validation_score": 0.5 + 0.01 * (i if i < scored else 0), "node_f1": 0.6 + 0.01 * i}
            row |= {"link_f1": 0.4 + 0.01 * i, "accuracy": 0.5}
        rows.append(row)
    return rows


def plan(*nodes: tuple[str, Sequence[int]] | tuple[str, Sequence[int], str], said: str = "do it") -> Plan:
    made = tuple(Node(task_type=n[0], dependencies=tuple(n[1]), worker=n[2] if len(n) > 2 else None) for n in nodes)
    return Plan(instruction=said, nodes=made)


WANTED = plan(("fetch", ()), ("translate", [0]), ("mail", [1]))


# Phase 1


def test_the_headline_tells_the_best_epoch(tmp_path: Path) -> None:
    page = Page(write_workflow_report(make_run(tmp_path, epochs(5, final=2))))
    assert page.find("h1")[0]["text"] == "workflow · phase 1stopped: the budget is used up"
    assert "learned from experts · text read by fast · seed 3" in page.text
    assert [tile["text"] for tile in page.find("div", kind="tile")] == [
        "best validation score0.540epoch 4, the best of 5, so slightly too high",
        "node F10.640subtasks in common with the expert’s",
        "link F10.440dependencies in common with the expert’s",
        "accuracy0.500plans with the right subtasks",
        "epochs7the last 2 over all examples",
        "training time14.0s2.0s per epoch",
    ]


def test_the_curves_have_a_point_for_every_epoch(tmp_path: Path) -> None:
    page = Page(write_workflow_report(make_run(tmp_path, epochs(14, final=1))))
    tips = [tip["text"] for tip in page.find("div", kind="tip", within="validation")]
    assert len(tips) == 14
    assert tips[1] == "epoch 2\nvalidation score 0.520\nnode F1 0.620\nlink F1 0.420\naccuracy 0.500"
    names = {name["text"] for name in page.find("span", kind="name", within="validation")}
    assert names == {"validation score", "node F1", "link F1", "accuracy"}
    ticks = [tick["text"] for tick in page.find("span", kind="x-tick", within="validation")]
    assert ticks == ["5", "10"]  # whole epochs, not 2.5
    losses = [h["text"] for h in page.find("h3", within="losses")]
    assert losses == ["loss0.267", "subtasks0.2", "learning rate1"]  # without workers there is nothing to tell of them
    assert len(page.find("div", kind="tip", within="losses")) == 3 * 15


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_epochs_have_whole_numbers_too(tmp_path: Path, count: int) -> None:
    page = Page(write_workflow_report(make_run(tmp_path, epochs(count))))
    ticks = [tick["text"] for tick in page.find("span", kind="x-tick", within="validation")]
    assert ticks == [str(i + 1) for i in range(count)]


def test_a_run_in_progress_has_a_page(tmp_path: Path) -> None:
    page = Page(write_workflow_report(make_run(tmp_path, [], stopped=None)))
    assert "in progress" in page.find("h1")[0]["text"]
    assert "no epoch is finished yet" in page.find("div", kind="tile")[0]["text"]
    assert "No epoch is finished yet." in page.text
    page = Page(write_workflow_report(make_run(tmp_path, epochs(1), stopped=None)))
    assert "0.500epoch 1, the best of 1" in page.find("div", kind="tile")[0]["text"]
    assert "each scored on held-out examples" in page.text
    assert "Plans, before and after" not in page.text


@pytest.mark.parametrize("hole", [None, "NaN", "Infinity", "missing"])
@pytest.mark.parametrize("name", ["validation_score", "node_f1", "loss", "wall_s"])
def test_missing_and_wrong_numbers_leave_gaps(tmp_path: Path, name: str, hole: str | None) -> None:
    rows = epochs(9)
    for row in rows[3:6]:
        if hole == "missing":
            del row[name]
        else:
            row[name] = hole
    page = Page(write_workflow_report(make_run(tmp_path, rows)))
    for element in page.elements:
        shown = f"{element['attrs'].get('d')} {element['attrs'].get('style')}"
        assert not re.search(r"\b(nan|inf)", shown)
    assert not re.search(r"\b(nan|inf)\b", page.text)


# Plans


def test_the_page_shows_the_plans_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder = make_run(tmp_path, epochs(2))
    first, best = plan(("fetch", ())), plan(("fetch", ()), ("review", [0]), ("mail", [1]))
    write_plans(folder, side_by_side({"after 1 epoch": [first] * 2, "best": [best, WANTED], "expert": [WANTED] * 2}))
    page = Page(write_workflow_report(folder))
    texts = [e["text"] for e in page.find("div", kind="plan")]
    words = [text.partition("A plan")[0] for text in texts]  # the rest is what the drawings say
    assert words == [
        "after 1 epoch1 of 3 subtasks, 0 of 2 linksmissing: translate, mail",
        "best2 of 3 subtasks, 0 of 2 linksmissing: translateextra: review",
        "expert3 subtasks, 2 links",
        "after 1 epoch1 of 3 subtasks, 0 of 2 linksmissing: translate, mail",
        "best3 of 3 subtasks, 2 of 2 linksas wanted",
        "expert3 subtasks, 2 links",
    ]
    assert "Exactly as wanted: after 1 epoch, 0 of 2; best, 1 of 2." in page.text
    boxes = [e for e in page.find("g") if "data-node" in e["attrs"]]
    nodes = [sum(drawn in box["within"] for box in boxes) for drawn in page.find("div", kind="plan")]
    assert nodes == [1, 3, 3, 1, 3, 3]
    assert [line["text"] for line in page.find("summary", within="plans")] == ["do it"] * 2


def test_arrows_lead_to_their_own_marker(tmp_path: Path) -> None:
    folder = make_run(tmp_path, epochs(2))
    write_plans(folder, side_by_side({"best": [WANTED] * 3, "expert": [WANTED] * 3}))
    page = Page(write_workflow_report(folder))
    markers = [e["attrs"]["id"] for e in page.find("marker")]
    used = [e["attrs"]["marker-end"] for e in page.find("path") if "marker-end" in e["attrs"]]
    assert len(markers) == 6
    assert used == [f"url(#{marker})" for marker in markers for _ in range(2)]


def test_of_many_plans_the_first_few_are_open(tmp_path: Path) -> None:
    folder = make_run(tmp_path, epochs(2))
    write_plans(folder, side_by_side({"best": [WANTED] * 12, "expert": [WANTED] * 12}))
    folds = Page(write_workflow_report(folder)).find("details", within="plans")
    assert ["open" in e["attrs"] for e in folds] == [True] * 4 + [False] * 8


@pytest.mark.parametrize("text", [NASTY, "\udcff\x00\x1b", "", "   ", "字" * 5000, "</details></svg></main>"])
def test_words_from_outside_stay_words(tmp_path: Path, text: str) -> None:
    folder = make_run(tmp_path, epochs(2))
    odd = plan((text, (), text), ("a", [0], text), said=text)
    write_plans(folder, [Shown(instruction=text, plans={text: odd, "wanted": WANTED})])
    page = Page(write_workflow_report(folder))
    assert not page.find("script")
    assert page.asks_nothing_of_the_network()
    assert page.find("main")[0]["text"].endswith("Settings" + "".join(page.find("table")[0]["text"]))
    (line,) = page.find("summary", within="plans")
    assert len(line["text"]) <= 401
    if text == NASTY:
        shown = " ".join(text.replace("\u202e", "").split())
        assert line["text"] == shown
        assert shown in [h["text"] for h in page.find("h3", within="plans")]
        assert f"extra: {shown}, a" in page.text


def test_a_plan_with_nothing_to_compare_is_drawn(tmp_path: Path) -> None:
    folder = make_run(tmp_path, epochs(2))
    write_plans(folder, [Shown(instruction="x", plans={"best": plan(("mail", ()))})])
    page = Page(write_workflow_report(folder))
    assert page.find("div", kind="plan")[0]["text"].startswith("best1 subtask")
    assert "Exactly as wanted" not in page.text


def test_plans_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path, epochs(2))
    (folder.path / "plans.json").write_text("[3]")
    with pytest.raises(RunError, match=r"plans\.json"):
        write_workflow_report(folder)


def test_a_task_type_has_one_colour_on_a_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path, epochs(2))
    pairs = [plan((f"task_{i}", ()), (f"task_{j}", [0])) for i in range(8) for j in range(i)][:12]
    write_plans(folder, side_by_side({"best": pairs[::-1], "expert": pairs}))
    page, fills = Page(write_workflow_report(folder)), dict[str, set[str]]()
    for rect in page.find("rect", within="plans"):
        node = next((g for g in reversed(rect["within"]) if "data-node" in g["attrs"]), None)
        if node is not None:
            fills.setdefault(node["text"][:6], set()).add(rect["attrs"]["fill"])
    assert len(fills) > 4
    assert {len(colours) for colours in fills.values()} == {1}


def test_drawings_shrink_to_the_page_before_they_scroll(tmp_path: Path) -> None:
    folder = make_run(tmp_path, epochs(2))
    write_plans(folder, side_by_side({"best": [WANTED]}))
    page = Page(write_workflow_report(folder))
    drawing = page.find("svg", within="plans")[0]
    assert drawing["attrs"]["style"] == f"--w:{drawing['attrs']['width']}px"
    assert "width: clamp(.7 * var(--w), 100%, var(--w))" in page.source
    assert any("scroll" in str(outer["attrs"].get("class")) for outer in drawing["within"])


def test_a_run_from_logs_shows_its_plans_before_and_after(tmp_path: Path) -> None:
    folder = make_run(tmp_path, [{"step": i, "wall_s": 1.0, "estimate": 8.0} for i in range(3)], phase=3)
    shorter = plan(("fetch", ()), ("mail", [0]))
    other = [Plan(instruction="other", nodes=made.nodes) for made in (WANTED, WANTED)]
    write_before_and_after(folder, [WANTED, other[0]], [shorter, other[1]])
    page = Page(write_workflow_report(folder))
    words = [e["text"].partition("A plan")[0] for e in page.find("div", kind="plan")]
    assert words == [
        "before3 subtasks, 2 links",
        "after2 of 3 subtasks, 0 of 2 linksmissing: translateextra link: fetch → mail",
        "before3 subtasks, 2 links",
        "after3 of 3 subtasks, 2 of 2 linksunchanged",
    ]
    assert "Unchanged: after, 1 of 2." in page.text
    assert not page.find("p", kind="down")  # no plan is known to be the wanted one
    assert "as wanted" not in page.text


def test_differences_in_words() -> None:
    assert differences(WANTED, WANTED) == []
    shuffled = plan(("fetch", ()), ("mail", [0]), ("translate", [0, 1]))
    assert agreement(shuffled, WANTED) == "3 of 3 subtasks, 1 of 2 links"
    assert differences(shuffled, WANTED) == [
        "missing link: translate → mail",
        "extra link: fetch → mail, mail → translate",
    ]
    twice = plan(("fetch", ()), ("fetch", [0]), ("translate", [1]), ("mail", [2]))
    assert agreement(twice, WANTED) == "3 of 3 subtasks, 2 of 2 links"
    assert differences(twice, WANTED) == ["extra: fetch"]  # its link is not listed as well
    assert differences(WANTED, twice) == ["missing: fetch"]
    assert agreement(WANTED, plan(("mail", ()))) == "1 of 1 subtask"


def test_other_workers_are_listed_where_the_wanted_plan_names_some() -> None:
    wanted = plan(("fetch", (), "quick"), ("mail", [0], "careful"), ("mail", [0], "quick"))
    made = plan(("fetch", (), "careful"), ("mail", [0], "quick"), ("mail", [0], "careful"))
    assert differences(made, wanted) == ["other worker: fetch by careful, not quick"]
    unassigned = plan(("fetch", ()), ("mail", [0]), ("mail", [0]))
    assert differences(made, unassigned) == differences(unassigned, wanted) == []


# Phase 2


def updates(count: int) -> list[dict[str, Any]]:
    rows = []
    for i in range(1, count + 1):
        row: dict[str, Any] = {"step": 1000 * i, "wall_s": 0.5 * i, "entropy": 3.0, "approx_kl": 0.01}
        row["episode_return"] = 4 + i / 40
        if i % 5 == 0:
            row |= {"eval_return": 5 + i / 10, "eval_return_std": 4.0, "eval_success": 0.5 + i / 100}
            row |= {"eval_cost_usd": 0.0123, "eval_latency_ms": 8500.0, "eval_validity": 1.0}
        rows.append(row)
    return rows


def make_score(mean: float, *, seed: int, success: float) -> Score:
    returns = np.random.default_rng(seed).normal(mean, 2, 80)
    low, high = interval(returns)
    metrics = {"success": success, "cost_usd": 0.01 * success, "latency_ms": 9000.0, "nodes": 3.5, "validity": 1.0}
    return Score(
        episodes=80,
        mean=float(returns.mean()),
        std=float(returns.std(ddof=1)),
        low=low,
        high=high,
        metrics=metrics,
        returns=returns.tolist(),
    )


@pytest.fixture
def scores() -> dict[str, Score]:
    given = {"policy": (8.0, 0.8), "random": (0.5, 0.05), "rules": (5.0, 0.52), "oracle": (9.5, 0.97)}
    return {n: make_score(mean, seed=i, success=share) for i, (n, (mean, share)) in enumerate(given.items())}


def test_a_reinforcement_run_is_described_by_its_returns(tmp_path: Path, scores: dict[str, Score]) -> None:
    page = Page(write_workflow_report(make_run(tmp_path, updates(20), phase=2, stopped="budget"), comparison=scores))
    assert page.find("h1")[0]["text"] == "workflow · phase 2stopped: the budget is used up"
    tiles = [tile["text"] for tile in page.find("div", kind="tile")]
    policy, rules, oracle = (scores[name] for name in ("policy", "rules", "oracle"))
    assert tiles[0].startswith(f"return of the best policy{fixed(policy.mean, 2)}±")
    # The oracle knows what no policy can: it is no rival.
    assert tiles[1].startswith(f"compared with rules ({fixed(rules.mean, 2)}){signed(policy.mean - rules.mean, 2)}")
    assert tiles[2].startswith("compared with random")
    assert tiles[3] == f"success{percent(0.8)}workflows with every wanted subtask done"
    lead = page.find("p", kind="lead")[0]["text"]
    assert lead.startswith(SIMULATED)
    assert f"The policy returns {fixed(policy.mean, 2)} per episode, better than rules" in lead
    assert f"success {percent(0.8)} (random {percent(0.05)})" in lead
    assert f"It is {percent(policy.mean / oracle.mean)} of what an oracle that knows everything returns." in lead


def test_the_table_has_each_measure_in_its_unit(tmp_path: Path, scores: dict[str, Score]) -> None:
    page = Page(write_workflow_report(make_run(tmp_path, updates(20), phase=2), comparison=scores))
    table = page.table()
    assert list(table)[1:] == list(scores)
    for name, score in scores.items():
        shown, m = table[name], score.metrics
        assert shown[0] == f"{fixed(score.mean, 2)} ± {fixed((score.high - score.low) / 2, 2)}"
        mean, low, high = difference(scores["policy"], score)
        gain = f"{signed(mean, 2)} {signed(low, 2)} to {signed(high, 2)}"
        assert shown[1] == ("" if name == "policy" else gain)
        assert shown[2:] == [percent(m["success"]), "3.5", usd(m["cost_usd"]), duration(9.0)]
    bars = [e["attrs"].get("style", "") for e in page.find("i", within="comparison")]
    widths = [float(style.removeprefix("width:").removesuffix("%")) for style in bars if style]
    costs = widths[3::5]
    assert costs == pytest.approx([100 * s.metrics["success"] / 0.97 for s in scores.values()], abs=0.1)
    assert len(page.find("span", kind="row-name")) == 4  # one histogram each


def test_the_curves_of_returns_and_of_what_was_evaluated(tmp_path: Path, scores: dict[str, Score]) -> None:
    page = Page(write_workflow_report(make_run(tmp_path, updates(20), phase=2), comparison=scores))
    tips = [tip["text"] for tip in page.find("div", kind="tip", within="curve-steps")]
    assert [tip[:4] for tip in tips] == ["5.50", "6.00", "6.50", "7.00"]
    names = {name["text"] for name in page.find("span", kind="name", within="curve-steps")}
    assert names == {"training", "evaluated", "random", "rules", "oracle"}
    shown = [h["text"] for h in page.find("h3", within="workflows")]
    assert shown == [f"success{percent(0.7)}", "cost$0.0123", "time8.5s"]
    assert len(page.find("div", kind="tip", within="workflows")) == 3 * 4
    assert "Training health" in page.text


def test_without_a_comparison_the_best_evaluation_is_shown(tmp_path: Path) -> None:
    page = Page(write_workflow_report(make_run(tmp_path, updates(20), phase=2, stopped=None)))
    tiles = [tile["text"] for tile in page.find("div", kind="tile")]
    assert tiles[0] == "return of the best policy7.00the best of 4 evaluations, so slightly too high"
    assert tiles[1] == f"success{percent(0.7)}workflows with every wanted subtask done"
    assert not page.find("table", within="comparison")
    page = Page(write_workflow_report(make_run(tmp_path, updates(3), phase=2, stopped=None)))
    assert "not evaluated yet" in page.text
    assert "What its workflows are like" not in page.text
    assert "No update is finished yet." in Page(write_workflow_report(make_run(tmp_path, [], phase=2))).text


def test_the_plans_of_both_phases_stand_on_the_page(tmp_path: Path, scores: dict[str, Score]) -> None:
    folder = make_run(tmp_path, updates(20), phase=2)
    before, after = plan(("fetch", ()), ("draw", [0])), WANTED
    write_plans(folder, side_by_side({"phase 1": [before], "phase 2": [after], "best plan": [WANTED]}))
    page = Page(write_workflow_report(folder, comparison=scores))
    assert [h["text"] for h in page.find("h3", within="plans")] == ["phase 1", "phase 2", "best plan"]
    assert "Exactly as wanted: phase 1, 0 of 1; phase 2, 1 of 1." in page.text
    assert page.asks_nothing_of_the_network()
    assert "://" not in page.source


def test_scores_without_numbers_are_shown(tmp_path: Path) -> None:
    bare = Score(episodes=2, mean=math.nan, std=0, low=math.nan, high=math.nan, metrics={}, returns=[math.nan] * 2)
    same = Score(episodes=3, mean=5.0, std=0, low=5.0, high=5.0, metrics={"nodes": 0.0}, returns=[5.0] * 3)
    folder = make_run(tmp_path, updates(5), phase=2)
    table = Page(write_workflow_report(folder, comparison={"policy": same, NASTY: bare})).table()
    assert table["policy"] == ["5.00 ± 0.00", "", "0"]
    assert table[NASTY.replace("\u202e", "")] == ["– ± –", "– – to –", "–"]


def test_the_page_goes_where_it_is_asked_to(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", epochs(2))
    assert write_workflow_report(folder) == folder.report
    other = tmp_path / "new" / "page.html"
    assert write_workflow_report(folder, out=other) == other
    texts = [e["text"] for e in Page(other).find("code", within="settings")]
    assert texts[:6] == ["problem", '"workflow"', "method", '"imitate"', "phase", "1"]
    assert texts[6:] == ["planner.encoder", '"fast"', "run.seed", "3", "run.eval_episodes", "64"]
