"""The OpenAI-compatible routes over HTTP, on a real server before real servers that answer, fail, hang and die."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

from etude.serving.decisions import _Outcome
from etude.serving.keys import Role
from tests.chat_server import Act, ChatServer, events, in_thread, message, response
from tests.unit.serving.server import Served, serving

HELLO = [{"role": "user", "content": "hello, I am ana@example.com"}]
ASKED: dict[str, Any] = {"model": "etude/auto", "messages": HELLO}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]

QUICK = {"stall_s": 1.0, "first_byte_s": 1.0, "answer_s": 1.0}


class Room:
    """A server with two upstreams, `small` and `large`, and another that embeds."""

    def __init__(self, stack: ExitStack, folder: Path, **routing: Any) -> None:
        self.small, self.large, self.vectors = (stack.enter_context(in_thread(ChatServer())) for _ in range(3))
        servers = {"a": self.small, "b": self.large, "c": self.vectors}
        upstreams = {name: {"url": one.url, "allow_private": True} | QUICK for name, one in servers.items()}
        models = {
            "small": {
                "upstream": "a",
                "model": "small-1",
                "usd_per_mtok_in": 1.0,
                "usd_per_mtok_out": 2.0,
                "tools": False,
                "context_tokens": 1000,
                "regions": ["eu"],
                "json": False,
            },
            "large": {"upstream": "b", "usd_per_mtok_in": 10.0, "usd_per_mtok_out": 20.0, "vision": True},
            "vectors": {"upstream": "c", "kind": "embedding", "usd_per_mtok_in": 0.5},
        }
        self.served: Served = stack.enter_context(
            serving(folder, routing={"upstreams": upstreams, "models": models, "default_model": "small"} | routing)
        )
        self.client = self.served.client(Role.DECIDE)
        self.proxy = self.served.server.proxy

    def rest(self) -> None:
        """As if nothing had failed."""
        for one in (self.small, self.large, self.vectors):
            one.script.clear()
            one.asked.clear()
        self.proxy.upstreams.free_at.clear()

    def post(self, body: dict[str, Any], path: str = "chat/completions", **headers: str) -> httpx.Response:
        return self.client.post(f"/v1/{path}", json=body, headers=headers)

    def recorded(self, answer: httpx.Response, *, outcome: dict[str, Any] | None = None) -> dict[str, Any]:
        """The trajectory of a call, after its outcome was reported."""
        id = answer.headers["x-etude-decision"]
        if outcome is not None:
            assert self.client.post("/v1/feedback", json={"id": id} | outcome).status_code == 202
        return self.stored(id.rpartition(".")[0])

    def stored(self, id: str) -> dict[str, Any]:
        self.served.server.ingest()
        found: dict[str, Any] = self.client.get(f"/v1/trajectories/{id}").json()["trajectory"]
        return found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    with ExitStack() as stack:
        yield Room(stack, tmp_path_factory.mktemp("routed"))


@pytest.fixture
def room(shared: Room) -> Room:
    shared.rest()
    return shared


def chunks(answer: httpx.Response) -> list[Any]:
    """What a stream says."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def error(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    found: dict[str, Any] = body["error"]
    return found


def test_a_call_is_answered_by_the_chosen_model_and_becomes_a_trajectory(room: Room) -> None:
    answer = room.post(ASKED | {"temperature": 0.5, "unknown": {"deep": [1]}, "metadata": {"user": "u1", "own": "x"}})
    assert answer.json()["choices"][0]["message"]["content"] == "all is well"
    assert answer.json()["model"] == "small-1"
    (asked,) = room.small.asked
    assert asked == {
        "model": "small-1",
        "messages": HELLO,
        "temperature": 0.5,
        "unknown": {"deep": [1]},
        "metadata": {"own": "x"},
    }
    headers = {name: answer.headers.get(f"x-etude-{name}") for name in ("model", "policy", "propensity", "fallback")}
    assert headers == {"model": "small", "policy": "default", "propensity": "1", "fallback": None}
    found = room.recorded(answer, outcome={"success": True})
    (decision,), (turn,) = found["decisions"], found["turns"]
    assert [one["name"] for one in decision["eligible"]] == ["small", "large"]
    assert (decision["action"], decision["propensity"], decision["policy"]) == ("small", 1.0, "default")
    assert (found["problem"], found["model"], found["user"], found["task"]) == (
        *("choice:model", "small", "u1", "hello, I am [EMAIL_1]"),
    )
    assert turn["observation"] == [{"role": "user", "content": "hello, I am [EMAIL_1]"}]
    assert turn["result"] == {"content": "all is well"}
    assert (turn["action"]["input_tokens"], turn["action"]["output_tokens"]) == (12, 7)
    assert turn["cost_usd"] == found["outcome"]["cost_usd"] == pytest.approx((12 * 1 + 7 * 2) / 1e6)
    assert found["outcome"]["success"] is True
    assert 0 < found["outcome"]["latency_ms"] < 5000


