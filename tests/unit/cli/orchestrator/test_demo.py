"""Where a workflow demo goes: it resumes its own, and leaves everything else alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from etude.cli.orchestrator import demo
from etude.learning.run_folder import RunFolder
from tests.tiny import etude


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "demo"


def test_a_workflow_demo_resumes_its_own_and_no_other(out: Path) -> None:
    asked = demo.Asked(executions=60)
    assert demo.choose_folder(out, asked) == out
    out.mkdir(parents=True)
    (out / demo.ASKED).write_text(json.dumps(asdict(asked)))
    assert demo.choose_folder(out, asked) == out
    assert demo.choose_folder(out, demo.Asked(executions=61)) == out.with_name("demo-2")
    with RunFolder(out).locked():
        assert demo.choose_folder(out, asked) == out.with_name("demo-2")
    RunFolder(out).report.write_text("")
    assert demo.choose_folder(out, asked) == out.with_name("demo-2")


@pytest.mark.parametrize("content", ["", "mine", "[1]"])
def test_what_is_no_workflow_demo_stays(out: Path, content: str) -> None:
    out.mkdir(parents=True)
    (out / demo.ASKED).write_text(content)
    assert demo.choose_folder(out, demo.Asked()) == out.with_name("demo-2")


@pytest.mark.parametrize(
    ("given", "belongs"),
    [(("--max-steps", "5"), "allocation"), (("--episodes", "5"), "allocation"), (("--workflows", "5"), "workflow")],
)
def test_options_of_the_other_demo_are_refused(
    given: tuple[str, str], belongs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["demo"] if belongs == "allocation" else ["demo", "allocation"]
    assert etude(*asked, *given) == 2
    assert f"No such option: {given[0]}" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_fresh_instructions_are_kept_from_learning() -> None:
    """Collecting takes the first, practice the next, and what is held out is enough for the comparison."""
    asked = demo.Asked(executions=50, workflows=90, compare=30)
    office = demo.demo_settings(asked).office
    assert office.scenarios >= asked.executions
    assert office.held_out >= asked.compare
