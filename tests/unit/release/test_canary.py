"""A candidate is promoted on proof, rolled back on harm, held when undecided, whoever runs the controller and dies."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import numpy as np
import pytest

from etude.contracts.decision import DecisionRequest
from etude.contracts.errors import ConfigError, ConflictError, ReleaseError
from etude.contracts.release import Action, Mode, ReleaseEntry, State
from etude.evidence.eprocess import EvidenceConfig
from etude.release.audit import replay
from etude.release.canary import Controller
from tests.unit.release.traffic import SLOT, Traffic


def actions(entries: object) -> list[Action]:
    assert isinstance(entries, list)
    return [entry.action for entry in entries]


def test_a_better_candidate_passes_every_stage_and_is_promoted(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, success=(0.6, 0.8))
    traffic.start(config={"holdback_days": 0.0})
    done = traffic.until_decided()
    assert actions(done) == [Action.ADVANCED, Action.ADVANCED, Action.PROMOTED]
    head = traffic.registry.head(SLOT)
    assert head is not None
    assert head.serving.incumbent == traffic.new
    assert head.serving.previous == traffic.old
    assert head.states == {traffic.old: State.PREVIOUS, traffic.new: State.SERVING}
    assert traffic.served.version == traffic.new  # followed at the next decision


def test_a_harmful_candidate_is_rolled_back_soon_and_serves_no_more(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, success=(0.7, 0.3))
    traffic.start()
    done = traffic.until_decided(step=50)
    assert actions(done) == [Action.ROLLED_BACK]
    assert "does harm" in done[0].reason
    assert traffic.tasks < 1_500
    before = traffic.tasks
    traffic.serve(200)
    assert {traffic.served_by[f"t-{i:06d}"] for i in range(before + 1, before + 201)} == {traffic.old}
    head = traffic.registry.head(SLOT)
    assert head is not None
    assert head.states[traffic.new] is State.ROLLED_BACK


def test_a_candidate_whose_tasks_never_arrive_counts_as_the_worst(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, success=(0.7, 1.0))
    traffic.start()
    done = traffic.until_decided(step=50, lost=frozenset({traffic.new}))
    assert actions(done) == [Action.ROLLED_BACK]


def test_errors_alone_roll_a_candidate_back(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, success=(0.7, 0.7))
    traffic.start()
    done = traffic.until_decided(step=250, units=8_000, error={traffic.old: 0.02, traffic.new: 0.2})
    assert actions(done) == [Action.ROLLED_BACK]
    assert done[0].evidence["log_e_values"]["errors"] > done[0].evidence["log_e_values"]["harm"]


def test_a_candidate_that_raises_is_replaced_by_the_incumbent_and_counts_as_failed(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.start(config={"window_s": 3600.0, "early_window_s": None})
    traffic.policies[traffic.new].broken = True
    traffic.serve(100)  # before any window has closed
    done = traffic.controller().reconcile(SLOT)
    assert set(traffic.served_by.values()) == {traffic.old}  # the user saw nothing of it
    assert actions(done) == [Action.ROLLED_BACK]
    assert "failed 5 times in a row: RuntimeError: out of order" in done[0].reason


def test_a_candidate_that_fails_now_and_then_is_no_crash_loop(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.start(config={"window_s": 3600.0, "early_window_s": None})
    traffic.policies[traffic.new].fails_every = 4
    traffic.serve(400)
    assert traffic.policies[traffic.new].asked > 20
    assert traffic.controller().reconcile(SLOT) == []


def test_an_answer_that_is_no_decision_ends_the_release_at_once(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.start()
    traffic.policies[traffic.new].propensity = 0.0
    traffic.serve(60)
    done = traffic.controller().reconcile(SLOT)
    assert actions(done) == [Action.ROLLED_BACK]
    assert "its propensity is 0.0" in done[0].reason
    assert set(traffic.served_by.values()) == {traffic.old}


@pytest.mark.parametrize("early", [60.0, None])
def test_errors_roll_back_before_the_window_closes(tmp_path: Path, early: float | None) -> None:
    traffic = Traffic(tmp_path)
    traffic.start(config={"window_s": 7200.0, "early_window_s": early})
    traffic.serve(2_000, error={traffic.old: 0.01, traffic.new: 0.3})
    done = traffic.controller().reconcile(SLOT)
    if early is None:
        assert done == []
        return
    assert actions(done) == [Action.ROLLED_BACK]
    assert done[0].evidence["decided_by"][0]["name"] == "early_errors"
    assert done[0].evidence["units"] == 0
    assert replay(traffic.open_registry(), done[0]).is_equal


@pytest.mark.parametrize("duration_s", [0.0, 80.0])
def test_a_quicker_candidate_with_as_many_errors_is_not_rolled_back(tmp_path: Path, duration_s: float) -> None:
    traffic = Traffic(tmp_path)
    traffic.start(config={"window_s": 7200.0}, duration_s=duration_s)
    error, latency_ms = dict.fromkeys(traffic.versions, 0.3), {traffic.old: 70e3, traffic.new: 20e3}
    traffic.serve(1_500, error=error, latency_ms=latency_ms)
    done = traffic.controller().reconcile(SLOT)
    # The incumbent's tasks take longer than the 60 seconds after which errors count, if nothing is known of durations.
    assert actions(done) == ([] if duration_s else [Action.ROLLED_BACK])


def test_errors_count_when_most_tasks_have_ended(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    for duration_s, expected in ((5.0, 60.0), (80.0, 80.0), (3600.0, None)):
        spec = traffic.spec(config={"window_s": 3600.0}, duration_s=duration_s)
        assert spec.early_window_s == expected
    assert traffic.spec(config={"early_window_s": None, "window_s": 3600.0}).early_window_s is None


def test_latency_is_a_guardrail_and_an_objective(tmp_path: Path) -> None:
    weights = EvidenceConfig(reward_weight=0.5, error_weight=0.3, guardrails={"latency": 0.2})
    slower = {"old": 100.0, "new": 900.0}
    for name, config in {
        "guardrail": {"evidence": weights, "latency_limit_ms": 1000.0},
        "objective": {"latency_objective_ms": 500.0},
    }.items():
        traffic = Traffic(tmp_path / name)
        traffic.start(config=config)
        times = dict(zip(traffic.versions, slower.values(), strict=True))
        done = traffic.until_decided(units=8_000, latency_ms=times)
        assert actions(done)[-1:] == [Action.ROLLED_BACK], name
        assert done[-1].evidence["decided_by"][0]["name"] == {"guardrail": "rollback", "objective": "slow"}[name]


@pytest.mark.parametrize("name", ["latency", "beauty"])
def test_a_guardrail_without_a_score_is_refused(tmp_path: Path, name: str) -> None:
    weights = EvidenceConfig(reward_weight=0.5, error_weight=0.3, guardrails={name: 0.2})
    with pytest.raises(ConfigError, match=f"guardrails has '{name}'"):
        Traffic(tmp_path).start(config={"evidence": weights})


def test_units_enter_once_in_the_order_of_assignment_when_their_window_closes(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    entry = traffic.start()
    controller = traffic.controller()
    traffic.serve(100)
    controller.reconcile(SLOT)
    release = controller.release(entry.evidence["release"])
    assert release.evidence.count == 40  # one per second, a window of 60 seconds
    controller.reconcile(SLOT)
    assert release.evidence.count == 40
    traffic.now += timedelta(hours=1)
    controller.reconcile(SLOT)
    closed = [unit for entry in release.ledger.entries() for unit in entry.units]
    assert [unit.unit for unit in closed] == [f"t-{i:06d}" for i in range(1, 101)]
    assert {unit.share for unit in closed} == {0.1}


def test_a_unit_keeps_arm_and_share_of_its_first_assignment(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.start()
    first = {f"c-{i}": traffic.served.decide(DecisionRequest(trajectory=f"c-{i}")).policy for i in range(300)}
    traffic.registry.record(
        SLOT,
        Action.ADVANCED,
        traffic.new,
        actor="ada",
        change=lambda serving: msgspec.structs.replace(
            serving, exposure=msgspec.structs.replace(serving.exposure, share=0.9)
        ),
    )
    again = {name: traffic.served.decide(DecisionRequest(trajectory=name)).policy for name in first}
    assert again == first


def test_conversations_keep_their_arm_in_another_process(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.start(config={"unit": "conversation"})
    asked = [DecisionRequest(trajectory=f"t-{i}", conversation=f"c-{i % 50}") for i in range(100)]
    first = {request.conversation: traffic.served.decide(request).policy for request in asked[:50]}
    traffic.registry.record(
        SLOT,
        Action.ADVANCED,
        traffic.new,
        actor="ada",
        change=lambda serving: msgspec.structs.replace(
            serving, exposure=msgspec.structs.replace(serving.exposure, share=0.9)
        ),
    )
    other = traffic.open_policy()
    other.prepare()
    assert {request.conversation: other.decide(request).policy for request in asked[50:]} == first


def test_without_a_trajectory_the_incumbent_decides(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.start()
    assert {traffic.served.decide(DecisionRequest(seed=i)).policy for i in range(200)} == {traffic.old}


@pytest.mark.parametrize("dies_after", range(1, 9))
def test_a_controller_that_dies_at_any_write_leads_to_the_same_end(tmp_path: Path, dies_after: int) -> None:
    """Every write is one blob, so dying after each of them covers all states that are left behind."""
    whole = Traffic(tmp_path / "whole", success=(0.7, 0.3), seed=3)
    whole.start(id="r-1")
    expected = whole.until_decided(step=100)

    traffic = Traffic(tmp_path / "dying", success=(0.7, 0.3), seed=3)
    traffic.start(id="r-1")
    put, writes = type(traffic.registry.blobs).put, 0

    class DiedError(BaseException):
        pass

    def dying(self: object, key: str, data: bytes, *, replace: bool = True) -> bool:
        nonlocal writes
        done = put(traffic.registry.blobs, key, data, replace=replace)  # type: ignore[arg-type]
        writes += 1
        if writes == dies_after:
            raise DiedError
        return done

    traffic.registry.blobs.put = dying.__get__(traffic.registry.blobs)  # type: ignore[method-assign]
    controller, done = traffic.controller(), []
    while traffic.registry.serving(SLOT).exposure is not None and traffic.tasks < 5_000:
        traffic.serve(100)
        try:
            done += controller.reconcile(SLOT)
        except DiedError:
            traffic.registry = traffic.open_registry()  # a new process reads everything again
            controller = traffic.controller()
            done += controller.reconcile(SLOT)
    last = traffic.registry.history(SLOT)[-1]
    assert last.action is expected[-1].action
    assert last.evidence == expected[-1].evidence
    assert [e.action for e in traffic.registry.history(SLOT)] == [e.action for e in whole.registry.history(SLOT)]


def test_two_controllers_at_once_agree(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, success=(0.7, 0.3))
    entry = traffic.start()
    one = traffic.controller()
    two = Controller(
        registry=traffic.open_registry(), store=traffic.store, journal=traffic.folder / "journal", clock=traffic.clock
    )
    done = []
    while traffic.registry.serving(SLOT).exposure is not None:
        traffic.serve(100)
        done += [*one.reconcile(SLOT), *two.reconcile(SLOT)]
    assert actions(done) == [Action.ROLLED_BACK]
    ledger = traffic.registry.ledger(f"releases/{entry.evidence['release']}", ReleaseEntry)
    units = [unit.unit for step in ledger.entries() for unit in step.units]
    assert len(units) == len(set(units))


def test_shadow_comes_first_and_an_error_there_ends_the_release(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.start(config={"shadow_answers": 20})
    exposure = traffic.registry.serving(SLOT).exposure
    assert exposure is not None
    assert (exposure.mode, exposure.share) == (Mode.SHADOW, 0.0)
    traffic.serve(30)
    _until(lambda: len(_shadow_lines(tmp_path)) >= 30)
    assert set(traffic.served_by.values()) == {traffic.old}
    assert actions(traffic.controller().reconcile(SLOT)) == [Action.ADVANCED]
    exposure = traffic.registry.serving(SLOT).exposure
    assert exposure is not None
    assert (exposure.mode, exposure.share) == (Mode.CANARY, 0.1)


def test_a_candidate_that_fails_in_shadow_gets_no_traffic(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.start(config={"shadow_answers": 20})
    traffic.policies[traffic.new].broken = True
    traffic.serve(5)
    _until(lambda: bool(_shadow_lines(tmp_path)))
    done = traffic.controller().reconcile(SLOT)
    assert actions(done) == [Action.ROLLED_BACK]
    assert "out of order" in done[0].reason


def test_options_of_any_type_are_compared_in_shadow(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.start(config={"shadow_answers": 20})
    for policy in traffic.policies.values():
        policy.option = {"name": "large", "price": np.float64(0.5), "client": object}
    traffic.serve(30)
    _until(lambda: len(_shadow_lines(tmp_path)) >= 30)
    (step,) = traffic.controller().reconcile(SLOT)
    assert step.action is Action.ADVANCED, step.reason
    assert step.evidence["shadow"]["same"] >= 30


def test_a_stage_lasts_its_minimum_duration(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, success=(0.3, 0.9))
    traffic.start(config={"over_minutes": 600.0})
    controller = traffic.controller()
    traffic.serve(3_000)
    assert controller.reconcile(SLOT) == []
    traffic.now += timedelta(minutes=200)
    assert actions(controller.reconcile(SLOT)) == [Action.ADVANCED]


def test_undecided_at_its_horizon_it_is_held_and_never_promoted(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.start(config={"evidence": EvidenceConfig(horizon=500)})
    traffic.serve(700)
    controller = traffic.controller()
    assert actions(controller.reconcile(SLOT)) == [Action.HELD]
    assert controller.reconcile(SLOT) == []
    traffic.serve(500)
    assert controller.reconcile(SLOT) == []
    assert traffic.registry.serving(SLOT).incumbent == traffic.old


def test_pause_assigns_no_unit_and_resume_continues(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.start()
    controller = traffic.controller()
    traffic.serve(500)
    controller.pause(SLOT, by="ada")
    before = traffic.tasks
    traffic.serve(500)
    assert {traffic.served_by[f"t-{i:06d}"] for i in range(before + 1, before + 501)} == {traffic.old}
    controller.resume(SLOT, by="ada")
    traffic.serve(500)
    traffic.now += timedelta(hours=1)
    controller.reconcile(SLOT)
    exposure = traffic.registry.serving(SLOT).exposure
    assert exposure is not None
    assert exposure.share == 0.1
    assert controller.release(exposure.release).evidence.count == 1_000


def test_a_holdback_catches_harm_that_comes_later(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, success=(0.6, 0.8))
    traffic.start(config={"holdback_days": 7.0})
    controller = traffic.controller()
    while traffic.registry.serving(SLOT).incumbent == traffic.old:
        traffic.serve(500)
        controller.reconcile(SLOT)
    exposure = traffic.registry.serving(SLOT).exposure
    assert exposure is not None
    assert (exposure.mode, exposure.share) == (Mode.HOLDBACK, 0.95)
    traffic.success[traffic.new] = 0.1
    done = []
    while not done and traffic.tasks < 30_000:
        traffic.serve(250)
        done = controller.reconcile(SLOT)
    assert actions(done) == [Action.ROLLED_BACK]
    assert traffic.registry.serving(SLOT).incumbent == traffic.old


def test_a_holdback_ends_after_its_days(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, success=(0.6, 0.8))
    traffic.start(config={"holdback_days": 1.0})
    traffic_until_promoted(traffic)
    traffic.now += timedelta(days=1)
    assert actions(traffic.controller().reconcile(SLOT)) == [Action.STOPPED]
    assert traffic.registry.serving(SLOT).exposure is None


def traffic_until_promoted(traffic: Traffic) -> None:
    controller = traffic.controller()
    while traffic.registry.serving(SLOT).incumbent == traffic.old:
        traffic.serve(500)
        controller.reconcile(SLOT)


def test_falling_rewards_after_a_release_raise_one_alarm_and_roll_nothing_back(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, success=(0.6, 0.8))
    traffic.start(config={"holdback_days": 0.0})
    traffic_until_promoted(traffic)
    controller = traffic.controller()
    traffic.serve(2_000)
    assert controller.reconcile(SLOT) == [], "as good as in the canary"
    traffic.success[traffic.new] = 0.3
    traffic.serve(1_000)
    traffic.now += timedelta(minutes=2)
    done = controller.reconcile(SLOT)
    assert actions(done) == [Action.ALARMED]
    assert "mean score fell" in done[0].reason
    assert traffic.registry.serving(SLOT).incumbent == traffic.new
    traffic.serve(500)
    assert controller.reconcile(SLOT) == []
    assert traffic.controller().reconcile(SLOT) == [], "another controller knows of the alarm"


def test_promotion_waits_for_an_approval_where_one_is_required(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, success=(0.3, 0.9))
    traffic.registry.require_approval = True
    traffic.start(config={"holdback_days": 0.0})
    traffic.until_decided(units=12_000, step=1_000, error=dict.fromkeys(traffic.versions, 0.0))
    assert traffic.registry.serving(SLOT).incumbent == traffic.old
    traffic.registry.approve(SLOT, traffic.new, by="ada")
    assert actions(traffic.controller().reconcile(SLOT)) == [Action.PROMOTED]


def test_every_decision_replays_to_the_same_e_values(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, success=(0.6, 0.8))
    traffic.start(config={"holdback_days": 0.0})
    for entry in traffic.until_decided():
        found = replay(traffic.open_registry(), entry)
        assert found.is_equal
        changed = msgspec.structs.replace(entry, evidence=entry.evidence | {"through": entry.evidence["through"] - 1})
        assert not replay(traffic.open_registry(), changed).is_equal


def test_an_experiment_is_never_promoted_but_rolled_back_on_harm(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, success=(0.3, 0.9))
    traffic.start(Mode.EXPERIMENT)
    traffic.until_decided(units=4_000)
    assert traffic.registry.serving(SLOT).incumbent == traffic.old
    traffic.success[traffic.new] = 0.0
    assert actions(traffic.until_decided(units=30_000)) == [Action.ROLLED_BACK]


def test_one_release_at_a_time(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.start()
    with pytest.raises(ReleaseError, match="already"):
        traffic.start()


def test_a_release_against_a_policy_that_no_longer_serves_is_refused(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    with pytest.raises(ConflictError, match="serves now"):
        traffic.start(incumbent="0" * 16)


def test_a_version_that_failed_its_gates_cannot_be_exposed(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    traffic.registry.record(SLOT, Action.GATES_FAILED, traffic.new, actor="test")
    with pytest.raises(ReleaseError, match="refused"):
        traffic.start()


def test_a_clock_that_jumps_back_loses_and_repeats_no_unit(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    entry = traffic.start()
    controller = traffic.controller()
    traffic.serve(200)
    controller.reconcile(SLOT)
    traffic.now -= timedelta(hours=2)
    traffic.serve(200)
    controller.reconcile(SLOT)
    traffic.now += timedelta(hours=5)
    controller.reconcile(SLOT)
    ledger = traffic.registry.ledger(f"releases/{entry.evidence['release']}", ReleaseEntry)
    units = [unit.unit for step in ledger.entries() for unit in step.units]
    assert len(units) == len(set(units)) == 400


def _shadow_lines(folder: Path) -> list[bytes]:
    return [line for path in (folder / "journal").rglob("*.shadow") for line in path.read_bytes().splitlines()]


def _until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)