def test_a_stream_comes_as_it_is_and_usage_only_if_it_was_asked_for(room: Room) -> None:
    plain = chunks(room.post(ASKED | {"stream": True}))
    assert room.small.asked[-1]["stream_options"] == {"include_usage": True}
    assert "".join(one["choices"][0]["delta"].get("content") or "" for one in plain[:-1]) == "all is well"
    assert plain[-1] == "[DONE]"
    assert all("usage" not in one for one in plain[:-1])
    answer = room.post(ASKED | {"stream": True, "stream_options": {"include_usage": True}})
    *_, usage, done = chunks(answer)
    assert (usage["choices"], usage["usage"]["total_tokens"], done) == ([], 19, "[DONE]")
    turn = room.recorded(answer, outcome={"success": True})["turns"][0]
    assert turn["cost_usd"] == pytest.approx(26e-6)
    assert 0 <= turn["action"]["first_ms"] <= turn["latency_ms"]


def test_an_outcome_that_was_not_judged_is_not_claimed(room: Room) -> None:
    answer = room.post(ASKED)
    room.client.post("/v1/feedback", json={"id": answer.headers["x-etude-decision"], "success": None})
    assert room.recorded(answer)["outcome"].get("success") is None


def test_a_model_that_is_named_is_asked_without_a_decision(room: Room) -> None:
    answer = room.post(ASKED | {"model": "large"})
    assert answer.headers["x-etude-model"] == "large"
    assert "x-etude-propensity" not in answer.headers
    found = room.recorded(answer, outcome={"success": True})
    assert (found["problem"], found.get("decisions")) == ("task", None)
    assert found["turns"][0]["cost_usd"] == pytest.approx(260e-6)
    room.large.script.extend([Act.ERROR])
    assert "answered status 500" in error(room.post(ASKED | {"model": "large"}), 502)["message"]
    assert room.small.asked == type(room.small.asked)()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("act", "said"),
    [
        (Act.BUSY, "status 429"),
        (Act.ERROR, "status 500"),
        (Act.DROP, "broke off"),
        (Act.GARBAGE, "cannot be used"),
        (Act.UNAUTHORISED, "key are wrong"),
        (Act.HANG, "in time"),
        (events({"error": {"message": "out of memory"}}), "out of memory"),
    ],
)
def test_a_failure_falls_over_to_the_next_model(room: Room, act: Act | bytes, said: str, stream: bool) -> None:
    if isinstance(act, bytes) and not stream:
        act = response(200, b'{"error": {"message": "out of memory"}}')
    room.small.script.append(act)
    answer = room.post(ASKED | {"stream": stream})
    assert (answer.status_code, answer.headers["x-etude-model"]) == (200, "large")
    assert "well" in answer.text
    found = room.recorded(answer, outcome={"success": True})
    first, second = found["turns"]
    assert said in first["error"]
    assert (first["action"]["model"], second["action"]["model"]) == ("small", "large")
    assert [one["action"] for one in found["decisions"]] == ["small", "large"]
    assert [one["name"] for one in found["decisions"][1]["eligible"]] == ["large"]
    assert found["outcome"]["cost_usd"] == pytest.approx(260e-6)


def test_a_call_that_no_model_answers_has_failed(room: Room) -> None:
    room.small.script.append(Act.ERROR)
    room.large.script.append(Act.BUSY)
    answer = room.post(ASKED)
    assert error(answer, 429)["message"] == "the upstream 'b' answered status 429"
    assert room.proxy.counts["failed"] > 0


