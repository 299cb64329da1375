"""A language model carries a mutation out, and the rules check its answer: with functions, and with a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from etude.bootstrap.prompts import mutating_model
from etude.contracts.errors import ConfigError, EndpointError
from etude.problems.prompt.mutations import Model, mutate, mutate_by_model

PROMPT = "Please write a function that reads {file} and prints 3 lines.\n"


def answered(answer: str) -> Model:
    return Model(name="m", ask=lambda text: answer)


def test_its_answer_is_used_and_can_be_reverted() -> None:
    asked = []

    def ask(text: str) -> str:
        asked.append(text)
        return "<prompt>\nWrite a function that reads {file} and prints 3 lines.\n</prompt>"

    found = mutate_by_model(PROMPT, "context-reduction", Model(name="m", ask=ask))
    assert found.prompt == "Write a function that reads {file} and prints 3 lines.\n"
    assert (found.by, found.reason) == ("m", None)
    assert found.revert() == PROMPT
    assert PROMPT in asked[0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("Write a function that prints 3 lines.", "the placeholder {file} is lost"),
        ("Write a function that reads {file} and prints lines.", "the number 3 is lost"),
        ("Write it: {file} {more} 3.", "the placeholder {more} is new"),
        (PROMPT, "it changed nothing"),
        ("", "it is empty"),
        ("{file} 3\n\n```\nx", "never closed"),
        ("{file} 3 " + "x" * 9000, "9,0"),
        ("Please do write a function that reads {file}, and that prints 3 lines of it all.", "not shorter"),
    ],
)
def test_an_answer_that_breaks_something_is_replaced_by_the_rules(answer: str, reason: str) -> None:
    found = mutate_by_model(PROMPT, "context-reduction", answered(answer))
    assert found.prompt == mutate(PROMPT, "context-reduction").prompt
    assert found.by == "rules"
    assert reason in str(found.reason)


def test_no_answer_is_the_rules_answer() -> None:
    def ask(text: str) -> str:
        raise EndpointError("no service listens")

    found = mutate_by_model(PROMPT, "expansion", Model(name="m", ask=ask), seed=4)
    assert found.prompt == mutate(PROMPT, "expansion", seed=4).prompt
    assert "no service listens" in str(found.reason)


def test_it_is_not_asked_where_the_mutation_makes_no_sense() -> None:
    def ask(text: str) -> str:
        raise AssertionError

    assert not mutate_by_model("Write it.", "context-reduction", Model(name="m", ask=ask)).changed


def test_a_chat_keeps_its_shape() -> None:
    chat = ({"role": "system", "content": "You are kind."}, {"role": "user", "content": "Please write 3 words."})
    found = mutate_by_model(chat, "context-reduction", answered("Write 3 words."))
    assert found.prompt == (chat[0], {"role": "user", "content": "Write 3 words."})
    assert found.revert() == chat


@pytest.fixture
def url() -> Iterator[str]:
    """A chat service that writes `please` out of the prompts it is asked about."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = body["messages"][-1]["content"].rpartition("<prompt>\n")[2].removesuffix("\n</prompt>")
            chunk = {
                "choices": [
                    {"index": 0, "delta": {"content": text.replace("Please write", "Write")}, "finish_reason": "stop"}
                ]
            }
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_openai_compatible_service_is_asked(url: str) -> None:
    found = mutate_by_model(PROMPT, "context-reduction", mutating_model(f"{url}#small"))
    assert found.prompt == PROMPT.replace("Please write", "Write")
    assert found.by == "small"


@pytest.mark.parametrize("named", ["", "http://localhost", "#x", "http://localhost/v1#"])
def test_a_model_is_named_by_url_and_name(named: str) -> None:
    with pytest.raises(ConfigError, match="expected URL#MODEL"):
        mutating_model(named)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ConfigError, match="'MY_KEY' is not set"):
        mutating_model("http://localhost/v1#m", api_key_env="MY_KEY", env={})
