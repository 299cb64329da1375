"""Policies that are missing, slow or broken give the default option; loading is not part of the latency."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from etude.contracts.decision import Decision, DecisionRequest, Expected, LoggedDecision, NoOptionError
from etude.contracts.errors import ConfigError, DataError, StoreError
from etude.contracts.option import option_name
from etude.experience import deciders as module
from etude.experience.deciders import Deciders, NoAnswer, Start, ToLoad
from etude.experience.task import Collector
from tests.memory_bus import MemoryBus
from tests.unit.experience.test_task import collecting, only_trajectory


@dataclass
class Policy:
    """A trained policy: it chooses the last option, or does what it is made to do."""

    answer: Callable[[DecisionRequest], Any] = lambda request: (request.options or ())[-1]
    propensity: float | None = 0.75
    logs: bool = True
    problem: str = "choice"
    version: str = "abc123"
    asked: list[DecisionRequest] = field(default_factory=list)

    def decide(self, request: DecisionRequest) -> Decision:
        self.asked.append(request)
        action = self.answer(request)
        logged = LoggedDecision(problem="choice", eligible=list(request.options or ()), action=action, policy="x")
        return Decision(
            action=action,
            propensity=self.propensity,
            policy=self.version,
            logged=(logged,) if self.logs else (),
            expected={"a": Expected(score=1.0, score_se=0.1)},
        )


def asking(load: Callable[[], Any], *, timeout_s: float = 5.0, bus: MemoryBus | None = None) -> Collector:
    made = collecting(bus or MemoryBus(), policy=lambda _: ToLoad("runs/a", load))
    made.decide_timeout_s = timeout_s
    return made


def test_a_loaded_policy_decides_and_is_logged_under_the_name_of_the_choice() -> None:
    policy, bus = Policy(), MemoryBus()
    with asking(lambda: policy, bus=bus).task("x") as task:
        found = task.decide("tone", "hello", options=["a", {"name": "b", "cost_usd": 1.0}], quality_weight=0.5)
    assert found == {"name": "b", "cost_usd": 1.0}
    assert (found.propensity, found.policy, found.expected["a"].score) == (0.75, "abc123", 1.0)
    (decision,) = only_trajectory(bus).decisions
    assert (decision.problem, decision.action, decision.propensity) == ("choice:tone", "b", 0.75)
    assert (decision.policy, decision.context) == ("abc123", "hello")
    assert decision.eligible == ["a", {"name": "b", "cost_usd": 1.0}]
    (request,) = policy.asked
    assert (request.context, request.preferences.quality_weight) == ("hello", 0.5)
    assert request.options == ("a", {"name": "b", "cost_usd": 1.0})


def test_a_policy_may_answer_with_a_name_and_rule_options_out() -> None:
    def decide(request: DecisionRequest) -> Any:
        return option_name((request.options or ())[1])

    policy = Policy(decide, logs=False)
    with asking(lambda: policy).task("x") as task:
        assert task.decide("tone", options=["a", {"name": "b"}, "c"], allowed=["a", "b"]) == {"name": "b"}
    assert task.decisions[0].eligible == ["a", {"name": "b"}]


class Wordless(Policy):
    def decide(self, request: DecisionRequest) -> Decision:
        return None  # type: ignore[return-value]


def fail(_: DecisionRequest) -> Any:
    raise RuntimeError("out of memory")


def leave(_: DecisionRequest) -> Any:
    raise SystemExit(3)


BROKEN: list[tuple[Policy, str]] = [
    (Policy(fail), "RuntimeError: out of memory"),
    (Policy(leave), "SystemExit: 3"),
    (Policy(lambda _: "z"), "chose 'z', which is not eligible"),
    (Policy(lambda _: "c"), "chose 'c', which is not eligible"),
    (Policy(lambda _: None), "chose '', which is not eligible"),
    (Policy(lambda _: "a", propensity=0.0), "with the propensity 0.0"),
    (Policy(lambda _: "a", propensity=float("nan")), "with the propensity nan"),
    (Policy(lambda _: "a", propensity="1"), "with the propensity '1'"),  # type: ignore[arg-type]
    (Policy(lambda _: "a", version=""), "its version is ''"),
    (Wordless(), "it answered None"),
]


@pytest.mark.parametrize(("policy", "why"), BROKEN)
def test_a_broken_policy_gives_the_default_and_warns_once(
    policy: Policy, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    collector = asking(lambda: policy)
    with caplog.at_level(logging.WARNING, logger="etude"), collector.task("x") as task:
        for _ in range(3):
            chosen = task.decide("tone", options=["a", "b", "c"], allowed=["a", "b"], default="b")
            assert (chosen, chosen.policy, chosen.propensity) == ("b", "default", 1.0)
    assert task.collected
    assert [(d.action, d.policy, d.propensity) for d in task.decisions[:3]] == [("b", "default", 1.0)] * 3
    assert collector.defaults["choice:tone"] == 3
    warnings = [r.getMessage() for r in caplog.records if r.getMessage().startswith("choice:tone")]
    assert len(warnings) == 1
    assert "the default was given because the policy failed" in warnings[0]
    assert "experience.policies" in warnings[0]
    assert why in warnings[0]


def test_if_no_option_is_within_the_limits_the_default_is_given_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    expected = {name: Expected(score=1.0, score_se=0.1, masked=f"{name} costs too much") for name in ("a", "b")}

    def refuse(_: DecisionRequest) -> Any:
        raise NoOptionError("no option may be chosen (a, b: they cost too much)", expected)

    collector = asking(lambda: Policy(refuse))
    with collector.task("x") as task:
        chosen = task.decide("tone", options=["a", "b"], default="b", max_cost_usd=0.001)
    assert (chosen, chosen.policy, chosen.propensity) == ("b", "default", 1.0)
    assert chosen.expected["b"].masked == "b costs too much"
    assert collector.defaults == {"choice:tone": 1}
    assert "the policy knows of no option within the limits of the request (runs/a: no option may be" in caplog.text
    assert "raise max_cost_usd or max_latency_ms, or offer another option" in caplog.text
    assert "train it again" not in caplog.text


def test_a_policy_loaded_when_the_time_is_up_is_not_asked() -> None:
    policy = Policy()
    deciders = Deciders(lambda _: ToLoad("runs/a", lambda: policy))
    assert deciders.loaded("choice:a", timeout_s=5) is None
    found = deciders.decide("choice:a", DecisionRequest(options=("a",)), timeout_s=-1e-5)
    assert found == NoAnswer("loading", "runs/a was loaded too late to be asked")
    assert policy.asked == []


def test_a_slow_policy_gives_the_default_at_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    held, ended = threading.Event(), threading.Event()

    def slow(request: DecisionRequest) -> Any:
        held.wait()
        ended.set()
        return "b"

    collector = asking(lambda: Policy(slow), timeout_s=0.05)
    with collector.task("x") as task:
        began = time.perf_counter()
        assert task.decide("tone", options=["a", "b"]) == "a"
        assert time.perf_counter() - began < 2.0
    assert "the policy did not answer in time (runs/a: no answer within " in caplog.text
    assert "raise experience.decide_timeout_ms" in caplog.text
    held.set()
    assert ended.wait(5)
    collector.decide_timeout_s = 5.0
    with collector.task("x") as task:
        assert task.decide("tone", options=["a", "b"]) == "b"
    assert collector.defaults == {"choice:tone": 1}


def test_until_it_is_loaded_the_default_is_given(caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()

    def load() -> Any:
        go.wait()
        return Policy()

    collector = asking(load, timeout_s=0.5)
    with collector.task("x") as task:
        assert task.decide("tone", options=["a", "b"]) == "a"
        began = time.perf_counter()
        for _ in range(10):
            assert task.decide("tone", options=["a", "b"]) == "a"
        assert time.perf_counter() - began < 2.0  # only the first one waits
        go.set()
        collector.decide_timeout_s = 5.0
        assert task.decide("tone", options=["a", "b"]) == "b"
    assert [d.policy for d in task.decisions] == ["default"] * 11 + ["abc123"]
    assert "the default is given while the policy is loaded (runs/a is being loaded)" in caplog.text


def test_a_policy_that_cannot_be_loaded_gives_the_default_and_is_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def load() -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise ConfigError("runs/a does not exist")
        return Policy()

    with asking(load).task("x") as task:
        assert task.decide("tone", options=["a", "b"]) == "a"
        assert task.decide("tone", options=["a", "b"]) == "a"
        assert len(tries) == 1
        monkeypatch.setattr(module, "monotonic", lambda: float("inf"))
        assert task.decide("tone", options=["a", "b"]) == "b"
    assert "because the policy cannot be loaded (runs/a: runs/a does not exist)" in caplog.text


def test_settings_that_name_no_policy_give_the_default(caplog: pytest.LogCaptureFixture) -> None:
    def make(problem: str) -> Any:
        raise ConfigError(f"experience.policies.{problem} is 'x'")

    with collecting(MemoryBus(), policy=make).task("x") as task:
        assert task.decide("tone", options=["a", "b"]) == "a"
    assert "experience.policies.choice:tone is 'x'" in caplog.text


def test_a_problem_waits_for_its_policy_and_loading_is_no_latency() -> None:
    def load() -> Any:
        time.sleep(0.6)
        return Policy(lambda _: "plan")

    bus = MemoryBus()
    with asking(load, bus=bus).task("x") as task:
        task.turn(action="before")
        assert task.decide("plan").action == "plan"
        task.turn(action="after")
    event = only_trajectory(bus)
    assert event.outcome.latency_ms is not None
    assert event.outcome.latency_ms < 550
    assert event.turns[0].at_ms <= event.decisions[0].at_ms <= event.turns[1].at_ms <= event.outcome.latency_ms


def test_a_problem_raises_what_is_wrong_unless_there_is_a_default() -> None:
    def refuse(request: DecisionRequest) -> Any:
        raise DataError("the context is empty")

    with asking(lambda: Policy(fail)).task("x") as task:
        with pytest.raises(RuntimeError, match="out of memory"):
            task.decide("plan")
        decision = task.decide("plan", default=["call"])
        assert (decision.action, decision.policy, decision.propensity) == (["call"], "default", 1.0)
        assert task.decisions == ()
    with asking(lambda: Policy(refuse)).task("x") as task, pytest.raises(DataError, match="the context is empty"):
        task.decide("plan", default=["call"])
    collector = asking(lambda: (_ for _ in ()).throw(ConfigError("no such run")))
    with collector.task("x") as task:
        with pytest.raises(ConfigError, match="no such run"):
            task.decide("plan")
        assert task.decide("plan", default=[]).action == []
    assert collector.defaults == {"plan": 1}


def test_a_choice_that_began_without_a_policy_gets_the_one_that_is_released_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No request waits for it, and one that cannot be loaded changes nothing."""
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    released, broken, loads = threading.Event(), threading.Event(), list[bool]()

    def load() -> Any:
        loads.append(broken.is_set())
        if broken.is_set():
            raise StoreError("the registry is away")
        return Policy(lambda _: "b")

    deciders = Deciders(lambda problem: ToLoad("served", load) if released.is_set() else Start(problem))
    request = DecisionRequest(context=None, options=("a", "b"), default="a")

    def asked() -> Decision:
        found = deciders.decide("choice:model", request, timeout_s=5)
        assert isinstance(found, Decision)
        return found

    assert [asked().policy for _ in range(3)] == ["default"] * 3
    broken.set()
    released.set()
    deadline = time.monotonic() + 60
    while len(loads) < 2 and time.monotonic() < deadline:
        assert asked().policy == "default"
    broken.clear()
    while asked().policy == "default" and time.monotonic() < deadline:
        pass
    assert loads[:2] == [True, True]
    assert asked().action == "b"


