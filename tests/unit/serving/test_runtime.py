"""Policies are asked together, without waiting, within their time; and one that fails harms no other request."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from etude.contracts.decision import Decision, DecisionRequest, LoggedDecision
from etude.contracts.errors import DataError
from etude.experience.deciders import Deciders, NoAnswer, ToLoad
from etude.serving import own_time
from etude.serving.runtime import NOT_QUICK_S, SMALL, TOGETHER, Runtime

SLOT = "choice:model"


def decision(policy: str = "p") -> Decision:
    logged = LoggedDecision(problem=SLOT, action="a", propensity=1.0, policy=policy)
    return Decision(action="a", propensity=1.0, policy=policy, logged=(logged,))


class Batching:
    """Decides together; a context of `wrong` is no context."""

    problem, version = SLOT, "p"

    def __init__(self, *, quick: bool = True, takes: Callable[[], object] = lambda: None) -> None:
        self.quick, self.takes = quick, takes
        self.groups, self.threads = list[int](), set[str]()

    def decide(self, request: DecisionRequest) -> Decision:
        self.takes()
        self.threads.add(threading.current_thread().name)
        if request.context == "wrong":
            raise DataError("wrong")
        return decision()

    def decide_many(self, requests: Sequence[DecisionRequest]) -> list[Decision | Exception]:
        self.groups.append(len(requests))
        found = list[Decision | Exception]()
        for request in requests:
            try:
                found.append(self.decide(request))
            except DataError as error:
                found.append(error)
        return found


class Single:
    """Decides one request at a time."""

    problem, version = SLOT, "p"

    def __init__(self, takes: Callable[[], object]) -> None:
        self.takes = takes

    def decide(self, request: DecisionRequest) -> Decision:
        self.takes()
        return decision()


def ask(policy: Any, *contexts: Any, timeout_s: float = 10.0) -> list[Decision | NoAnswer]:
    """Requests at the same time."""

    async def all_of_them() -> list[Decision | NoAnswer]:
        runtime = runtime_of(policy)
        await loaded(runtime)
        requests = [DecisionRequest(context=context) for context in contexts]
        return await asyncio.gather(*(runtime.ask(SLOT, request, timeout_s=timeout_s) for request in requests))

    return asyncio.run(all_of_them())


def runtime_of(policy: Any) -> Runtime:
    return Runtime(Deciders(lambda problem: ToLoad("mine", lambda: policy)))


async def loaded(runtime: Runtime) -> None:
    while isinstance(await runtime.ask(SLOT, DecisionRequest(context=""), timeout_s=10), NoAnswer):
        await asyncio.sleep(0)


def reasons(found: Sequence[Decision | NoAnswer]) -> list[str]:
    return ["" if isinstance(one, Decision) else one.reason for one in found]


def test_requests_that_wait_together_are_decided_together_on_the_event_loop() -> None:
    policy = Batching()
    assert reasons(ask(policy, *range(10))) == [""] * 10
    assert policy.groups[-1] == 10
    assert policy.threads == {threading.current_thread().name}


def test_a_request_that_is_alone_waits_for_no_other() -> None:
    policy = Batching()

    async def one_by_one() -> None:
        runtime = runtime_of(policy)
        await loaded(runtime)
        for _ in range(3):
            await runtime.ask(SLOT, DecisionRequest(), timeout_s=10)

    asyncio.run(one_by_one())
    assert policy.groups[-3:] == [1, 1, 1]


def test_groups_are_not_endless() -> None:
    policy = Batching()
    assert reasons(ask(policy, *range(TOGETHER + 6))) == [""] * (TOGETHER + 6)
    assert policy.groups[-2:] == [TOGETHER, 6]


def test_one_wrong_request_fails_alone() -> None:
    found = ask(Batching(), "a", "wrong", "b")
    assert reasons(found) == ["", "broken", ""]
    assert isinstance(found[1], NoAnswer)
    assert isinstance(found[1].error, DataError)


def test_where_a_computation_fails_as_a_whole_each_request_is_asked_by_itself() -> None:
    class Brittle(Batching):
        def decide_many(self, requests: Sequence[DecisionRequest]) -> list[Decision | Exception]:
            if len(requests) > 1:
                raise RuntimeError("all or none")
            return super().decide_many(requests)

    assert reasons(ask(Brittle(), "a", "wrong", "b")) == ["", "broken", ""]


def test_too_few_answers_are_no_answers() -> None:
    class Short(Batching):
        def decide_many(self, requests: Sequence[DecisionRequest]) -> list[Decision | Exception]:
            return super().decide_many(requests)[:1]

    assert reasons(ask(Short(), "a", "wrong", "b")) == ["", "broken", ""]


def test_large_requests_do_not_keep_the_event_loop() -> None:
    policy = Batching()
    ask(policy, "x" * (SMALL + 1))
    assert "etude-decide" in policy.threads


def test_a_policy_that_is_slower_than_it_says_leaves_the_event_loop() -> None:
    policy = Batching(takes=lambda: time.sleep(0.03))

    async def again_and_again() -> None:
        runtime = runtime_of(policy)
        await loaded(runtime)
        for _ in range(5):
            policy.threads.clear()
            await runtime.ask(SLOT, DecisionRequest(), timeout_s=10)

    asyncio.run(again_and_again())
    assert policy.threads == {"etude-decide"}
    assert NOT_QUICK_S > 1


def test_a_policy_that_is_late_once_stays_on_the_event_loop() -> None:
    policy = Batching()

    async def late() -> None:
        runtime = runtime_of(policy)
        await loaded(runtime)
        for takes_s in (0.1, 0.0):
            policy.takes = lambda takes_s=takes_s: time.sleep(takes_s)
            policy.threads.clear()
            await runtime.ask(SLOT, DecisionRequest(), timeout_s=10)

    asyncio.run(late())
    assert policy.threads == {threading.current_thread().name}


def test_a_policy_that_others_interrupt_stays_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, clock = Batching(), itertools.count(0, 60)
    monkeypatch.setattr(own_time, "monotonic", lambda: float(next(clock)))

    async def again_and_again() -> None:
        runtime = runtime_of(policy)
        await loaded(runtime)
        for _ in range(5):
            policy.threads.clear()
            await runtime.ask(SLOT, DecisionRequest(), timeout_s=10)

    asyncio.run(again_and_again())
    assert policy.threads == {threading.current_thread().name}


def test_while_a_slow_policy_computes_requests_become_the_next_group() -> None:
    go, begun = threading.Event(), threading.Event()

    def takes() -> None:
        begun.set()
        assert go.wait(20)

    policy = Batching(quick=False)

    async def arrive() -> list[Decision | NoAnswer]:
        runtime = runtime_of(policy)
        await loaded(runtime)
        policy.takes, policy.groups = takes, []
        first = asyncio.create_task(runtime.ask(SLOT, DecisionRequest(), timeout_s=20))
        await asyncio.to_thread(begun.wait, 20)
        later = [asyncio.create_task(runtime.ask(SLOT, DecisionRequest(), timeout_s=20)) for _ in range(4)]
        await asyncio.sleep(0)
        go.set()
        return list(await asyncio.gather(first, *later))

    assert reasons(asyncio.run(arrive())) == [""] * 5
    assert policy.groups == [1, 4]


def test_a_slow_policy_is_given_up_in_time_and_later_requests_do_not_wait_for_it() -> None:
    for policy_of in (lambda takes: Batching(quick=False, takes=takes), Single):
        stuck, go = threading.Event(), threading.Event()

        def takes(stuck: threading.Event = stuck, go: threading.Event = go) -> None:
            if stuck.is_set():
                go.wait(20)

        policy = policy_of(takes)

        async def late(stuck: threading.Event = stuck, policy: Any = policy) -> list[str]:
            runtime = runtime_of(policy)
            await loaded(runtime)
            stuck.set()
            first = await runtime.ask(SLOT, DecisionRequest(), timeout_s=0.1)
            stuck.clear()
            return reasons([first, await runtime.ask(SLOT, DecisionRequest(), timeout_s=10)])

        began = time.monotonic()
        assert asyncio.run(late()) == ["slow", ""]
        assert time.monotonic() - began < 5
        go.set()


def test_a_policy_that_loads_or_cannot_be_loaded_is_no_answer() -> None:
    go = threading.Event()

    def load() -> Any:
        assert go.wait(20)
        raise RuntimeError("no file")

    async def early() -> list[str]:
        runtime = Runtime(Deciders(lambda problem: ToLoad("mine", load)))
        found = [await runtime.ask(SLOT, DecisionRequest(), timeout_s=0.05)]
        go.set()
        while found[-1].reason == "loading":  # type: ignore[union-attr]
            found.append(await runtime.ask(SLOT, DecisionRequest(), timeout_s=10))
        return reasons([found[0], found[-1]])

    assert asyncio.run(early()) == ["loading", "missing"]


def test_an_answer_of_another_kind_is_no_answer() -> None:
    class Odd(Batching):
        def decide_many(self, requests: Sequence[DecisionRequest]) -> list[Any]:
            return ["large" for _ in requests] if requests[0].context else super().decide_many(requests)

    (found,) = ask(Odd(), "x")
    assert isinstance(found, NoAnswer)
    assert "in place of a Decision" in found.why
