"""A language model as the planner, at a server that answers as scripted: plans, repairs, refusals, costs, records."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import pytest
import torch

from etude.contracts.decision import Decision, DecisionRequest
from etude.contracts.errors import ConfigError, EndpointError, PlanError
from etude.contracts.ports import AsyncDecider
from etude.contracts.work import Fault
from etude.orchestrator.crew import Crew
from etude.orchestrator.executor import Event, Orchestrator, Result
from etude.orchestrator.language_model import LanguageModel, LanguageModelPlanner, language_model
from etude.orchestrator.record import correction_of
from etude.orchestrator.trajectories import to_trajectory
from etude.orchestrator.virtual_time import run_virtually
from etude.problems.workflow.decisions import State, StepState
from etude.problems.workflow.grammar import Rules, Status
from etude.problems.workflow.logged import read_logged
from etude.problems.workflow.plan import Limits
from tests.chat_server import Act, ChatServer, message, response
from tests.crew import READ, SEND, A, B, MemoryLog, ScriptedWorker, attempts, catalogue, entry, fault, reply

KEY = "sk-secret-1234"
PRICES: dict[str, Any] = {"usd_per_mtok_in": 2.0, "usd_per_mtok_out": 10.0, "usd_per_call": 0.001}
USD = 12 * 2e-6 + 7 * 10e-6 + 0.001  # of one answer, by the server's usage
TWO = [("read", "a", []), ("send", "b", [1])]
T = TypeVar("T")


def plan(*nodes: tuple[str, str, list[int]]) -> str:
    named = ("id", "task_type", "worker", "after")
    return json.dumps({"nodes": [dict(zip(named, (i, *node), strict=True)) for i, node in enumerate(nodes, 1)]})


def saying(*texts: str, script: Sequence[Act | bytes] = (), **more: Any) -> ChatServer:
    """A server that gives these answers, one after the other, the last again and again."""
    left = deque(texts or (plan(*TWO),))
    return ChatServer(script, answer=lambda request: left.popleft() if len(left) > 1 else left[0], **more)


def planner(server: ChatServer, limits: Limits | None = None, **options: Any) -> LanguageModelPlanner:
    known = catalogue(entry("a"), entry("b", success_rate=0.25, task_types=("draft", "review", "send")))
    model = LanguageModel(url=server.url, model="m", **({"attempts": 1} | options))
    return model.decider(catalogue=known, limits=limits)


def with_server(server: ChatServer, use: Callable[[Callable[..., Orchestrator]], Awaitable[T]]) -> T:
    """The result of using orchestrators whose planner is this server."""

    async def run() -> T:
        made: list[Orchestrator] = []

        def make(*workers: ScriptedWorker, limits: Limits | None = None, **more: Any) -> Orchestrator:
            own = {name: more.pop(name) for name in ("log", "human", "watch") if name in more}
            hands = {name: ScriptedWorker(name) for name in "ab"} | {worker.name: worker for worker in workers}
            decider = planner(server, limits, **more)
            made.append(Orchestrator(decider, Crew(decider.catalogue, hands), **own))
            return made[-1]

        async with server:
            try:
                return await use(make)
            finally:
                for orchestrator in made:
                    await orchestrator.close()

    return asyncio.run(run())


def carried_out(server: ChatServer, *workers: ScriptedWorker, **more: Any) -> Result:
    return with_server(server, lambda make: make(*workers, **more).execute("read it and send it"))


def refusal(server: ChatServer, **more: Any) -> Result:
    """A workflow without a plan: it ends, it is logged, and nothing was carried out."""
    log = MemoryLog()
    result = carried_out(server, log=log, **more)
    assert not result.success
    assert not result.refused
    assert result.execution.nodes == ()
    assert result.execution.planner_outputs is None
    assert log.executions == [result.execution]
    return result


def test_the_models_plan_is_carried_out_and_logged_like_any_other() -> None:
    server = saying(f"Sure!\n```json\n{plan(*TWO)}\n```")
    result = carried_out(server, **PRICES)
    assert result.success
    assert result.output == "send(read())"
    assert [(node.task_type, node.worker, node.dependencies) for node in result.execution.nodes] == [
        (READ, A, ()),
        (SEND, B, (0,)),
    ]
    host = server.url.removeprefix("http://").removesuffix("/v1")
    assert result.execution.policy == f"llm:m@{host}"
    decisions = result.execution.decisions
    assert {(d.problem, d.policy, d.propensity) for d in decisions} == {("workflow", f"llm:m@{host}", None)}
    planning = decisions[0].context["planning"]
    assert (planning["asked"], planning["repairs"], planning["cost_usd"]) == (1, {}, pytest.approx(USD))
    assert decisions[0].eligible["task_types"] == [0, 1, 2, 3]
    assert result.cost_usd == pytest.approx(USD + 0.02)
    assert result.latency_ms >= planning["latency_ms"] > 0
    assert decisions[0].context["state"]["spent_usd"] == pytest.approx(USD)


def test_learning_leaves_out_decisions_without_propensity() -> None:
    result = carried_out(saying(), ScriptedWorker("a", fault(Fault.TIMEOUT)))
    known = catalogue(entry("a"), entry("b"))
    rows = read_logged(
        Rules(known, Limits()), [to_trajectory(result.execution, known)], torch.ones(1), torch.zeros(1).long()
    )
    assert len(rows.log_propensity) == 1  # the correction
    assert [d.propensity for d in result.execution.decisions] == [None, None, None, 1.0]


def test_the_prompt_has_the_catalogue_and_the_live_numbers_and_the_answer_is_constrained() -> None:
    server = saying()
    carried_out(server, limits=Limits(max_cost_usd=0.5, max_time_ms=60_000, max_nodes=5))
    asked = server.asked[0]
    prompt = asked["messages"][1]["content"]
    assert "- read" in prompt
    assert "- b [does draft, review, send; 0.01 USD and 1000 ms per call; 25% of its calls succeed]" in prompt
    assert "no others, at most 5." in prompt
    assert "All subtasks together cost at most 0.5 USD and take at most 60000 ms." in prompt
    assert "=====\nread it and send it\n=====" in prompt
    form = asked["response_format"]["json_schema"]
    node = form["schema"]["properties"]["nodes"]["items"]
    assert node["properties"]["worker"]["enum"] == ["a", "b"]
    assert node["required"] == ["id", "task_type", "worker", "after"]


def test_a_service_that_takes_no_schema_is_asked_without_and_spared_it_from_then_on() -> None:
    server = saying(script=[Act.WRONG])

    async def twice(make: Callable[..., Orchestrator]) -> list[bool]:
        orchestrator = make()
        return [(await orchestrator.execute("go")).success for _ in range(2)]

    assert with_server(server, twice) == [True, True]
    assert ["response_format" in asked for asked in server.asked] == [True, False, False]


def test_repairs_are_counted_in_the_record() -> None:
    result = carried_out(saying(plan(("Send", "a", [2]), ("read", "b", []))))
    assert result.success
    assert [(node.task_type, node.worker) for node in result.execution.nodes] == [(READ, A), (SEND, A)]
    assert result.execution.decisions[0].context["planning"]["repairs"] == {"order": 1, "task_type": 1, "worker": 1}


CHEAP, QUICK = Limits(max_cost_usd=0.025), Limits(max_time_ms=11_900)


@pytest.mark.parametrize(
    ("wrong", "limits", "said"),
    [
        ("no idea", Limits(), "the answer has no JSON object"),
        (plan(("dance", "a", [])), Limits(), "'dance', which the catalogue does not have"),
        (plan(("read", "a", [2]), ("send", "b", [1])), Limits(), "has a cycle: 1 after 2, 2 after 1"),
        (plan(*[("read", "a", [])] * 4), Limits(max_nodes=3), "the plan has 4 nodes, the limit is 3"),
        (plan(*[("read", "a", [])] * 3), CHEAP, "the plan costs 0.03 USD, the limit is 0.025"),
        (plan(*[("read", "a", [i] if i else []) for i in range(12)]), QUICK, "the plan takes 12000 ms, the limit"),
    ],
)
def test_what_cannot_be_used_is_asked_for_again_with_the_reason_and_then_refused(
    wrong: str, limits: Limits, said: str
) -> None:
    server = saying(wrong, plan(("read", "a", [])))
    result = carried_out(server, limits=limits)
    assert result.success
    assert result.execution.decisions[0].context["planning"]["asked"] == 2
    prompt = server.asked[1]["messages"][1]["content"]
    assert "Your previous answer cannot be used: " in prompt
    assert said in prompt
    assert wrong in prompt
    server = saying(wrong)
    refused = refusal(server, limits=limits)
    assert server.requests == 2
    assert "made no plan that can be used, asked 2 times: " in refused.error
    assert said in refused.error


def test_refused_plans_are_paid_for() -> None:
    assert refusal(saying("no idea"), **PRICES).cost_usd == pytest.approx(2 * USD)
    assert refusal(saying("no idea", script=[Act.ANSWER, Act.ERROR]), **PRICES).cost_usd == pytest.approx(USD)


@pytest.mark.parametrize(
    ("act", "said", "remedy"),
    [
        (Act.ERROR, "answered status 500: ", "make sure that the service runs"),
        (Act.BUSY, "answered status 429: ", "carry out fewer workflows at a time"),
        (Act.UNAUTHORISED, "answered status 401", "check the variable that api_key_env names"),
        (Act.GARBAGE, "is not what was asked for", "take another model"),
        (Act.DROP, "cannot be asked", "make sure that the service runs"),
        (Act.DIE, "broke off", "make sure that the service runs"),
        (Act.HANG, "did not answer in time", "raise llm.stall_s or llm.timeout_s"),
        (Act.STALL, "stalled", "raise llm.stall_s or llm.timeout_s"),
        (response(200, json.dumps(message("")).encode()), "is empty", "raise llm.max_tokens"),
        (response(200, json.dumps(message(None, refusal="no")).encode()), "is a refusal: no", "take another model"),
    ],
)
def test_a_call_that_fails_ends_the_workflow_with_what_happened_and_what_to_do(
    act: Act | bytes, said: str, remedy: str
) -> None:
    silent: dict[str, Any] = {"stall_s": 0.2} if act in (Act.HANG, Act.STALL) else {}
    result = refusal(saying(script=[act]), **silent)
    assert result.execution.ended == "failed"
    assert result.error.startswith("llm:m@127.0.0.1:")
    assert said in result.error
    assert remedy in result.error


def test_a_busy_service_is_asked_again() -> None:
    server = saying(script=[Act.BUSY, Act.ERROR])
    assert carried_out(server, attempts=3).success
    assert server.requests == 3


def test_a_service_that_takes_neither_request_is_reported() -> None:
    assert "answered status 400: " in refusal(saying(script=[Act.WRONG, Act.WRONG])).error


def test_planning_has_a_time_limit_of_its_own() -> None:
    result = refusal(saying(script=[Act.HANG]), timeout_s=0.05)
    assert "made no plan within 0.05 s: raise llm.stall_s or llm.timeout_s" in result.error
    assert result.execution.ended == "failed"


def test_planning_ends_at_the_deadline_of_the_workflow() -> None:
    result = refusal(saying(script=[Act.HANG]), limits=Limits(max_time_ms=100))
    assert result.execution.ended == "deadline"
    assert "made no plan within 100 ms, the time limit" in result.error


def test_planning_may_not_exceed_the_budget() -> None:
    server = saying()
    result = refusal(server, limits=Limits(max_cost_usd=0.01), **PRICES)
    assert server.requests == 0
    assert "may cost 0.0" in result.error
    assert "0.01 of 0.01 are left: raise limits.max_cost_usd" in result.error
    assert result.cost_usd == 0.0


def test_the_cost_of_planning_counts_for_the_plan() -> None:
    server = saying(plan(*[("read", "a", [])] * 6), plan(("read", "a", [])))
    result = carried_out(server, limits=Limits(max_cost_usd=0.1), usd_per_call=0.045)
    assert "the plan costs 0.06 USD, the limit is 0.055" in server.asked[1]["messages"][1]["content"]
    assert result.success
    assert result.cost_usd == pytest.approx(0.1)
    assert result.execution.violations == ()


def test_other_workflows_go_on_while_the_model_is_asked_and_a_cancelled_one_is_logged() -> None:
    log = MemoryLog()
    server = saying(script=[Act.HANG])

    async def both(make: Callable[..., Orchestrator]) -> bool:
        orchestrator = make(log=log)
        slow = asyncio.create_task(orchestrator.execute("first"))
        while not server.requests:
            await asyncio.sleep(0)
        quick = await orchestrator.execute("second")
        assert not slow.done()
        slow.cancel()
        await asyncio.wait({slow})
        assert slow.cancelled()
        return quick.success

    assert with_server(server, both)
    assert [(kept.instruction, kept.ended) for kept in log.executions] == [("second", "done"), ("first", "cancelled")]


def test_failures_are_corrected_by_rules_without_asking_the_model() -> None:
    server = saying()
    a = ScriptedWorker("a", fault(Fault.TIMEOUT), reply())
    result = carried_out(server, a)
    assert result.success
    assert server.requests == 1
    assert attempts(result) == [("read", ["timeout", None]), ("send", [None])]
    corrections = [(d.policy, correction_of(d)) for d in result.execution.decisions if correction_of(d)]
    assert corrections == [("rules", "retry")]


def test_the_rest_of_a_workflow_is_planned_after_what_is_done() -> None:
    server = saying(json.dumps({"nodes": [{"id": 2, "task_type": "draft", "worker": "a", "after": [1]}]}))
    done = StepState(READ, A, (), int(Status.DONE), 1, False, 0.01, 0.0, 5.0)
    state = State(steps=(done,), spent_usd=0.01, clock_ms=5.0, corrections=1, replans=1)

    async def rest() -> Decision:
        async with server:
            decider = planner(server)
            try:
                return await decider.adecide(DecisionRequest(context="go", state=state, at_ms=5.0))
            finally:
                await decider.close()

    decision = asyncio.run(rest())
    assert decision.action == [{"task_type": "draft", "worker": "a", "dependencies": [0]}]
    assert "- id 1: read" in server.asked[0]["messages"][1]["content"]
    assert '{"id": 2, ' in server.asked[0]["messages"][1]["content"]


def test_in_virtual_time_the_model_is_waited_for_and_workers_are_not() -> None:
    server = saying(latency_s=0.02)

    async def run() -> Result:
        async with server:
            decider = planner(server)
            hands = {name: ScriptedWorker(name, reply(after_s=3000)) for name in "ab"}
            orchestrator = Orchestrator(decider, Crew(decider.catalogue, hands, timeout_s={"a": 1e5, "b": 1e5}))
            result = await orchestrator.execute("go")
            await orchestrator.close()
            return result

    result = run_virtually(run())
    assert result.success
    assert 6_000_000 < result.latency_ms < 6_060_000


def test_the_synchronous_form_answers_the_same() -> None:
    server = saying()

    async def run() -> tuple[Any, Any]:
        async with server:
            decider = planner(server)
            assert isinstance(decider, AsyncDecider)
            request = DecisionRequest(context="go")
            awaited = await decider.adecide(request)
            blocking = await asyncio.to_thread(decider.decide, request)
            await decider.close()
            return awaited.action, blocking.action

    awaited, blocking = asyncio.run(run())
    assert awaited == blocking
    assert [node["task_type"] for node in blocking] == ["read", "send"]


def test_an_empty_instruction_is_not_asked_about() -> None:
    server = saying()
    result = with_server(server, lambda make: make().execute("  "))
    assert "the instruction is empty" in result.error
    assert server.requests == 0


def test_whoever_watches_sees_that_it_is_decided() -> None:
    seen: list[str] = []

    def watch(event: Event) -> None:
        seen.append(event.kind)

    carried_out(saying(), watch=watch)
    assert seen[:2] == ["deciding", "planned"]


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    server = saying(script=[response(401, f"bad key {KEY}".encode())])
    result = refusal(server, api_key_env="MY_KEY")
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(result)
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ConfigError, match="the variable 'MY_KEY' is not set"):
        planner(server, api_key_env="MY_KEY")
    with pytest.raises(ConfigError) as hidden:
        planner(server, api_key_env=KEY)
    assert KEY not in str(hidden.value)


def test_the_name_of_a_model() -> None:
    model = language_model("llm:https://api.host.com/v1?key=abc#org/model:7b", usd_per_call=0.1)
    assert (model.url, model.model) == ("https://api.host.com/v1?key=abc", "org/model:7b")
    assert model.version == "llm:org/model:7b@api.host.com"
    assert language_model("llm:http://localhost:11434/v1#qwen3").version == "llm:qwen3@localhost:11434"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llm:", "names no model: expected llm:URL#MODEL"),
        ("llm:http://host/v1", "names no model"),
        ("llm:http://host/v1#", "names no model"),
        ("llm:ftp://host/v1#m", "url is 'ftp://host/v1': expected that of a chat service"),
        ("llm:http://user:secret@host/v1#m", "url holds an '@'"),
        (f"llm:http://host/v1#{'m' * 300}", "the model's name has 300 characters"),
    ],
)
def test_a_name_that_is_none(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        language_model(name)
    assert said in str(wrong.value)
    assert "secret" not in str(wrong.value)


def test_an_option_that_is_none() -> None:
    with pytest.raises(ConfigError, match="usd_per_tokn"):
        language_model("llm:http://host/v1#m", usd_per_tokn=1.0)


def test_a_service_that_is_not_there_is_found_before_anything_runs() -> None:
    server = saying()

    async def run() -> None:
        async with server:
            decider = planner(server)
            await decider.check()
        with pytest.raises(EndpointError, match="no service listens at"):
            await decider.check()
        with pytest.raises(PlanError, match="cannot be asked"):
            await decider.adecide(DecisionRequest(context="go"))
        await decider.close()

    asyncio.run(run())
