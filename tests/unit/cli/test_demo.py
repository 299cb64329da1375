"""Where a demo goes: it resumes its own, and leaves everything else alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from etude.bootstrap.allocation import to_config
from etude.cli import demo
from etude.cli.allocation_demo import choose_folder
from etude.learning.runs import RunFolder
from etude.learning.train import RunConfig
from etude.settings.tree import Settings
from tests.tiny import etude

SETTINGS = Settings(run=RunConfig(seed=0, max_steps=1000))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "demo"


def begin(path: Path, settings: Settings = SETTINGS) -> RunFolder:
    folder = RunFolder(path)
    folder.open(to_config(settings))
    return folder


def finish(path: Path) -> None:
    begin(path).report.write_text("")


def test_a_new_or_empty_folder_is_taken(out: Path) -> None:
    assert choose_folder(out, SETTINGS) == out
    out.mkdir(parents=True)
    assert choose_folder(out, SETTINGS) == out


def test_an_interrupted_demo_is_resumed(out: Path) -> None:
    begin(out)
    assert choose_folder(out, SETTINGS) == out


def test_a_finished_demo_stays(out: Path) -> None:
    finish(out)
    assert choose_folder(out, SETTINGS) == out.with_name("demo-2")
    finish(out.with_name("demo-2"))
    begin(out.with_name("demo-3"))
    assert choose_folder(out, SETTINGS) == out.with_name("demo-3")


def test_a_run_with_other_settings_stays(out: Path) -> None:
    begin(out, Settings(run=RunConfig(seed=1, max_steps=1000)))
    assert choose_folder(out, SETTINGS) == out.with_name("demo-2")


def test_a_demo_that_is_running_is_not_disturbed(out: Path) -> None:
    with begin(out).locked():
        assert choose_folder(out, SETTINGS) == out.with_name("demo-2")


@pytest.mark.parametrize("content", ["thesis.txt", "config.json"])
def test_what_is_no_run_stays(out: Path, content: str) -> None:
    out.mkdir(parents=True)
    (out / content).write_text("mine")
    assert choose_folder(out, SETTINGS) == out.with_name("demo-2")
    out.with_name("demo-2").write_text("a file")
    assert choose_folder(out, SETTINGS) == out.with_name("demo-3")


def test_a_workflow_demo_resumes_its_own_and_no_other(out: Path) -> None:
    asked = demo.Asked(executions=60)
    assert demo.choose_folder(out, asked) == out
    out.mkdir(parents=True)
    (out / demo.ASKED).write_text(json.dumps(asdict(asked)))
    assert demo.choose_folder(out, asked) == out
    assert demo.choose_folder(out, demo.Asked(executions=61)) == out.with_name("demo-2")
    assert choose_folder(out, SETTINGS) == out.with_name("demo-2")
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
    assert f"{given[0]} is for `etude demo {belongs}`" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_fresh_instructions_are_kept_from_learning() -> None:
    """Collecting takes the first, practice the next, and what is left aside is enough for the comparison."""
    asked = demo.Asked(executions=50, workflows=90, compare=30)
    office = demo.demo_settings(asked).office
    assert office.scenarios >= asked.executions
    assert office.held_out >= asked.compare