def test_a_model_that_failed_is_left_alone_for_a_while(room: Room) -> None:
    room.small.script.append(response(429, b"{}", "Retry-After: 60"))
    assert room.post(ASKED).headers["x-etude-model"] == "large"
    assert len(room.small.asked) == 1
    again = room.post(ASKED)
    assert (again.headers["x-etude-model"], len(room.small.asked)) == ("large", 1)
    assert again.headers["x-etude-propensity"] == "1"  # it was the only one that was eligible
    room.large.script.append(response(429, b"{}", "Retry-After: 30"))
    answer = room.post(ASKED)
    assert error(answer, 429)["type"] == "rate_limit_error"
    assert answer.headers["retry-after"] == "30"
    later = room.post(ASKED)  # no model is asked
    assert "asked again in" in error(later, 503)["message"]
    assert 0 < int(later.headers["retry-after"]) <= 30


def test_models_of_one_upstream_stand_in_for_each_other(tmp_path: Path) -> None:
    """A limit of one model says nothing of the others, unless their key is refused, or their address is dead."""
    with in_thread(ChatServer()) as upstream, ExitStack() as stack:
        routing = {
            "upstreams": {"a": {"url": upstream.url, "allow_private": True} | QUICK},
            "models": {name: {"upstream": "a"} for name in ("small", "large")},
            "default_model": "small",
        }
        served = stack.enter_context(serving(tmp_path, routing=routing))
        client, pauses = served.client(Role.DECIDE), served.server.proxy.upstreams
        upstream.script.append(Act.BUSY)
        asked = client.post("/v1/chat/completions", json=ASKED)
        assert (asked.headers["x-etude-model"], upstream.requests) == ("large", 2)
        pauses.free_at.clear()
        upstream.script.append(Act.UNAUTHORISED)
        assert error(client.post("/v1/chat/completions", json=ASKED), 502)["message"].endswith("key are wrong")
        assert upstream.requests == 3
        assert min(pauses.wait_s(name) for name in ("small", "large")) > 0


def test_a_stream_that_dies_ends_with_an_error_and_counts_as_a_failure(room: Room) -> None:
    for act in (Act.DIE, Act.STALL):
        room.rest()
        room.large.script.append(act)
        answer = room.post(ASKED | {"tools": [TOOL], "stream": True})
        first, *_, last = chunks(answer)
        assert first["choices"][0]["delta"]["content"] == "all"
        assert last["error"]["code"] == "upstream_failed"
        found = room.recorded(answer)
        assert (found["outcome"]["success"], found["outcome"]["ended"]) == (False, "failed")
        assert found["outcome"]["cost_usd"] > 0  # what came was paid for
        assert found["turns"][0]["error"] == found["outcome"]["error"]


def test_what_a_model_refuses_is_passed_on(room: Room) -> None:
    room.small.script.append(Act.WRONG)
    answer = room.post(ASKED)
    assert (answer.status_code, answer.json()) == (400, {"error": {"message": "too long"}})
    assert room.large.asked == type(room.large.asked)()
    assert room.recorded(answer)["outcome"]["success"] is False
    room.small.script.append(response(400, b'{"error": {"code": "context_length_exceeded"}}'))
    assert room.post(ASKED).headers["x-etude-model"] == "large"  # it may have room for it


@pytest.mark.parametrize(
    "needs",
    [
        {"tools": [TOOL]},
        {"response_format": {"type": "json_object"}},
        {"max_tokens": 2000},
        {"messages": [{"role": "user", "content": "word " * 2000}]},
        {"messages": [{"role": "user", "content": IMAGE}]},
    ],
)
def test_models_that_cannot_answer_are_not_eligible(room: Room, needs: dict[str, Any]) -> None:
    answer = room.post(ASKED | needs)
    assert answer.headers["x-etude-model"] == "large"
    (decision,) = room.recorded(answer, outcome={"success": True})["decisions"]
    assert [one["name"] for one in decision["eligible"]] == ["large"]


