"""The report holds the run's numbers, whatever state the run is in, and asks nothing of the network."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.contracts.formats import percent, signed, whole
from etude.evidence.intervals import interval
from etude.learning.comparison import difference
from etude.learning.evaluate import Score
from etude.learning.health import ADVICE, Symptom
from etude.learning.run_folder import RunFolder
from etude.problems.allocation.behaviour import Tendency
from etude.problems.allocation.report import report
from etude.reports.run import run_report
from tests.unit.reports.pages import Page

CSS = files("etude.reports").joinpath("page.css").read_text("utf-8")
CONFIG = {
    "problem": "allocation",
    "method": "practise",
    "allocation": {"variant": "document", "agents": 4, "slots": 10, "horizon": 200},
    "run": {"seed": 3, "eval_episodes": 64},
    "ppo": {"lr": 0.002},
}
METRICS = ("completion_rate", "utilisation", "collaboration", "specialisation", "load_balance")


def write_allocation_report(
    folder: RunFolder,
    *,
    comparison: Mapping[str, Score] | None = None,
    tendencies: Mapping[str, Sequence[Tendency]] | None = None,
    out: Path | None = None,
) -> Path:
    return run_report(folder, comparison=comparison, contribute=report, notes={"tendencies": tendencies or {}}, out=out)


def make_run(path: Path, rows: Sequence[Mapping[str, Any]] | None = None, *, finished: bool = True) -> RunFolder:
    folder = RunFolder(path)
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    lines = "".join(json.dumps(row) + "\n" for row in (updates(40) if rows is None else rows))
    folder.metrics.write_text(lines)
    if finished:
        folder.finish({"stopped": "budget", "step": 40_000, "wall_s": 20.0, "best_return": 1500.0})
    return folder


def updates(count: int) -> list[Mapping[str, Any]]:
    """An evaluation every fifth update; in the first three no episode ends."""
    rows: list[Mapping[str, Any]] = []
    for i in range(1, count + 1):
        row: dict[str, float] = {
            "step": 1000 * i,
            "wall_s": 0.5 * i,
            "entropy": 9 - i / 20,
            "approx_kl": 0.01,
            "lr": 1e-3,
        }
        row |= {"episode_return": 400 + 10 * i} if i > 3 else {}
        row |= {"eval_return": 600 + 20 * i, "eval_return_std": 40.0} if i % 5 == 0 else {}
        rows.append(row)
    return rows


def make_score(mean: float, *, seed: int = 0, episodes: int = 50) -> Score:
    rng = np.random.default_rng(seed)
    returns = rng.normal(mean, 50, episodes)
    low, high = interval(returns)
    return Score(
        episodes=episodes,
        mean=float(returns.mean()),
        std=float(returns.std(ddof=1)),
        low=low,
        high=high,
        metrics=dict(zip(METRICS, rng.uniform(0, 1, len(METRICS)).tolist(), strict=True)),
        returns=returns.tolist(),
        details={"taken": rng.uniform(0, 12, (4, 4)).tolist()},
    )


@pytest.fixture
def scores() -> dict[str, Score]:
    means = {"policy": 1520.0, "random": 410.0, "scripted": 1500.0, "untrained": -30.0}
    return {name: make_score(mean, seed=i) for i, (name, mean) in enumerate(means.items())}


def test_the_table_holds_the_scores(tmp_path: Path, scores: dict[str, Score]) -> None:
    table = Page(write_allocation_report(make_run(tmp_path), comparison=scores)).table()
    assert list(table)[1:] == list(scores)
    for name, score in scores.items():
        shown = table[name]
        assert shown[0] == f"{whole(score.mean)} ± {whole((score.high - score.low) / 2)}"
        assert shown[2:] == [percent(score.metrics[key]) for key in METRICS]
        mean, low, high = difference(scores["policy"], score)
        assert shown[1] == ("" if name == "policy" else f"{signed(mean)} {signed(low)} to {signed(high)}")


@pytest.mark.parametrize("axis", ["steps", "seconds"])
def test_the_curve_has_a_point_for_every_evaluation(tmp_path: Path, axis: str) -> None:
    page = Page(write_allocation_report(make_run(tmp_path)))
    tips = [tip["text"] for tip in page.find("div", kind="tip", within=f"curve-{axis}")]
    assert len(tips) == 8
    assert tips[0] == "700 ± 10\n5,000 steps, 2.5s"  # 1.998 · 40 / √64
    (dots,) = page.find("path", kind="dots", within=f"curve-{axis}")
    places = [float(x) for x in re.findall(r"M([\d.]+) ", dots["attrs"]["d"])]
    assert places == pytest.approx([100 * i / 40 for i in range(5, 41, 5)])
    ticks = [tick["text"] for tick in page.find("span", kind="x-tick", within=f"curve-{axis}")]
    assert ticks[-1] == {"steps": "40k", "seconds": "20"}[axis]


def test_the_curve_shows_each_baseline_at_its_return(tmp_path: Path, scores: dict[str, Score]) -> None:
    page = Page(write_allocation_report(make_run(tmp_path), comparison=scores))
    levels = page.find("path", kind="level", within="curve-steps")
    heights = [float(re.findall(r"M0 ([\d.]+)H", level["attrs"]["d"])[0]) for level in levels]
    means = [scores[name].mean for name in ("random", "scripted", "untrained")]
    assert len(heights) == 3
    # The page's y axis points down.
    share = (heights[2] - heights[0]) / (heights[2] - heights[1])
    assert share == pytest.approx((means[0] - means[2]) / (means[1] - means[2]), abs=1e-3)
    names = {name["text"] for name in page.find("span", kind="name", within="curve-steps")}
    assert names == {"training", "evaluated", "random", "scripted", "untrained"}


def test_the_heat_map_holds_the_tasks_taken(tmp_path: Path, scores: dict[str, Score]) -> None:
    page = Page(write_allocation_report(make_run(tmp_path), comparison=scores))
    cells = [float(cell["text"]) for cell in page.find("td", kind="cell")]
    taken = [scores[name].details["taken"] for name in ("policy", "random")]
    assert cells == pytest.approx([value for rows in taken for row in rows for value in row], abs=0.05)


@pytest.mark.parametrize("compared", [True, False])
def test_nothing_is_asked_of_the_network(tmp_path: Path, scores: dict[str, Score], compared: bool) -> None:
    page = Page(write_allocation_report(make_run(tmp_path), comparison=scores if compared else None))
    assert "://" not in page.source
    assert not re.search(r"url\(|@import|//[a-z]", page.source)
    assert page.asks_nothing_of_the_network()
    assert len(page.source) < 500_000


def test_the_headline_says_what_and_why(tmp_path: Path, scores: dict[str, Score]) -> None:
    page = Page(write_allocation_report(make_run(tmp_path), comparison=scores))
    tiles = [tile["text"] for tile in page.find("div", kind="tile")]
    assert page.find("h1")[0]["text"] == "allocation · documentstopped: the budget is used up"
    assert (
        "simulated agents and tasks · 4 agents · 10 places in the queue · 200 steps per episode · seed 3" in page.text
    )
    assert whole(scores["policy"].mean) in tiles[0]
    assert "50 episodes" in tiles[0]
    assert signed(scores["policy"].mean - scores["scripted"].mean) in tiles[1]
    assert "20.0s40,000 steps" in tiles[3]
    assert "2k" in tiles[4]
    assert page.find("p", kind="lead")[0]["text"].startswith("The policy returns")


def test_a_comparison_of_one_needs_no_rival(tmp_path: Path) -> None:
    page = Page(write_allocation_report(make_run(tmp_path), comparison={"policy": make_score(10)}))
    assert list(page.table())[1:] == ["policy"]
    assert not page.find("p", kind="lead")


def test_a_run_in_progress_has_a_report(tmp_path: Path) -> None:
    folder = make_run(tmp_path, updates(7), finished=False)
    with folder.metrics.open("a") as file:
        file.write('{"step": 8000, "entr')  # the line being written
    page = Page(write_allocation_report(folder))
    assert "in progress" in page.find("h1")[0]["text"]
    assert "700the best of 1 evaluations" in page.find("div", kind="tile")[0]["text"]
    assert "7,000 steps" in page.text
    assert len(page.find("div", kind="tip", within="curve-steps")) == 1


@pytest.mark.parametrize("rows", [[], updates(1), updates(4)], ids=["no update", "one update", "no evaluation"])
def test_a_run_that_has_hardly_begun_has_a_report(tmp_path: Path, rows: list[Mapping[str, Any]]) -> None:
    page = Page(write_allocation_report(make_run(tmp_path, rows, finished=False)))
    assert "not evaluated yet" in page.text
    assert "Learning curve" in page.text


def test_a_folder_without_metrics_has_a_report(tmp_path: Path) -> None:
    folder = make_run(tmp_path, finished=False)
    folder.metrics.unlink()
    assert "No update is finished yet." in Page(write_allocation_report(folder)).text


@pytest.mark.parametrize("hole", [None, "NaN", "-Infinity", math.inf, "missing"])
@pytest.mark.parametrize("name", ["eval_return", "eval_return_std", "episode_return", "wall_s", "entropy"])
def test_missing_and_wrong_numbers_leave_gaps(tmp_path: Path, name: str, hole: float | str | None) -> None:
    rows = [dict(row) for row in updates(40)]
    for row in rows[8:20]:
        if hole == "missing":
            row.pop(name, None)
        elif name in row:
            row[name] = hole
    page = Page(write_allocation_report(make_run(tmp_path, rows)))
    assert page.find("path", kind="line", within="curve-steps")
    for element in page.elements:
        placed = f"{element['attrs'].get('d')} {element['attrs'].get('style')}"
        assert not re.search(r"\b(nan|inf)", placed)
    shown = " ".join(e["text"] for e in page.elements if e["tag"] in ("span", "div", "b"))
    assert not re.search(r"\b(nan|inf)\b", shown)


def test_a_metric_that_was_never_a_number_is_left_out(tmp_path: Path) -> None:
    rows = [{**row, "entropy": None} for row in updates(10)]
    headings = [h["text"] for h in Page(write_allocation_report(make_run(tmp_path, rows))).find("h3")]
    assert headings == ["KL divergence0.01", "learning rate0.001"]


def test_scores_without_metrics_or_numbers_are_shown(tmp_path: Path) -> None:
    bare = Score(episodes=2, mean=math.nan, std=0, low=math.nan, high=math.nan, metrics={}, returns=[math.nan] * 2)
    same = Score(episodes=3, mean=5.0, std=0, low=5.0, high=5.0, metrics={"utilisation": 0.5}, returns=[5.0] * 3)
    table = Page(write_allocation_report(make_run(tmp_path), comparison={"policy": same, "broken": bare})).table()
    assert table["policy"] == ["5 ± 0", "", percent(0.5)]
    assert table["broken"][0] == "– ± –"


def test_warnings_come_with_step_value_and_advice(tmp_path: Path) -> None:
    rows = [dict(row) for row in updates(10)]
    rows[3] |= {"warning_kl_blow_up": 0.4321}
    rows[8] |= {"warning_non_finite": "NaN", "warning_from_later": 1.0}
    page = Page(write_allocation_report(make_run(tmp_path, rows)))
    texts = [p["text"] for p in page.find("p", kind="warning")]
    advice = ADVICE[Symptom.KL_BLOW_UP].replace("`", "")
    assert texts[0] == f"kl blow up at step 4,000, value 0.432: {advice}."
    assert [text.partition(" at ")[0] for text in texts] == ["kl blow up", "non finite", "from later"]
    assert "3in 10 updates" in page.find("div", kind="tile")[-1]["text"]


def test_settings_are_folded_and_whole(tmp_path: Path) -> None:
    page = Page(write_allocation_report(make_run(tmp_path)))
    (details,) = page.find("details")
    assert "open" not in details["attrs"]
    texts = [e["text"] for e in page.find("code", within="settings")]
    pairs = dict(zip(texts[::2], texts[1::2], strict=True))
    assert pairs == {
        "problem": '"allocation"',
        "method": '"practise"',
        **{f"{part}.{k}": json.dumps(v) for part in ("allocation", "run", "ppo") for k, v in CONFIG[part].items()},  # type: ignore[attr-defined]
    }


def test_tendencies_are_drawn_for_each_decision_and_state(tmp_path: Path) -> None:
    found = [Tendency(decision="accepts", state=state, x=[0.0, 1.0], y=[0.2, 0.9]) for state in ("step", "load")]
    page = Page(write_allocation_report(make_run(tmp_path), tendencies={"policy": found, "random": found}))
    labels = [svg["attrs"]["aria-label"] for svg in page.find("svg")]
    assert {"accepts, by step", "accepts, by load"} <= set(labels)


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    name = '<img src=x onerror="alert(1)">'
    page = Page(write_allocation_report(make_run(tmp_path), comparison={"policy": make_score(3), name: make_score(2)}))
    assert not page.find("img")
    assert name in page.table()


def test_a_long_run_makes_no_large_page(tmp_path: Path) -> None:
    page = Page(write_allocation_report(make_run(tmp_path, updates(5_000))))
    assert len(page.source) < 1_000_000
    assert len(page.find("div", kind="tip", within="curve-steps")) == 1000


def test_the_page_goes_where_it_is_asked_to(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    assert write_allocation_report(folder) == folder.report
    other = tmp_path / "new" / "page.html"
    assert write_allocation_report(folder, out=other) == other
    assert other.read_text("utf-8").startswith("<!doctype html>")


def every_colour() -> Iterator[tuple[str, str]]:
    for scheme in re.findall(r":root \{(.*?)\}", CSS, re.S):
        colours = dict(re.findall(r"(--[\w-]+): (#\w{6})", scheme))
        yield from (
            (colours["--card"], colours[name]) for name in colours if re.match("--(c\\d|policy|random|soft)", name)
        )


def test_colours_can_be_read_on_their_background() -> None:
    """WCAG 2 AA: a contrast of 4.5 for text."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    pairs = list(every_colour())
    assert len(pairs) == 18
    for background, colour in pairs:
        low, high = sorted((luminance(background), luminance(colour)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"{colour} on {background}"
