"""Groups whose commands are imported when they are called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.main import get_command

from etude.cli.lazy import Entry, group, to_command

Captured = pytest.CaptureFixture[str]
MODULE = """
from typing import Annotated
import typer

def greet(name: Annotated[str, typer.Argument(help="Who.")], loud: bool = False) -> None:
    '''Say hello.'''
    typer.echo(f"hello {name}".upper() if loud else f"hello {name}")

inner = typer.Typer()

@inner.command()
def one() -> None:
    '''The first.'''
    typer.echo("one")

@inner.command()
def two() -> None:
    '''The second.'''
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    (tmp_path / "greeting_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "greeting_of_a_test", raising=False)
    table = {
        "greet": Entry("greeting_of_a_test:greet", "Greets."),
        "numbers": Entry("greeting_of_a_test:inner", "Counts."),
        "broken": Entry("module_that_is_not_there:x", "Fails."),
    }
    return group(table, help="Of a test.")


def called(app: typer.Typer, *args: str) -> int:
    with pytest.raises(SystemExit) as left:
        app(args=list(args), prog_name="t")
    return int(left.value.code or 0)


def test_a_list_says_what_commands_do_and_imports_none(app: typer.Typer, capsys: Captured) -> None:
    assert called(app, "--help") == 0
    stdout = capsys.readouterr().out
    assert all(word in stdout for word in ("Of a test.", "greet", "Greets.", "numbers", "Counts.", "broken", "Fails."))
    assert "greeting_of_a_test" not in sys.modules


def test_a_function_becomes_a_command_with_its_own_help(app: typer.Typer, capsys: Captured) -> None:
    assert called(app, "greet", "you", "--loud") == 0
    assert capsys.readouterr().out == "HELLO YOU\n"
    assert called(app, "greet", "--help") == 0
    stdout = capsys.readouterr().out
    assert "Usage: t greet" in stdout
    assert "Say hello." in stdout


def test_a_group_stays_a_group(app: typer.Typer, capsys: Captured) -> None:
    assert called(app, "numbers", "one") == 0
    assert capsys.readouterr().out == "one\n"
    assert called(app, "numbers", "--help") == 0
    assert "Usage: t numbers" in capsys.readouterr().out


def test_without_a_command_there_is_help(app: typer.Typer, capsys: Captured) -> None:
    called(app)
    captured = capsys.readouterr()
    assert "greet" in captured.out + captured.err


@pytest.mark.parametrize(
    ("given", "words"), [("gret", "Did you mean 'greet'?"), ("qwertz", "No such command 'qwertz'")]
)
def test_an_unknown_command_gets_a_guess_where_there_is_one(
    given: str, words: str, app: typer.Typer, capsys: Captured
) -> None:
    assert called(app, given) == 2
    message = capsys.readouterr().err
    assert words in message
    assert ("Did you mean" in message) == ("Did you mean" in words)
    assert "greeting_of_a_test" not in sys.modules


def test_a_module_that_cannot_be_imported_fails_when_its_command_is_called(app: typer.Typer) -> None:
    with pytest.raises(ModuleNotFoundError, match="module_that_is_not_there"):
        app(args=["broken"], prog_name="t", standalone_mode=False)


def test_a_command_keeps_the_name_it_is_listed_by() -> None:
    def some_function(count: Annotated[int, typer.Option(help="How many.")] = 1) -> None:
        """Something."""

    made = to_command("listed", some_function)
    assert made.name == "listed"
    assert [option.name for option in made.params] == ["count"]
    assert get_command(group({}, help="Empty.")).list_commands(None) == []
