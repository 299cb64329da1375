"""Where a demo goes: it resumes its own, and leaves everything else alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.bootstrap import to_config
from etude.cli.demo import choose_folder
from etude.learning.runs import RunFolder
from etude.learning.train import RunConfig
from etude.settings import Settings

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
