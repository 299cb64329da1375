"""`etude runs`: list, show, plot."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import etude as package
from etude.cli.display import number
from etude.contracts.errors import ConfigError
from etude.learning.run_folder import RunFolder
from etude.problems.workflow.showcase import read_plans
from tests.language import trained_run
from tests.tiny import etude, refused

Captured = pytest.CaptureFixture[str]


def output(capsys: Captured, *args: str | Path) -> str:
    assert etude(*args) == 0
    return capsys.readouterr().out


def test_list_shows_every_run_and_its_state(finished: Path, tmp_path: Path, capsys: Captured) -> None:
    for name in ("ended", "left", "busy", "broken"):
        shutil.copytree(finished, tmp_path / name)
    for name in ("left", "busy"):
        (tmp_path / name / "summary.json").unlink()
    (tmp_path / "broken" / "config.json").write_text("{")
    with RunFolder(tmp_path / "busy").locked():
        assert etude("runs", "list", tmp_path) == 0
    captured = capsys.readouterr()
    states = {Path(line.split()[0]).name: line for line in captured.out.splitlines()[1:]}
    assert "finished: budget" in states["ended"]
    assert states["left"].rstrip().endswith("interrupted")
    assert states["busy"].rstrip().endswith("training")
    assert "unreadable" in states["broken"]
    assert f"{tmp_path}/broken/config.json: not valid JSON" in captured.err
    assert all(word in states["ended"] for word in ("allocation document 4×10", "960"))


def test_list_of_nothing_says_how_to_begin(tmp_path: Path, capsys: Captured) -> None:
    assert "`etude train` makes one" in output(capsys, "runs", "list")
    assert str(tmp_path / "x") in output(capsys, "runs", "list", tmp_path / "x")


def test_list_needs_no_torch(finished: Path) -> None:
    code = "import sys; from etude.cli import main\ntry: main()\nexcept SystemExit: print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "runs", "list", str(finished.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert "finished: budget" in done.stdout, done.stderr
    assert done.stdout.endswith("False\n")


def test_a_run_of_a_problem_that_is_not_installed_is_listed_and_shown(
    finished: Path, tmp_path: Path, capsys: Captured
) -> None:
    shutil.copytree(finished, tmp_path / "own")
    rename_problem(tmp_path / "own", "helpdesk")
    assert "finished: budget" in output(capsys, "runs", "list", tmp_path)
    shown = output(capsys, "runs", "show", tmp_path / "own")
    assert "is of the problem 'helpdesk', which is not installed" in shown
    assert re.search(r"allocation\.horizon +20 +–", shown)
    assert "evaluations" in shown
    assert "★" in shown
    missing = r"own is of the problem 'helpdesk', which is not installed: install the package that has the entry point"
    with pytest.raises(ConfigError, match=f"{missing} 'helpdesk' in the group etude.problems"):
        package.load(tmp_path / "own")
    for command in (("evaluate",), ("runs", "plot")):
        assert "the problem 'helpdesk', which is not installed" in refused(capsys, *command, tmp_path / "own")


def test_a_run_with_settings_of_its_own_is_listed_and_shown(finished: Path, tmp_path: Path, capsys: Captured) -> None:
    """As a learner of somebody's own leaves it, whose settings have no section `run`."""
    shutil.copytree(finished, tmp_path / "own")
    rename_problem(tmp_path / "own", "helpdesk")
    config = json.loads((tmp_path / "own/config.json").read_text())
    (tmp_path / "own/config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in ("run", "ppo")}))
    listed = output(capsys, "runs", "list", tmp_path)
    assert "unreadable" not in listed
    assert "finished: budget" in listed
    assert "allocation.horizon" in output(capsys, "runs", "show", tmp_path / "own")


def test_a_package_that_cannot_be_imported_does_not_hide_other_runs(
    finished: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ConfigError("the problem 'helpdesk' of helpdesk cannot be imported (ImportError: x): repair it")

    monkeypatch.setattr("etude.problems.table.specs", broken)
    assert "finished: budget" in output(capsys, "runs", "list", finished.parent)
    shown = output(capsys, "runs", "show", finished)
    assert "cannot be imported (ImportError: x)" in shown
    assert "evaluations" in shown


def rename_problem(run: Path, name: str) -> None:
    """Make a run one of another problem: in its config, and in the manifests of its policies."""
    for file in (run / "config.json", *run.rglob("manifest.json")):
        content = json.loads(file.read_text())
        file.write_text(json.dumps(content | ({"problem": name} if "problem" in content else {})))


def test_show_has_settings_progress_evaluations_and_warnings(finished: Path, capsys: Captured) -> None:
    stdout = output(capsys, "runs", "show", finished)
    lines = stdout.splitlines()
    assert "finished: budget" in lines[0]
    assert "allocation document 4×10: 960 steps of 960" in lines[1]
    settings = {line.split()[0]: line.split()[1:] for line in lines if "." in line.split(" ")[0]}
    assert settings["ppo.envs"] == ["16", "256"]
    assert settings["health.kl_max"][0] == "1e-12"
    assert "ppo.lr" not in settings
    evaluations = [row for row in RunFolder(finished).read_metrics() if "eval_return" in row]
    assert all(f"{number(row['eval_return'])} " in stdout for row in evaluations)
    assert all(f" {row['eval_completion_rate']:.1%} " in stdout for row in evaluations)
    assert "success" not in stdout
    assert stdout.count("★") == 1
    assert "warning: kl_blow_up at step 320" in stdout
    assert "what to do:" in stdout


def test_show_of_a_run_just_begun(finished: Path, tmp_path: Path, capsys: Captured) -> None:
    run = tmp_path / "new"
    RunFolder(run).open(json.loads((finished / "config.json").read_text()))
    stdout = output(capsys, "runs", "show", run)
    assert "interrupted" in stdout
    assert "0 steps of 960" in stdout


def test_plot_writes_the_report(finished: Path, tmp_path: Path, capsys: Captured) -> None:
    page = tmp_path / "sub" / "page.html"
    assert output(capsys, "runs", "plot", finished, "--out", page, "--episodes", "4").strip() == str(page)
    compared = page.read_text("utf-8")
    assert "scripted" in compared
    output(capsys, "runs", "plot", finished, "--out", page, "--episodes", "0")
    alone = page.read_text("utf-8")
    assert alone.lstrip().lower().startswith("<!doctype html")
    assert len(alone) < len(compared)


def test_plot_of_a_planner_shows_its_epochs_and_plans(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: Captured
) -> None:
    run = trained_run(tmp_path_factory)
    page = tmp_path / "page.html"
    assert output(capsys, "runs", "plot", run, "--out", page).strip() == str(page)
    stdout = page.read_text("utf-8")
    rows = RunFolder(run).read_metrics()
    best = max(row["validation_score"] for row in rows if "validation_score" in row)
    assert f"<b>{best:.3f}</b>" in stdout
    shown = read_plans(RunFolder(run))
    assert len(shown) == 6
    assert all(entry.instruction in stdout for entry in shown)
    assert stdout.count("<h3>after 1 epoch</h3>") == stdout.count("<h3>expert</h3>") == 6
    assert stdout.count("data-node") == sum(len(plan.nodes) for entry in shown for plan in entry.plans.values())
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("command", ["show", "plot"])
def test_what_is_no_run_is_refused(command: str, tmp_path: Path, capsys: Captured) -> None:
    assert etude("runs", command, tmp_path) == 2
    assert "is not a run" in capsys.readouterr().err


def test_plot_into_a_folder_is_refused(finished: Path, tmp_path: Path, capsys: Captured) -> None:
    assert etude("runs", "plot", finished, "--out", tmp_path) == 2
    assert "give the name of a file" in capsys.readouterr().err
