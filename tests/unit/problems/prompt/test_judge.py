from __future__ import annotations

import pytest

from etude.contracts.errors import ConfigError, EndpointError
from etude.problems.prompt.judge import Judge
from tests.unit.problems.prompt.judge_server import judging

SHORT, LONG = "Write a poem.", "Write a poem about a lamp that nobody lights, in four lines, for a child of six years."


def test_both_orders_are_asked_and_the_preferred_place_does_not_count() -> None:
    with judging() as server:
        judge = Judge(f"{server.url}#j")
        assert judge.compare(SHORT, SHORT) == pytest.approx(0.5)
        longer = judge.compare(LONG, SHORT)
        assert 0.7 < longer < 1
        assert judge.compare(SHORT, LONG) == pytest.approx(1 - longer)
    assert judge.calls == len(server.asked) == 6
    assert all(body["model"] == "j" and body["temperature"] == 0 for body in server.asked)


def test_a_service_without_probabilities_is_read_by_its_text() -> None:
    with judging("text") as server:
        judge = Judge(f"{server.url}#j")
        assert judge.compare(LONG, SHORT) == 1.0
        assert judge.compare(SHORT, LONG) == 0.0
        assert sum("logprobs" in body for body in server.asked) == 1  # not tried again


def test_an_answer_that_is_no_letter_prefers_none() -> None:
    with judging("nonsense") as server:
        assert Judge(f"{server.url}#j").compare(LONG, SHORT) == 0.5
        assert Judge(f"{server.url}#j").score(LONG) == 0.5


def test_a_prompt_alone_gets_a_score_from_0_to_1() -> None:
    with judging() as server:
        assert Judge(f"{server.url}#j").score(LONG) == pytest.approx(6 / 8)


def test_chat_messages_are_judged_by_their_text() -> None:
    with judging() as server:
        Judge(f"{server.url}#j").compare([{"role": "user", "content": "Say hello."}], SHORT)
        assert "Say hello." in server.asked[0]["messages"][0]["content"]


@pytest.mark.parametrize("named", ["", "http://localhost:1/v1", "http://localhost:1/v1#", "#model"])
def test_a_judge_has_a_url_and_a_model(named: str) -> None:
    with pytest.raises(ConfigError, match="expected URL#MODEL"):
        Judge(named)


def test_a_judge_that_is_away_is_an_error_that_names_it() -> None:
    with judging() as server:
        named = f"{server.url}#j"
    judge = Judge(named)
    judge._service._sleep = lambda seconds: None
    with pytest.raises(EndpointError, match="chat/completions failed"):
        judge.compare(SHORT, LONG)