def test_limits_of_a_call_come_from_headers_or_metadata(room: Room) -> None:
    assert room.post(ASKED, **{"x-etude-region": "eu"}).headers["x-etude-model"] == "small"
    region = error(room.post(ASKED | {"tools": [TOOL], "metadata": {"region": "eu"}}), 400)
    assert (region["code"], region["param"]) == ("no_eligible_model", "model")
    assert "large: its regions are not known" in region["message"]
    cost = error(room.post(ASKED | {"tools": [TOOL]}, **{"x-etude-max-cost-usd": "0.00000001"}), 400)
    assert "above max_cost_usd" in cost["message"]
    for name, value in (("max-cost-usd", "cheap"), ("quality-weight", "1.5"), ("max-latency-ms", "nan")):
        found = error(room.post(ASKED, **{f"x-etude-{name}": value}), 400)
        assert found["param"] == f"x-etude-{name}"


def test_a_conversation_stays_on_its_model_until_it_fails(room: Room) -> None:
    room.small.script.append(Act.ERROR)
    first = room.post(ASKED)
    assert first.headers["x-etude-model"] == "large"
    room.proxy.upstreams.free_at.clear()
    later = ASKED | {"messages": [*HELLO, {"role": "assistant", "content": "x"}, {"role": "user", "content": "more"}]}
    second = room.post(later)
    assert (second.headers["x-etude-model"], second.headers["x-etude-policy"]) == ("large", "affinity")
    (decision,) = room.recorded(second, outcome={"success": True})["decisions"]
    assert ([one["name"] for one in decision["eligible"]], decision["propensity"]) == (["large"], 1.0)
    stranger = room.served.client(Role.DECIDE, "acme").post("/v1/chat/completions", json=later)
    assert stranger.headers["x-etude-model"] == "small"  # a conversation is of its tenant
    room.large.script.append(Act.ERROR)
    third = room.post(later)
    assert (third.headers["x-etude-model"], third.headers["x-etude-policy"]) == ("small", "default")
    room.proxy.upstreams.free_at.clear()
    assert room.post(later).headers["x-etude-model"] == "small"  # it moved


def test_a_conversation_that_has_a_name_is_known_by_it(room: Room) -> None:
    name = {"x-etude-conversation": "c-1"}
    room.small.script.append(Act.ERROR)
    assert room.post(ASKED, **name).headers["x-etude-model"] == "large"
    room.proxy.upstreams.free_at.clear()
    other = ASKED | {"messages": [{"role": "user", "content": "quite another"}]}
    assert room.post(other, **name).headers["x-etude-policy"] == "affinity"
    assert room.post(other | {"metadata": {"conversation": "c-1"}}).headers["x-etude-model"] == "large"
    assert room.post(other).headers["x-etude-model"] == "small"


def test_responses_are_translated_and_continue_on_their_model(room: Room) -> None:
    body = {"model": "etude/auto", "input": "hello", "instructions": "be brief"}
    answer = room.post(body, "responses")
    found = answer.json()
    assert (found["object"], found["output"][0]["content"][0]["text"], found["model"]) == (
        *("response", "all is well", "small-1"),
    )
    assert room.small.asked[-1]["messages"][0] == {"role": "system", "content": "be brief"}
    recorded = room.recorded(answer, outcome={"success": True})
    assert recorded["metadata"]["response"] == found["id"]
    lines = [line for line in room.post(body | {"stream": True}, "responses").text.splitlines() if line]
    assert lines[0] == "event: response.created"
    assert lines[-2] == "event: response.completed"
    refused = error(room.post(body | {"previous_response_id": found["id"]}, "responses"), 400)
    assert "Responses API" in refused["message"]
    assert "tools[0]" in error(room.post(body | {"tools": [{"type": "web_search"}]}, "responses"), 400)["message"]


def test_embeddings_come_in_the_encoding_that_was_asked_for(room: Room) -> None:
    body = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -2.0]}]}
    for wanted, expected in (("float", [0.5, -2.0]), ("base64", "AAAAPwAAAMA="), (None, [0.5, -2.0])):
        room.vectors.script.append(response(200, json.dumps(body | {"usage": {"prompt_tokens": 4}}).encode()))
        more = {} if wanted is None else {"encoding_format": wanted}
        answer = room.post({"model": "vectors", "input": "hello"} | more, "embeddings")
        assert answer.json()["data"][0]["embedding"] == expected
    assert room.recorded(answer, outcome={"success": True})["outcome"]["cost_usd"] == pytest.approx(2e-6)
    assert "compared" in error(room.post({"model": "etude/auto", "input": "x"}, "embeddings"), 400)["message"]
    assert "kind" in error(room.post({"model": "small", "input": "x"}, "embeddings"), 400)["message"]


