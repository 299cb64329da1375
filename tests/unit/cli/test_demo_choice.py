"""`etude demo choice`: from queries to a report, and what a new model changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etude.cli.demo_choice import SIMULATED
from etude.learning.run_folder import find_policy
from tests.tiny import etude
from tests.unit.reports.pages import Page

Captured = pytest.CaptureFixture[str]
SMALL = ("--queries", "900", "--no-progress")


def test_it_learns_chooses_adds_a_model_and_writes_a_report(tmp_path: Path, capsys: Captured) -> None:
    """Neither a settings file nor a variable of whoever runs it changes it."""
    Path("etude.yaml").write_text("choice: {encoder: ngrams}\n")
    out = tmp_path / "demo"
    assert etude("demo", "choice", "--out", out, *SMALL) == 0
    stdout = capsys.readouterr().out
    for expected in ("1 of 4", "4 of 4", "best_single is atlas-pro", SIMULATED, f"report: {out}/report.html"):
        assert expected in stdout

    rows = [json.loads(line) for line in (out / "later" / "logged.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 180
    assert all(len(row["outcomes"]) == 1 and 0 < row["propensity"] <= 1 for row in rows)
    assert any("coda-2-32b" in row["outcomes"] for row in rows)
    assert find_policy(out / "policy-2").manifest.parent == find_policy(out / "policy").version
    assert find_policy(out / "policy").manifest.encoder == "fast"

    page = Page(out / "report.html")
    titles = [h["text"] for h in page.find("h2")]
    assert titles[-2:] == ["A new model appears", "Three queries"]
    assert page.asks_nothing_of_the_network()
    assert SIMULATED in page.text
    cells = {
        row["text"]: [e["text"] for e in page.find("td", within="new") if row in e["within"]]
        for row in page.find("tr", within="new")[1:]
    }
    chosen = {text.split("\xa0")[0].rstrip("0123456789"): found[1] for text, found in cells.items()}
    assert chosen["extraction"] == "100\xa0%"  # the new model is made for code and extraction
    assert chosen["law"] == "0\xa0%"

    assert etude("demo", "choice", "--out", out, "--queries", "200", "--no-progress") == 0  # in a folder of its own
    assert (tmp_path / "demo-2" / "report.html").exists()


def test_a_run_that_continues_has_no_score_to_show_in_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    rows = [{"context": {"size": i % 7}, "outcomes": {"a": i % 2, "b": i % 3}} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = ("train", "choice", "--replay", tmp_path / "rows.jsonl")
    assert etude(*train, "--out", tmp_path / "a") == 0
    assert etude(*train, "--checkpoint", tmp_path / "a", "--out", tmp_path / "b") == 0


def test_the_help_says_what_it_shows(capsys: Captured) -> None:
    assert etude("demo", "--help") == 0
    assert "choice" in capsys.readouterr().out
    assert etude("demo", "choice", "--help") == 0
    assert "--queries" in capsys.readouterr().out
