"""`etude.task`: what an agent's loop publishes, and which failures never reach it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from etude.adapters.memory_bus import MemoryBus
from etude.contracts.bus import Message
from etude.contracts.decision import DecisionRequest
from etude.contracts.errors import BusError, DataError
from etude.contracts.subjects import TRAJECTORIES, decode
from etude.contracts.trajectory import Event, Feedback, Trajectory
from etude.experience.cleaning import Cleaner, pseudonym
from etude.experience.deciders import Uniform
from etude.experience.redact import RedactionConfig
from etude.experience.task import Collector, OptOuts

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


class Full(MemoryBus):
    """A bus whose disk is full."""

    def publish(self, messages: Sequence[Message]) -> None:
        raise BusError("the disk is full: make room")


def collecting(bus: MemoryBus, *, out: frozenset[str] = frozenset()) -> Collector:
    return Collector(
        bus=bus,
        clean=Cleaner(RedactionConfig()),
        problem_of=lambda name: name if name == "plan" else f"choice:{name}",
        decider=Uniform,
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
    assert event.turns[0].action == choice.action
    assert event.redacted == {"email": 2}
    assert event.outcome.success is True
    assert event.outcome.cost_usd == 0.75
    assert event.outcome.quality == {"judge": 0.75}
    assert event.outcome.latency_ms is not None
    (decision,) = event.decisions
    assert (decision.propensity, decision.eligible, decision.action) == (0.5, ["formal", "casual"], choice.action)
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
        assert task.decide("tone", eligible=["a"]).action == "a"  # they are served like anybody
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


def test_what_does_not_fit_the_schema_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    bus = MemoryBus()
    collector = collecting(bus)
    with caplog.at_level(logging.ERROR, logger="etude"), collector.task("x", id="not an id") as task:
        task.turn(cost_usd=-3)
    assert collector.failed == 1
    assert published(bus) == []
    assert "schema" in caplog.text


def test_feedback_comes_later() -> None:
    bus = MemoryBus()
    assert collecting(bus).feedback("t-1", thumbs="down", stars=2, comment="call 555-0100 or ana@example.com")
    (event,) = published(bus)
    assert isinstance(event, Feedback)
    assert (event.trajectory_id, event.thumbs, event.stars) == ("t-1", "down", 2)
    assert "ana@example.com" not in (event.comment or "")


@pytest.mark.parametrize("said", [{}, {"stars": 9}, {"thumbs": "sideways"}, {"stars": "five"}])
def test_feedback_that_says_nothing_or_nonsense_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        collecting(MemoryBus()).feedback("t-1", **said)


def test_decisions_made_elsewhere_are_logged_with_what_is_known() -> None:
    bus = MemoryBus()
    with collecting(bus).task("x") as task:
        task.decided("route", "gpt", policy="router-7", propensity=0.25, eligible=["gpt", "llama"])
        with pytest.raises(DataError, match=r"propensity is 1\.5"):
            task.decided("route", "gpt", policy="router-7", propensity=1.5)
    (decision,) = only_trajectory(bus).decisions
    assert (decision.policy, decision.propensity, decision.action) == ("router-7", 0.25, "gpt")


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
        assert task.decide("tone", eligible=["a"]).action == "a"
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