def test_models_are_listed(room: Room) -> None:
    listed = room.client.get("/v1/models").json()
    assert [one["id"] for one in listed["data"]] == ["etude/auto", "large", "small", "vectors"]
    assert set(listed["data"][0]) == {"id", "object", "created", "owned_by"}
    for name in ("small", "etude/auto"):
        assert room.client.get(f"/v1/models/{name}").json()["id"] == name
    assert error(room.client.get("/v1/models/none"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, None),
        (b"[]", 400, None),
        (b"{}", 400, "model"),
        (b'{"model": 7, "messages": []}', 400, "model"),
        (b'{"model": "etude/auto"}', 400, "messages"),
        (b'{"model": "etude/auto", "messages": []}', 400, "messages"),
        (b'{"model": "etude/auto", "messages": [7]}', 400, "messages[0]"),
        (b'{"model": "etude/auto", "messages": [{}], "stream": "yes"}', 400, "stream"),
        (b'{"model": "etude/other", "messages": [{}]}', 404, "model"),
        (b'{"model": "smal", "messages": [{}]}', 404, "model"),
        (b'{"model": "vectors", "messages": [{}]}', 400, "model"),
        (b"[" * 100_000, 400, None),
    ],
)
def test_a_wrong_request_is_refused_as_openai_does(room: Room, body: bytes, status: int, param: str | None) -> None:
    found = error(room.client.post("/v1/chat/completions", content=body), status)
    assert (found["param"], found["type"]) == (param, "invalid_request_error")


def test_a_route_of_openai_that_is_not_there_says_so_to_its_clients(room: Room) -> None:
    answer = room.post({"model": "small", "prompt": "hello"}, "completions")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == answer.json()["detail"]
    assert "no route '/v1/completions'" in answer.json()["detail"]


def test_only_keys_that_may_decide_call_models(room: Room) -> None:
    assert error(room.served.bare().post("/v1/chat/completions", json=ASKED), 401)["code"] == "invalid_api_key"
    ingest = room.served.client(Role.INGEST)
    assert error(ingest.post("/v1/chat/completions", json=ASKED), 403)["type"] == "permission_error"
    assert error(ingest.get("/v1/models"), 403)["type"] == "permission_error"
    slow = room.served.client(Role.DECIDE, requests_per_s=1)
    answers = [slow.post("/v1/chat/completions", json=ASKED) for _ in range(3)]
    assert error(answers[-1], 429)["code"] == "rate_limit_exceeded"
    assert answers[-1].headers["retry-after"]


def wait_for(found: Any, timeout_s: float = 60.0) -> None:
    deadline = monotonic() + timeout_s
    while not found() and monotonic() < deadline:
        sleep(0.01)
    assert found()


def test_a_caller_that_disconnects_is_recorded_and_the_upstream_is_left(room: Room) -> None:
    gone = room.proxy.counts["cancelled"]
    room.small.script.extend([Act.STALL, Act.HANG])
    with room.client.stream("POST", "/v1/chat/completions", json=ASKED | {"stream": True}) as answer:
        id = answer.headers["x-etude-decision"].rpartition(".")[0]
        parts = answer.iter_raw()  # closed with the last reference to it
        next(parts)
        open_before = len(room.small.connections)
    wait_for(lambda: room.proxy.counts["cancelled"] == gone + 1)
    wait_for(lambda: len(room.small.connections) < open_before)
    with pytest.raises(httpx.ReadTimeout):
        room.client.post("/v1/chat/completions", json=ASKED, timeout=0.3)
    wait_for(lambda: room.proxy.counts["cancelled"] == gone + 2)
    decisions = room.served.server.decisions
    wait_for(lambda: decisions.state.parts(id))
    decisions._store([_Outcome(id, {}, decisions.clock())])
    found = room.stored(id)
    assert (found["outcome"]["ended"], found["outcome"].get("success")) == ("cancelled", None)
    assert found["outcome"]["cost_usd"] > 0


