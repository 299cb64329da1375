"""`etude.task`: what an agent's loop publishes, and which failures never reach it."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import pickle
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import numpy as np
import pytest

from etude.contracts.bus import Message
from etude.contracts.decision import DecisionRequest
from etude.contracts.errors import BusError, DataError, EventError
from etude.contracts.ports import Decider
from etude.contracts.subjects import TRAJECTORIES, decode
from etude.contracts.trajectory import Event, Feedback, Trajectory
from etude.experience.cleaning import Cleaner, pseudonym
from etude.experience.deciders import Deciders, Default, Start, ToLoad, Uniform
from etude.experience.redact import RedactionConfig
from etude.experience.task import Collector, OptOuts
from tests.memory_bus import MemoryBus

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


class Full(MemoryBus):
    """A bus whose disk is full."""

    def publish(self, messages: Sequence[Message]) -> None:
        raise BusError("the disk is full: make room")


def collecting(
    bus: MemoryBus, *, out: frozenset[str] = frozenset(), policy: Callable[[str], Decider | ToLoad] = Uniform
) -> Collector:
    return Collector(
        bus=bus,
        clean=Cleaner(RedactionConfig()),
        problem_of=lambda name: name if name == "plan" else f"choice:{name}",
        deciders=Deciders(policy),
        opted_out=lambda: out,
        clock=lambda: NOON,
    )


def published(bus: MemoryBus) -> list[Event]:
    return [decode(d.message.body) for d in bus.pull(TRAJECTORIES, "test", limit=100, timeout_s=0)]


def only_trajectory(bus: MemoryBus) -> Trajectory:
    (event,) = published(bus)
    assert isinstance(event, Trajectory)
    return event


def test_a_task_becomes_a_trajectory() -> None:
    bus = MemoryBus()
    with collecting(bus).task("write to ana@example.com", user="u1", group="free", agent="helper", model="m1") as task:
        choice = task.decide("tone", {"mood": "good"}, options=["formal", "casual"])
        task.turn(observation="a mail", action=choice, result={"to": "ana@example.com"}, cost_usd=0.5)
        task.turn(observation="another", action="wait", error="timeout", cost_usd=0.25)
        task.outcome(quality={"judge": 0.75}, subtasks=2, subtasks_done=1)
        task.feedback(thumbs="up")
    event = only_trajectory(bus)
    assert task.collected
    assert (event.id, event.time, event.user, event.group) == (task.id, NOON, "u1", "free")
    assert (event.problem, event.policy) == ("choice:tone", "uniform")
    assert event.task == "write to [EMAIL_1]"
    assert event.turns[0].result == {"to": "[EMAIL_1]"}
    assert event.turns[0].action == choice
    assert event.redacted == {"email": 2}
    assert event.outcome.success is True
    assert event.outcome.cost_usd == 0.75
    assert event.outcome.quality == {"judge": 0.75}
    assert event.outcome.latency_ms is not None
    (decision,) = event.decisions
    assert (decision.propensity, decision.eligible, decision.action) == (0.5, ["formal", "casual"], choice)
    assert decision.context == {"mood": "good"}
    assert event.feedback[0].thumbs == "up"


def test_an_exception_is_a_failure_and_goes_on_its_way() -> None:
    bus = MemoryBus()
    with pytest.raises(ValueError, match="no good"), collecting(bus).task("x"):
        raise ValueError("no good")
    outcome = only_trajectory(bus).outcome
    assert (outcome.success, outcome.ended, outcome.error) == (False, "failed", "ValueError: no good")


def test_what_is_stopped_by_hand_neither_succeeded_nor_failed() -> None:
    bus = MemoryBus()
    with pytest.raises(KeyboardInterrupt), collecting(bus).task("x"):
        raise KeyboardInterrupt
    outcome = only_trajectory(bus).outcome
    assert (outcome.success, outcome.ended) == (None, "cancelled")


def test_a_reported_failure_counts() -> None:
    bus = MemoryBus()
    with collecting(bus).task("x") as task:
        task.outcome(success=False, error="the customer says no")
    outcome = only_trajectory(bus).outcome
    assert (outcome.success, outcome.error) == (False, "the customer says no")


def test_success_may_be_unknown() -> None:
    bus = MemoryBus()
    with collecting(bus).task("x") as task:
        task.outcome(success=None)
        task.outcome(cost_usd=0.5)  # says nothing about it
    outcome = only_trajectory(bus).outcome
    assert (outcome.success, outcome.ended, outcome.cost_usd) == (None, "done", 0.5)


def test_any_value_is_kept_as_json() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "<odd>"

    knot: list[Any] = []
    knot.append(knot)
    bus = MemoryBus()
    with collecting(bus).task("x", metadata={"when": NOON}) as task:
        task.turn(observation=Odd(), action={1: {2, 3}}, result=[float("nan"), float("inf"), b"\xff", "\ud800", knot])
    event = only_trajectory(bus)
    assert event.turns[0].observation == "<odd>"
    assert event.turns[0].action == {"1": [2, 3]}
    assert event.turns[0].result[:2] == ["nan", "inf"]
    assert event.metadata is not None


def test_nothing_is_kept_of_who_opted_out_or_is_not_to_be_collected() -> None:
    bus = MemoryBus()
    collector = collecting(bus, out=frozenset({"u1"}))
    with collector.task("x", user="u1") as task:
        assert task.decide("tone", eligible=["a"]) == "a"  # they are served like anybody
    with collector.task("x", user="u2", collect=False):
        ...
    assert collector.feedback(task.id, thumbs="up", user="u1") is False
    assert published(bus) == []
    assert not task.collected


def test_a_full_disk_is_logged_and_the_agent_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    collector = collecting(Full())
    with caplog.at_level(logging.ERROR, logger="etude"), collector.task("x") as task:
        ...
    assert not task.collected
    assert collector.failed == 1
    assert "disk is full" in caplog.text
    assert collector.feedback("t-1", stars=3) is False


def test_what_cannot_be_encoded_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(event: Event) -> bytes:
        raise EventError(f"{event.id} is nested too deeply to be redacted")

    bus = MemoryBus()
    collector = dataclasses.replace(collecting(bus), clean=refuse)
    with caplog.at_level(logging.ERROR, logger="etude"), collector.task("x"):
        ...
    assert collector.failed == 1
    assert published(bus) == []
    assert "nested too deeply" in caplog.text


def test_feedback_comes_later() -> None:
    bus = MemoryBus()
    assert collecting(bus).feedback("t-1", thumbs="down", stars=2, comment="call 555-0100 or ana@example.com")
    (event,) = published(bus)
    assert isinstance(event, Feedback)
    assert (event.trajectory_id, event.thumbs, event.stars) == ("t-1", "down", 2)
    assert "ana@example.com" not in (event.comment or "")


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("outcome", {"quality": 0.8}, r"quality is 0\.8: expected a mapping such as \{'judge': 0\.8\}"),
    ("outcome", {"quality": {"judge": 8}}, r"quality\['judge'\] is 8: expected a number from 0 to 1"),
    ("outcome", {"quality": {"judge": None}}, r"quality\['judge'\] is None: .*leave out"),
    ("outcome", {"quality": {1: 0.5}}, "quality has the key 1: expected the name of a score"),
    ("outcome", {"success": "yes"}, "success is 'yes': expected True or False"),
    ("outcome", {"cost_usd": -0.1}, r"cost_usd is -0\.1: expected a finite number of at least 0 USD"),
    ("outcome", {"cost_usd": float("nan")}, "cost_usd is nan: expected a finite number"),
    ("outcome", {"cost_usd": "0.1"}, r"cost_usd is '0\.1': expected a finite number"),
    ("outcome", {"cost_usd": True}, "cost_usd is True: expected a finite number"),
    ("outcome", {"subtasks": 1.5}, r"subtasks is 1\.5: expected a whole number"),
    ("outcome", {"subtasks_done": -1}, "subtasks_done is -1: expected a whole number"),
    ("turn", {"cost_usd": float("inf")}, "cost_usd is inf: expected a finite number"),
    ("turn", {"latency_ms": -1}, "latency_ms is -1: expected a finite number of at least 0 milliseconds"),
    ("feedback", {}, "feedback is empty"),
    ("feedback", {"stars": 9}, "stars is 9: expected a whole number from 1"),
    ("feedback", {"stars": "five"}, "stars is 'five': expected"),
    ("feedback", {"thumbs": "sideways"}, "thumbs is 'sideways': expected 'up' or 'down'"),
    ("feedback", {"comment": 3}, "comment is 3: expected a text"),
]


@pytest.mark.parametrize(("method", "given", "message"), WRONG)
def test_wrong_arguments_raise_at_the_call_and_lose_nothing(method: str, given: dict[str, Any], message: str) -> None:
    bus = MemoryBus()
    collector = collecting(bus)
    with collector.task("x") as task, pytest.raises(DataError, match=message):
        getattr(task, method)(**given)
    if method == "feedback":
        with pytest.raises(DataError, match=message):
            collector.feedback("t-1", **given)
    event = only_trajectory(bus)
    assert (event.outcome.success, event.outcome.cost_usd, event.turns, event.feedback) == (True, None, (), ())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"task": 3}, "task is 3: expected a text that says what is to be done"),
        ({"user": 42}, "user is 42: expected a text of 1 to 256 characters, such as 'u1'"),
        ({"user": ""}, "user is '': expected a text"),
        ({"group": "g" * 257}, "group is 'g+…: expected a text"),
        ({"problem": 1}, "problem is 1: expected a text"),
        ({"metadata": ["a"]}, r"metadata is \['a'\]: expected a mapping"),
        ({"collect": "no"}, "collect is 'no': expected True or False"),
        ({"id": "not an id"}, "id is 'not an id': expected 1 to 128 letters"),
        ({"id": "ana@example.com"}, "id holds an '@'"),
    ],
)
def test_a_task_with_wrong_arguments_does_not_begin(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        collecting(MemoryBus()).task(**({"task": "x"} | given))
    with pytest.raises(DataError, match="trajectory_id is 't 1': expected 1 to 128 letters"):
        collecting(MemoryBus()).feedback("t 1", stars=1)


def test_numbers_of_numpy_and_decimals_are_numbers() -> None:
    bus = MemoryBus()
    with collecting(bus).task("x") as task:
        task.decide("tone", {"mood": np.float32(0.5), "on": np.bool_(True)}, options=["a"])
        task.turn(cost_usd=Decimal("0.25"), latency_ms=np.int64(3))  # type: ignore[arg-type]
        task.outcome(success=np.bool_(False), quality={"judge": np.float64(1)}, subtasks=np.int64(2))  # type: ignore[arg-type]
    event = only_trajectory(bus)
    assert event.decisions[0].context == {"mood": 0.5, "on": True}
    assert (event.turns[0].cost_usd, event.turns[0].latency_ms) == (0.25, 3.0)
    assert (event.outcome.success, event.outcome.quality, event.outcome.subtasks) == (False, {"judge": 1.0}, 2)


@pytest.mark.parametrize(
    ("context", "kept"),
    [
        ("a question", "a question"),
        (3, 3),
        (0.5, 0.5),
        (True, True),
        (None, None),
        ({"a": 1, "b": "x", "c": False, "d": ["p", "q"], "e": None}, {"a": 1, "b": "x", "c": False, "d": ["p", "q"]}),
    ],
)
def test_a_context_is_text_numbers_or_a_mapping_of_these(context: Any, kept: Any) -> None:
    bus = MemoryBus()
    with collecting(bus).task("x") as task:
        task.decide("tone", context, options=["a"])
    assert only_trajectory(bus).decisions[0].context == kept


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (float("nan"), "context is nan: expected a text, a finite number"),
        (["a"], r"context is \['a'\]: expected a text"),
        (object, "context is <class 'object'>: expected"),
        ({1: "a"}, "context has the key 1: expected a text"),
        ({"a": float("inf")}, r"context\['a'\] is inf: expected a text, a finite number, True or False$"),
        ({"a": [1, 2]}, r"context\['a'\] is \[1, 2\]: expected a list of texts"),
        ({"a": {"b": 1}}, r"context\['a'\] is \{'b': 1\}, a mapping inside a mapping: name its values one by one"),
    ],
)
def test_a_context_that_no_policy_could_read_is_refused(context: Any, message: str) -> None:
    bus = MemoryBus()
    with collecting(bus).task("x") as task, pytest.raises(DataError, match=message):
        task.decide("tone", context, options=["a"])
    assert task.decisions == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "options is None: expected a list of names"),
        ({"options": []}, "options is empty"),
        ({"eligible": "ab"}, "eligible is 'ab': expected a list of names"),
        ({"options": ["a", None]}, r"options\[1\] is None: it has no name"),
        ({"options": ["a", {"name": "a"}]}, r"options\[1\] has the name 'a', as options\[0\] has"),
        ({"options": ["a"], "default": "b"}, "default is 'b', which is not among the options: expected one of 'a'"),
        ({"options": ["a"], "quality_weight": 2}, "quality_weight is 2: expected a number from 0 to 1"),
        ({"options": ["a"], "max_cost_usd": -1}, "max_cost_usd is -1: expected a finite number of at least 0 USD"),
        ({"options": ["a"], "max_latency_ms": "1s"}, "max_latency_ms is '1s': expected"),
        ({"options": ["a"], "region": 3}, "region is 3: expected a text"),
        ({"options": ["a"], "allowed": "a"}, "allowed is 'a': expected a list of names"),
        ({"options": ["a"], "allowed": ["b"]}, r"none of the 1 options may be chosen \('a': it is not among allowed\)"),
        ({"name": 3, "options": ["a"]}, "name is 3: expected a text of 1 to 256 characters, such as 'tone'"),
        ({"name": "n" * 256, "options": ["a"]}, "name is 'choice:n+…: expected a text of 1 to 256"),
    ],
)
def test_wrong_arguments_of_a_choice_raise_at_the_call(given: dict[str, Any], message: str) -> None:
    with collecting(MemoryBus()).task("x") as task, pytest.raises(DataError, match=message):
        task.decide(**({"name": "tone"} | given))
    assert task.decisions == ()


MODELS: list[dict[str, Any]] = [
    {"name": "small", "description": "quick", "cost_usd": 0.001, "regions": ["eu", "us"]},
    {"name": "large", "description": "good", "cost_usd": 0.02, "regions": ["us"]},
    {"name": "slow", "latency_ms": 60_000},
]


@pytest.mark.parametrize(
    ("wanted", "eligible"),
    [
        ({}, ["small", "large", "slow"]),
        ({"max_cost_usd": 0.01}, ["small", "slow"]),
        ({"max_latency_ms": 500}, ["small", "large"]),
        ({"region": "eu"}, ["small", "slow"]),
        ({"allowed": ["large", "other"]}, ["large"]),
        ({"allowed": {"large", "small"}, "region": "eu", "default": "large"}, ["small"]),
    ],
)
def test_what_the_preferences_rule_out_is_never_chosen(wanted: dict[str, Any], eligible: list[str]) -> None:
    for make in (Uniform, Default):
        with collecting(MemoryBus(), policy=make).task("x") as task:
            picked = {task.decide("model", options=MODELS, **wanted)["name"] for _ in range(50)}
        assert picked == ({eligible[0]} if make is Default else set(eligible))
        for decision in task.decisions:
            assert decision.eligible == [model for model in MODELS if model["name"] in eligible]
            assert decision.action in eligible
            assert decision.propensity == (1.0 if make is Default else 1 / len(eligible))


def test_the_default_policy_gives_the_default_option() -> None:
    with collecting(MemoryBus(), policy=Default).task("x") as task:
        assert task.decide("model", options=MODELS) == MODELS[0]
        assert task.decide("model", options=MODELS, default="large") == MODELS[1]
        assert task.decide("model", options=MODELS, default=MODELS[2]) == MODELS[2]
    assert [(d.action, d.policy) for d in task.decisions] == [(n, "default") for n in ("small", "large", "slow")]


def test_without_a_policy_the_default_is_given_and_without_a_default_all_are_sampled() -> None:
    with collecting(MemoryBus(), policy=Start).task("x") as task:
        kept = [task.decide("model", options=["a", "b", "c"], default="b") for _ in range(50)]
        other = task.decide("model", options=["a", "b", "c"], default="b", allowed=["a", "c"])
        sampled = [task.decide("model", options=["a", "b", "c"]) for _ in range(50)]
    assert {(one, one.policy, one.propensity) for one in kept} == {("b", "default", 1.0)}
    assert (other, other.policy, other.propensity) == ("a", "default", 1.0)
    assert {(one, one.policy, one.propensity) for one in sampled} == {(name, "uniform", 1 / 3) for name in "abc"}


def test_a_default_that_explores_has_exact_propensities() -> None:
    policy = Start("choice:tone", explore=0.2)
    asked = [DecisionRequest(options=("a", "b", "c", "d"), default="b", seed=seed) for seed in range(4000)]
    made = [policy.decide(request) for request in asked]
    assert {one.policy for one in made} == {"default+sampled"}
    for name in "abcd":
        own = [one.propensity for one in made if one.action == name]
        assert own == pytest.approx([0.85 if name == "b" else 0.05] * len(own))
        assert len(own) / len(made) == pytest.approx(own[0], abs=0.02)


def test_what_decide_returns_is_the_option() -> None:
    bus = MemoryBus()
    with collecting(bus).task("x") as task:
        tone = task.decide("tone", options=["formal"])
        model = task.decide("model", options=[MODELS[1]])
        count = task.decide("count", options=[3])
        heat = task.decide("heat", options=[0.5])
        asks = task.decide("asks", options=[True])
        assert asks is True
    assert isinstance(tone, str)
    assert tone == "formal"
    assert f"be {tone}" == "be formal"
    assert tone in {"formal": 1}
    assert (model, model["cost_usd"], count + 1, heat * 2) == (MODELS[1], 0.02, 4, 1.0)
    returned: list[tuple[Any, Any]] = [(tone, "formal"), (model, MODELS[1]), (count, 3), (heat, 0.5)]
    for found, plainly in returned:
        assert (found.propensity, found.policy, found.expected) == (1.0, "uniform", {})
        assert found.decision.action == plainly
        assert repr(found) == repr(plainly)
        assert json.loads(json.dumps([found])) == [plainly]
        for same in (pickle.loads(pickle.dumps(found)), copy.copy(found), copy.deepcopy(found)):
            assert type(same) is type(plainly)
            assert same == plainly
    logged = task.decisions
    assert [d.action for d in logged] == ["formal", "large", "3", "0.5", "true"]
    assert [d.eligible for d in logged] == [["formal"], [MODELS[1]], [3], [0.5], [True]]
    assert only_trajectory(bus).decisions == logged


class Tone(StrEnum):
    FORMAL = "formal"


def test_a_member_of_an_enum_comes_back_as_itself() -> None:
    with collecting(MemoryBus()).task("x") as task:
        assert task.decide("tone", options=list(Tone)) is Tone.FORMAL
    assert task.decisions[0].action == "formal"


def test_decisions_made_elsewhere_are_logged_with_what_is_known() -> None:
    bus = MemoryBus()
    with collecting(bus).task("x") as task:
        task.decided("route", "gpt", policy="router-7", propensity=0.25, eligible=["gpt", "llama"])
        task.decided("model", MODELS[1], policy="router-7", options=MODELS)
        task.decided("model", "slow", policy="router-7", options=MODELS)
        task.decided("asks", True, policy="person")
        task.decided("plan", [1], policy="rules", eligible=[[1], [2]])
    decisions = only_trajectory(bus).decisions
    assert [(d.action, d.propensity) for d in decisions] == [
        *(("gpt", 0.25), ("large", None), ("slow", None), ("true", None), ([1], None)),
    ]
    assert decisions[1].eligible == MODELS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"propensity": 1.5}, r"propensity is 1\.5: expected"),
        ({"propensity": 0}, "propensity is 0: expected the probability of the action, above 0 and at most 1"),
        ({"propensity": 1.5}, "propensity is 1.5: expected the probability of the action, above 0 and at most 1"),
        ({"propensity": "half"}, "propensity is 'half': expected"),
        ({"policy": ""}, "policy is '': expected a text of 1 to 256 characters, such as 'router-7'"),
        ({"options": ["a", "gtp"]}, "action is 'gpt', which is not among the options: .*expected one of 'a', 'gtp'"),
        ({"options": ["gpt", "gpt"]}, r"options\[1\] has the name 'gpt'"),
        ({"action": object()}, "action is <object .*: expected the chosen option, or its name"),
        ({"name": "plan", "options": ["a"]}, "action is 'gpt': expected one of the options"),
        ({"context": [1]}, r"context is \[1\]"),
    ],
)
def test_a_decision_that_cannot_have_been_made_is_not_logged(given: dict[str, Any], message: str) -> None:
    with collecting(MemoryBus()).task("x") as task, pytest.raises(DataError, match=message):
        task.decided(**({"name": "route", "action": "gpt", "policy": "router-7"} | given))
    assert task.decisions == ()


def test_uniform_samples_evenly_and_repeats_itself_for_the_same_request() -> None:
    uniform = Uniform("choice:tone")
    asked = [DecisionRequest(options=("a", "b", "c", "d"), seed=seed) for seed in range(4000)]
    chosen = [uniform.decide(request).action for request in asked]
    assert all(900 < chosen.count(action) < 1100 for action in "abcd")
    assert [uniform.decide(request).action for request in asked] == chosen
    with pytest.raises(DataError, match=r"options of 'choice:tone' are empty: give options="):
        uniform.decide(DecisionRequest(options=()))


@pytest.mark.parametrize("name", ["model", "tone", "workflow"])
def test_a_choice_of_the_users_own_is_no_problem_of_that_name(name: str) -> None:
    bus = MemoryBus()
    with collecting(bus).task("x") as task:
        task.decide(name, options=["a", "b"])
        task.decided(name, "a", policy="router-7", options=["a", "b"])
        task.decided("plan", [], policy="rules")
    event = only_trajectory(bus)
    assert event.problem == f"choice:{name}"
    assert [decision.problem for decision in event.decisions] == [f"choice:{name}", f"choice:{name}", "plan"]
    assert event.decisions[1].eligible == ["a", "b"]


def test_a_task_without_a_decision_has_a_problem_of_its_own() -> None:
    bus = MemoryBus()
    collector = collecting(bus)
    for problem in (None, "task", "tone", "plan"):
        with collector.task("x", problem=problem):
            ...
    found = [event.problem for event in published(bus) if isinstance(event, Trajectory)]
    assert found == ["task", "task", "choice:tone", "plan"]


def test_eligible_is_another_name_for_options() -> None:
    bus = MemoryBus()
    with collecting(bus).task("x") as task:
        assert task.decide("tone", eligible=["a"]) == "a"
        with pytest.raises(DataError, match="two names of one argument"):
            task.decide("tone", options=["a"], eligible=["a"])
    assert only_trajectory(bus).decisions[0].eligible == ["a"]


def test_users_who_opted_out_are_looked_up_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = iter([frozenset({"u1"}), frozenset({"u2"})])
    users = OptOuts(lambda: next(reads))
    assert users() == users() == {"u1"}
    monkeypatch.setattr("etude.experience.task.monotonic", lambda: float("inf"))
    assert users() == {"u2"}


def test_a_user_is_logged_under_a_pseudonym(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> frozenset[str]:
        raise BusError("the store cannot be read")

    collector = dataclasses.replace(collecting(MemoryBus()), opted_out=broken)
    with collector.task("x", user="ana@example.com"):
        ...
    assert "ana" not in caplog.text
    assert pseudonym("ana@example.com") in caplog.text
