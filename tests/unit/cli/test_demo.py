"""`etude demo PROBLEM` of a problem with a world: what it leaves, and which folder it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.bootstrap.runs import make_request
from etude.cli.demo import first_free
from etude.contracts.errors import RunError
from etude.learning.run_folder import RunFolder
from tests.tiny import etude

Captured = pytest.CaptureFixture[str]
SMALL = ("--max-steps", "1000", "--episodes", "2", "--no-progress")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "demo"


def begun(path: Path, max_steps: int = 1000) -> RunFolder:
    """As far as a demo was killed at once: its settings and no more."""
    given = {"inputs": {"seed": 0}, "assignments": [f"run.max_steps={max_steps}"], "isolated": True}
    settings = make_request("allocation", out=path, **given).settings  # type: ignore[arg-type]
    folder = RunFolder(path)
    sections = settings.sections("allocation", "network", "ppo", "run", "health", "curriculum")
    folder.open({"problem": "allocation", "method": "practise", **sections})
    return folder


def is_own(path: Path) -> bool:
    config = RunFolder(path).config()
    return bool(config["run"]["max_steps"] == 1000)


def test_a_new_or_empty_folder_is_taken(out: Path) -> None:
    assert first_free(out, is_own) == out
    out.mkdir()
    assert first_free(out, is_own) == out


def test_an_interrupted_demo_is_resumed_and_a_finished_one_stays(out: Path) -> None:
    folder = begun(out)
    assert first_free(out, is_own) == out
    folder.report.write_text("<html>")
    assert first_free(out, is_own) == out.with_name("demo-2")
    begun(out.with_name("demo-2"))
    assert first_free(out, is_own) == out.with_name("demo-2")


def test_a_run_with_other_settings_stays(out: Path) -> None:
    begun(out, max_steps=2000)
    assert first_free(out, is_own) == out.with_name("demo-2")


def test_a_demo_that_is_running_is_not_disturbed(out: Path) -> None:
    with begun(out).locked():
        assert first_free(out, is_own) == out.with_name("demo-2")


@pytest.mark.parametrize("content", ["notes.txt", "config.json"])
def test_what_is_no_run_stays(content: str, out: Path) -> None:
    out.mkdir()
    (out / content).write_text("{")
    with pytest.raises(RunError):
        is_own(out)
    assert first_free(out, is_own) == out.with_name("demo-2")
    file = out.with_name("file")
    file.write_text("mine")
    assert first_free(file, is_own) == out.with_name("file-2")


def test_it_trains_compares_and_writes_a_report(out: Path, capsys: Captured) -> None:
    """Neither a settings file nor a variable of whoever runs it changes it."""
    Path("etude.yaml").write_text("allocation: {agents: 7}\n")
    assert etude("demo", "allocation", "--out", out, *SMALL) == 0
    stdout = capsys.readouterr().out
    lines = stdout.splitlines()
    assert lines[0].startswith(f"{out}: training for up to 1,000 steps on ")
    assert "the budget is used up" in stdout
    assert "scripted" in stdout
    assert f"report: {out}/report.html" in stdout
    assert f"policy: etude.load({str(out)!r})" in stdout
    assert (out / "report.html").read_text("utf-8").lstrip().lower().startswith("<!doctype html")
    assert RunFolder(out).config()["allocation"]["agents"] == 4
    assert etude("demo", "allocation", "--out", out, *SMALL) == 0  # again: in a folder of its own
    assert out.with_name("demo-2").exists()


def test_options_of_the_other_demo_are_refused(capsys: Captured) -> None:
    assert etude("demo", "allocation", "--workflows", "5") == 2
    assert "No such option: --workflows" in capsys.readouterr().err


def test_help_lists_a_demo_per_problem(capsys: Captured) -> None:
    assert etude("demo", "--help") == 0
    stdout = capsys.readouterr().out
    assert "allocation" in stdout
    assert "workflow" in stdout
