"""The page of a release, made of real ledgers: what it shows is what was decided, at its evidence."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from etude.bootstrap.release_pages import release_facts
from etude.contracts.errors import ReleaseError
from etude.contracts.release import Action, Mode
from etude.evidence.eprocess import EvidenceConfig
from etude.release.gates.gate import REPORT
from etude.reports.charts import Line, line_chart
from etude.reports.release import ReleaseFacts, power_of_ten, release_page, release_sections
from tests.unit.release.traffic import SLOT, Traffic
from tests.unit.reports.pages import Page


def finished(folder: Path, success: tuple[float, float]) -> Traffic:
    traffic = Traffic(folder, success=success)
    traffic.start()
    traffic.until_decided(error=dict.fromkeys(traffic.versions, 0.1))
    return traffic


@pytest.fixture(scope="module")
def promoted(tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    return finished(tmp_path_factory.mktemp("promoted"), (0.3, 0.9))


@pytest.fixture(scope="module")
def harmful(tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    return finished(tmp_path_factory.mktemp("harmful"), (0.9, 0.3))


def test_a_promotion_with_its_evidence(promoted: Traffic, tmp_path: Path) -> None:
    facts = release_facts(promoted.registry, SLOT)
    step = next(e for e in promoted.registry.history(SLOT) if e.version == promoted.new and e.action == Action.PROMOTED)
    assert facts.decision == step
    assert facts.state == "promoted"
    look = facts.at_decision()
    assert look is not None
    assert look.units == step.evidence["units"]
    assert look.e_values == pytest.approx(step.evidence["log_e_values"])

    page = Page(release_page(facts).write(tmp_path / "release.html"))
    assert [h["text"] for h in page.find("h2")] == [
        "What was exposed when",
        "Evidence of harm",
        "Evidence of safety",
        "Share and difference",
    ]
    assert page.asks_nothing_of_the_network()
    for expected in (step.reason, promoted.new, promoted.old, f"{SLOT}#{step.number}", "25\xa0%", "50\xa0%"):
        assert expected in page.text


def test_a_rollback_with_its_gates(harmful: Traffic, tmp_path: Path) -> None:
    report = {"verdict": "fail", "results": [{"name": "off_policy", "verdict": "fail", "reason": "It is worse."}]}
    harmful.registry.attach(harmful.new, REPORT, json.dumps(report).encode())
    facts = release_facts(harmful.registry, SLOT)
    assert facts.state == "rolled back"
    look = facts.at_decision()
    assert look is not None
    assert look.e_values["rollback"] >= math.log(1 / EvidenceConfig().alpha_rollback)
    page = Page(release_page(facts).write(tmp_path / "release.html"))
    assert "It is worse." in page.text
    assert "was rolled back by controller" in page.text
    assert release_facts(harmful.registry, SLOT, gates={}).gates == {}


def test_two_releases_on_one_page_have_ids_of_their_own(promoted: Traffic, harmful: Traffic) -> None:
    ids = [
        section.name  # type: ignore[attr-defined]
        for traffic, name in ((promoted, "promoted"), (harmful, "rolled back"))
        for section in release_sections(release_facts(traffic.registry, SLOT), name=name)
    ]
    assert len(ids) == len(set(ids))
    assert "rolled-back-harm" in ids


def test_before_the_first_unit_there_are_no_curves(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    with pytest.raises(ReleaseError, match="no release"):
        release_facts(traffic.registry, SLOT)
    traffic.start(Mode.CANARY)
    facts = release_facts(traffic.registry, SLOT)
    assert facts.at_decision() is None
    assert facts.state == "canary, running"
    page = Page(release_page(facts).write(tmp_path / "release.html"))
    assert [h["text"] for h in page.find("h2")] == ["What was exposed when"]
    assert "Undecided so far" in page.text


def test_a_release_is_found_by_its_id(promoted: Traffic) -> None:
    facts = release_facts(promoted.registry, SLOT)
    assert isinstance(release_facts(promoted.registry, SLOT, id=facts.spec.id), ReleaseFacts)
    with pytest.raises(ReleaseError, match="'r-none'"):
        release_facts(promoted.registry, SLOT, id="r-none")


@pytest.mark.parametrize(("power", "text"), [(0, "1"), (2, "100"), (3, "1,000"), (6, "10⁶"), (-2, "10⁻²")])
def test_powers_of_ten(power: float, text: str) -> None:
    assert power_of_ten(power) == text


def test_names_of_lines_at_the_top_stay_in_the_box() -> None:
    lines = [Line(name=name, x=[0, 1], y=[0, 8], colour="--c1") for name in "abc"]
    chart = line_chart(lines, label="", y_range=(0, 8), x_format=str, y_format=str, events=[(0.5, "now")])
    bottoms = [
        float(mark.style.partition("bottom:")[2].partition("%")[0]) for mark in chart.marks if mark.kind == "name"
    ]
    assert max(bottoms) == 100
    assert len(set(bottoms)) == 3
    assert [(mark.text, mark.style) for mark in chart.marks if mark.kind == "event-name"] == [("now", "left:50.00%")]
    assert any(shape.kind == "event" for shape in chart.shapes)
