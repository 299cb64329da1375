"""Latency and memory: slow, leaking and oversized policies fail."""

from __future__ import annotations

import time

import pytest

from etude.contracts.decision import Decision, DecisionRequest
from etude.evidence.overlap import Verdict
from etude.learning.artefact import Artefact
from etude.learning.gate import GateConfig
from etude.release.gates import latency as latency_module
from etude.release.gates.gate import run_gate
from etude.release.gates.latency import latency, memory
from tests.unit.release.gates.policies import Crashes, Fills, Good, Leaks, Slow, make_contender, make_context

CONFIG = GateConfig(latency_calls=100, latency_p99_ms=2000.0, latency_p99_ms_by_problem={})


def test_a_quick_policy_passes_and_the_incumbent_is_measured_too(artefact: Artefact) -> None:
    context = make_context(artefact, config=CONFIG, incumbent=make_contender(artefact))
    found = run_gate("latency", latency, context)
    assert found.verdict is Verdict.PASS, found.reason
    assert 0 < found.evidence["p50_ms"] <= found.evidence["p99_ms"] <= found.evidence["max_ms"]
    assert found.evidence["incumbent_p99_ms"] > 0


def test_a_slow_policy_fails(artefact: Artefact) -> None:
    config = GateConfig(latency_calls=100, latency_p99_ms=2.9, latency_p99_ms_by_problem={})
    found = run_gate("latency", latency, make_context(artefact, Slow, config=config))
    assert found.verdict is Verdict.FAIL
    assert found.value is not None
    assert found.value > 3


class SlowNowAndThen(Good):
    """Every 20th decision takes longer, as where other work has the processor."""

    calls = interruptions = 0

    def decide(self, request: DecisionRequest) -> Decision:
        self.calls += 1
        if self.calls % 20 == 0:
            SlowNowAndThen.interruptions += 1
            time.sleep(0.2)
        return super().decide(request)


def test_a_busy_machine_cannot_tell(artefact: Artefact, monkeypatch: pytest.MonkeyPatch) -> None:
    config = GateConfig(latency_calls=100, latency_p99_ms=150.0, latency_p99_ms_by_problem={})
    context = make_context(artefact, SlowNowAndThen, config=config)
    assert run_gate("latency", latency, context).verdict is Verdict.FAIL, "it is slow by itself"
    monkeypatch.setattr(latency_module, "_switches", lambda: SlowNowAndThen.interruptions)
    found = run_gate("latency", latency, context)
    assert found.verdict is Verdict.CANNOT_TELL
    assert "too busy" in found.reason


def test_the_smaller_limit_of_the_problem_holds(artefact: Artefact) -> None:
    config = GateConfig(latency_calls=100, latency_p99_ms_by_problem={"choice": 2.9})
    assert run_gate("latency", latency, make_context(artefact, Slow, config=config)).bound == 2.9
    wider = GateConfig(latency_calls=100, latency_p99_ms_by_problem={"choice": 9_999.0})
    assert run_gate("latency", latency, make_context(artefact, Good, config=wider)).bound == 500.0


def test_a_policy_that_raises_fails(artefact: Artefact) -> None:
    from etude.contracts.decision import DecisionRequest

    context = make_context(artefact, Crashes, requests=[DecisionRequest(context="\ud800", options=("a",))])
    assert run_gate("latency", latency, context).verdict is Verdict.FAIL


def test_a_policy_of_constant_size_passes(artefact: Artefact) -> None:
    found = run_gate("memory", memory, make_context(artefact, config=CONFIG))
    assert found.verdict is Verdict.PASS, found.reason
    assert found.evidence["bytes_per_decision"] < 200


def test_a_policy_that_leaks_fails(artefact: Artefact) -> None:
    found = run_gate("memory", memory, make_context(artefact, Leaks, config=CONFIG))
    assert found.verdict is Verdict.FAIL
    assert found.value is not None
    assert 3_500 <= found.value < 6_000
    assert "leaves" in found.reason


def test_a_policy_that_is_too_large_fails(artefact: Artefact) -> None:
    config = GateConfig(latency_calls=100, memory_mb=50.0)
    found = run_gate("memory", memory, make_context(artefact, Fills, config=config))
    assert found.verdict is Verdict.FAIL
    assert found.value is not None
    assert found.value > 90
