"""The page of what each score costs: its curve, its points and its table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from etude.contracts.formats import usd
from etude.problems.routing.replay import Curve
from etude.problems.routing.report import Choice, write_curve
from tests.unit.reports.pages import Page

CURVE = Curve(
    weight=torch.tensor([0.0, 1.0, 2.0, 3.0]),
    score=torch.tensor([0.8, 0.7, 0.7, 0.4], dtype=torch.float64),
    cost_usd=torch.tensor([0.004, 0.002, 0.002, 0.001], dtype=torch.float64),
)


def choice(score: float, cost_usd: float) -> Choice:
    ci = (score - 0.05, score + 0.05)
    gain = (score - 0.7 - 0.02, score - 0.7 + 0.02)
    return Choice(score=score, score_ci95=ci, to_best_single_ci95=gain, cost_usd=cost_usd, cost_share=cost_usd / 0.005)


CHOICES = {
    "policy": choice(0.8, 0.004),
    "policy at best_single's score": choice(0.7, 0.002),
    "best_single": choice(0.7, 0.005),
    "cheapest": choice(0.4, 0.001),
    "random": choice(0.5, 0.003),
    "oracle": choice(0.9, 0.002),
}


def page_of(path: Path, *, run: str = "p2", best: str = "large") -> Page:
    file = path / "sub" / "curve.html"
    return Page(write_curve(file, run=run, queries=1200, choices=CHOICES, curve=CURVE, aiq=0.61234, best_single=best))


def test_the_title_tells_the_area(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert page.find("title")[0]["text"] == page.find("h1")[0]["text"] == "AIQ 0.6123 · cost and quality of p2"
    tiles = [tile["text"] for tile in page.find("div", kind="tile")]
    assert tiles[0] == "score of policy0.8000at $0.004 per query"
    assert tiles[1].startswith("compared with best_single (0.7000)+0.1000+0.0800 to +0.1200")
    assert "1,200 queries · best_single is large" in page.text


def test_the_curve_and_each_way_to_choose_are_where_they_belong(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    (line,) = page.find("path", kind="line", within="curve")
    drawn = [tuple(map(float, place)) for place in re.findall(r"([\d.]+) ([\d.]+)", line["attrs"]["d"])]
    # x runs from 0 to 0.005, the best single worker's; y from 0.4 to 0.9 with a little room, and points down.
    assert [x for x, _ in drawn] == pytest.approx([20, 40, 40, 80])
    high, low = drawn[-1][1], drawn[0][1]
    names = [e["text"] for e in page.find("span", kind="point-name", within="curve")]
    assert names == list(CHOICES)
    points = [e["attrs"]["d"] for e in page.find("path", kind="point", within="curve")]
    places = [tuple(map(float, re.findall(r"[\d.]+", d)[:2])) for d in points]
    assert [x for x, _ in places] == pytest.approx([1000 * c.cost_usd * 20 for c in CHOICES.values()])
    expected = [low + (high - low) * (c.score - 0.4) / 0.4 for c in CHOICES.values()]
    assert [y for _, y in places] == pytest.approx(expected, abs=0.01)
    (level,) = page.find("path", kind="level", within="curve")
    assert float(level["attrs"]["d"].split()[1].partition("H")[0]) == pytest.approx(places[2][1])
    tips = [tip["text"] for tip in page.find("div", kind="tip", within="curve")]
    assert tips == ["0.4000 for $0.001 per query", "0.7000 for $0.002 per query", "0.8000 for $0.004 per query"]


def test_the_table_has_the_best_first(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    rows = [e["text"] for e in page.find("tr", within="choices")][1:]
    order = ["oracle", "policy", "policy at best_single's score", "best_single", "random", "cheapest"]
    assert [row.startswith(name) for row, name in zip(rows, order, strict=True)] == [True] * 6
    assert rows[1].endswith(f"0.80000.7500 to 0.8500+0.0800 to +0.1200{usd(0.004)}80\N{NO-BREAK SPACE}%")
    assert rows[3].endswith(f"0.6500 to 0.7500{usd(0.005)}100\N{NO-BREAK SPACE}%")  # no gain on itself


def test_names_are_escaped_and_nothing_is_loaded(tmp_path: Path) -> None:
    nasty = '<script>"&'
    page = page_of(tmp_path, run=nasty, best=nasty)
    assert nasty in page.find("h1")[0]["text"]
    assert f"best_single is {nasty}" in page.text
    assert page.asks_nothing_of_the_network()
    assert "://" not in page.source
    assert "quality of ?" in page_of(tmp_path, run="\udcff").text  # a folder's name that is no UTF-8
