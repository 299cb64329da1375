"""Workflows carried out on scripted workers: order, limits, corrections, people, endings, records."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.contracts.errors import PlanError
from etude.contracts.work import Fault, Reply, Subtask, Verdict, WorkerError
from etude.orchestrator.crew import TIMEOUT_S, Crew
from etude.orchestrator.executor import Event, Orchestrator, Question, Result
from etude.orchestrator.flow import MARGIN_MS, TICK_S, Flow
from etude.orchestrator.record import Execution, correction_of, failed_node
from etude.orchestrator.virtual_time import run_virtually
from etude.problems.workflow import plan as plans
from etude.problems.workflow.decide import Chooser, WorkflowDecider, at_random, by_rules, exploring
from etude.problems.workflow.decisions import Choice, Eligible
from etude.problems.workflow.grammar import Correction, Rules
from etude.problems.workflow.plan import Limits
from tests.crew import (
    DRAFT,
    READ,
    REVIEW,
    SEND,
    TYPES,
    A,
    B,
    MemoryLog,
    Node,
    Says,
    ScriptedWorker,
    attempts,
    carried_out,
    catalogue,
    entry,
    fault,
    following,
    hang,
    heedless,
    office,
    raises,
    reply,
    tries,
    when_cancelled,
)

RETRY, SWITCH, REPAIR, REPLAN, SKIP, ABORT = (
    Correction[name] for name in ("RETRY", "SWITCH", "REPAIR", "REPLAN", "SKIP", "ABORT")
)
DIAMOND: Sequence[Node] = ((READ, (), A), (DRAFT, (0,), A), (REVIEW, (0,), B), (SEND, (1, 2), A))


# Order


def test_what_is_independent_runs_at_once_and_what_depends_comes_after() -> None:
    a = ScriptedWorker("a", by_type={name: [reply(after_s=s)] for name, s in (("read", 1), ("draft", 5), ("send", 2))})
    b = ScriptedWorker("b", reply(after_s=3))
    result = carried_out(office(a, b, plans=[DIAMOND]))
    started = {TYPES[node.task_type]: node.attempts[0].started_ms for node in result.execution.nodes}
    assert started == {"read": 0.0, "draft": 1000.0, "review": 1000.0, "send": 6000.0}
    assert result.latency_ms == 8000.0
    assert result.success
    assert result.execution.ended == "done"


def test_outputs_go_along_the_edges_in_the_order_of_the_nodes() -> None:
    a, b = ScriptedWorker("a", by_type={"draft": [reply(after_s=9)]}), ScriptedWorker("b", reply(after_s=1))
    result = carried_out(office(a, b, plans=[DIAMOND]))
    sent = a.asked[-1]
    assert [(given.task_type, given.output) for given in sent.inputs] == [
        ("draft", "draft(read())"),
        ("review", "review(read())"),
    ]
    assert result.output == "send(draft(read()), review(read()))"


def test_all_else_goes_on_between_the_decisions_of_many() -> None:
    known, seen, turns = catalogue(), list[int](), 0

    def choosers(rules: Rules, instruction: str) -> Chooser:
        choose = by_rules()(rules, instruction)

        def look(draft: Any, rng: Any) -> Any:
            if not int(draft["length"]):
                seen.append(turns)
            return choose(draft, rng)

        return look

    async def everybody() -> None:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        crew = Crew(known, {name: ScriptedWorker(name) for name in ("a", "b")})
        many = Orchestrator(WorkflowDecider(version="many", catalogue=known, limits=Limits(), choosers=choosers), crew)
        meanwhile = asyncio.create_task(others())
        await asyncio.gather(*(many.execute("draft a text") for _ in range(6)))
        meanwhile.cancel()

    asyncio.run(everybody())
    assert len(seen) == 6
    assert all(later > earlier for earlier, later in pairwise(seen))


def test_a_subtask_says_what_is_asked() -> None:
    a = ScriptedWorker("a", fault(Fault.REFUSAL))
    carried_out(office(a, fixes=[RETRY], timeout_s={"a": 7.0}), "write to Ann")
    first, second = a.asked
    assert (first.instruction, first.task_type, first.description) == ("write to Ann", "draft", "to draft")
    assert (first.node, first.attempt, second.attempt, first.timeout_s, first.inputs) == (0, 1, 2, 7.0, ())
    assert first.workflow == second.workflow


@pytest.mark.parametrize(
    ("plan", "output"),
    [
        ([(DRAFT, (), A)], "draft()"),
        ([(READ, (), A), (DRAFT, (0,), A), (SEND, (0,), A)], {1: "draft(read())", 2: "send(read())"}),
    ],
    ids=["one", "several"],
)
def test_the_output_is_that_of_what_nothing_follows(plan: Sequence[Node], output: Any) -> None:
    assert carried_out(office(ScriptedWorker("a"), plans=[plan])).output == output


def test_the_output_is_the_last_that_was_done_where_the_end_is_skipped() -> None:
    a = ScriptedWorker("a", by_type={"send": [fault(Fault.NOT_APPLICABLE)]})
    assert carried_out(office(a, plans=[[(DRAFT, (), A), (SEND, (0,), A)]], fixes=[SKIP])).output == "draft()"


def test_a_plan_may_be_given() -> None:
    node = plans.Node
    plan = plans.Plan(
        instruction="x",
        nodes=(node(task_type="read", worker="b"), node(task_type="send", dependencies=(0,), worker="a")),
    )
    a, b = ScriptedWorker("a"), ScriptedWorker("b")
    result = carried_out(office(a, b, plans=[]), plan=plan)
    assert result.output == "send(read())"
    assert result.execution.decisions == ()
    assert result.execution.planner_outputs is not None
    assert result.execution.planner_outputs.model_selections == (1, 0)


def test_a_given_plan_beyond_the_limits_fails_before_anything_runs() -> None:
    plan = plans.Plan(instruction="x", nodes=(plans.Node(task_type="read", worker="a"),) * 3)
    a = ScriptedWorker("a")
    result = carried_out(office(a, plans=[], limits=Limits(max_nodes=2)), plan=plan)
    assert (result.execution.ended, a.asked) == ("failed", [])
    assert "limit is 2" in result.execution.error


@st.composite
def dags(draw: st.DrawFn, *, most: int = 7, workers: int = 2) -> list[Node]:
    count = draw(st.integers(1, most))
    return [
        (
            draw(st.integers(0, len(TYPES) - 1)),
            sorted(draw(st.sets(st.integers(0, i - 1)))) if i else [],
            draw(st.integers(0, workers - 1)),
        )
        for i in range(count)
    ]


delays = st.sampled_from([0.0, 0.001, 1.0, 1.5, 60.0])


@settings(deadline=None, max_examples=60)
@given(dags(), st.lists(delays, min_size=14, max_size=14), st.integers(1, 3), st.integers(1, 3))
def test_no_worker_is_asked_more_at_once_than_it_takes_and_nothing_before_what_it_needs(
    plan: list[Node], seconds: list[float], most_a: int, most_b: int
) -> None:
    a = ScriptedWorker("a", *(reply(after_s=s) for s in seconds[::2]))
    b = ScriptedWorker("b", *(reply(after_s=s) for s in seconds[1::2]))
    crowd = office(a, b, plans=[plan], concurrency={"a": most_a, "b": most_b}, timeout_s={"a": 1e6, "b": 1e6})
    result = carried_out(crowd)
    assert a.most_under_way <= most_a
    assert b.most_under_way <= most_b
    assert result.success
    ended = [node.attempts[0].started_ms + node.attempts[0].latency_ms for node in result.execution.nodes]
    for node in result.execution.nodes:
        assert node.attempts[0].started_ms >= max((ended[j] for j in node.dependencies), default=0.0) - 1e-6


def test_places_are_shared_by_all_workflows() -> None:
    a = ScriptedWorker("a", *[reply(after_s=10)] * 6)
    crowd = office(a, concurrency={"a": 2}, plans=[[(READ, (), A), (DRAFT, (), A)]])
    results = run_virtually(crowd.execute_all(["x", "y", "z"], concurrency=3))
    assert a.most_under_way == 2
    assert max(result.latency_ms for result in results) == 30_000.0


def test_places_serve_one_loop_after_the_other() -> None:
    a = ScriptedWorker("a", *[reply(after_s=1)] * 6)
    crowd = office(a, concurrency={"a": 1}, plans=[[(READ, (), A), (DRAFT, (), A), (SEND, (), A)]])
    for _ in range(2):
        assert attempts(carried_out(crowd)) == [("read", [None]), ("draft", [None]), ("send", [None])]


def test_the_timeout_of_what_is_queued_counts_from_its_start() -> None:
    a = ScriptedWorker("a", reply(after_s=8), reply(after_s=8), reply(after_s=8))
    plan = [(READ, (), A), (DRAFT, (), A), (SEND, (), A)]
    result = carried_out(office(a, plans=[plan], concurrency={"a": 1}, timeout_s={"a": 10.0}))
    assert result.success
    assert [tried.started_ms for tried in tries(result)] == [0.0, 8000.0, 16000.0]
    assert [tried.latency_ms for tried in tries(result)] == [8000.0] * 3


# Attempts that do not end as they should


def test_what_takes_too_long_is_a_timeout_and_the_workflow_goes_on() -> None:
    a, b = ScriptedWorker("a", hang()), ScriptedWorker("b", reply(after_s=2))
    result = carried_out(office(a, b, fixes=[(SWITCH, B)], timeout_s={"a": 5.0}))
    assert attempts(result) == [("draft", ["timeout", None])]
    assert (result.success, result.latency_ms, a.under_way) == (True, 7000.0, 0)
    assert tries(result)[0].message == "no answer within 5 s"
    assert result.cost_usd == pytest.approx(0.02)  # it may have been paid for


@pytest.mark.parametrize("behaviour", [heedless, hang], ids=["heedless", "hanging"])
def test_what_never_ends_holds_up_nothing_and_keeps_no_place(behaviour: Callable[..., Any]) -> None:
    async def work() -> None:
        ends = asyncio.Event()
        a = ScriptedWorker("a", heedless(ends=ends) if behaviour is heedless else hang(), reply(after_s=1))
        crowd = office(a, fixes=[RETRY], concurrency={"a": 1}, timeout_s={"a": 5.0})
        result = await crowd.execute("x")
        assert attempts(result) == [("draft", ["timeout", None])]
        assert result.latency_ms == 6000.0
        assert len(crowd.left_behind) == (1 if behaviour is heedless else 0)
        ends.set()
        await asyncio.sleep(1)
        assert crowd.left_behind == set()

    run_virtually(work())


@pytest.mark.parametrize(
    "late",
    [reply("too late", usd=5.0), fault(Fault.REFUSAL, usd=5.0), raises(ValueError("too late"))],
    ids=["reply", "fault", "error"],
)
def test_what_comes_after_the_timeout_changes_nothing(late: Any) -> None:
    answered = asyncio.Event()

    async def human(question: Question) -> Correction | None:
        await asyncio.sleep(100)  # what is left behind ends meanwhile
        answered.set()
        return RETRY

    a = ScriptedWorker("a", by_type={"read": [when_cancelled(late)], "draft": [fault(Fault.REFUSAL, after_s=4)]})
    crowd = office(a, plans=[[(DRAFT, (), A), (READ, (), A)]], timeout_s={"a": 5.0}, human=human)
    result = carried_out(crowd)
    assert answered.is_set()
    assert attempts(result) == [("draft", ["refusal", None]), ("read", ["timeout", None])]
    assert result.output == {0: "draft()", 1: "read()"}
    assert result.cost_usd == pytest.approx(0.04)


@pytest.mark.parametrize(
    "error",
    [ValueError("broken"), asyncio.CancelledError(), StopAsyncIteration(), RecursionError(), TimeoutError()],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_worker_raises_is_unknown(error: BaseException) -> None:
    a = ScriptedWorker("a", raises(error, after_s=1))
    result = carried_out(office(a, fixes=[RETRY]))
    assert attempts(result) == [("draft", ["unknown", None])]
    assert result.success
    assert result.cost_usd == pytest.approx(0.02)  # as where it says so itself


def test_a_worker_that_cancels_its_own_task_is_unknown() -> None:
    async def suicide(subtask: Subtask) -> Reply:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1)
        raise AssertionError

    assert attempts(carried_out(office(ScriptedWorker("a", suicide), fixes=[RETRY]))) == [("draft", ["unknown", None])]


def test_an_answer_that_is_no_reply_is_unknown() -> None:
    async def nonsense(subtask: Subtask) -> Reply:
        return "text"  # type: ignore[return-value]

    assert attempts(carried_out(office(ScriptedWorker("a", nonsense), fixes=[RETRY]))) == [("draft", ["unknown", None])]


def test_a_price_that_cannot_be_computed_is_unknown_and_no_worker_is_asked() -> None:
    a, b = ScriptedWorker("a", max_usd=KeyError("x")), ScriptedWorker("b")
    result = carried_out(office(a, b, fixes=[(SWITCH, B)]))
    assert attempts(result) == [("draft", ["unknown", None])]
    assert (a.asked, tries(result)[0].cost_usd) == ([], 0.0)


def test_an_interrupt_goes_through_and_what_it_interrupted_is_not_done() -> None:
    log = MemoryLog()
    crowd = office(ScriptedWorker("a", raises(KeyboardInterrupt(), after_s=1)), log=log)
    with pytest.raises(KeyboardInterrupt):
        carried_out(crowd)
    (execution,) = log.executions
    assert (execution.ended, execution.success) == ("cancelled", False)
    assert execution.nodes[0].status == "failed"


@pytest.mark.parametrize(
    ("what", "usd"),
    [
        (fault(Fault.REFUSAL), 0.01),
        (fault(Fault.RATE_LIMIT), 0.0),
        (fault(Fault.UNAVAILABLE), 0.0),
        (fault(Fault.RATE_LIMIT, usd=0.5), 0.5),
        (fault(Fault.REFUSAL, usd=0.0), 0.0),
        (reply(usd=0.7), 0.7),
        (reply(), 0.01),
    ],
    ids=["refused", "limited", "away", "limited, paid", "refused, free", "as it says", "typical"],
)
def test_what_an_attempt_costs(what: Any, usd: float) -> None:
    assert carried_out(office(ScriptedWorker("a", what))).cost_usd == usd


def test_what_is_typical_is_no_more_than_what_it_can_cost() -> None:
    a = ScriptedWorker("a", hang(), fault(Fault.REFUSAL), reply(), max_usd=0.004)
    result = carried_out(office(a, fixes=[RETRY, RETRY]))
    assert [tried.cost_usd for tried in tries(result)] == [0.004] * 3


# Verifiers and judges


def test_success_is_what_the_verifier_says() -> None:
    async def is_final(subtask: Subtask, output: object) -> Verdict:
        return Verdict(ok=output == "final", reason="a sketch", cost_usd=0.5)

    a, says = ScriptedWorker("a", reply("sketch"), reply("final")), Says(is_final)
    result = carried_out(office(a, fixes=[RETRY], verifiers={"draft": says}))
    assert attempts(result) == [("draft", ["invalid_output", None])]
    assert (result.output, tries(result)[0].message) == ("final", "a sketch")
    assert result.cost_usd == pytest.approx(1.02)
    assert [(asked.task_type, output) for asked, output in says.asked] == [("draft", "sketch"), ("draft", "final")]


def test_a_verifier_may_say_why() -> None:
    says = Says(Verdict(ok=False, fault=Fault.WRONG_INPUT))
    result = carried_out(office(ScriptedWorker("a"), verifiers={"draft": says}))
    assert attempts(result) == [("draft", ["wrong_input"])]
    assert tries(result)[0].message


@pytest.mark.parametrize(
    ("error", "named", "usd"),
    [
        (WorkerError("away", fault=Fault.UNAVAILABLE), "unavailable", 0.0),
        (WorkerError("slow", fault=Fault.TIMEOUT), "timeout", 0.0),
        (WorkerError("odd", fault=Fault.UNKNOWN, cost_usd=0.3), "unknown", 0.3),
        (ValueError("broken"), "unknown", 0.0),
    ],
    ids=["away", "slow", "paid", "broken"],
)
def test_a_verifier_that_fails_fails_the_attempt_but_not_the_worker(error: Exception, named: str, usd: float) -> None:
    crowd = office(ScriptedWorker("a", reply(usd=0.7)), verifiers={"draft": Says(error)})
    before = crowd.crew.members[A].success
    result = carried_out(crowd)
    assert attempts(result) == [("draft", [named])]
    assert result.cost_usd == pytest.approx(0.7 + usd)  # the answer is paid for, once
    assert crowd.crew.members[A].success == before


def test_a_verifier_that_hangs_is_a_timeout() -> None:
    async def wait(subtask: Subtask, output: object) -> Verdict:
        await asyncio.sleep(1e9)
        raise AssertionError

    result = carried_out(office(ScriptedWorker("a"), verifiers={"draft": Says(wait)}, timeout_s={"a": 5.0}))
    assert attempts(result) == [("draft", ["timeout"])]
    assert result.latency_ms == 5000.0


@pytest.mark.parametrize("ok", [True, False])
def test_a_judge_has_the_last_word(ok: bool) -> None:
    judge = Says(Verdict(ok=ok, reason="so it is", cost_usd=0.25))
    a = ScriptedWorker("a", by_type={"send": [fault(Fault.NOT_APPLICABLE)]})
    result = carried_out(office(a, plans=[[(DRAFT, (), A), (SEND, (), A)]], fixes=[SKIP], judge=judge))
    assert (result.success, result.execution.error) == (ok, "" if ok else "so it is")
    assert result.cost_usd == pytest.approx(0.27)
    assert result.trajectory.outcome.success_by == result.execution.success_by == "verifier"
    ((asked, output),) = judge.asked
    assert (asked.instruction, asked.task_type, output) == ("do it", "workflow", "draft()")
    assert [(given.task_type, given.output) for given in asked.inputs] == [("draft", "draft()")]


@pytest.mark.parametrize(
    "error",
    [WorkerError("away", fault=Fault.UNAVAILABLE, cost_usd=0.1), TypeError("away"), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
def test_a_judge_that_fails_says_no(error: BaseException) -> None:
    log = MemoryLog()
    result = carried_out(office(ScriptedWorker("a"), judge=Says(error), log=log))
    assert (result.success, result.execution.ended) == (False, "done")
    assert result.execution.error.startswith("the judge could not be asked")
    assert result.trajectory.outcome.success_by is None
    assert result.cost_usd == pytest.approx(0.11 if isinstance(error, WorkerError) else 0.01)
    assert len(log.executions) == 1


@pytest.mark.parametrize(("limit_ms", "ends_ms"), [(None, TIMEOUT_S * 1000), (10_000.0, 10_000.0 - MARGIN_MS)])
def test_a_judge_that_heeds_nothing_is_not_waited_for(limit_ms: float | None, ends_ms: float) -> None:
    async def work() -> None:
        ends = asyncio.Event()

        async def dither(subtask: Subtask, output: object) -> Verdict:
            while not ends.is_set():
                try:
                    await ends.wait()
                except asyncio.CancelledError:
                    continue
            return Verdict(ok=True)

        crowd = office(ScriptedWorker("a"), judge=Says(dither), limits=Limits(max_time_ms=limit_ms))
        result = await crowd.execute("x")
        assert (result.success, result.execution.ended) == (False, "done")
        assert result.latency_ms == pytest.approx(ends_ms)
        assert "no answer within" in result.execution.error
        ends.set()

    run_virtually(work())


class Expensive(Says):
    """A verifier that may cost half a dollar."""

    def max_usd(self, subtask: Subtask, output: object) -> float:
        return 0.5


def test_a_verifier_that_may_cost_too_much_is_not_asked() -> None:
    says, limits = Expensive(Verdict(ok=True, cost_usd=0.5)), Limits(max_cost_usd=0.505)
    result = carried_out(office(ScriptedWorker("a"), verifiers={"draft": says}, limits=limits))
    assert says.asked == []
    assert [(a.fault, a.cost_usd) for a in result.execution.nodes[0].attempts] == [("budget", 0.01)]
    assert "to verify it" in result.execution.nodes[0].attempts[0].message
    enough = carried_out(office(ScriptedWorker("a"), verifiers={"draft": says}, limits=Limits(max_cost_usd=0.515)))
    assert enough.success
    assert enough.cost_usd == pytest.approx(0.51)


def test_a_judge_that_may_cost_too_much_is_not_asked() -> None:
    judge, limits = Expensive(Verdict(ok=True, cost_usd=0.5)), Limits(max_cost_usd=0.505)
    result = carried_out(office(ScriptedWorker("a"), judge=judge, limits=limits))
    assert (judge.asked, result.success, result.cost_usd) == ([], False, 0.01)
    assert result.execution.error.startswith("the judge could not be asked: it may cost 0.5 USD")


def test_nothing_goes_on_while_the_judge_is_asked() -> None:
    a, b = ScriptedWorker("a", fault(Fault.REFUSAL, after_s=1)), ScriptedWorker("b", reply(after_s=30))
    running: list[int] = []

    async def look(subtask: Subtask, output: object) -> Verdict:
        await asyncio.sleep(10)
        running.append(b.under_way)
        return Verdict(ok=False)

    plan = [(READ, (), A), (DRAFT, (), B)]
    result = carried_out(office(a, b, plans=[plan], judge=Says(look)))
    assert (result.execution.ended, running) == ("aborted", [0])
    assert tries(result)[1].latency_ms == 1000.0


# Time


def test_at_the_deadline_it_ends_and_what_runs_is_cancelled() -> None:
    a, b = ScriptedWorker("a", hang()), ScriptedWorker("b", reply(after_s=2))
    plan = [(READ, (), A), (DRAFT, (), B), (SEND, (0, 1), A)]
    log = MemoryLog()
    result = carried_out(office(a, b, plans=[plan], limits=Limits(max_time_ms=10_000.0), log=log))
    execution = result.execution
    assert (execution.ended, execution.success, execution.violations) == ("deadline", False, ())
    assert 10_000.0 - 2 * MARGIN_MS <= execution.latency_ms <= 10_000.0
    assert [node.status for node in execution.nodes] == ["failed", "done", "planned"]
    assert a.under_way == 0
    assert log.executions == [execution]
    assert "10000 ms" in execution.error


@settings(deadline=None, max_examples=60)
@given(
    st.floats(0.0, 5.0),
    st.floats(1.0, 30_000.0),
    st.sampled_from([0.3, 1.0, 7.0]),
    st.lists(st.sampled_from([0.1, 0.7, 3.3, 1e9]), min_size=9, max_size=9),
)
def test_whatever_happens_the_deadline_is_kept(
    begins_s: float, limit_ms: float, timeout_s: float, seconds: list[float]
) -> None:
    """In virtual time every moment is exact: a timer that fires a hair early would never fire again."""

    async def work() -> Result:
        await asyncio.sleep(begins_s)
        known = catalogue(entry("a", latency_ms=0.0))
        a = ScriptedWorker("a", *(reply(after_s=s) if i % 3 else fault(Fault.UNKNOWN) for i, s in enumerate(seconds)))
        decider = WorkflowDecider(
            version="lot", catalogue=known, limits=Limits(max_time_ms=limit_ms), choosers=at_random
        )
        crowd = Orchestrator(decider, Crew(known, {"a": a}, timeout_s={"a": timeout_s}), seed=int(limit_ms))
        result = await crowd.execute("x", number=0)
        for asked, at_s in zip(a.asked, a.asked_at_s, strict=True):
            assert asked.timeout_s is not None
            assert 0 <= asked.timeout_s <= timeout_s
            assert at_s + asked.timeout_s <= begins_s + limit_ms / 1000 + 1e-9
        return result

    result = run_virtually(work())
    assert result.latency_ms <= limit_ms
    assert result.execution.violations == ()


def test_a_timer_that_is_early_by_a_rounding_does_not_miss_the_deadline() -> None:
    assert 0.8 + (2.98 - 0.8) < 2.98  # where the clock jumps from 0.8 to the deadline
    a, b = ScriptedWorker("a", hang()), ScriptedWorker("b", reply(after_s=0.8))
    result = carried_out(office(a, b, plans=[[(READ, (), A), (DRAFT, (), B)]], limits=Limits(max_time_ms=3000.0)))
    assert (result.execution.ended, result.latency_ms) == ("deadline", pytest.approx(2980.0))


def test_what_waited_for_a_place_is_reported_the_time_that_is_left() -> None:
    a = ScriptedWorker("a", reply(after_s=6), reply(after_s=1))
    plan = [(READ, (), A), (DRAFT, (), A)]
    carried_out(office(a, plans=[plan], concurrency={"a": 1}, limits=Limits(max_time_ms=10_000.0)))
    assert [asked.timeout_s for asked in a.asked] == [pytest.approx(9.98), pytest.approx(3.98)]


def test_what_never_began_costs_nothing() -> None:
    a = ScriptedWorker("a", hang())
    plan = [(READ, (), A), (DRAFT, (), A)]
    result = carried_out(office(a, plans=[plan], concurrency={"a": 1}, limits=Limits(max_time_ms=10_000.0)))
    assert len(a.asked) == 1
    assert [tried.cost_usd for tried in tries(result)] == [0.01, 0.0]


def test_what_is_done_at_the_last_moment_is_done() -> None:
    a = ScriptedWorker("a", reply(after_s=(10_000.0 - MARGIN_MS) / 1000 - 0.5 * TICK_S))
    result = carried_out(office(a, limits=Limits(max_time_ms=10_000.0)))
    assert (result.execution.ended, result.success) == ("done", True)


def test_a_workflow_that_ends_does_not_speak_against_those_who_worked() -> None:
    a, b = ScriptedWorker("a", fault(Fault.REFUSAL, after_s=1)), ScriptedWorker("b", hang())
    crowd = office(a, b, plans=[[(READ, (), A), (DRAFT, (), B)]])
    before = [member.success for member in crowd.crew.members]
    carried_out(crowd)
    assert crowd.crew.members[A].success < before[A]
    assert crowd.crew.members[B].success == before[B]


# Money


def test_money_is_reserved_at_its_upper_bound() -> None:
    a, b = ScriptedWorker("a", reply(after_s=1, usd=0.01), max_usd=0.5), ScriptedWorker("b", max_usd=0.3)
    plan = [(READ, (), A), (DRAFT, (), A), (SEND, (), B)]
    result = carried_out(office(a, b, plans=[plan], fixes=[SKIP], limits=Limits(max_cost_usd=0.8)))
    assert attempts(result) == [("read", [None]), ("draft", ["budget"]), ("send", [None])]
    message = tries(result)[1].message
    assert message == "it may cost 0.5 USD, and 0.3 of 0.8 are left"
    assert tries(result)[1].cost_usd == 0.0
    assert [failed_node(decision) for decision in result.execution.decisions[-1:]] == [1]  # the policy was asked
    assert len(a.asked) == 1


def test_a_refused_attempt_takes_nothing_from_the_others() -> None:
    a, b = ScriptedWorker("a", max_usd=9.0), ScriptedWorker("b", max_usd=0.3)
    plan = [(READ, (), A), (SEND, (), B)]
    result = carried_out(office(a, b, plans=[plan], fixes=[SKIP], limits=Limits(max_cost_usd=0.3)))
    assert attempts(result) == [("read", ["budget"]), ("send", [None])]


@pytest.mark.parametrize("what", [hang(), raises(ValueError()), fault(Fault.REFUSAL)], ids=["hung", "broke", "refused"])
def test_what_may_have_been_billed_is_not_spent_again(what: Any) -> None:
    """Where the cost of an attempt is not known, it is taken to be typical, and may have been all that it can be."""
    a = ScriptedWorker("a", what, max_usd=0.4)
    result = carried_out(office(a, fixes=[RETRY], limits=Limits(max_cost_usd=0.5)))
    assert [(tried.fault == "budget", tried.cost_usd) for tried in tries(result)] == [(False, 0.01), (True, 0.0)]


def test_money_that_came_back_can_be_spent() -> None:
    a = ScriptedWorker("a", reply(usd=0.1, after_s=1), reply(usd=0.1, after_s=1), max_usd=0.4)
    plan = [(READ, (), A), (DRAFT, (0,), A)]
    result = carried_out(office(a, plans=[plan], limits=Limits(max_cost_usd=0.5)))
    assert attempts(result) == [("read", [None]), ("draft", [None])]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    limit=st.floats(0.01, 2.0),
    bounds=st.lists(st.floats(0.0, 0.5), min_size=2, max_size=2),
    prices=st.lists(st.floats(0.0, 0.3), min_size=2, max_size=2),
    shares=st.lists(st.floats(0.0, 1.0), min_size=4, max_size=40),
    kinds=st.lists(st.integers(0, 5), min_size=4, max_size=40),
    places=st.integers(1, 3),
)
def test_no_execution_exceeds_its_budget(
    seed: int,
    limit: float,
    bounds: list[float],
    prices: list[float],
    shares: list[float],
    kinds: list[int],
    places: int,
) -> None:
    """Billed is what a worker really asks for: at once, also for what is given up later."""
    billed = [0.0]

    def behaviour(share: float, kind: int, bound: float) -> Any:
        async def do(subtask: Subtask) -> Reply:
            usd = share * bound
            billed[0] += usd
            if kind == 0:
                await asyncio.sleep(1e9)
            await asyncio.sleep(share)
            if kind == 1:
                raise ValueError
            if kind == 2:
                raise WorkerError("no", fault=Fault.REFUSAL, cost_usd=usd)
            if kind == 3:
                raise WorkerError("no", fault=Fault.WRONG_INPUT)
            return Reply(output="", cost_usd=usd if kind == 4 or bound > 0.1 else None)

        return do

    known = catalogue(*(entry(name, usd_per_call=usd) for name, usd in zip("ab", prices, strict=True)))
    hands = {
        name: ScriptedWorker(
            name, *(behaviour(s, k, bound) for s, k in zip(shares, kinds, strict=False)), max_usd=bound
        )
        for name, bound in zip("ab", bounds, strict=True)
    }
    limits = Limits(max_nodes=5, max_cost_usd=limit, max_attempts=3, max_corrections=6, max_replans=2)
    decider = WorkflowDecider(version="lot", catalogue=known, limits=limits, choosers=at_random)
    crew = Crew(known, hands, concurrency=dict.fromkeys("ab", places), timeout_s=dict.fromkeys("ab", 3.0))
    execution = run_virtually(Orchestrator(decider, crew).execute("x", number=seed)).execution
    assert execution.violations == ()
    assert execution.cost <= limit * (1 + 1e-9)
    assert billed[0] <= limit * (1 + 1e-9)


def test_the_budget_is_not_exceeded_where_calls_have_become_cheaper() -> None:
    """What a call costs is known by the last ones; what a call that hangs costs, by the catalogue."""
    a = ScriptedWorker("a", hang(), hang())
    crowd = office(a, fixes=[RETRY], limits=Limits(max_cost_usd=0.015), timeout_s={"a": 1.0})
    crowd.crew.members[A].usd = 0.005
    result = carried_out(crowd)
    assert attempts(result) == [("draft", ["timeout", "budget"])]
    assert result.execution.violations == ()


def test_calls_are_counted_across_workflows() -> None:
    known = [entry("a", quota=3)]
    a = ScriptedWorker("a", *[reply(after_s=1)] * 9)
    crowd = office(a, entries=known, plans=[[(READ, (), A), (DRAFT, (0,), A)]], fixes=[SKIP])
    results = run_virtually(crowd.execute_all(["x", "y"], concurrency=2))
    assert len(a.asked) == 3
    assert [attempts(result) for result in results] == [
        [("read", [None]), ("draft", [None])],
        [("read", [None]), ("draft", ["budget"])],
    ]
    assert tries(results[1])[1].message == "a has no calls left"


# Corrections


def test_a_retry_asks_the_same_worker_again() -> None:
    a = ScriptedWorker("a", fault(Fault.TIMEOUT, after_s=1), reply(after_s=1))
    result = carried_out(office(a, ScriptedWorker("b"), fixes=[RETRY]))
    assert [(t.worker, t.started_ms, t.fault) for t in tries(result)] == [(A, 0.0, "timeout"), (A, 1000.0, None)]


def test_a_switch_asks_another() -> None:
    a, b = ScriptedWorker("a", fault(Fault.REFUSAL)), ScriptedWorker("b")
    result = carried_out(office(a, b, fixes=[(SWITCH, B)]))
    assert [tried.worker for tried in tries(result)] == [A, B]
    assert result.execution.nodes[0].worker == B
    assert result.execution.planner_outputs is not None
    assert result.execution.planner_outputs.model_selections == (A,)  # as it was first made


def test_a_repair_runs_first_and_what_it_makes_is_an_input() -> None:
    a = ScriptedWorker("a", by_type={"draft": [fault(Fault.WRONG_INPUT)]})
    b = ScriptedWorker("b", reply(after_s=4))
    result = carried_out(office(a, b, plans=[[(SEND, (), A), (DRAFT, (0,), A)]], fixes=[(REPAIR, READ, B)]))
    assert result.output == "draft(send(), read(send()))"
    nodes = result.execution.nodes
    assert [(TYPES[n.task_type], n.dependencies, n.status) for n in nodes] == [
        ("send", (), "done"),
        ("draft", (0, 2), "done"),
        ("read", (0,), "done"),
    ]
    assert nodes[1].attempts[1].started_ms == 4000.0


def test_a_replan_keeps_what_is_under_way_and_drops_the_rest() -> None:
    a = ScriptedWorker("a", by_type={"read": [fault(Fault.WRONG_INPUT, after_s=1)]})
    b = ScriptedWorker("b", by_type={"draft": [reply(after_s=5)]})
    first = [(READ, (), A), (DRAFT, (), B), (REVIEW, (0, 1), A)]
    then = [(SEND, (0,), A)]
    result = carried_out(office(a, b, plans=[first, then], fixes=[REPLAN]))
    assert [(TYPES[n.task_type], n.dependencies, n.status) for n in result.execution.nodes] == [
        ("draft", (), "done"),
        ("send", (0,), "done"),
        ("read", (), "dropped"),
        ("review", (0, 2), "dropped"),
    ]
    assert (result.output, result.success) == ("send(draft())", True)
    assert result.execution.nodes[1].attempts[0].started_ms == 5000.0  # what is under way is waited for
    assert [subtask.task_type for subtask in a.asked] == ["read", "send"]


def test_what_fails_while_a_replan_waits_is_dropped_too() -> None:
    a = ScriptedWorker("a", fault(Fault.WRONG_INPUT, after_s=1))
    b = ScriptedWorker("b", fault(Fault.REFUSAL, after_s=5))
    first = [(READ, (), A), (DRAFT, (), B)]
    result = carried_out(office(a, b, plans=[first, [(SEND, (), A)]], fixes=[REPLAN]))
    assert attempts(result) == [("send", [None]), ("read", ["wrong_input"]), ("draft", ["refusal"])]
    assert [node.status for node in result.execution.nodes] == ["done", "dropped", "dropped"]
    replanned = [(failed_node(d), correction_of(d)) for d in result.execution.decisions if failed_node(d) is not None]
    assert replanned == [(1, "replan")]  # as the record numbers it
    assert result.success


def test_a_replan_whose_wait_outlasts_the_time_ends_at_the_deadline() -> None:
    a, b = ScriptedWorker("a", fault(Fault.WRONG_INPUT, after_s=1)), ScriptedWorker("b", hang())
    first = [(READ, (), A), (DRAFT, (), B)]
    result = carried_out(
        office(a, b, plans=[first, [(SEND, (), A)]], fixes=[REPLAN], limits=Limits(max_time_ms=10_000.0))
    )
    assert (result.execution.ended, result.execution.violations) == ("deadline", ())
    assert result.latency_ms <= 10_000.0
    assert b.under_way == 0


def test_a_skip_lets_what_follows_run_without_it() -> None:
    a = ScriptedWorker("a", by_type={"draft": [fault(Fault.NOT_APPLICABLE)]})
    result = carried_out(office(a, plans=[[(READ, (), A), (DRAFT, (0,), A), (SEND, (0, 1), A)]], fixes=[SKIP]))
    assert result.output == "send(read())"
    assert [node.status for node in result.execution.nodes] == ["done", "skipped", "done"]
    assert not result.success  # no judge says otherwise
    assert result.trajectory.outcome.success_by == "self"


def test_an_abort_ends_it_and_says_why() -> None:
    a, b = ScriptedWorker("a", fault(Fault.REFUSAL, after_s=1)), ScriptedWorker("b", hang())
    log = MemoryLog()
    result = carried_out(office(a, b, plans=[[(READ, (), A), (DRAFT, (), B)]], fixes=[ABORT], log=log))
    assert (result.execution.ended, result.latency_ms, b.under_way) == ("aborted", 1000.0, 0)
    assert result.execution.error == "read: no: refusal (refusal)"
    assert tries(result)[1].message == "the workflow ended before it did"
    assert log.executions == [result.execution]


def test_a_failure_is_corrected_while_the_rest_goes_on() -> None:
    a = ScriptedWorker("a", fault(Fault.TIMEOUT, after_s=1), reply(after_s=1))
    b = ScriptedWorker("b", reply(after_s=3), reply(after_s=3))
    plan = [(READ, (), A), (DRAFT, (), B), (REVIEW, (1,), B)]
    result = carried_out(office(a, b, plans=[plan], fixes=[RETRY]))
    assert result.latency_ms == 6000.0
    assert result.execution.nodes[0].attempts[1].started_ms == 1000.0


def test_two_failures_at_once_are_corrected_one_after_the_other() -> None:
    a = ScriptedWorker("a", fault(Fault.TIMEOUT, after_s=1))
    b = ScriptedWorker("b", fault(Fault.REFUSAL, after_s=1))
    plan = [(READ, (), A), (DRAFT, (), B)]
    result = carried_out(office(a, b, plans=[plan], fixes=[RETRY, (SWITCH, A)]))
    assert attempts(result) == [("read", ["timeout", None]), ("draft", ["refusal", None])]
    corrections = [d for d in result.execution.decisions if failed_node(d) is not None]
    assert [(failed_node(d), correction_of(d), d.at_ms) for d in corrections] == [(0, "retry", 1e3), (1, "switch", 1e3)]


def test_of_two_failures_at_once_a_replan_settles_both() -> None:
    a = ScriptedWorker("a", fault(Fault.TIMEOUT, after_s=1), fault(Fault.REFUSAL, after_s=1))
    result = carried_out(office(a, plans=[[(READ, (), A), (DRAFT, (), A)], [(SEND, (), A)]], fixes=[REPLAN]))
    assert [node.status for node in result.execution.nodes] == ["done", "dropped", "dropped"]
    assert result.success


@pytest.mark.parametrize(
    ("faults", "category"),
    [(Fault.TIMEOUT, 1), (Fault.REFUSAL, 2), (Fault.WRONG_INPUT, 3), (Fault.NOT_APPLICABLE, 4)],
)
def test_the_policy_is_reported_the_kind_of_error_and_who_is_unable(faults: Fault, category: int) -> None:
    seen: list[tuple[int, list[bool]]] = []
    known = catalogue()

    def choosers(*args: Any) -> Any:
        choose = following(known, [(DRAFT, (), B)]).choosers(*args)

        def look(draft: Any, rng: Any) -> Any:
            if int(draft["failed"]) >= 0:
                seen.append((int(draft["error"]), draft["tried"][0].tolist()))
            return choose(draft, rng)

        return look

    decider = WorkflowDecider(version="seen", catalogue=known, limits=Limits(), choosers=choosers)
    carried_out(office(ScriptedWorker("a"), ScriptedWorker("b", fault(faults)), decider=decider))
    assert seen == [(category, [False, faults == Fault.REFUSAL])]


lots: dict[str, Any] = {"lot": at_random, "rules": by_rules(), "exploring": exploring(by_rules(), 0.5)}


@pytest.mark.parametrize("name", lots)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), faults=st.lists(st.sampled_from([None, *Fault]), min_size=1, max_size=40))
def test_limits_end_every_loop_and_all_choices_were_eligible(name: str, seed: int, faults: list[Fault | None]) -> None:
    known = catalogue(entry("a"), entry("b", quota=7), entry("c", task_types=("read", "send"), latency_ms=100.0))
    script = [reply(after_s=0.5) if one is None else fault(one, after_s=1) for one in faults]
    hands = {w: ScriptedWorker(w, *script) for w in "abc"}
    limits = Limits(max_nodes=5, max_attempts=2, max_corrections=4, max_replans=1, max_cost_usd=0.15, max_time_ms=9e3)
    decider = WorkflowDecider(version="v", catalogue=known, limits=limits, choosers=lots[name])
    text = "Read the mail, then draft an answer and send it."
    execution = run_virtually(Orchestrator(decider, Crew(known, hands)).execute(text, number=seed)).execution
    assert execution.violations == ()
    made = [correction_of(d) for d in execution.decisions if failed_node(d) is not None]
    assert len([one for one in made if one != "abort"]) <= 4
    assert made.count("replan") <= 1
    assert all(len(node.attempts) <= 2 for node in execution.nodes)
    assert len([node for node in execution.nodes if node.status != "dropped"]) <= 5
    assert len(hands["b"].asked) <= 7
    for decision in execution.decisions:
        could, did = msgspec.convert(decision.eligible, Eligible), msgspec.convert(decision.action, Choice)
        assert did.correction is None or did.correction in (could.corrections or ())
        assert could.stop if failed_node(decision) is None and did.task_type is None else True
        assert did.task_type is None or did.task_type in (could.task_types or ())
        assert set(did.dependencies or ()) <= set(could.dependencies or ())
        assert did.worker is None or did.worker in (could.workers or ())
        assert decision.propensity is not None
        assert 0 < decision.propensity <= 1


# People


def asking(answer: Correction | None, asked: list[Question]) -> Callable[[Question], Awaitable[Correction | None]]:
    async def human(question: Question) -> Correction | None:
        asked.append(question)
        await asyncio.sleep(100)
        return answer

    return human


def test_a_person_is_asked_before_the_policy_gives_up() -> None:
    asked: list[Question] = []
    a = ScriptedWorker("a", fault(Fault.REFUSAL))
    result = carried_out(office(a, human=asking(RETRY, asked)), "write")
    assert attempts(result) == [("draft", ["refusal", None])]
    assert asked == [
        Question(
            instruction="write",
            task_type="draft",
            worker="a",
            fault=Fault.REFUSAL,
            message="no: refusal",
            options=(RETRY, REPLAN, SKIP, ABORT),
        )
    ]
    decision = result.execution.decisions[-1]
    assert (correction_of(decision), decision.propensity, decision.policy) == ("retry", None, "human")
    assert decision.eligible["corrections"]
    assert "retry" in decision.eligible["corrections"]
    assert {d.policy for d in result.execution.decisions[:-1]} == {"script"}


@pytest.mark.parametrize("answer", [None, SWITCH, REPAIR])
def test_without_an_answer_among_the_options_the_policy_decides(answer: Correction | None) -> None:
    asked: list[Question] = []
    crowd = office(ScriptedWorker("a", fault(Fault.REFUSAL)), ScriptedWorker("b"), human=asking(answer, asked))
    result = carried_out(crowd)
    decision = result.execution.decisions[-1]
    assert (len(asked), result.execution.ended) == (1, "aborted")
    assert (correction_of(decision), decision.propensity, decision.policy) == ("abort", 0.5, "script")


def test_no_person_is_asked_while_the_policy_knows_what_to_do_or_nothing_is_allowed() -> None:
    asked: list[Question] = []
    a = ScriptedWorker("a", fault(Fault.REFUSAL), fault(Fault.REFUSAL))
    limits = Limits(max_corrections=1)
    result = carried_out(office(a, fixes=[RETRY], limits=limits, human=asking(RETRY, asked)))
    assert attempts(result) == [("draft", ["refusal", "refusal"])]
    assert asked == []


def test_a_person_may_replan_and_skip() -> None:
    asked: list[Question] = []
    a = ScriptedWorker("a", fault(Fault.REFUSAL))
    crowd = office(a, plans=[[(READ, (), A)], [(SEND, (), A)]], human=asking(REPLAN, asked))
    assert carried_out(crowd).output == "send()"


def test_a_person_who_does_not_answer_does_not_outlast_the_deadline() -> None:
    asked: list[Question] = []
    crowd = office(
        ScriptedWorker("a", fault(Fault.REFUSAL)), limits=Limits(max_time_ms=50_000.0), human=asking(RETRY, asked)
    )
    result = carried_out(crowd)
    assert len(asked) == 1
    assert result.latency_ms <= 50_000.0
    assert result.execution.violations == ()
    assert not result.success


def test_what_ends_while_a_person_thinks_took_as_long_as_it_took() -> None:
    a, b = ScriptedWorker("a", fault(Fault.REFUSAL)), ScriptedWorker("b", reply(after_s=2))
    crowd = office(a, b, plans=[[(READ, (), A), (DRAFT, (), B)]], human=asking(RETRY, []))
    result = carried_out(crowd)
    assert result.execution.nodes[1].attempts[0].latency_ms == 2000.0
    assert crowd.crew.members[B].latency_ms == pytest.approx(1000 + 1000 / 40)
    assert result.success


def test_a_person_who_cannot_be_asked_is_an_error_that_leaves_a_record() -> None:
    async def human(question: Question) -> Correction | None:
        raise EOFError("no terminal")

    log = MemoryLog()
    with pytest.raises(EOFError):
        carried_out(office(ScriptedWorker("a", fault(Fault.REFUSAL)), human=human, log=log))
    assert [(e.ended, e.error) for e in log.executions] == [("failed", "EOFError: no terminal")]


# Endings


def test_a_cancelled_workflow_leaves_a_complete_record_and_nothing_that_runs() -> None:
    log = MemoryLog()
    a, b = ScriptedWorker("a", hang(), hang()), ScriptedWorker("b", reply(after_s=1))
    plan = [(READ, (), A), (DRAFT, (), B), (REVIEW, (1,), A), (SEND, (0, 2), A)]
    crowd = office(a, b, plans=[plan], log=log)

    async def work() -> None:
        task = asyncio.create_task(crowd.execute("x", number=7))
        await asyncio.sleep(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(1)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert crowd.left_behind == set()

    run_virtually(work())
    (execution,) = log.executions
    assert (execution.ended, execution.success, execution.number, execution.latency_ms) == ("cancelled", False, 7, 3e3)
    assert [node.status for node in execution.nodes] == ["failed", "done", "failed", "planned"]
    assert [t.latency_ms for node in execution.nodes for t in node.attempts] == [3000.0, 1000.0, 2000.0]
    assert execution.execution_result.outputs == {"1": "draft()"}
    assert execution.planner_outputs is not None
    assert (a.under_way, b.under_way) == (0, 0)


@pytest.mark.parametrize("where", ["queue", "judge", "human", "drain"])
def test_a_workflow_can_be_cancelled_wherever_it_waits(where: str) -> None:
    log, asked = MemoryLog(), list[Question]()

    async def wait(subtask: Subtask, output: object) -> Verdict:
        await asyncio.sleep(1e9)
        raise AssertionError

    a = ScriptedWorker("a", hang()) if where == "queue" else ScriptedWorker("a", fault(Fault.REFUSAL))
    crowd = {
        "queue": lambda: office(a, plans=[[(READ, (), A), (DRAFT, (), A)]], concurrency={"a": 1}, log=log),
        "judge": lambda: office(a, judge=Says(wait), log=log),
        "human": lambda: office(a, human=asking(RETRY, asked), log=log),
        "drain": lambda: office(
            a,
            ScriptedWorker("b", hang()),
            plans=[[(READ, (), A), (DRAFT, (), B)], [(SEND, (), A)]],
            fixes=[REPLAN],
            log=log,
        ),
    }[where]()

    async def work() -> None:
        task = asyncio.create_task(crowd.execute("x"))
        await asyncio.sleep(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(1)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(work())
    assert [execution.ended for execution in log.executions] == ["cancelled"]
    (member, *_) = crowd.crew.members
    assert member.concurrency is None or _places_left(crowd) == 1


def _places_left(crowd: Orchestrator) -> int:
    (member, *_) = crowd.crew.members
    assert member._slots is not None
    return member._slots[1]._value


def test_a_stream_that_is_left_cancels_and_logs_its_workflows() -> None:
    log = MemoryLog()
    a = ScriptedWorker("a", reply(after_s=1), *[hang()] * 9)
    crowd = office(a, log=log)

    async def work() -> None:
        results: AsyncGenerator[Result]
        async with aclosing(crowd.stream(enumerate("uvwxyz"), concurrency=3)) as results:
            async for result in results:
                assert result.execution.number == 0
                break
        await asyncio.sleep(1)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(work())
    assert sorted((e.number, e.ended) for e in log.executions) == [(0, "done"), (1, "cancelled"), (2, "cancelled")]
    assert a.under_way == 0


def test_a_stream_begins_no_more_than_so_many_and_takes_no_more_than_it_begins() -> None:
    taken: list[int] = []

    def endless() -> Any:
        for i in range(100):
            taken.append(i)
            yield i, "x"

    a = ScriptedWorker("a", *[reply(after_s=1)] * 100)
    crowd = office(a)

    async def work() -> None:
        async with aclosing(crowd.stream(endless(), concurrency=4)) as results:
            async for _ in results:
                assert len(taken) <= 8
                if len(taken) == 8:
                    break

    run_virtually(work())
    assert a.most_under_way == 4


def test_all_come_in_their_order_whichever_ends_first() -> None:
    a = ScriptedWorker("a", reply("slow", after_s=9), reply("quick", after_s=1), reply("middling", after_s=5))
    results = run_virtually(office(a).execute_all(["x", "y", "z"]))
    assert [result.output for result in results] == ["slow", "quick", "middling"]
    assert [result.execution.number for result in results] == [0, 1, 2]


@pytest.mark.parametrize("instruction", ["", "  \n"])
def test_an_empty_instruction_fails_and_is_logged(instruction: str) -> None:
    log = MemoryLog()
    result = carried_out(office(ScriptedWorker("a"), log=log), instruction)
    assert (result.success, result.execution.ended, result.output) == (False, "failed", {})
    assert "empty" in result.execution.error
    assert result.execution.planner_outputs is None
    assert log.executions == [result.execution]


def test_where_no_worker_is_there_it_fails_and_is_logged() -> None:
    log = MemoryLog()
    a = ScriptedWorker("a")
    crowd = office(a, entries=[entry("a", available=False)], log=log)
    result = carried_out(crowd)
    assert (result.execution.ended, result.execution.nodes, a.asked) == ("failed", (), [])
    assert "no task type can be done now" in result.execution.error
    assert log.executions == [result.execution]


def test_a_policy_of_another_catalogue_is_refused() -> None:
    with pytest.raises(PlanError, match="another catalogue"):
        Orchestrator(following(catalogue(entry("b"))), Crew(catalogue(entry("a")), {"a": ScriptedWorker("a")}))


def test_what_a_policy_raises_is_raised_and_logged() -> None:
    log, known = MemoryLog(), catalogue(entry("a"))
    decider = following(known, [(DRAFT, (), A)], fixes=[(SWITCH, A)])  # which is not legal
    crowd = office(ScriptedWorker("a", fault(Fault.REFUSAL)), decider=decider, log=log)
    with pytest.raises(AssertionError):
        carried_out(crowd)
    assert [(e.ended, e.success) for e in log.executions] == [("failed", False)]
    assert [node.status for node in log.executions[0].nodes] == ["failed"]


def test_without_a_loop_of_ones_own() -> None:
    a = ScriptedWorker("a")
    crowd = office(a)
    assert crowd.run("x").output == "draft()"
    assert a.closed == 1
    assert crowd.run("y").success


def test_a_worker_that_heeds_nothing_does_not_keep_the_caller() -> None:
    """In real time: `asyncio.run` waits for every task that it knows of."""
    a = ScriptedWorker("a", heedless())
    crowd = office(a, timeout_s={"a": 0.05})
    began = time.monotonic()
    result = crowd.run("x")
    assert attempts(result) == [("draft", ["timeout"])]
    assert time.monotonic() - began < 10
    for task in crowd.left_behind:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    crowd.left_behind.clear()


def test_a_thread_that_blocks_does_not_hold_up_a_deadline() -> None:
    """In real time."""
    import threading

    released = threading.Event()

    async def block(subtask: Subtask) -> Reply:
        await asyncio.get_running_loop().run_in_executor(None, released.wait, 60)
        return Reply(output="late")

    async def work() -> Result:
        try:
            return await office(ScriptedWorker("a", block), limits=Limits(max_time_ms=1100.0)).execute("x")
        finally:
            released.set()

    result = asyncio.run(work())
    assert result.execution.ended == "deadline"
    assert result.latency_ms <= 1100.0


# Records


def test_a_record_tells_the_plan_and_what_became_of_each_node() -> None:
    known = [entry("a", usd_per_call=0.5), entry("b")]
    a, b = ScriptedWorker("a", reply(after_s=1)), ScriptedWorker("b", fault(Fault.REFUSAL, after_s=2))
    execution = carried_out(office(a, b, plans=[DIAMOND], entries=known, fixes=[(SWITCH, A)]), number=3).execution
    assert execution.planner_outputs is not None
    assert execution.planner_outputs.task_types == (READ, DRAFT, REVIEW, SEND)
    assert execution.planner_outputs.model_selections == (A, A, B, A)
    assert execution.planner_outputs.workflow_graph.adjacency == (  # [i][j]: j depends on i
        (0, 1, 1, 0),
        (0, 0, 0, 1),
        (0, 0, 0, 1),
        (0, 0, 0, 0),
    )
    assert [(n.task_type, n.dependencies, n.worker, n.status) for n in execution.nodes] == [
        (READ, (), A, "done"),
        (DRAFT, (0,), A, "done"),
        (REVIEW, (0,), A, "done"),
        (SEND, (1, 2), A, "done"),
    ]
    assert [(t.worker, t.started_ms, t.latency_ms, t.cost_usd, t.fault) for t in execution.nodes[2].attempts] == [
        (B, 1000.0, 2000.0, 0.01, "refusal"),
        (A, 3000.0, 0.0, 0.5, None),
    ]
    assert (execution.number, execution.policy, execution.instruction) == (3, "script", "do it")
    assert execution.cost == execution.execution_result.total_cost == pytest.approx(2.01)
    assert execution.latency_ms == execution.execution_result.total_latency_ms == 3000.0
    assert set(execution.execution_result.outputs) == {"0", "1", "2", "3"}
    assert execution.reward == pytest.approx(10 - 0.1 * 201 - 0.01 * 3 + 0.1 * 4)


def test_how_workers_are_doing_is_reported_where_it_changed() -> None:
    a, b = ScriptedWorker("a", fault(Fault.REFUSAL), fault(Fault.REFUSAL)), ScriptedWorker("b")
    decisions = carried_out(office(a, b, fixes=[RETRY, (SWITCH, B)])).execution.decisions
    assert ["live" in (decision.context or {}) for decision in decisions] == [True, False, True, True]
    for decision, share in zip(decisions[2:], (0.5 * 39 / 40, 0.5 * (39 / 40) ** 2), strict=True):
        assert decision.context["live"] == [[0.01, 1000.0, share, True, None], [0.01, 1000.0, 0.5, True, None]]


def test_a_record_survives_json() -> None:
    a = ScriptedWorker("a", fault(Fault.WRONG_INPUT), reply({"x": [1, None, "ä"]}), fault(Fault.REFUSAL))
    b = ScriptedWorker("b")
    first = [(READ, (), A), (DRAFT, (0,), A)]
    crowd = office(a, b, plans=[first, [(SEND, (0,), A)]], fixes=[(REPAIR, READ, A), REPLAN], seed=5)
    execution = carried_out(crowd, number=0).execution
    assert {node.status for node in execution.nodes} == {"done", "dropped"}
    assert msgspec.json.decode(msgspec.json.encode(execution), type=Execution) == execution


def test_those_who_watch_see_everything_in_order() -> None:
    seen: list[Event] = []
    a = ScriptedWorker("a", fault(Fault.REFUSAL, after_s=1), reply(after_s=2))
    carried_out(office(a, plans=[[(DRAFT, (), A), (SEND, (0,), A)]], fixes=[RETRY], watch=seen.append))
    assert [(event.kind, event.at_ms) for event in seen] == [
        ("planned", 0.0),
        ("started", 0.0),
        ("failed", 1000.0),
        ("corrected", 1000.0),
        ("started", 1000.0),
        ("done", 3000.0),
        ("started", 3000.0),
        ("done", 3000.0),
        ("ended", 3000.0),
    ]
    failed, ended = seen[2], seen[-1]
    assert (failed.fault, failed.message) == (Fault.REFUSAL, "no: refusal")
    assert ended.message == "done"
    assert len({event.workflow for event in seen}) == 1


# Over time


def test_nothing_grows_with_the_work_done() -> None:
    """3,000 subtasks, one in ten of which hangs."""
    nodes = [plans.Node(task_type="draft", dependencies=(i - 1,) if i % 2 else (), worker="a") for i in range(10)]
    plan = plans.Plan(instruction="x", nodes=tuple(nodes))

    async def sometimes(subtask: Subtask) -> Reply:
        await asyncio.sleep(1.0 if subtask.node else 1e9)
        return Reply(output="")

    a = ScriptedWorker("a", *[sometimes] * 3000)
    crowd = office(a, plans=[], concurrency={"a": 8}, timeout_s={"a": 5.0}, fixes=[SKIP])

    async def work() -> None:
        for _ in range(30):
            results = await asyncio.gather(*(crowd.execute("x", plan=plan) for _ in range(10)))
            assert {result.execution.ended for result in results} == {"done"}
        await asyncio.sleep(1)
        assert crowd.left_behind == set()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert _places_left(crowd) == 8
        gc.collect()
        assert [one for one in gc.get_objects() if type(one) is Flow and one.at is crowd] == []

    run_virtually(work())
    assert len(a.asked) == 3000
