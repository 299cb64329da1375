from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

import pytest

from etude.contracts.errors import EndpointError, MissingExtraError, WorkersError
from etude.contracts.ports import Worker
from etude.contracts.work import Fault, Input, Reply, Subtask, WorkerError
from etude.orchestrator.inputs import WorkflowInputs
from etude.orchestrator.workers.openai import OpenAIWorker
from etude.orchestrator.workers.template import Template, as_text
from tests.chat_server import Act, ChatServer, delta, events, message, response

KEY = "sk-secret-1234"
PRICES: dict[str, Any] = {"usd_per_mtok_in": 2.0, "usd_per_mtok_out": 10.0, "usd_per_call": 0.001}
T = TypeVar("T")


class Waits(list[float]):
    """Stands in for sleeping: what was waited."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def subtask(**changes: Any) -> Subtask:
    fields: dict[str, Any] = {
        "workflow": "w1",
        "node": 0,
        "attempt": 1,
        "instruction": "Sum it up",
        "task_type": "summarise",
    }
    return Subtask(**(fields | changes))


def with_server(server: ChatServer, use: Callable[[OpenAIWorker], Awaitable[T]], **options: Any) -> T:
    """The result of using a worker at a server that runs meanwhile."""

    async def run() -> T:
        async with server:
            worker = OpenAIWorker("w", url=server.url, model="m", **({"sleep": Waits()} | options))
            try:
                return await use(worker)
            finally:
                await worker.close()

    return asyncio.run(run())


def reply(server: ChatServer, task: Subtask | None = None, **options: Any) -> Reply:
    return with_server(server, lambda worker: worker.do(task or subtask()), **options)


def failure(server: ChatServer, task: Subtask | None = None, **options: Any) -> WorkerError:
    with pytest.raises(WorkerError) as caught:
        reply(server, task, **options)
    return caught.value


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_comes_with_its_usage_and_cost(stream: bool) -> None:
    server = ChatServer(answer=lambda request: "well – done ✓")
    made = reply(server, stream=stream, **PRICES)
    assert made.output == "well – done ✓"
    assert made.usage == {"tokens_in": 12, "tokens_out": 7}
    assert made.cost_usd == pytest.approx(12 * 2e-6 + 7 * 10e-6 + 0.001)
    assert server.asked[0]["stream"] is stream
    assert server.asked[0].get("stream_options") == ({"include_usage": True} if stream else None)


def test_a_worker_is_a_worker() -> None:
    worker: Worker = OpenAIWorker("w", url="http://localhost/v1", model="m")
    assert worker.name == "w"


@pytest.mark.parametrize("stream", [True, False])
def test_where_nothing_is_counted_four_bytes_are_a_token(stream: bool) -> None:
    made = reply(ChatServer(answer=lambda r: "x" * 40, usage=None), prompt="y" * 80, stream=stream, **PRICES)
    assert made.usage == {"tokens_in": 20, "tokens_out": 10}
    assert made.cost_usd == pytest.approx(20 * 2e-6 + 10 * 10e-6 + 0.001)


@pytest.mark.parametrize("usage", [{"prompt_tokens": -1}, {"completion_tokens": 10**400}, {"prompt_tokens": "12"}])
def test_a_usage_that_cannot_be_is_not_believed(usage: dict[str, Any]) -> None:
    reported = response(200, json.dumps(message("x" * 40, usage=usage)).encode())
    made = reply(ChatServer([reported]), prompt="y" * 80, stream=False, **PRICES)
    assert made.usage == {"tokens_in": 20, "tokens_out": 10}


def test_a_worker_without_prices_leaves_the_cost_to_the_catalogue() -> None:
    assert reply(ChatServer()).cost_usd is None
    assert failure(ChatServer([Act.GARBAGE])).cost_usd is None
    assert OpenAIWorker("w", url="http://h/v1", model="m").max_usd(subtask()) is None


@pytest.mark.parametrize("tail", ["", "/", "/chat/completions", "/chat/completions/"])
def test_the_url_may_name_the_service_or_its_route(tail: str) -> None:
    server = ChatServer()

    async def run() -> None:
        async with server:
            worker = OpenAIWorker("w", url=server.url + tail + "?version=2", model="m")
            await worker.do(subtask())
            await worker.close()

    asyncio.run(run())
    assert server.paths[0] == "/v1/chat/completions?version=2"


def test_the_request_holds_what_it_should() -> None:
    server = ChatServer()
    extra = {"seed": 3, "max_tokens": None, "max_completion_tokens": 99, "stream_options": None}
    reply(server, api_key=KEY, system="Be brief", prompt="{input}!", temperature=0.2, extra=extra)
    assert server.asked[0] == {
        "model": "m",
        "stream": True,
        "temperature": 0.2,
        "seed": 3,
        "max_completion_tokens": 99,
        "messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "!"}],
    }
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_each_task_type_has_its_prompt_and_inputs_are_not_read_as_templates() -> None:
    worker = OpenAIWorker(
        "w", url="http://h/v1", model="m", prompts={"translate": "{{to}} {input} | {inputs}"}, prompt="{instruction}"
    )
    given = (Input(task_type="search", output="{instruction}"), Input(task_type="read", output={"b": ["ü"]}))
    rendered = worker.rendered(subtask(task_type="translate", inputs=given))
    assert rendered == '{to} {"b": ["ü"]} | Result of search:\n{instruction}\n\nResult of read:\n{"b": ["ü"]}'
    assert worker.rendered(subtask(instruction="{input}")) == "{input}"


def test_the_default_prompt_shows_everything() -> None:
    task = subtask(description="Shortens texts", inputs=(Input(task_type="read", output="a long story"),))
    rendered = OpenAIWorker("w", url="http://h/v1", model="m").rendered(task)
    assert all(part in rendered for part in ("Sum it up", "summarise", "Shortens texts", "a long story"))


def test_a_prompt_shows_inputs_of_the_workflow_and_parameters() -> None:
    given = WorkflowInputs({"report": "a long story", "tone": {"of": "voice"}})
    named = tuple(Input(name=name, output=one.value) for name, one in given.items())
    task = subtask(inputs=named, workflow_inputs=given, parameters={"count": 3})
    default = OpenAIWorker("w", url="http://h/v1", model="m").rendered(task)
    assert 'Parameters: {"count": 3}' in default
    assert 'Input report:\na long story\n\nInput tone:\n{"of": "voice"}' in default
    own = OpenAIWorker("w", url="http://h/v1", model="m", prompt="{param.count} lines of {input.report}: {input}")
    assert own.rendered(task) == '3 lines of a long story: {"of": "voice"}'
    assert own.needs_input("summarise")
    assert not OpenAIWorker("w", url="http://h/v1", model="m").needs_input("summarise")


def test_a_text_of_the_instruction_is_shown_once() -> None:
    task = subtask(instruction="Sum up: a long story", inputs=(Input(name="text", output="a long story"),))
    assert OpenAIWorker("w", url="http://h/v1", model="m").rendered(task).count("a long story") == 1


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{instructoin}", "did you mean {instruction}?"),
        ('{"ok": true}', "double each brace"),
        ("{instruction.__class__}", "unknown variable {instruction.__class__}"),
        ("{instruction!r}", "unknown variable {instruction!r}"),
        ("{input:>10}", "unknown variable {input:>10}"),
        ("{}", "Known are {instruction}, {task_type}, {description}, {inputs}, {input}"),
        ("{", "double each brace"),
        ("}", "double each brace"),
    ],
)
def test_a_template_with_an_unknown_variable_is_refused(template: str, said: str) -> None:
    with pytest.raises(WorkersError, match="the prompt of 'translate'") as caught:
        OpenAIWorker("w", url="http://h/v1", model="m", prompts={"translate": template})
    assert said in str(caught.value)


def test_texts_of_any_kind_are_shown() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert [as_text(value) for value in ("a", None, {1: ring}, ring)][:2] == ["a", "null"]
    assert "..." in as_text(ring)
    lone = OpenAIWorker("w", url="http://h/v1", model="m", prompt="{input}").rendered(
        subtask(inputs=(Input(task_type="t", output="a\ud800"),))
    )
    assert lone == "a?"
    assert Template("t", "{output}", more=("output",)).render(subtask(), output="{x}") == "{x}"


@pytest.mark.parametrize("act", [Act.BUSY, Act.ERROR, Act.DROP, response(408, b""), response(409, b"")])
def test_what_was_not_answered_is_asked_again(act: Act | bytes) -> None:
    server = ChatServer([act, act])
    assert reply(server).output == "all is well"
    assert server.requests == 3


@pytest.mark.parametrize(
    ("act", "fault"),
    [
        (Act.BUSY, Fault.RATE_LIMIT),
        (Act.ERROR, Fault.UNAVAILABLE),
        (Act.DROP, Fault.UNAVAILABLE),
        (response(408, b""), Fault.TIMEOUT),
        (response(409, b""), Fault.UNAVAILABLE),
    ],
)
def test_after_the_last_attempt_it_fails_at_no_cost(act: Act | bytes, fault: Fault) -> None:
    server = ChatServer([act] * 9)
    error = failure(server, attempts=4, **PRICES)
    assert (error.fault, error.cost_usd, server.requests) == (fault, 0.0, 4)


@pytest.mark.parametrize(
    ("act", "fault", "said"),
    [
        (Act.WRONG, Fault.WRONG_INPUT, 'status 400: {"error": {"message": "too long"}}'),
        (response(413, b""), Fault.WRONG_INPUT, "status 413"),
        (response(422, b""), Fault.WRONG_INPUT, "status 422"),
        (response(400, b'{"error": {"code": "content_filter"}}'), Fault.REFUSAL, "content_filter"),
        (Act.UNAUTHORISED, Fault.UNAVAILABLE, "does not take the API key"),
        (response(403, b""), Fault.UNAVAILABLE, "may not use this model"),
        (response(404, b""), Fault.UNAVAILABLE, "check url and model"),
        (response(307, b"", "Location: http://elsewhere/"), Fault.UNAVAILABLE, "give the final address"),
        (response(402, b""), Fault.UNAVAILABLE, "status 402"),
    ],
)
def test_what_would_fail_again_is_not_asked_again(act: Act | bytes, fault: Fault, said: str) -> None:
    server = ChatServer([act])
    error = failure(server, **PRICES)
    assert (error.fault, error.cost_usd, server.requests) == (fault, 0.0, 1)
    assert said in str(error)


def test_it_waits_exponentially_with_full_jitter() -> None:
    waits, rng = Waits(), random.Random(1).random
    reply(ChatServer([Act.ERROR] * 4), attempts=5, sleep=waits, random=rng)
    again = random.Random(1).random
    assert waits == [again() * longest for longest in (0.5, 1.0, 2.0, 4.0)]


def test_it_waits_as_long_as_the_service_asks() -> None:
    waits = Waits()
    reply(ChatServer([Act.BUSY], retry_after="7"), sleep=waits, random=lambda: 0.5)
    assert waits == [7.25]


@pytest.mark.parametrize(("retry_after", "timeout_s"), [("7", 5.0), ("3600", None)])
def test_it_does_not_wait_beyond_its_time(retry_after: str, timeout_s: float | None) -> None:
    waits, server = Waits(), ChatServer([Act.BUSY], retry_after=retry_after)
    error = failure(server, subtask(timeout_s=timeout_s), sleep=waits)
    assert (error.fault, error.retry_after_s, waits, server.requests) == (Fault.RATE_LIMIT, float(retry_after), [], 1)


@pytest.mark.parametrize("asked", ["Wed, 21 Oct 2015 07:28:00 GMT", "-1", "nan", "inf"])
def test_a_wait_that_is_no_number_of_seconds_is_none(asked: str) -> None:
    waits = Waits()
    reply(ChatServer([Act.BUSY], retry_after=asked), sleep=waits, random=lambda: 0.5)
    assert waits == [0.25]


def test_a_stream_that_stalls_is_a_timeout_and_is_paid_for() -> None:
    server = ChatServer([Act.STALL], answer=lambda r: "word " * 20)
    error = failure(server, stall_s=0.05, prompt="y" * 80, **PRICES)
    assert (error.fault, server.requests) == (Fault.TIMEOUT, 1)
    assert error.cost_usd is not None
    assert 20 * 2e-6 + 0.001 < error.cost_usd < 20 * 2e-6 + 25 * 10e-6 + 0.001


def test_a_service_that_hangs_is_a_timeout() -> None:
    server = ChatServer([Act.HANG])
    error = failure(server, stall_s=0.05, **PRICES)
    assert (error.fault, error.cost_usd, server.requests) == (Fault.TIMEOUT, 0.0, 1)


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_breaks_off_is_paid_for_and_not_asked_again(stream: bool) -> None:
    server = ChatServer([Act.DIE], answer=lambda r: "word " * 20)
    error = failure(server, stream=stream, prompt="y" * 80, **PRICES)
    assert (error.fault, server.requests) == (Fault.UNAVAILABLE, 1)
    assert error.cost_usd is not None
    assert error.cost_usd >= 20 * 2e-6 + 0.001


def test_a_stream_that_just_ends_broke_off() -> None:
    assert failure(ChatServer([events(delta("half"))])).fault == Fault.UNAVAILABLE


@pytest.mark.parametrize(
    "reported", [events(delta("all"), delta(finish="stop"), end=False), events(delta("all"), "[DONE]", end=False)]
)
def test_a_stream_that_stalls_after_its_last_word_is_an_answer(reported: bytes) -> None:
    assert reply(ChatServer([reported]), stall_s=0.05).output == "all"


@pytest.mark.parametrize("piece_bytes", [7, 50, 10_000])
def test_a_stream_may_come_in_any_pieces_with_comments_between(piece_bytes: int) -> None:
    counted = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    made = reply(ChatServer([events(delta("ä"), delta(" b"), counted, "[DONE]")], piece_bytes=piece_bytes))
    assert (made.output, made.usage) == ("ä b", {"tokens_in": 1, "tokens_out": 2})
    body = b": waiting\r\n\r\nevent: x\r\ndata:" + json.dumps(delta("ö")).encode() + b"\r\n\r\ndata: [DONE]"
    made = reply(ChatServer([response(200, body, kind="text/event-stream")], piece_bytes=piece_bytes))
    assert made.output == "ö"


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        (Act.GARBAGE, "no JSON"),
        (response(200, b"<html>", kind="text/html"), "no events"),
        (response(200, b"[1]"), "expected an object"),
        (response(200, b'{"choices": []}'), "no choices"),
        (response(200, b'{"choices": 3}'), "'choices'"),
        (response(200, b"[" * 100_000), "not what was asked for"),
        (events("{"), "no JSON"),
        (events({"choices": [{"delta": 3}]}), "'delta'"),
        (events(delta(3), "[DONE]"), "'content'"),  # type: ignore[arg-type]
        (events("[DONE]"), "is empty"),
        (events(delta("  \n"), delta(finish="stop")), "is empty"),
        (events(delta(finish="length")), "raise max_tokens"),
        (response(200, b"x" * 2**21, kind="text/event-stream"), "more bytes"),
    ],
)
def test_garbage_and_nothing_are_invalid(reported: Act | bytes, said: str) -> None:
    server = ChatServer([reported])
    error = failure(server, **PRICES)
    assert (error.fault, server.requests) == (Fault.INVALID_OUTPUT, 1)
    assert said in str(error)
    assert error.cost_usd is not None
    assert error.cost_usd > 0.001


@pytest.mark.parametrize(
    "reported",
    [
        events(delta("I"), delta(finish="content_filter"), "[DONE]"),
        events(delta(refusal="I won"), delta(refusal="'t"), delta(finish="stop"), "[DONE]"),
        response(200, json.dumps(message(None, refusal="I won't")).encode()),
        response(200, json.dumps(message("…", finish="content_filter")).encode()),
    ],
)
def test_a_refusal_is_one_and_is_paid_for(reported: bytes) -> None:
    error = failure(ChatServer([reported]), **PRICES)
    assert error.fault == Fault.REFUSAL
    assert "I won't" in str(error) or "it is filtered" in str(error)
    assert error.cost_usd


@pytest.mark.parametrize(
    ("code", "fault"), [(429, Fault.RATE_LIMIT), (502, Fault.UNAVAILABLE), (None, Fault.UNAVAILABLE)]
)
def test_an_error_within_a_stream_is_one(code: int | None, fault: Fault) -> None:
    server = ChatServer([events(delta("I"), {"error": {"code": code, "message": "overloaded"}})])
    error = failure(server)
    assert (error.fault, server.requests) == (fault, 1)
    assert "overloaded" in str(error)


def test_content_in_parts_is_put_together() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    reported = response(200, json.dumps(message(parts)).encode())  # type: ignore[arg-type]
    assert reply(ChatServer([reported])).output == "ab"


def test_half_characters_do_not_get_through() -> None:
    assert reply(ChatServer([events(delta("a\ud800"), "[DONE]")])).output == "a?"


@pytest.mark.parametrize("act", [response(401, f"the key {KEY} is wrong".encode()), events({"error": {"m": KEY}})])
def test_the_key_is_in_no_message(act: bytes) -> None:
    said = str(failure(ChatServer([act]), api_key=KEY))
    assert KEY not in said
    assert "***" in said


def test_an_attempt_costs_no_more_than_it_can() -> None:
    def bound_and_cost(text: str) -> tuple[float, float]:
        async def use(worker: OpenAIWorker) -> tuple[float, float]:
            task = subtask(inputs=(Input(task_type="t", output=text),))
            bound, made = worker.max_usd(task), await worker.do(task)
            assert bound is not None
            assert made.cost_usd is not None
            return bound, made.cost_usd

        server = ChatServer(answer=lambda r: "x" * 4000, usage=None)
        return with_server(server, use, max_tokens=50, prompt="{input}", system="s", **PRICES)

    for text in ("a", "ü" * 100, "\ud800"):
        bound, cost = bound_and_cost(text)
        assert cost <= bound
    bound, _ = bound_and_cost("ü" * 100)
    assert bound == pytest.approx((32 + 1 + 32 + 200) * 2e-6 + 50 * 10e-6 + 0.001)


async def until_none(connections: Collection[object]) -> None:
    async with asyncio.timeout(30):
        while connections:
            await asyncio.sleep(0.002)


def test_a_cancelled_attempt_leaves_no_connection() -> None:
    server = ChatServer([Act.HANG, Act.STALL])

    async def use(worker: OpenAIWorker) -> None:
        for requests in (1, 2):
            attempt = asyncio.create_task(worker.do(subtask()))
            while server.requests < requests:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            assert len(server.connections) == 1
            attempt.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attempt
            await until_none(server.connections)
        assert (await worker.do(subtask())).output == "all is well"

    with_server(server, use)


def test_a_stream_is_read_to_its_end_so_that_its_connection_can_be_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.orchestrator.workers.openai.LAST_CHUNK_S", 30.0)
    server = ChatServer()
    server.piece_bytes = len(server.said(Act.ANSWER, {"stream": True})[0]) - len(b"0\r\n\r\n")

    async def use(worker: OpenAIWorker) -> None:
        for _ in range(3):
            await worker.do(subtask())

    with_server(server, use)
    assert server.connected == 1


def test_connections_are_reused_and_given_back() -> None:
    server = ChatServer(latency_s=0.2)  # enough for all to connect before the first is answered

    async def use(worker: OpenAIWorker) -> None:
        for _ in range(3):
            await asyncio.gather(*(worker.do(subtask()) for _ in range(20)))
        assert (len(server.connections), server.connected) == (20, 20)
        under_way = asyncio.create_task(worker.do(subtask()))
        await asyncio.sleep(0.005)
        await worker.close()
        assert (await under_way).output == "all is well"
        await worker.close()
        await until_none(server.connections)

    with_server(server, use)


def test_it_works_in_one_loop_after_the_other() -> None:
    worker: OpenAIWorker | None = None

    async def run() -> str:
        nonlocal worker
        async with ChatServer() as server:
            worker = worker or OpenAIWorker("w", url=server.url, model="m")
            worker._url = f"{server.url}/chat/completions"
            text = (await worker.do(subtask())).output
            await worker.close()
            return str(text)

    assert [asyncio.run(run()), asyncio.run(run())] == ["all is well"] * 2


def test_under_chaos_every_attempt_ends_and_nothing_stays_open() -> None:
    acts = (Act.STALL, Act.HANG, Act.DIE, Act.DROP, Act.GARBAGE, Act.BUSY, Act.ERROR)
    server = ChatServer(chances=dict.fromkeys(acts, 0.05), seed=3)

    async def use(worker: OpenAIWorker) -> list[Reply | BaseException]:
        ended = await asyncio.gather(*(worker.do(subtask()) for _ in range(150)), return_exceptions=True)
        await worker.close()
        await until_none(server.connections)
        return ended

    ended = with_server(server, use, stall_s=0.5, **PRICES)
    assert all(isinstance(one, Reply | WorkerError) for one in ended)
    faults = {one.fault for one in ended if isinstance(one, WorkerError)}
    assert {Fault.TIMEOUT, Fault.INVALID_OUTPUT, Fault.UNAVAILABLE} <= faults
    assert set(acts) <= set(server.acts)


def test_check_finds_who_listens_and_says_what_to_do() -> None:
    with_server(ChatServer(), lambda worker: worker.check())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with pytest.raises(EndpointError, match=f"{url}/chat/completions .*start the service"):
            asyncio.run(OpenAIWorker("w", url=f"{url}?key={KEY}", model="m").check())


def test_check_goes_through_the_proxy_that_requests_take(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with ChatServer() as proxy:
            monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            worker = OpenAIWorker("w", url="http://nowhere.invalid/v1", model="m")
            await worker.check()
            assert (await worker.do(subtask())).output == "all is well"
            assert proxy.paths[0].startswith("http://nowhere.invalid/")
            await worker.close()

    asyncio.run(run())


def test_no_service_at_the_url_is_unavailable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        waits = Waits()
        worker = OpenAIWorker("w", url=f"http://127.0.0.1:{free.getsockname()[1]}/v1", model="m", sleep=waits)
        with pytest.raises(WorkerError, match="cannot be asked") as caught:
            asyncio.run(worker.do(subtask()))
    assert (caught.value.fault, len(waits)) == (Fault.UNAVAILABLE, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "ftp://h/v1"}, "ftp://h/v1"),
        ({"url": "http://"}, "expected that of a chat service"),
        ({"url": "http://h:99999/v1"}, "99999"),
        ({"url": f"http://u:{KEY}@h/v1"}, "api_key_env"),
        ({"api_key": f"{KEY}\n"}, "printable ASCII"),
        ({"extra": {"messages": []}}, "'messages'"),
        ({"extra": {"n": 2}}, "'n'"),
        ({"extra": {"max_tokens": None}}, "unlimited"),
        ({"extra": {"seed": object()}}, "JSON"),
        ({"attempts": 0}, "attempts is 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"stall_s": 0.0}, "stall_s is 0"),
        ({"usd_per_mtok_in": -1.0}, "usd_per_mtok_in is -1"),
        ({"usd_per_call": float("nan")}, "usd_per_call is nan"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkersError) as caught:
        OpenAIWorker("w", **({"url": "http://h/v1", "model": "m"} | options))
    assert said in str(caught.value)
    assert KEY not in str(caught.value)


def test_without_httpx_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtraError, match=r"etude\[run\]"):
        OpenAIWorker("w", url="http://h/v1", model="m")
