"""`etude redact`."""

from __future__ import annotations

import json

import typer
from typer.testing import CliRunner, Result

from etude.cli.redact import redact
from etude.contracts.errors import ConfigError

app = typer.Typer()
app.command()(redact)


def run(text: str | bytes, *args: str) -> Result:
    return CliRunner().invoke(app, args, input=text)


def test_text_goes_to_stdout_and_reasons_to_stderr() -> None:
    result = run("mail a@b.com, A@b.com; card 4111 1111 1111 1111\n")
    assert result.exit_code == 0, result.output
    assert result.stdout == "mail [EMAIL_1], [EMAIL_1]; card [CARD_1]\n"
    rows = [line.rstrip().split(maxsplit=3) for line in result.stderr.splitlines()]
    assert rows == [
        ["kind", "placeholder", "count", "why"],
        ["email", "[EMAIL_1]", "2", "it is an e-mail address"],
        ["card", "[CARD_1]", "1", "Luhn's checksum holds, and Visa cards begin so"],
    ]


def test_nothing_to_redact() -> None:
    result = run("all is well")
    assert (result.stdout, result.stderr) == ("all is well", "nothing to redact\n")
    assert run("").stdout == ""


def test_json() -> None:
    result = run('{"password": "hunter2"}', "--json")
    assert json.loads(result.stdout) == {
        "text": '{"password": "[PASSWORD_1]"}',
        "removed": [
            {
                "kind": "password",
                "placeholder": "[PASSWORD_1]",
                "count": 1,
                "why": "its name says that it is a password",
            }
        ],
    }
    assert result.stderr == ""
    assert json.loads(run(b"\xff", "--json").stdout)["text"] == "�"


def test_bytes_that_are_no_text_stay() -> None:
    assert run(b"\xff\xfe a@b.com \x80\r\n").stdout_bytes == b"\xff\xfe [EMAIL_1] \x80\r\n"


def test_allowed_values_and_chosen_kinds_stay() -> None:
    assert (
        run("a@b.com 10.1.2.3 8.8.8.8", "--allow", "@b.com", "--allow", "10.0.0.0/8").stdout
        == "a@b.com 10.1.2.3 [IP_1]"
    )
    assert run("a@b.com 10.1.2.3", "--kind", "ip").stdout == "a@b.com [IP_1]"
    wrong = run("a@b.com", "--kind", "mail")
    assert isinstance(wrong.exception, ConfigError)
    assert "'mail' is not one of email, phone" in str(wrong.exception)
