"""The pages of choices: an evaluation's, a run's, and that of a run that continues another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from etude.problems.choice.demo_data import described, make_rows
from etude.problems.choice.report import FINDINGS, POLICY, SINGLE, Findings, sections, tiles, verdict, write_curve
from tests.tiny import etude, json_output
from tests.unit.reports.pages import Page

NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with outcomes, a run that learned from them, and one that continues it."""
    root = tmp_path_factory.mktemp("choice")
    names, rows = [model["name"] for model in described()], make_rows(420, 0)
    (root / "options.json").write_text(json.dumps(described()))
    parts = {"past": rows[:260], "later": rows[260:300], "test": rows[300:]}
    for name, part in parts.items():
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row.row(*names)) + "\n" for row in part))
    train = ("train", "choice", "--encoder", "ngrams", "--quiet")
    assert etude(*train, "--replay", root / "past.jsonl", "--out", root / "run") == 0
    more = ("--replay", root / "later.jsonl", "--checkpoint", root / "run", "--out", root / "next")
    assert etude(*train, *more) == 0
    return root


@pytest.fixture
def found(place: Path) -> Findings:
    return msgspec.convert(json.loads((place / "run" / FINDINGS).read_bytes()), Findings)


def test_the_page_of_a_run_shows_what_folds_expect(place: Path, found: Findings) -> None:
    assert etude("runs", "plot", place / "run") == 0
    page = Page(place / "run" / "report.html")
    assert [h["text"] for h in page.find("h2")] == [
        "Cost and quality",
        "All ways to choose",
        "Who gets what, and why",
        "What speaks for an option?",
        "Do expectations hold?",
        "Options",
    ]
    assert page.asks_nothing_of_the_network()
    assert verdict(found) in page.text
    assert len(page.source) < 80_000
    summary = json.loads((place / "run" / "summary.json").read_bytes())
    assert found.rows == 260
    assert found.choices[POLICY].score == pytest.approx(summary["cross_validated_score"], abs=0.02)


def test_groups_and_calibration_add_up(found: Findings) -> None:
    assert sum(group.rows for group in found.groups) == found.rows
    for group in found.groups:
        assert sum(part.share for part in group.options.values()) == pytest.approx(1)
    weighted = sum(group.rows * group.score for group in found.groups) / found.rows
    assert weighted == pytest.approx(found.choices[POLICY].score)
    assert sum(one.outcomes for one in found.calibration) == 6 * found.rows
    expected = [one.expected for one in found.calibration]
    assert expected == sorted(expected)
    assert found.calibration[-1].recorded > found.calibration[0].recorded + 0.2
    assert all(one.ci95[0] <= one.recorded <= one.ci95[1] for one in found.calibration)


def test_the_words_and_past_decisions_that_speak_for_an_option_are_shown(place: Path, found: Findings) -> None:
    assert len(found.typical) > 1
    assert len({(one.why.chosen, one.group) for one in found.typical}) == len(found.typical)
    for one in found.typical:
        assert found.groups[0].options[one.why.chosen]
        assert one.why.similar
    page = Page(write_curve(place / "typical.html", found, run="run"))
    speaks = " ".join(cell["text"] for cell in page.find("tr", within="typical"))
    for one in found.typical:
        assert one.source in speaks
        for word, effect in one.why.words_for.effects.items():
            assert round(effect, 3) == 0 or word in speaks
        others = [past for past in one.why.similar if past.source != one.source]
        assert others[0].source in speaks
    assert not _find_rows(replace(found, typical=()), place)


def _find_rows(found: Findings, place: Path) -> list[dict[str, str]]:
    return Page(write_curve(place / "none.html", found, run="run")).find("tr", within="typical")


def test_an_evaluation_draws_the_same_sections(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("evaluate", place / "run", "--replay", place / "test.jsonl", "--plot", place / "page.html")
    measured = json_output(capsys, *args)
    page = Page(place / "page.html")
    assert [h["text"] for h in page.find("h2")][:1] == ["Cost and quality"]
    assert len(page.find("tr", within="groups")) <= 12
    assert page.find("tr", within="typical")
    assert f"{measured['score']:.3f}" in page.text
    assert f"{measured['baselines'][SINGLE]['score']:.3f}" in page.text


def test_a_run_that_continues_another_says_how_to_measure_it(place: Path) -> None:
    assert etude("runs", "plot", place / "next") == 0
    page = Page(place / "next" / "report.html")
    assert "--replay FILE --plot page.html" in page.text
    assert [h["text"] for h in page.find("h2")] == ["Options"]
    assert not (place / "next" / FINDINGS).exists()


def test_without_costs_there_is_no_curve(found: Findings) -> None:
    free = replace(found, has_costs=False)
    assert sections(free)[0].title == "All ways to choose"
    assert "cost" not in verdict(free)
    assert len(tiles(free)) == 2


def test_names_are_text(found: Findings, tmp_path: Path) -> None:
    odd = replace(found, best_single=NASTY, groups=[replace(group, name=NASTY) for group in found.groups])
    page = Page(write_curve(tmp_path / "page.html", odd, run=NASTY))
    assert not page.find("script")
    assert NASTY in page.text


@pytest.mark.parametrize(("low", "chance"), [(-0.01, True), (0.01, False)])
def test_the_verdict_names_chance(found: Findings, low: float, chance: bool) -> None:
    picked = replace(found.choices[POLICY], to_best_single_ci95=(low, 0.05))
    text = verdict(replace(found, choices={**found.choices, POLICY: picked}))
    assert ("may be chance" in text) == chance