def test_nothing_of_users_who_opted_out_is_stored(room: Room) -> None:
    server = room.served.server
    server.store.set_opt_out("private", True)
    server.collector.opted_out = server.store.opted_out
    answer = room.post(ASKED | {"user": "private"})
    assert answer.json()["choices"]
    assert not server.state.parts(answer.headers["x-etude-decision"].rpartition(".")[0])


def verify(request: Any, answer: Any) -> float | None:
    assert request["messages"]
    return {"all is well": None, "{}": 0.75}.get(answer["content"], 0.0)


def test_verifiers_and_a_judge_find_what_becomes_part_of_the_outcome(tmp_path: Path) -> None:
    name = f"{__name__}:verify"
    with ExitStack() as stack:
        judge = stack.enter_context(in_thread(ChatServer()))
        room = Room(stack, tmp_path, verifiers=[name], judge={"model": "large", "rate": 1.0}, store_content=False)
        room.large.answer = lambda request: '{"score": 0.25}'
        checks, decisions = room.proxy.checks, room.served.server.decisions

        def called(text: str, **more: Any) -> dict[str, Any]:
            before = checks.counts["judged"] + checks.counts["judge failed"]
            room.small.answer = lambda request: text
            id = room.post(ASKED | more).headers["x-etude-decision"].rpartition(".")[0]
            wait_for(lambda: checks.counts["judged"] + checks.counts["judge failed"] > before and not checks._running)
            decisions._store([_Outcome(id, {}, decisions.clock())])
            return room.stored(id)

        judged = called("all is well")
        assert judged["outcome"]["success"] is False
        assert (judged["outcome"]["success_by"], judged["outcome"]["quality"]) == ("judge", {"judge": 0.25})
        assert judged["metadata"]["judge_cost_usd"] == pytest.approx(260e-6)
        assert judged["outcome"]["cost_usd"] == pytest.approx(26e-6)  # that of the call alone
        assert "hello" not in json.dumps(judged)  # content is not stored
        assert "hello" in room.large.asked[-1]["messages"][0]["content"]
        both = called("{}")
        assert (both["outcome"]["success"], both["outcome"]["success_by"]) == (True, "verifier")
        assert both["outcome"]["quality"] == {"judge": 0.25, name: 0.75}
        room.large.answer = lambda request: "I would say 0.9"
        assert called("all is well")["outcome"].get("success") is None
        assert checks.counts["judge failed"] == 1
        assert judge.requests == 0


def test_an_answer_that_does_not_match_its_schema_has_failed(room: Room) -> None:
    schema = {"type": "object", "required": ["x"]}
    asked = ASKED | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    decisions, checks, found = room.served.server.decisions, room.proxy.checks, []
    for text in ('{"x": 1}', '{"y": 1}', "no"):
        before = checks.counts["verified"]
        room.large.script.append(response(200, json.dumps(message(text)).encode()))
        id = room.post(asked).headers["x-etude-decision"].rpartition(".")[0]
        wait_for(lambda before=before: checks.counts["verified"] > before and not checks._running)
        decisions._store([_Outcome(id, {}, decisions.clock())])
        outcome = room.stored(id)["outcome"]
        found.append((outcome.get("success"), outcome["quality"]))
    assert found == [(None, {"json_schema": 1.0}), (False, {"json_schema": 0.0}), (False, {"json_schema": 0.0})]


def test_calls_together_do_not_disturb_each_other(room: Room) -> None:
    answers: list[httpx.Response] = []

    def ask(stream: bool) -> None:
        answers.append(room.post(ASKED | {"stream": stream}))

    threads = [threading.Thread(target=ask, args=(i % 2 == 0,)) for i in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.status_code for one in answers] == [200] * 24
    assert len({one.headers["x-etude-decision"] for one in answers}) == 24


def test_without_models_the_routes_say_what_to_do(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        found = error(served.client().post("/v1/chat/completions", json=ASKED), 404)
        assert "routing.models" in found["message"]
        assert served.client().get("/v1/models").json() == {"object": "list", "data": []}
