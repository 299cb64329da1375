"""The command line as a whole: help, version, exit codes, and no tracebacks."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import etude as package
from etude import cli
from etude.cli import COMMANDS, Commands, app, main
from etude.cli.lazy import Entry, LazyGroup
from etude.contracts.errors import ConfigError, StoreError
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


def test_help_lists_every_command_with_what_it_does(capsys: Captured) -> None:
    assert etude("--help") == 0
    stdout = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert f" {name} " in stdout
        assert entry.help.split(";")[0].removesuffix(".")[:40] in stdout
    assert "demo" in COMMANDS


@pytest.mark.parametrize(
    "args",
    ["--help", "train --help", "runs --help", "init --help", "collect --help", "run --help", "plan --help", "nonsense"],
)
def test_help_imports_nothing_heavy(args: str) -> None:
    heavy = ["scipy", "pandas"]
    heavy += ["torch"] if args != "train --help" else []
    heavy += ["pydantic", "yaml"] if args == "--help" else []
    code = "import sys; from etude.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    code += f"print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, *args.split()], capture_output=True, text=True, timeout=240)
    assert done.stdout.endswith("[]\n"), done.stdout + done.stderr


@pytest.mark.parametrize(("given", "meant"), [(["trian"], "train"), (["train", "workflw"], "workflow")])
def test_a_misspelt_command_or_problem_gets_a_guess(given: list[str], meant: str, capsys: Captured) -> None:
    assert etude(*given) == 2
    assert f"Did you mean '{meant}'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    """Also those that a problem's spec brings."""
    found = dict(options(name, Commands.load(get_command(app), name)))
    assert found
    assert [path for path, option in found.items() if not getattr(option, "help", None)] == []


def options(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Of a command and, in a group, of those below it."""
    for option in command.params:
        yield f"{path} {option.name}", option
    for name in command.list_commands(None) if isinstance(command, TyperGroup) else ():
        load = command.load if isinstance(command, LazyGroup) else partial(command.get_command, None)
        yield from options(f"{path} {name}", load(name))


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

    monkeypatch.setattr(f"{__name__}.broken", broken, raising=False)
    monkeypatch.setitem(COMMANDS, "broken", Entry(f"{__name__}:broken", "Fails."))
    if debug:
        monkeypatch.setenv("ETUDE_DEBUG", "1")
        with pytest.raises(ZeroDivisionError):
            main(["broken"])
        return
    assert etude("broken") == 1
    message = capsys.readouterr().err
    assert "ZeroDivisionError: one" in message
    assert "ETUDE_DEBUG=1" in message
    assert "Traceback" not in message


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    assert etude("train", "allocation", "--out", "/proc/nowhere/a", "--quiet") == 2
    message = capsys.readouterr().err
    assert message.startswith("error: /proc/nowhere")
    assert message.count("\n") == 1


def test_a_missing_library_names_the_extra(tmp_path: Path) -> None:
    """As on a base install: torch cannot be imported."""
    code = "import sys; sys.modules['torch'] = None; from etude.cli import main; main(['config', 'show'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=240)
    assert done.returncode == 2
    assert done.stderr.strip() == "error: this needs 'torch', which is not installed: pip install 'etude[train]'"


def test_loading_without_torch_names_the_extra(finished: Path, tmp_path: Path) -> None:
    code = f"import sys; sys.modules['torch'] = None; import etude; etude.load({str(finished)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=240)
    assert "MissingExtraError: this needs 'torch'" in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreError("the bucket is away"), 75),
        (OSError(errno.ENOSPC, "No space left on device"), 75),
        (OSError(errno.ENOENT, "No such file"), 2),
        (ConfigError("wrong"), 2),
    ],
)
def test_what_may_pass_has_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as left:
        cli.main([])
    assert left.value.code == code
