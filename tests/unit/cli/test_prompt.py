"""`etude prompt mutate`."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from tests.tiny import etude

PROMPT = "Please write a function that reverses {text}."


def out(capsys: Any, *args: str) -> str:
    assert etude("prompt", "mutate", *args) == 0
    return str(capsys.readouterr().out)


def test_it_prints_the_new_prompt(capsys: Any) -> None:
    assert out(capsys, PROMPT, "--mutation", "context-reduction") == "Write a function that reverses {text}.\n"


def test_it_prints_a_diff(capsys: Any) -> None:
    printed = out(capsys, PROMPT, "--mutation", "context-reduction", "--diff")
    assert f"-{PROMPT}" in printed
    assert "+Write a function" in printed


def test_json_has_edits_that_revert(capsys: Any) -> None:
    found = json.loads(out(capsys, PROMPT, "--mutation", "expansion", "--seed", "3", "--json"))
    assert found["changed"]
    assert found["by"] == "rules"
    (edit,) = found["edits"]
    assert found["prompt"] == PROMPT[: edit["start"]] + edit["added"] + PROMPT[edit["start"] :]


def test_a_chat_is_json(capsys: Any) -> None:
    chat = json.dumps([{"role": "user", "content": "Please write 3 words."}])
    found = json.loads(out(capsys, chat, "--chat", "--mutation", "context-reduction"))
    assert found == [{"role": "user", "content": "Write 3 words."}]


def test_stdin(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Please sort it.\n")))
    assert out(capsys, "-", "--mutation", "context-reduction") == "Sort it.\n"


def test_without_a_mutation_it_shows_which_make_sense(capsys: Any) -> None:
    printed = out(capsys, "Write a function that reverses a string.")
    assert "kind: code" in printed
    assert "no: there is nothing to reduce" in printed
    found = json.loads(out(capsys, "Write a function that reverses a string.", "--json"))
    assert found["masks"]["expansion"] is None
    assert found["kind"] == "code"


def test_the_kind_of_a_chat_is_that_of_its_own_words(capsys: Any) -> None:
    code = "```python\ndef function(): ...  # code, class, script\n```"
    parts = [{"type": "text", "text": f"Write a poem about this.\n\n{code}"}, {"type": "image_url", "image_url": {}}]
    chat = [{"role": "user", "content": parts}, {"role": "assistant", "content": "Write a function in Python."}]
    assert json.loads(out(capsys, json.dumps(chat), "--chat", "--json"))["kind"] == "writing"


def test_where_it_makes_no_sense_the_reason_goes_to_stderr(capsys: Any) -> None:
    assert etude("prompt", "mutate", "Write it.", "--mutation", "context-reduction") == 0
    printed = capsys.readouterr()
    assert printed.out == "Write it.\n"
    assert "nothing to reduce" in printed.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("x y z", "--mutation", "expand"), "did you mean 'expansion'"),
        (("x", "--mutation", "expansion", "--policy", "runs/a"), "give the one that decides"),
        (("x", "--mutation", "expansion", "--diff", "--json"), "give the one that is to be printed"),
        (("x", "--diff"), "--diff is given without a mutation"),
        (("x", "--model", "http://localhost:1/v1#m"), "--model is given without a mutation"),
        (("", "--mutation", "expansion"), "the prompt is empty"),
        (("[1]", "--chat"), "expected a JSON list of messages"),
        (("{", "--chat"), "expected a JSON list of messages"),
        (("Write it.", "--mutation", "expansion", "--model", "gpt"), "expected URL#MODEL"),
        (("Write it.", "--policy", "nowhere"), "nowhere"),
    ],
)
def test_mistakes(args: tuple[str, ...], message: str, capsys: Any) -> None:
    assert etude("prompt", "mutate", *args) == 2
    assert message in capsys.readouterr().err
