"""The command line as a whole: help, version, exit codes, and no tracebacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import etude as package
from etude.cli import app, main
from tests.tiny import etude

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    "command", ["", "train", "train allocation", "evaluate", "runs", "runs list", "config explain"]
)
def test_every_command_explains_itself(command: str, capsys: Captured) -> None:
    assert etude(*command.split(), "--help") == 0
    assert "Usage: etude" in capsys.readouterr().out


def test_version(capsys: Captured) -> None:
    assert etude("--version") == 0
    assert capsys.readouterr().out.strip() == package.__version__


def test_the_version_is_the_packages() -> None:
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8")
    assert f'version = "{package.__version__}"' in project


def test_demo_is_among_the_commands() -> None:
    assert "demo" in {command.name for command in app.registered_commands}


@pytest.mark.parametrize("args", [["nonsense"], ["train", "allocation", "--agents", "many"], ["evaluate"]])
def test_wrong_usage_is_typers_to_tell(args: list[str], capsys: Captured) -> None:
    assert etude(*args) == 2
    assert "Usage: etude" in capsys.readouterr().err


@pytest.mark.parametrize("debug", [False, True])
def test_an_unexpected_error_has_a_traceback_only_for_those_who_ask(
    debug: bool, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("one\ntwo")

    monkeypatch.setattr(app, "registered_commands", [*app.registered_commands])
    app.command("broken")(broken)
    if debug:
        monkeypatch.setenv("ETUDE_DEBUG", "1")
        with pytest.raises(ZeroDivisionError):
            main(["broken"])
        return
    assert etude("broken") == 1
    told = capsys.readouterr().err
    assert "ZeroDivisionError: one" in told
    assert "ETUDE_DEBUG=1" in told
    assert "Traceback" not in told


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    assert etude("train", "allocation", "--out", "/proc/nowhere/a", "--quiet") == 2
    told = capsys.readouterr().err
    assert told.startswith("error: /proc/nowhere")
    assert told.count("\n") == 1


def test_a_missing_library_names_the_extra(tmp_path: Path) -> None:
    """As on a base install: torch cannot be imported."""
    code = "import sys; sys.modules['torch'] = None; from etude.cli import main; main(['config', 'show'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 2
    assert done.stderr.strip() == "error: this needs 'torch', which is not installed: pip install 'etude[train]'"


def test_loading_without_torch_names_the_extra(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; import etude; etude.load('runs/a')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert "MissingExtraError: this needs 'torch'" in done.stderr