def test_many_threads_ask_at_once_and_a_policy_may_ask_another() -> None:
    def nested(request: DecisionRequest) -> Any:
        if request.context == "outer":
            found = deciders.decide("choice:inner", DecisionRequest(context="inner", options=("a", "b")), timeout_s=5)
            assert isinstance(found, Decision)
            return found.action
        return "b"

    others = threading.active_count()
    deciders = Deciders(lambda _: ToLoad("runs/a", lambda: Policy(nested)))
    request = DecisionRequest(context="outer", options=("a", "b"))
    for problem in ("choice:outer", "choice:inner"):
        assert deciders.loaded(problem, timeout_s=5) is None

    def ask(_: int) -> Any:
        found = deciders.decide("choice:outer", request, timeout_s=5)
        return found.action if isinstance(found, Decision) else found

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(200))) == ["b"] * 200
    assert threading.active_count() < others + 80


def test_too_many_calls_that_never_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()
    deciders = Deciders(lambda _: ToLoad("runs/a", lambda: Policy(lambda _: held.wait())))
    assert deciders.loaded("choice:a", timeout_s=5) is None
    deciders._deadline._threads()._most = 3
    for _ in range(3):
        found = deciders.decide("choice:a", DecisionRequest(options=("a",)), timeout_s=0)
        assert isinstance(found, NoAnswer)
        assert found.reason == "slow"
    found = deciders.decide("choice:a", DecisionRequest(options=("a",)), timeout_s=5)
    assert isinstance(found, NoAnswer)
    assert "3 earlier calls have not ended" in found.why
    held.set()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    deciders = Deciders(lambda _: ToLoad("runs/a", Policy))
    request = DecisionRequest(options=("a", "b"))
    assert deciders.loaded("choice:a", timeout_s=5) is None
    assert isinstance(deciders.decide("choice:a", request, timeout_s=5), Decision)
    child = os.fork()
    if child == 0:
        missing = deciders.loaded("choice:a", timeout_s=5)
        answer = missing or deciders.decide("choice:a", request, timeout_s=5)
        os._exit(0 if isinstance(answer, Decision) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_forked_while_a_policy_loads_loads_it_itself() -> None:
    held, parent = threading.Event(), os.getpid()

    def load() -> Policy:
        if os.getpid() == parent:
            held.wait()
        return Policy()

    deciders = Deciders(lambda _: ToLoad("runs/a", load))
    assert deciders.loaded("choice:a", timeout_s=0) is not None
    child = os.fork()
    if child == 0:
        os._exit(0 if deciders.loaded("choice:a", timeout_s=5) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.set()
